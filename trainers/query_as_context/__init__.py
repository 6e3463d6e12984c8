"""Query-as-context pre-training: an encoder learns from passages and the queries generated for them.

    train.py           the whole flow (read this first)
    settings.py        the settings of `osn train query-as-context`
    passages.py        splits documents into passages, and gets queries for them
    pairs.py           passages with their context, drawn and masked at every visit
    context_models.py  coCondenser and CoT-MAE
    command.py         the command

"Query-as-context Pre-training for Dense Passage Retrieval" (`query-as-context-pretraining`).
"""
