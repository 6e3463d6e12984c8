"""Networks that methods start from and train.

backbones.py             BERT and T5 of any size, tokenizers, masked-LM heads
tower.py                 transformer, pooling, normalization, and its files
bi_encoder.py            two towers under contrastive and distillation terms
sequence_to_sequence.py  encoder and decoder under cross-entropy
"""
