"""TOME: one model writes a passage for a query, another the URL for the passage; they are trained separately.

    train.py     the whole flow (read this first)
    settings.py  the settings of `osn train tome`
    data.py      the corpus in the form for the stages, and the queries for its documents
    stages.py    the training examples of each stage
    command.py   the command

"TOME: A Two-stage Approach for Model-based Retrieval" (`tome-model-based-retrieval`).
"""
