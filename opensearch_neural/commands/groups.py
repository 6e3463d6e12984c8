"""Groups of commands that are found by entry point, and imported only when they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

from opensearch_neural.commands.outline import OWN_PACKAGES, docstring_of, missing_module
from opensearch_neural.errors import OsnError


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


def _listed(entry: EntryPoint, text: str) -> click.Command:
    missing = missing_module(entry.module)
    return click.Command(entry.name, help=text) if missing is None else _unavailable(entry.name, missing)


def _unavailable(name: str, module: str | None) -> click.Command:
    def run(**_: Any) -> None:
        raise OsnError(f"`osn {name}` needs the module {module!r}", 'pip install "opensearch-neural[all]"')

    return click.Command(
        name,
        callback=run,
        help=f"(not installed: needs {module})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
