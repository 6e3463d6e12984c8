"""Options of the benchmarks' commands: the fields of a dataclass, lists of numbers, and --part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click

from opensearch_neural.commands import option_groups
from opensearch_neural.commands.headings import taking

T = TypeVar("T")


class NumberList(click.ParamType):
    """Numbers separated by commas."""

    name = "N,N,…"

    def __init__(self, kind: type, *, distinct: bool = False, least: float = -math.inf) -> None:
        """distinct: a number twice is refused; such a result would be refused too, but only at its end. least: no number may
        be smaller"""
        self.kind, self.distinct, self.least = kind, distinct, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self.kind(part) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers like 5,10,20", param, ctx)
        if self.distinct and len(set(numbers)) < len(numbers):
            self.fail(f"{value!r} names a number twice", param, ctx)
        if any(number < self.least for number in numbers):
            self.fail(f"{value!r} has a number below {self.least:g}", param, ctx)
        return numbers


def part_option(parts: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --part, which may be repeated; without it all parts run."""
    kind, text = click.Choice(parts), "Part of the experiment; repeatable.  [default: all]"
    return click.option("--part", "chosen", type=kind, multiple=True, help=text)


def setting(default: Any, text: str, *, option: str = "", **how: Any) -> Any:
    """A dataclass field that is an option of a command, with the field's default.

    Unless `how` says otherwise, an option with a float default takes positive numbers, one with an integer or None integers
    from 1 on (from 0 on if the default is 0).

    text: its help; option: "" for --NAME-OF-THE-FIELD; how: further arguments of `click.option`
    """
    return option_groups.setting(default, text, option, **{"type": _range(default), **how})


def setting_options(settings: type, **helps: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each `setting` of a dataclass. helps: {field: text in place of the setting's help}"""
    return lambda command: taking(command, option_groups.setting_options(settings, **helps).values())


def of_options(settings: Callable[..., T], options: Mapping[str, Any], /, **more: Any) -> T:
    """The dataclass with the values that a command with its `setting_options` got. more: its other fields"""
    names = [field.name for field in fields(settings) if field.metadata]  # type: ignore[arg-type]
    return settings(**{name: options[name] for name in names}, **more)


def _range(default: Any) -> click.ParamType | None:
    if isinstance(default, str | bool):
        return None
    if isinstance(default, float):
        return click.FloatRange(0, min_open=True)
    return click.IntRange(0 if default == 0 else 1)
