"""Bi-encoders: one vector for a query, one for a document.

    train.py     the whole flow (read this first): data, negatives, one stage or two
    settings.py  the settings of `osn train dense`
    command.py   the command

DPR ("Dense Passage Retrieval" by Karpukhin et al. 2020), and the fine-tuning of `query-as-context-pretraining`.
"""
