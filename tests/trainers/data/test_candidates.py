"""What a query is compared with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from training_files import pairs

from opensearch_neural.errors import InputError
from trainers.data.candidates import sample_candidates
from trainers.data.loading import load_training


def test_candidates_come_from_the_top_and_are_filled_with_documents_not_known_to_be_relevant(animals: Path) -> None:
    data = load_training(animals)
    for seed in range(30):
        positive, negatives = sample_candidates(data, 0, 3, rng=random.Random(seed))
        ids = data.documents.ids
        assert ids[positive] == "d1"
        # d4 has the text of d1, so it is never a negative of q1.
        assert sorted(ids[row] for row in negatives) == ["d2", "d3", "d5"]
        assert sample_candidates(data, 1, 1, rng=random.Random(seed)) == (ids.index("d2"), [ids.index("d3")])
    with pytest.raises(InputError, match="too few documents for 4 negatives"):
        sample_candidates(data, 0, 4, rng=random.Random(0))


def test_only_the_first_hard_negatives_within_depth_are_drawn(tmp_path: Path) -> None:
    path = pairs(tmp_path, "p", [("q", "good")], [[f"n{i}" for i in range(20)]])
    data = load_training(path)
    drawn = {
        data.documents.text_at(row)
        for seed in range(50)
        for row in sample_candidates(data, 0, 2, rng=random.Random(seed), depth=3)[1]
    }
    assert drawn == {"n0", "n1", "n2"}
