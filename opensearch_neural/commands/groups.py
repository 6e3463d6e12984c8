"""Groups of commands that are found by entry point, and imported only when they run.

Importing every command of `osn` would take seconds, since most need torch; `osn --help` shows only one line of each, which
is read from the command's source.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from opensearch_neural.errors import OsnError

OWN_PACKAGES = ("opensearch_neural", "trainers", "ingest", "benchmarks")


class EntryPointGroup(click.Group):
    """A click group whose commands are the entry points of one group name.

    sections: {title: names of commands}, for the help; without it all commands are under one title
    moved: {former name of a command here: its group of `osn` now, then its new name if that changed}
    """

    def __init__(
        self,
        *args: Any,
        group: str,
        sections: Mapping[str, Sequence[str]] | None = None,
        moved: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.entry_point_group = group
        self.sections = sections or {}
        self.moved = moved or {}

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.entry_point_group)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._entry_points(), *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entry_points().get(cmd_name)
        if entry is None and cmd_name in self.moved:
            group, _, name = self.moved[cmd_name].partition(" ")
            root = ctx.find_root().command
            now_in = root.get_command(ctx, group) if isinstance(root, click.Group) else None
            return now_in.get_command(ctx, name or cmd_name) if isinstance(now_in, click.Group) else now_in
        if entry is None:
            return super().get_command(ctx, cmd_name)
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in OWN_PACKAGES:
                raise
            # A subcommand whose extra is not installed must not break the others.
            return _unavailable(cmd_name, error.name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named. Names the most similar one if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            similar = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not similar:
                raise
            raise click.UsageError(f"{error.message} Did you mean {similar[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in sections. A command is not imported if its help can be read from its source."""
        commands = self._listing(ctx)
        if not commands:
            return
        limit = formatter.width - 6 - max(map(len, commands))
        sections = {title: [name for name in names if name in commands] for title, names in self.sections.items()}
        listed = {name for names in sections.values() for name in names}
        sections["More" if listed else "Commands"] = [name for name in commands if name not in listed]
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, commands[name].get_short_help_str(limit)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin with `incomplete`. It imports no commands: a shell waits for the answer."""
        commands = self._listing(ctx).items()
        items = [CompletionItem(name, help=each.get_short_help_str()) for name, each in commands]
        return [
            *(item for item in items if item.value.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def _listing(self, ctx: click.Context) -> dict[str, click.Command]:
        """{name: command} of the commands that are not hidden, each with its help text."""
        entries, commands = self._entry_points(), {}
        for name in self.list_commands(ctx):
            text = docstring_of(entries[name]) if name in entries else None
            command = self.get_command(ctx, name) if text is None else _listed(entries[name], text)
            if command is not None and not command.hidden:
                commands[name] = command
        return commands

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # `osn search … | head` closes the pipe early. That is no error, though click would report one.
            # At exit, Python writes the rest of its buffer to devnull.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except ModuleNotFoundError as error:
            # Some commands import what they work with only when they run: their help is there without it.
            if (error.name or "").partition(".")[0] in OWN_PACKAGES:
                raise
            raise _missing(f"{ctx.command_path} {ctx.invoked_subcommand}", error.name) from error


def _listed(entry: EntryPoint, text: str) -> click.Command:
    missing = missing_module(entry.module, entry.attr)
    return click.Command(entry.name, help=text) if missing is None else _unavailable(entry.name, missing)


def _unavailable(name: str, module: str | None) -> click.Command:
    def run(**_: Any) -> None:
        raise _missing(click.get_current_context().command_path, module)

    return click.Command(
        name,
        callback=run,
        help=f"(not installed: needs {module})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


def _missing(command: str, module: str | None) -> OsnError:
    return OsnError(f"`{command}` needs the module {module!r}", 'pip install "opensearch-neural[all]"')


# ------------------------------------------------------------------------------------------------ read from the source


def docstring_of(entry: EntryPoint) -> str | None:
    """The docstring of the function that an entry point names; None if it is not in this project's source."""
    function = _function(entry.module, entry.attr)
    return None if function is None else ast.get_docstring(function)


def missing_module(module: str, command: str | None = None) -> str | None:
    """A library that is not installed but needed to import a module of this project; None if there is none.

    The imports at the top of this project's modules are followed. command: a function there, whose imports count too, but
    not those in its branches.
    """
    seen: set[str] = set()
    function = None if command is None else _function(module, command)
    pending = [module, *_named(() if function is None else function.body)]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        package = name.partition(".")[0]
        if package in OWN_PACKAGES:
            pending += _imported(name)
        elif not _is_installed(package):
            return package
    return None


def _function(module: str, name: str) -> ast.FunctionDef | None:
    """A function of a module of this project, in its source."""
    tree = _source(module)
    functions = [] if tree is None else [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return next((function for function in functions if function.name == name), None)


def _imported(module: str) -> Iterator[str]:
    """The modules that a module of this project imports above its first function or class."""
    path = _path(module)
    if path is None:
        return
    source = path.read_text(encoding="utf-8")
    try:  # the whole source takes ten times as long
        tree = ast.parse(_DEFINITION.split(source, maxsplit=1)[0])
    except SyntaxError:  # a line of the docstring begins like a definition
        tree = ast.parse(source)
    yield from _named(tree.body)


_DEFINITION = re.compile(r"^(?:@|(?:async )?def |class )", re.MULTILINE)


def _named(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """The modules that the import statements among `statements` name."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            path = _path(node.module)
            if path is not None and path.name == "__init__.py":
                # A name imported from a package may be one of its modules; other names have no source.
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@cache
def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@cache
def _path(module: str) -> Path | None:
    """The source file of a module of this project; None for other modules."""
    package, *parts = module.split(".")
    folder = _folder(package) if package in OWN_PACKAGES else None
    if folder is None:
        return None
    place = folder.joinpath(*parts)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


@cache
def _source(module: str) -> ast.Module | None:
    """The syntax tree of a module of this project; None for other modules."""
    path = _path(module)
    return None if path is None else ast.parse(path.read_text(encoding="utf-8"))
