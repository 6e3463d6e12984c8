"""The options of `osn ingest` and `osn encode`: without any, the settings are those of the dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ingest.settings import Models, NewIndex, Writing, model_options, new_index_options, writing_options
from ingest.versions.swap import Gate, gate_options


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (model_options, Models()),
        (new_index_options, NewIndex()),
        (writing_options, Writing()),
        (gate_options, Gate()),
    ],
)
def test_without_options_the_settings_are_the_defaults_of_the_dataclass(
    options: Callable[[Any], Any], settings: object
) -> None:
    gathered: list[object] = []

    def command(**made: object) -> None:
        gathered.extend(made.values())

    CliRunner().invoke(click.command()(options(command)), [], catch_exceptions=False)
    assert gathered == [settings]
