"""Options of the papers' commands: --part, and the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from opensearch_neural.commands import option_groups
from opensearch_neural.commands.headings import taking


def part_option(parts: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --part, which may be repeated; without it all parts run."""
    kind, text = click.Choice(parts), "Part of the experiment; repeatable.  [default: all]"
    return click.option("--part", "chosen", type=kind, multiple=True, help=text)


def setting(default: Any, text: str, *, option: str = "", choices: Sequence[str] = ()) -> Any:
    """A dataclass field that is an option of a command, with the field's default.

    An option with a float default takes positive numbers, one with an integer or None integers from 1 on (from 0 on if the
    default is 0).

    text: its help; option: "" for --NAME-OF-THE-FIELD; choices: the texts that it takes, empty for all
    """
    return option_groups.setting(default, text, option, type=click.Choice(choices) if choices else _range(default))


def setting_options(settings: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each `setting` of a dataclass."""
    return lambda command: taking(command, option_groups.setting_options(settings).values())


def _range(default: Any) -> click.ParamType | None:
    if isinstance(default, str | bool):
        return None
    if isinstance(default, float):
        return click.FloatRange(0, min_open=True)
    return click.IntRange(0 if default == 0 else 1)
