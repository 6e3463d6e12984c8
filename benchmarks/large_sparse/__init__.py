"""How a stock OpenSearch can search cheaply by a large sparse model: each idea on its own, and the best ones together.

The cost of a search depends on how many postings are scored. The ideas score fewer of them:

pruned documents     a second field holds each document's heaviest tokens. It is searched alone, or its best hits are
                     rescored with all tokens, from each document's row of the forward index
query cut            tokens that are in many documents and weigh little are left out of phase one

    command.py    `osn bench large-sparse`: tuning on train queries, quality, cost, goals
    indexes.py    draws the documents and writes the index
    arms.py       the ideas as request bodies
"""
