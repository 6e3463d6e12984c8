"""Masked language modelling: continue it on a corpus, start it, or teach a fresh head.

    train.py     the flow: start here
    settings.py  what `osn train mlm` is told
    windows.py   the corpus as windows of tokens on disk, each corrupted at every visit
    model.py     the masked language model under training

What is masked in a window stands in `trainers.data.masking`, for query-as-context masks too.
BERT (Devlin et al., 2019) and T5 (Raffel et al., 2020).
"""
