"""`--template NAME=FILE`: production's own query on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opensearch_neural.engines import ENGINES
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearch_neural.body_template import BodyTemplate


def read_templates(named: Sequence[str]) -> dict[str, BodyTemplate]:
    """{name: template} of NAME=FILE. Raises InputError for an engine's name, and for a file that is not a template."""
    from opensearch_neural.body_template import BodyTemplate

    templates: dict[str, BodyTemplate] = {}
    for text in named:
        name, equals, file = text.partition("=")
        if not (equals and file) or name.split() != [name] or "/" in name:
            raise InputError(f"--template {text}: expected NAME=FILE", "for instance production=query.json")
        if name in ENGINES or name in templates:
            raise InputError(f"--template {text}: {name!r} is an engine already", "give it another name")
        templates[name] = BodyTemplate.read(file)
    return templates


def template_paths(named: Sequence[str]) -> list[Path]:
    """The files of NAME=FILE."""
    return [Path(text.partition("=")[2]) for text in named]
