"""Queries for passages: train a generator on pairs, generate, keep the queries that find their passage.

    train.py          `osn train doc2query`: start here
    settings.py       its settings, and those of sampling
    question_sets.py  a set whose questions are made where it has none
    generate.py       `osn data generate-queries`: queries for a whole corpus
    sampling.py       queries drawn from a generator
    copying.py        the words of the passage, made likelier
    consistency.py    which queries are kept

docT5query (Nogueira & Lin, 2019).
"""
