"""Networks that methods start from and train.

settings.py              the sizes of a new backbone
backbones.py             BERT and T5 of any size, tokenizers, masked-LM heads
tower.py                 one tower: transformer, pooling, normalization, and its files
bi_encoder.py            two towers with contrastive and distillation terms
sequence_to_sequence.py  encoder and decoder with cross-entropy
"""
