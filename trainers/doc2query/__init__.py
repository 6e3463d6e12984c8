"""Queries for passages: train a generator on pairs, generate, keep the queries that find their passage.

    train.py             the training of a generator (read this first)
    settings.py          the settings of training and sampling
    question_sets.py     data sets whose questions are made if they have none
    generate.py          queries for a whole corpus, perhaps only those that find their passage
    sampling.py          samples queries from a generator
    passage_words.py     makes the words of the passage more likely
    command.py           the command `osn train doc2query`
    generate_command.py  the command `osn data generate-queries`

docT5query (Nogueira & Lin, 2019).
"""
