"""The evidence for query-as-context pre-training: generated queries as contexts.

command.py   `osn paper query-as-context`: the arms, their rows and goals
training.py  the trainings: a small BERT, query generators, the arms, retrievers
"""
