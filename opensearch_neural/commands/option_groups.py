"""Options that several commands share, old names of options, groups of options that a command gets as one argument, and
warnings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from opensearch_neural.commands.headings import taking
from opensearch_neural.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])


CORPUS = "Folder, file or data set that `osn ingest` reads, except opensearch:INDEX"
"""The help of --corpus in commands that read a corpus only from files."""


class FiniteRange(click.FloatRange):
    """Numbers of a range. Infinity and NaN, which `FloatRange` takes, are refused."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", parameter, context)
        return number


class Renamed(click.Option):
    """An option with its current name first, then its former names, which still work but are not listed. Names change so
    that one means the same in every command.

    click.option("--keep-builds", "--keep", cls=Renamed, help=…)
    """

    def __init__(self, param_decls: Sequence[str], **attributes: Any) -> None:
        super().__init__(param_decls, **attributes)
        self.former, self.opts[1:] = self.opts[1:], []

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.former]
        super().add_to_parser(parser, ctx)
        self.opts = shown


def output_option(help: str, *, file_okay: bool = True, **attributes: Any) -> Callable[[Any], Any]:
    """`--output`, formerly `--out`: where a command writes; it gets the path as `out`. attributes: of click.option."""
    kind = click.Path(path_type=Path, file_okay=file_okay)
    return click.option("--output", "--out", "out", cls=Renamed, type=kind, help=help, **attributes)


def seed_option(help: str, *, default: int = 0) -> Callable[[Command], Command]:
    """--seed, a whole number from 0, as numpy and torch require."""
    return click.option("--seed", type=click.IntRange(min=0), default=default, show_default=True, help=help)


def options_of(make: Callable[..., Any], argument: str, *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Add options to a click command, which gets the result of `make`.

    Args:
        make: called with the options' values as keyword arguments; for a dataclass these are its fields.
        argument: the command's parameter for the result.
    """
    # click attaches options to a function; this function is only used to read their names.
    noted: Any = lambda: None  # noqa: E731
    for option in options:
        option(noted)
    names = [parameter.name for parameter in noted.__click_params__]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def gathered(*arguments: Any, **values: Any) -> Any:
            made = make(**{name: values.pop(name) for name in names})
            return command(*arguments, **values, **{argument: made})

        return taking(gathered, options)

    return decorate


def setting(default: Any, help: str, flag: str = "", *, shown: Any = None, **option: Any) -> Any:
    """A field of a dataclass of settings, with the option that sets it.

    Args:
        flag: by default `--` and the field's name. A bool's flag sets the opposite of `default`, a pair (--a/--b) either.
        shown: the option's default, if a callback makes the field's default of it.
        option: further attributes of click's option.
    """
    if isinstance(default, bool) and "/" not in flag:
        option |= {"is_flag": True, "flag_value": not default, "default": default}
    elif default is not None:
        option |= {"default": default if shown is None else shown, "show_default": default != ()}
    return field(default=default, metadata={"help": help, "flag": flag, **option})


def setting_options(settings: type, **helps: str) -> dict[str, Callable[[Any], Any]]:
    """{field: its option} of each `setting` of a dataclass. helps: {field: text in place of the setting's help}"""
    options = {}
    for each in fields(settings):
        if each.metadata:
            attributes = {**each.metadata, "help": helps.get(each.name, each.metadata["help"])}
            flags = (attributes.pop("flag") or f"--{each.name.replace('_', '-')}").split()
            options[each.name] = click.option(*flags, each.name, **attributes)
    return options


def flags_on_command_line() -> dict[str, str]:
    """{name: flag} of the options of the running command that are on the command line."""
    ctx = click.get_current_context()
    return {
        str(option.name): option.opts[0]
        for option in ctx.command.params
        if ctx.get_parameter_source(str(option.name)) == click.core.ParameterSource.COMMANDLINE
    }


def check_report(report: Path | None, page: str) -> None:
    """Raises InputError or MissingExtra if the module `page` cannot write --report: now, not after hours of work."""
    if report is not None:
        if report.is_dir():
            raise InputError(f"--report {report} is a folder", "name a file, such as report.html")
        import_module(page)


def warn(message: str) -> None:
    click.echo(f"warning: {message}", err=True)
