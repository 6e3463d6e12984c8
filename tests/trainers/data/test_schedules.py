from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from trainers.common.settings import TrainingSettings
from trainers.data.schedules import TwoStageSettings, quadratic_ramp, second_stage


def test_the_ramp_is_quadratic_and_ends_at_one() -> None:
    # (1/4)², (1/2)², 1, and 1 from there on
    assert [quadratic_ramp(step, steps=100) for step in (0, 25, 50, 100, 300)] == [0, 0.0625, 0.25, 1, 1]


def test_no_ramp_is_full_weight_from_the_start() -> None:
    assert quadratic_ramp(0, steps=0) == 1.0


def test_the_second_stage_changes_what_it_names_alone() -> None:
    first = TrainingSettings(steps=100, learning_rate=1e-5, batch_size=8)
    second = second_stage(first, TwoStageSettings(learning_rate=5e-6))
    assert (second.steps, second.learning_rate, second.batch_size) == (100, 5e-6, 8)
