"""Inference-free neural retrieval for OpenSearch.

What an application imports. Nothing here imports torch, and the names below are loaded when first used, so that
`import opensearch_neural` costs a web service next to nothing:

    from opensearch_neural import QueryEncoder, queries

    encoder = QueryEncoder.load("models/my-model")
    body = queries.high_idf_first(encoder.encode("what causes a rainbow"))

Packages: `queries` (request bodies), `engines` (request bodies by name), `search` (one search, and what its hits show),
`index` (its mapping and record), `cluster` (connections and capabilities), `corpus` (readers), `models`, `retrievers`,
`evaluation`, `lint`, `node` (a local OpenSearch), `tune` (what `osn tune` does), `ui`, `commands`. Modules:

    query_encoder.py  a query's text as tokens with weights, by a model's files or an index
    body_template.py  a request body of the user's own, as a JSON file with {{query}}
    encodable.py      texts without half surrogate pairs, which UTF-8 cannot encode
    errors.py         the errors that users see, each with a remedy
    files.py          files and folders, written whole or not at all
    locks.py          lock files: one process at a time
    progress.py       progress of long work: a bar on a terminal, plain lines elsewhere
    home.py           where `osn` stores its own files
    cli.py            the `osn` command
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from opensearch_neural import queries
    from opensearch_neural.cluster.connect import connect, connect_async
    from opensearch_neural.errors import OsnError
    from opensearch_neural.query_encoder import QueryEncoder

__all__ = ["OsnError", "QueryEncoder", "__version__", "connect", "connect_async", "queries"]

_LAZY = {
    "OsnError": "opensearch_neural.errors",
    "QueryEncoder": "opensearch_neural.query_encoder",
    "connect": "opensearch_neural.cluster.connect",
    "connect_async": "opensearch_neural.cluster.connect",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "queries":
        return import_module("opensearch_neural.queries")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
