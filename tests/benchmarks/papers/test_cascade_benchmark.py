"""The benchmark of the cascade: which judgements may tune it, and its goals, which follow from its rows."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from benchmarks.load.variants import parse_variant, parse_variants
from benchmarks.papers import cascade
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row


@pytest.mark.parametrize(
    ("trained", "split", "refused"),
    [
        ({"train": [{"path": "data/judged", "questions": None}]}, "train", True),
        ({"train": [{"path": "data/judged", "split": "train", "questions": None}]}, "dev", False),
        ({"train": [{"path": "data/judged", "questions": "first-sentence"}]}, "train", False),
        ({"train": [{"path": "data/other", "questions": None}]}, "train", False),
        ({"train": [{"path": "data/judged", "questions": None}], "objective": {"labels": "ranking"}}, "train", False),
    ],
)
def test_judgements_that_a_model_was_trained_on_do_not_tune_it(
    trained: dict, split: str, refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "osn.json").write_text(json.dumps({"format": 1, "kind": "quantized", "training": trained}))
    (tmp_path / "judged").mkdir()
    with pytest.raises(InputError, match="was trained on the train judgements") if refused else nullcontext():
        cascade.check_unseen(str(tmp_path / "model"), tmp_path / "judged", split)


def test_what_is_called_cascade_goes_after_rare_tokens(tmp_path: Path) -> None:
    sparse, plain, other = cascade.rare_tokens_first(parse_variants("sparse,cascade,sum=cascade+first=bm25-sparse"))
    assert sparse == parse_variant("sparse")
    assert (plain.name, plain.first, other.name, other.first) == ("cascade", "high-idf-first", "sum", "bm25-sparse")
    misnamed = cascade.rare_tokens_first(parse_variants("sparse,cascade=cascade+first=bm25-sparse"))
    with click.Context(cascade.cascade), pytest.raises(InputError, match="goes after high-idf-first"):
        cascade.check([tmp_path], ["model"], None, "train", misnamed)


@pytest.mark.parametrize(
    ("gain", "low", "ratios", "met"),
    [
        (0.021, 0.001, (1.4, 1.5), [True, True, True, True]),
        (0.019, 0.001, (1.4, 1.5), [False, True, True, False]),
        (0.03, -0.001, (1.4, 1.5), [False, True, True, False]),
        (0.03, 0.001, (1.4, 1.6), [True, True, False, False]),
        (0.03, 0.001, (), [True, False, False]),
    ],
)
def test_the_cascades_goals_are_met_where_one_set_has_both(
    gain: float, low: float, ratios: tuple[float, ...], met: list[bool]
) -> None:
    def measured(index: str, gain: float, ratios: tuple[float, ...]) -> list[Row]:
        return [
            Row(index, "cascade", "nDCG@10", gain, low, gain + 0.01, 9, baseline="sparse", kind="difference"),
            *(
                Row(index, "cascade", "P99", value, None, None, 9, "sparse", kind="ratio", level=f"{n} clients")
                for n, value in enumerate(ratios)
            ),
            *(
                Row(index, "sparse", "P50 ms", 5.0, None, None, 9, level=f"{n} clients")
                for n in range(max(1, len(ratios)))
            ),
        ]

    goals = cascade.goals(["one", "other"], measured("one", gain, ratios) + measured("other", -0.01, (1.0,)))
    assert [goal.met for goal in goals] == [*met[:-1], False, True, met[-1]]
    # What was refused, or asked too seldom for a P99, is neither met nor missed.
    assert [goal.value is None for goal in goals] == [not ratios and n == 1 for n in range(len(goals))]
    assert str(goals[1]).startswith("met: " if goals[1].met else "missed: " if ratios else "not measured: ")
