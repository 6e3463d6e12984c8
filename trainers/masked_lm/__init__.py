"""Masked language modelling: pre-training on a corpus, from a model or from nothing.

    train.py     the flow: start here
    settings.py  the settings of `osn train mlm`
    windows.py   the corpus as windows of tokens on disk, each corrupted at every visit
    model.py     the masked language model under training

`trainers.data.masking` says which tokens of a window are masked; query-as-context uses it too.
BERT (Devlin et al., 2019) and T5 (Raffel et al., 2020).
"""
