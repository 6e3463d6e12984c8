"""BM25 and what a sparse model adds: what it gains on judged sets and what it costs under load, of the same models.

models     the sets, and a published model as it is, trained on, and averaged with that
measures   what every engine finds
dense      dense vectors and codes, for hybrid and cascade
cost       engines under load, bytes, documents encoded a second
weight     `osn bench sum-weight`: the gain by weight, on dev and train questions
command    `osn bench bm25-sparse`: the table, its goals and the plot
"""
