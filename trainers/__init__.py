"""Trainers: each method is a package or a file, built on `common`, `data` and `encoders`.

    command.py      `osn train METHOD`
    dense.py        a bi-encoder
    multi_layer.py  vectors of several layers

Packages of methods: `sparse`, `jpq`, `query_as_context`, `doc2query`, `tome`, `masked_lm`. Begin with the module `train`
of a method: it shows the way from the data to the model folder. `common/loop.py` runs the steps of every method, and
`common/losses.py` has the losses of the papers. `data` reads questions and documents, mines negatives and keeps teachers'
scores; `encoders` makes the networks.
"""
