"""Masked language modelling: pre-training on a corpus, from a model or from scratch.

    train.py     the model in training, and the whole flow (read this first)
    settings.py  the settings of `osn train mlm`
    windows.py   the corpus as windows of tokens on disk, corrupted anew at every visit
    command.py   the command

`trainers.data.masking` chooses the tokens to mask; query-as-context uses it too.
BERT (Devlin et al., 2019) and T5 (Raffel et al., 2020).
"""
