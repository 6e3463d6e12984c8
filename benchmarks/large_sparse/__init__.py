"""How a stock OpenSearch can search cheaply by a large sparse model: each idea on its own, and the best ones together.

The cost of a search depends on how many postings are scored. The ideas score fewer of them, or skip them in blocks:

pruned documents     a second field holds each document's heaviest tokens. It is searched alone, or its best hits are
                     rescored with all tokens, from each document's row of the forward index
query cut            tokens that are in many documents and weigh little are left out of phase one
clustered            similar documents get neighbouring numbers, by an index sort on their place in an order by content, so
                     that a block of postings has one topic, and blocks of other topics are skipped
blocks               neighbours in that order form blocks; a block document holds the largest weight of each token in its
                     block. A first request chooses the best blocks, and a second scores only their documents

    command.py    `osn bench large-sparse`
    indexes.py    draws the documents, puts them in order and writes the three indexes
    arms.py       the ideas as request bodies
    measures.py   tuning on train queries, quality, cost
"""
