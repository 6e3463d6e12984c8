"""Queries for passages: train a generator on pairs, generate, keep the queries that find their passage.

    train.py        `osn train doc2query`: start here
    generate.py     `osn generate-queries`: queries for a whole corpus
    sampling.py     how a query is drawn
    copying.py      the words of the passage, made likelier
    consistency.py  which queries are kept

docT5query (Nogueira & Lin, 2019).
"""
