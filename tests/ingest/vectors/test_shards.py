"""A shard: documents of like length are encoded together, and its file has them in the corpus's order all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from corpora import records, write_jsonl

from ingest.corpus import CorpusSource
from ingest.settings import Models
from ingest.vectorizers import Vectors
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.vectors.shards import LoadedShard, encode_shard
from opensearch_neural import progress
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import ModelError
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.progress import Progress

LENGTHS = [3, 50, 7, 120, 1, 9, 50, 80, 2, 30]


@dataclass
class LengthEncoder:
    """The vector of a document is its length; one of seven letters cannot be encoded."""

    batches: list[list[int]] = field(default_factory=list)

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        lengths = np.array([len(document.text) for document in documents], np.int64)
        if 7 in lengths:
            raise ModelError("seven")
        self.batches.append(lengths.tolist())
        sparse = SparseVectors(np.arange(len(lengths) + 1), lengths.astype(np.int32), lengths.astype(np.float32), [])
        return Vectors(sparse, lengths[:, None].astype(np.float32), lengths[:, None].astype(np.uint8))


def test_rows_are_in_the_order_of_the_corpus_however_they_are_batched(tmp_path: Path) -> None:
    items = [Document(f"d{n}", "x" * length) for n, length in enumerate(LENGTHS)]
    with_rejected: list[Document | Rejected] = [*items[:5], Rejected("f", 6, "broken", "{"), *items[5:]]
    told: list[int] = []
    encoder = LengthEncoder()
    content = encode_shard(100, with_rejected, encoder, 3, told.append)
    # The longest first, and in turns the shortest, so that the rate of the first batches is about that of all.
    assert encoder.batches == [[120, 80, 50], [1], [50, 30, 9], [3, 2]]
    assert told == [3, 1, 3, 3]
    (tmp_path / "s").write_bytes(content)
    shard = LoadedShard.read(tmp_path / "s", [])
    expected = [length for length in LENGTHS if length != 7]
    assert shard.dense is not None and shard.codes is not None and shard.sparse is not None
    assert shard.dense[:, 0].tolist() == expected
    assert shard.codes[:, 0].tolist() == expected
    assert shard.sparse.token_ids.tolist() == expected
    assert list(shard.unfit.values()) == ["seven"]
    assert content == encode_shard(100, with_rejected, LengthEncoder(), 3)


def test_what_is_ahead_of_an_update_counts_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with Progress("encode", total=200) as shown:
        shown.ahead(30)
        shown.ahead(20)
        shown.update(100)
        shown.update(60, skipped=True)
        shown.ahead(10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" docs")[0] for line in lines] == [
        f"encode: {count} of 200" for count in (30, 50, 100, 160, 170)
    ]
    assert all("/s, " in line and " left" in line for line in lines)


def test_a_long_shard_says_how_far_it_is_before_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    corpus = CorpusSource(str(write_jsonl(tmp_path / "d.jsonl", records(100))))
    encoded = run_encode(EncodeJob(corpus, tmp_path / "v", Models(sparse="lexical", encode_batch=5)))
    assert (encoded.documents, encoded.shards) == (100, 1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" docs")[0] for line in lines[:3]] == [f"encode: {count} of 100" for count in (40, 60, 100)]
