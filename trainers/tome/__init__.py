"""TOME: a query becomes a passage, the passage becomes a URL, by two models trained apart.

    train.py     the flow: start here
    settings.py  the settings of `osn train tome`
    data.py      the corpus as the stages see it, and the queries that lead to its documents
    stages.py    what each stage reads and writes

"TOME: A Two-stage Approach for Model-based Retrieval" (`tome-model-based-retrieval`).
"""
