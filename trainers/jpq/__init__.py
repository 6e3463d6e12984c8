"""JPQ: dense retrieval at M bytes a document, query encoder and centroids trained together for ranking.

    train.py        the flow: start here
    settings.py     the settings of `osn train jpq`
    quantizer.py    rotation, codebooks and codes, by faiss
    questions.py    which documents are relevant to a question, and a batch of questions
    query_tower.py  the query encoder that learns
    model.py        scores, exact search over the codes, the loss of a step
    preparation.py  vectors, codes, rankings and dev sets, each kept on disk

"Jointly Optimizing Query Encoder and Product Quantization to Improve Retrieval Performance" (`jpq`).
"""
