"""Whether the documents of an index changed while it was measured: then engines were compared on different documents.

before = contents_of(client, "docs")
…
told = change("docs", before, contents_of(client, "docs"))  # None: nothing changed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import OsnError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

MOST_INDEXES = 1000
"""Indexes behind a pattern that are told apart."""

Contents = dict[str, tuple[int, float]]
"""{index: (its documents, the sum of their sequence numbers)}, as searches see them."""


def contents_of(client: OpenSearch, index: str) -> Contents | None:
    """The contents of each index behind a name, alias or pattern; None if the cluster does not tell.

    A document that is written gets a higher sequence number than all that its shard holds. So every change of the documents
    changes their number or the sum. Sums above 2^53, as of 130 million documents in a shard, are rounded: that a single
    document was written again may go unnoticed there.
    """
    last = {"sum": {"field": "_seq_no"}}
    body = {
        "size": 0,
        "track_total_hits": False,
        "aggs": {"of": {"terms": {"field": "_index", "size": MOST_INDEXES}, "aggs": {"last": last}}},
    }
    try:
        with translate_errors():
            answer = client.search(index=index, body=body)
        buckets = answer["aggregations"]["of"]["buckets"]
        return {bucket["key"]: (bucket["doc_count"], bucket["last"]["value"]) for bucket in buckets}
    except (OsnError, KeyError):
        return None  # what was measured is not lost because of this


def change(index: str, before: Contents | None, after: Contents | None) -> str | None:
    """What changed, as one sentence without a full stop; None if nothing did, or if it is not known."""
    if before is None or after is None or before == after:
        return None
    then, now = (sum(documents for documents, _ in each.values()) for each in (before, after))
    if before.keys() != after.keys():
        what = f"it was {', '.join(sorted(before)) or 'empty'} before and {', '.join(sorted(after)) or 'empty'} after"
    elif then != now:
        what = f"{then:,} documents before, {now:,} after"
    else:
        what = f"some of its {now:,} documents were written again"
    return f"{index!r} changed while it was measured ({what}), so not all searches saw the same documents"
