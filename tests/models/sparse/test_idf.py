"""The IDF formula, its counts and its file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import ModelError
from opensearch_neural.models.sparse.idf import (
    DocumentFrequencies,
    idf,
    load_idf,
    save_idf,
)


def test_idf_of_one_document_in_ten_is_ln_of_22_thirds() -> None:
    # 1 + (10 − 1 + 0.5) / (1 + 0.5) = 1 + 9.5 / 1.5 = 22 / 3
    assert idf(1, 10) == pytest.approx(math.log(22 / 3))


@given(st.integers(1, 10**9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_a_rarer_token_weighs_more_and_every_weight_is_positive(n_and_df: tuple[int, int]) -> None:
    n, df = n_and_df
    rare, common = idf([df, df + 1], n)
    assert rare > common > 0


def frequencies_of(*documents: list[int], vocabulary_size: int = 5) -> DocumentFrequencies:
    counts = DocumentFrequencies(vocabulary_size)
    for document in documents:
        counts.add(document)
    return counts


def test_a_repeated_token_counts_once_a_document() -> None:
    counts = frequencies_of([1, 1, 2], [1], [])
    assert counts.counts.tolist() == [0, 2, 1, 0, 0]
    assert counts.n == 3


def test_merged_shards_count_like_one_corpus() -> None:
    merged = frequencies_of([0, 1], [1])
    merged.merge(frequencies_of([1, 4]))
    whole = frequencies_of([0, 1], [1], [1, 4])
    assert merged.n == whole.n
    assert np.array_equal(merged.counts, whole.counts)


def test_merging_counts_over_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="5 and 6"):
        frequencies_of([1]).merge(frequencies_of([1], vocabulary_size=6))


def test_the_table_lists_every_token_absent_ones_at_one_and_special_ones_at_zero() -> None:
    table = frequencies_of([0, 1], [1, 2]).idf_table(["[CLS]", "a", "b", "c", "d"], special={"[CLS]"})
    assert table == {
        "[CLS]": 0.0,
        "a": pytest.approx(math.log(1.2)),
        "b": pytest.approx(math.log(2)),
        "c": 1.0,
        "d": 1.0,
    }


def test_a_token_in_every_one_of_ten_million_documents_keeps_a_positive_weight() -> None:
    counts = DocumentFrequencies(1)
    counts.counts[0] = counts.n = 10_000_000
    assert counts.idf_table(["the"])["the"] == pytest.approx(0.5 / 10_000_000.5, rel=1e-6)


def test_a_saved_table_reads_back_equal(tmp_path: Path) -> None:
    table = {"##ing": 2.718281828, "東": 1.0, '"': 0.0, "\ud7ff": 5.0}
    save_idf(tmp_path / "idf.json", table)
    assert load_idf(tmp_path / "idf.json") == table


@pytest.mark.parametrize("weight", ["-0.5", "NaN", "Infinity", '"2"', "null", "true", "1e999", "1" * 400])
def test_an_unusable_weight_is_named_with_its_token_and_file(tmp_path: Path, weight: str) -> None:
    file = tmp_path / "idf.json"
    file.write_text(f'{{"fine": 1.5, "wrong": {weight}}}')
    with pytest.raises(ModelError, match=r"idf\.json: the weight of token 'wrong'"):
        load_idf(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2]", "found list"), ("{}", "empty"), ('{"a": 1,\n"b" 2}', "line 2"), ("\udcff", "cannot be read")],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "idf.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=message):
        load_idf(file)


def test_a_table_that_cannot_be_used_is_not_written_over_a_good_one(tmp_path: Path) -> None:
    file = tmp_path / "idf.json"
    save_idf(file, {"a": 1.0})
    with pytest.raises(ModelError):
        save_idf(file, {"a": math.nan})
    assert json.loads(file.read_text()) == {"a": 1.0}
    assert list(tmp_path.iterdir()) == [file]
