"""One search, prepared and shown: its request, its hits, and why each hit has its score.

request.py      one search by an engine, for `osn search` and `osn ui`
filters.py      filters as users write them, and why one matches nothing
hits.py         hits as both show them
excerpt.py      the part of a text that a hit shows, and which of its sentences explains most of the score
explanation.py  why a hit has its score
oracle.py       the `_score` of a sparse query, computed as Lucene computes it
"""
