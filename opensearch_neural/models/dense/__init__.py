"""Dense models: one vector a document, several, or the bytes of its PQ code.

dense_encoder.py  what every dense encoder can do
torch_encoder.py  a dense encoder by torch
onnx_encoder.py   a dense encoder by ONNX Runtime
static_table.py   a dense encoder that looks up its tokens' vectors
pooling.py        from token vectors to one
multi_layer.py    several vectors a document, from several layers
quantized.py      dense vectors and their PQ codes
"""
