"""What an ingest or `osn encode` asks of `chosen_models.choose`: the models to load, and the index that they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest.corpus import Records
from ingest.settings import Models
from opensearch_neural.index.record import IndexMeta

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@dataclass(frozen=True)
class ModelRequest:
    """The models that the caller named, and what they are chosen for: the records and the index to write."""

    models: Models
    """The models by name, and how they encode."""
    meta: IndexMeta | None
    """The record of the index if it exists."""
    index: str
    """The name of the index."""
    records: Records
    """The records of the corpus, which can be read several times."""
    corpus: str
    """The name of the corpus."""
    client: OpenSearch | None = None
    """The cluster, which stores the tables of its indexes for machines that lack them."""
    counts_while_writing: bool = False
    """Whether the caller can count the IDF table of a new index while the records are written."""
