"""The options of commands that search: the models and settings of the engines, and the user's own queries (--template)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural.commands.option_groups import Command, flags_on_command_line, options_of
from opensearch_neural.engines import ENGINES, options_by_name
from opensearch_neural.engines.engine import Option
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearch_neural.body_template import BodyTemplate

MODELS = {
    "sparse": click.option("--sparse", help="Sparse model, if the index's own is not found."),
    "dense": click.option("--dense", help="Dense model, if the index's own is not found."),
    "pq": click.option("--pq", help="Quantized model, if the index's own is not found."),
    "backend": click.option(
        "--backend",
        type=click.Choice(["torch", "onnx", "onnx-int8"]),
        default="torch",
        show_default=True,
        help="Encoder of dense and quantized queries. onnx needs an exported model or a token table, but "
        "no torch; int8 is faster.",
    ),
}
"""{name: option}"""


models_options = options_of(dict, "models", *MODELS.values())
"""The options that name the models of an index: the command gets them as `models`, for `open_engines`."""


def engine_options(command: Command) -> Command:
    """Add `models_options` and the options of all engines; the command gets them as `how`, for `open_engines`.

    Raises InputError for an invalid value of an engine's option.
    """
    options = [*MODELS.values()]
    for name, taken_by in options_by_name().items():
        flag = f"--{name.replace('_', '-')}"
        option = next(iter(taken_by.values()))
        how: dict[str, Any] = {"is_flag": True} if option.is_flag else {"callback": _parsed_by(flag, option)}
        options.append(click.option(flag, f"{PREFIX}{name}", default=None, help=_help(taken_by), **how))
    return options_of(_without_prefix, "how", *options)(command)


def _without_prefix(**values: Any) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): value for name, value in values.items()}


PREFIX = "engine_"
"""Prefix of the engines' options, so that a command can have options of its own with the same names."""


def refuse_options_without_effect(engines: Collection[str]) -> None:
    """Raise UsageError for an option on the command line that none of these engines takes."""
    flags = flags_on_command_line()
    for name, taken_by in options_by_name().items():
        flag = flags.get(f"{PREFIX}{name}")
        if flag is not None and not taken_by.keys() & set(engines):
            raise click.UsageError(
                f"{flag} has no effect with {', '.join(engines) or 'templates'}: it is an option of {', '.join(taken_by)}"
            )


def _help(taken_by: Mapping[str, Option]) -> str:
    """Which engines take the option, and for what; engines with the same text are listed together."""
    engines: dict[tuple[str, str], list[str]] = {}
    for engine, option in taken_by.items():
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


def read_templates(options: Sequence[str]) -> dict[str, BodyTemplate]:
    """{name: template} of NAME=FILE. Raises InputError for an engine's name, and for a file that is not a template."""
    from opensearch_neural.body_template import BodyTemplate

    templates: dict[str, BodyTemplate] = {}
    for text in options:
        name, equals, file = text.partition("=")
        if not (equals and file) or name.split() != [name] or "/" in name:
            raise InputError(f"--template {text}: expected NAME=FILE", "for instance production=query.json")
        if name in ENGINES or name in templates:
            raise InputError(f"--template {text}: {name!r} is an engine already", "give it another name")
        templates[name] = BodyTemplate.read(file)
    return templates


def template_paths(options: Sequence[str]) -> list[Path]:
    """The files of NAME=FILE."""
    return [Path(text.partition("=")[2]) for text in options]
