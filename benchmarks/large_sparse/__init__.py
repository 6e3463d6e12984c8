"""What a stock OpenSearch can do to make searching by a large sparse model cheap: each idea on its own, the best together.

What a search costs is decided by how many postings are scored. The ideas score fewer of them, or skip them in blocks:

pruned documents     a second field holds each document's heaviest tokens. It is searched as it is, or its best hits are
                     rescored with all tokens, from the row of the forward index that lies beside each document
query cut            tokens that are in many documents and weigh little are left out of phase one
clustered            similar documents get neighbouring numbers, by an index sort on their place in an order by content, so
                     that a block of postings has one topic, and blocks of other topics are passed over
blocks               neighbours in that order form blocks; a block document holds the largest weight of each token in its
                     block. A first request chooses the best blocks, and a second scores their documents alone

    command.py    `osn bench large-sparse`
    indexes.py    draws the documents, puts them in order and writes the three indexes
    arms.py       the ideas as request bodies
    measures.py   tuning on train queries, quality, cost
"""
