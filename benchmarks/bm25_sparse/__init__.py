"""BM25 and what a sparse model adds: the gain on judged sets and the cost under load, of the same models.

command.py   `osn bench bm25-sparse`: the table, its goals and the plot
models.py    the sets, and a published model as it is, trained further, and averaged with its start
engines.py   the engines, how each searches, and what it is compared with
measures.py  the quality of every engine
vectors.py   sparse and dense vectors, and codes
cost.py      engines under load, bytes, documents encoded a second
weight.py    `osn bench sum-weight`: the gain for each weight, on dev and train questions
"""
