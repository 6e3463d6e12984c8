"""The experiments of the papers (`osn paper NAME`), one file each: each method's gain on judged sets, with intervals.

inference_free_sparse.py  a sparse model alone against BM25, and what IDF, λ and the teachers contribute
jpq.py                    how much of a dense model's ranking M bytes a document keep
multi_layer.py            vectors of layers other than the last
query_as_context.py       generated queries as contexts in pre-training
tome.py                   retrieval by writing URLs: two stages against one

Each file begins with its sets and arms, goes on with trainings, tests, rows and goals, and ends with the command.
`benchmarks.experiment` has what all share, and docs/how-to/extend.md a whole experiment of some forty lines.
"""
