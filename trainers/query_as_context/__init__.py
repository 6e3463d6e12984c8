"""Query-as-context pre-training: an encoder learns from passages and the queries generated for them.

    train.py     the whole flow (read this first)
    checks.py    checks before it begins
    settings.py  the settings of `osn train query-as-context`
    passages.py  splits documents into passages, and gets queries for them
    pairs.py     passages with their context, drawn and masked at every visit
    model.py     coCondenser and CoT-MAE
    pretrain.py  one pre-training, and the loss on held-back pairs

"Query-as-context Pre-training for Dense Passage Retrieval" (`query-as-context-pretraining`).
"""
