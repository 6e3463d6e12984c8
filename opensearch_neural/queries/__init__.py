"""OpenSearch request bodies, as plain dicts from pure functions.

Every function returns the whole body of a `_search` request: print it, paste it into Dashboards, send it with any client.
Nothing in a body depends on this library at run time.

    encoder = QueryEncoder.load("models/my-model")
    client.search(index="docs", body=queries.high_idf_first(encoder.encode("what causes a rainbow")))

A sparse query is a mapping {token: weight}; with the project's encoders a weight is the token's idf, since queries are
binary (`inference-free-sparse`, eq. 5). All functions take `filter`: an OpenSearch query clause, or a list of them, that
hits must match and that adds nothing to their score. `highlight` is the text whose words are marked in `title` and `text`.
`collapse` is a field: of several hits with the same value in it, only the best is returned. For an index of passages it is
"parent"; `best_passages` reads the answer.

    sparse.py       bodies that search words and tokens: BM25, a sparse model, both together, rare tokens first
    dense.py        bodies that search vectors and quantized codes, alone and with other searches
    urls.py         bodies that look up URLs
    own_request.py  an application's own request, with what a model adds
    body_parts.py   the clauses, filters, second phases and page that bodies consist of
    explain.py      bodies whose answer explains its scores
    rare.py         which tokens and words of a query are rare
    certificate.py  whether the page of a window is the page that a search of all documents returns
    answers.py      whether an answer is whole, its best passage of each document, and the preference that sends requests
                    to the same shard copies
    multi_vector.py   several vectors a document: the mapping, the stored value, and the clause that searches them
    forward_index.py  each document's sparse weights as bytes, and the script that scores hits by them
    look_up_table.py  a query's table of inner products with the codebooks, and the script that reads it
"""

from opensearch_neural.queries.answers import best_passages, filled, partial_answer, preference
from opensearch_neural.queries.body_parts import (
    DEFAULT_SOURCE,
    DOT_ALIAS,
    REPLACED,
    Body,
    Clause,
    Filter,
    PageOptions,
    nearest_clauses,
    sparse_tokens,
)
from opensearch_neural.queries.certificate import certified, heaviest, largest_weights, window_end
from opensearch_neural.queries.dense import (
    COLLAPSED_PASSAGES,
    FUSED,
    MOST_HITS,
    MOST_RESCORED,
    cascade,
    dense_rescore,
    hybrid,
    knn,
    quantized,
    quantized_offset,
    quantized_rescore,
)
from opensearch_neural.queries.explain import explained
from opensearch_neural.queries.own_request import own_request
from opensearch_neural.queries.rare import Rare, rare_tokens, rare_words
from opensearch_neural.queries.sparse import (
    HELD,
    bm25,
    bm25_sparse,
    high_idf_first,
    neural_sparse,
    pruned_sparse,
    searched_first,
    unsearched,
)
from opensearch_neural.queries.urls import MOST_LISTED, listed, listed_count, listed_urls, unfound_urls

__all__ = [
    "COLLAPSED_PASSAGES",
    "DEFAULT_SOURCE",
    "DOT_ALIAS",
    "FUSED",
    "HELD",
    "MOST_HITS",
    "MOST_LISTED",
    "MOST_RESCORED",
    "REPLACED",
    "Body",
    "Clause",
    "Filter",
    "PageOptions",
    "Rare",
    "best_passages",
    "bm25",
    "bm25_sparse",
    "cascade",
    "certified",
    "dense_rescore",
    "explained",
    "filled",
    "heaviest",
    "high_idf_first",
    "hybrid",
    "knn",
    "largest_weights",
    "listed",
    "listed_count",
    "listed_urls",
    "nearest_clauses",
    "neural_sparse",
    "own_request",
    "partial_answer",
    "preference",
    "pruned_sparse",
    "quantized",
    "quantized_offset",
    "quantized_rescore",
    "rare_tokens",
    "rare_words",
    "searched_first",
    "sparse_tokens",
    "unfound_urls",
    "unsearched",
    "window_end",
]
