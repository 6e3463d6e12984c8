"""Query-as-context pre-training: an encoder learns from a passage and a query that was written for it.

    train.py     the flow: start here
    checks.py    checks before it begins
    settings.py  the settings of `osn train query-as-context`
    passages.py  documents become passages, and passages get queries
    pairs.py     a passage with its context, drawn and masked at every visit
    model.py     coCondenser and CoT-MAE
    pretrain.py  one pre-training, and the loss on pairs held back

"Query-as-context Pre-training for Dense Passage Retrieval" (`query-as-context-pretraining`).
"""
