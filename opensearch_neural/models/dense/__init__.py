"""Dense models: one vector per document, several, or the bytes of its PQ code.

dense_encoder.py  the interface of every dense encoder
torch_encoder.py  a dense encoder with torch
onnx_encoder.py   a dense encoder with ONNX Runtime
static_table.py   a dense encoder that looks up its tokens' vectors
pooling.py        turns token vectors into one vector
multi_layer.py    several vectors per document, from several layers
quantized.py      dense vectors and their PQ codes
"""
