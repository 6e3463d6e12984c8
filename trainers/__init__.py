"""Trainers: each method is a package, built on `common`, `data` and `encoders`.

    command.py  `osn train METHOD`

Packages of methods: `dense`, `multi_layer`, `sparse`, `jpq`, `query_as_context`, `doc2query`, `tome`, `masked_lm`. Begin
with the module `train` of a method: it shows the way from the data to the model folder. Its `settings` and its `command`
import no torch, so that help and the refusal of a configuration come at once; the command imports `train` when it runs.
`common/loop.py` runs the steps of every method, and `common/losses.py` has the losses of the papers. `data` reads questions
and documents, mines negatives and keeps teachers' scores; `encoders` makes the networks.
"""
