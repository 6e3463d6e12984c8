"""Trainers: one method a package or file, over `common`, `data` and `encoders`.

dense.py  multi_layer.py  sparse/  jpq/  query_as_context/  doc2query/  tome/  masked_lm/
command.py    `osn train METHOD`
"""
