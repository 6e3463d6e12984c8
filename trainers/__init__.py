"""Trainers: each method is a package or a file, built on `common`, `data` and `encoders`.

    command.py      `osn train METHOD`
    dense.py        a bi-encoder
    multi_layer.py  vectors of several layers

Packages: `sparse`, `jpq`, `query_as_context`, `doc2query`, `tome`, `masked_lm`.
"""
