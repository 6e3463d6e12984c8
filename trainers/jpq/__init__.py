"""JPQ: dense retrieval at M bytes per document; trains query encoder and centroids together for ranking.

    train.py        the whole flow (read this first)
    settings.py     the settings of `osn train jpq`
    quantizer.py    rotation, codebooks and codes, by faiss
    questions.py    the relevant documents of a question, and batches of questions
    query_tower.py  the trainable query encoder
    jpq_model.py    scores, exact search over the codes, the loss of a step
    preparation.py  vectors, codes, rankings and dev sets, each kept on disk
    command.py      the command

"Jointly Optimizing Query Encoder and Product Quantization to Improve Retrieval Performance" (`jpq`).
"""
