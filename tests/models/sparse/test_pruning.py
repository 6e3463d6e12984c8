"""Which terms of a document are kept, by each rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.sparse.pruning import Pruning  # noqa: E402
from opensearch_neural.models.vectors import SparseVectors  # noqa: E402

VOCABULARY = list("abcdefgh")


def vectors(*rows: dict[str, float]) -> SparseVectors:
    ids = [[VOCABULARY.index(token) for token in row] for row in rows]
    return SparseVectors(
        np.cumsum([0, *map(len, ids)]).astype(np.int64),
        np.array([id_ for row in ids for id_ in row], np.int32),
        np.array([weight for row in rows for weight in row.values()], np.float32),
        VOCABULARY,
    )


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        # Of 4, 2, 1 and 1, which sum to 8: half of the largest is 2; 4 holds half, 4 and 2 three quarters of the sum.
        ("top_k:1", ["a"]),
        ("top_k:3", ["a", "b", "c"]),
        ("max_ratio:0.5", ["a", "b"]),
        ("max_ratio:1", ["a"]),
        ("alpha_mass:0.5", ["a"]),
        ("alpha_mass:0.51", ["a", "b"]),
        ("alpha_mass:0.76", ["a", "b", "c"]),
        ("alpha_mass:1", ["a", "b", "c", "d"]),
        ("abs_value:1", ["a", "b", "c", "d"]),
        ("abs_value:1.5", ["a", "b"]),
    ],
)
def test_each_rule_keeps_what_it_says_of_every_document_by_itself(text: str, kept: list[str]) -> None:
    document = {"c": 1.0, "a": 4.0, "b": 2.0, "d": 1.0}
    pruning = Pruning.parse(text)
    alone = pruning(vectors(document)).row(0)
    assert alone == {token: weight for token, weight in document.items() if token in kept}
    among = pruning(vectors({"h": 9.0, "g": 8.0}, {}, document, {}, {"f": 0.5}))
    assert (among.row(1), among.row(2), among.row(3)) == ({}, alone, {})
    assert str(pruning) == text


@settings(deadline=None)
@given(
    st.sampled_from(["top_k:3", "max_ratio:0.37", "alpha_mass:0.8", "abs_value:0.6"]),
    st.lists(st.lists(st.integers(0, 40), min_size=8, max_size=8), min_size=1, max_size=6),
)
def test_rows_with_a_weight_for_every_term_keep_the_same(text: str, rows: list[list[int]]) -> None:
    pruning = Pruning.parse(text)
    weights = np.array(rows, np.float32) / 16
    sparse = vectors(*({token: row[at] for at, token in enumerate(VOCABULARY) if row[at]} for row in weights.tolist()))
    expected = np.array([[row.get(token, 0.0) for token in VOCABULARY] for row in pruning(sparse).rows()], np.float32)
    np.testing.assert_array_equal(pruning.dense(torch.from_numpy(weights)).numpy(), expected)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.3, 0.7, 0.9, 1.1, 2.3]), min_size=2, max_size=8), st.integers(1, 7))
def test_a_mass_that_some_terms_hold_to_the_digit_adds_no_other(weights: list[float], count: int) -> None:
    count = min(count, len(weights))
    row = dict(zip(VOCABULARY, sorted(weights, reverse=True), strict=False))
    document = vectors(row)
    mass = document.weights.astype(np.float64)
    pruning = Pruning("alpha_mass", min(1.0, float(mass[:count].sum() / mass.sum())))
    assert list(pruning(document).row(0)) == list(row)[:count]


def test_what_is_kept_learns_and_what_is_not_does_not() -> None:
    weights = torch.tensor([[4.0, 2.0, 1.0, 0.0]], requires_grad=True)
    for text in ("top_k:2", "max_ratio:0.5", "alpha_mass:0.8", "abs_value:2"):
        (gradient,) = torch.autograd.grad(Pruning.parse(text).dense(weights).sum(), weights)
        assert gradient.tolist() == [[1.0, 1.0, 0.0, 0.0]], text


@pytest.mark.parametrize(
    "text", ["top_k:0", "top_k:1.5", "max_ratio:0", "alpha_mass:1.1", "abs_value:0", "half:1", "top_k"]
)
def test_a_rule_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no pruning"):
        Pruning.parse(text)


def test_a_damaged_file_in_a_model_is_named(tmp_path: Path) -> None:
    assert Pruning.of_model(tmp_path) is None
    Pruning("alpha_mass", 0.9).save(tmp_path)
    assert Pruning.of_model(tmp_path) == Pruning("alpha_mass", 0.9)
    (tmp_path / "pruning.json").write_text('{"type": "alpha_mass", "value": "much"}')
    with pytest.raises(ModelError, match=r"pruning\.json holds no pruning"):
        Pruning.of_model(tmp_path)
