"""Networks that methods start from and train.

backbones              BERT and T5 of any size, tokenizers, masked-LM heads
tower                  transformer, pooling, normalization, and its files
bi_encoder             two towers under contrastive and distillation terms
sequence_to_sequence   encoder and decoder under cross-entropy
"""
