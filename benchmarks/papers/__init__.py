"""The experiments of the papers (`osn paper NAME`): each method's gain on judged sets, with intervals.

inference_free_sparse.py  a sparse model alone against BM25
idf_and_teachers.py       what IDF, λ and the teachers contribute to it, two parts of the same command
exact_sparse.py           the exact search of both
jpq.py                    how much of a dense model's ranking M bytes a document keep
multi_layer.py            vectors of layers other than the last
query_as_context.py       generated queries as contexts in pre-training
tome.py                   retrieval by writing URLs: two stages against one

The file of a paper begins with its sets and arms, goes on with trainings, tests, rows and goals, and ends with the command.
`benchmarks.experiment` has what all share, and docs/how-to/extend.md a whole experiment of some forty lines.
"""
