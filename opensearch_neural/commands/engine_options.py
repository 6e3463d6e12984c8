"""The options of commands that search: the models and settings of the engines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from opensearch_neural.commands.connection_options import Command
from opensearch_neural.commands.headings import taking
from opensearch_neural.engines import ENGINES
from opensearch_neural.engines.options import Option
from opensearch_neural.errors import InputError


def models_options(command: Command) -> Command:
    """The options that name the models of an index: `sparse`, `dense`, `pq` and `backend`."""
    options = [
        click.option("--sparse", default=None, help="Sparse model, if the index's own is not found."),
        click.option("--dense", default=None, help="Dense model, if the index's own is not found."),
        click.option("--pq", default=None, help="Quantized model, if the index's own is not found."),
        click.option(
            "--backend",
            type=click.Choice(["torch", "onnx", "onnx-int8"]),
            default="torch",
            show_default=True,
            help="Encoder of dense and quantized queries. onnx needs an exported model or a token table, but "
            "no torch; int8 is faster.",
        ),
    ]
    return taking(command, options)


def engine_options(command: Command) -> Command:
    """Add `models_options` and the options of all engines; the command gets them as `how`, for `open_engines`.

    Raises InputError for a value that an engine's option does not take.
    """
    options = _by_name()

    @functools.wraps(command)
    def with_settings(
        *args: Any, sparse: str | None, dense: str | None, pq: str | None, backend: str, **kwargs: Any
    ) -> Any:
        settings = {name: kwargs.pop(f"{PREFIX}{name}") for name in options}
        how = {"sparse": sparse, "dense": dense, "pq": pq, "backend": backend, **settings}
        return command(*args, how=how, **kwargs)

    decorated: Any = with_settings
    for name, taken_by in reversed(options.items()):
        flag = f"--{name.replace('_', '-')}"
        option = taken_by[0][1]
        how: dict[str, Any] = {"is_flag": True} if option.is_flag else {"callback": _parsed_by(flag, option)}
        decorated = click.option(flag, f"{PREFIX}{name}", default=None, help=_help(taken_by), **how)(decorated)
    return models_options(decorated)


PREFIX = "engine_"
"""Prefix of the engines' options, so that a command can have options of its own with the same names."""


def _by_name() -> dict[str, list[tuple[str, Option]]]:
    """{option: [(engine that takes it, as that engine describes it)]}"""
    options: dict[str, list[tuple[str, Option]]] = {}
    for engine in ENGINES.values():
        for option in engine.options:
            options.setdefault(option.name, []).append((engine.name, option))
    return options


def _help(taken_by: Sequence[tuple[str, Option]]) -> str:
    """Which engines take the option, and for what; engines with the same text are listed together."""
    engines: dict[tuple[str, str], list[str]] = {}
    for engine, option in taken_by:
        engines.setdefault((option.help, option.default), []).append(engine)
    return "  ".join(
        f"{', '.join(names)}: {help}" + f"  [default: {default}]" * bool(default)
        for (help, default), names in engines.items()
    )


def _parsed_by(flag: str, option: Option) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def parsed(_: click.Context, __: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else option.parse(text)
        except ValueError as error:
            raise InputError(f"{flag} {text}: {error}") from None

    return parsed
