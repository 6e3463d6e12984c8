"""Help of a command with many options: the most needed options on top, the others under headings.

@click.command(cls=Headed, first="index sparse text-field")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

FIRST, ADVANCED = "Options", "Advanced"


def taking(command: Any, options: Iterable[Callable[[Any], Any]]) -> Any:
    """The command with these options (made by `click.option`), listed in this order in its help."""
    for option in reversed(list(options)):
        command = option(command)
    return command


def under(heading: str, option: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The option (made by `click.option`), which a `Headed` command lists under `heading`; other commands ignore that."""

    def decorate(command: Any) -> Any:
        decorated = option(command)
        decorated.__click_params__[-1].heading = heading
        return decorated

    return decorate


class Headed(click.Command):
    """A command whose help lists options under headings.

    first: names of the options on top, in this order; other options without a heading go under "Advanced". If `first` is
    empty, they are on top.
    """

    def __init__(self, *args: Any, first: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.first = [f"--{name}" for name in first.split()]
        known = {flag for option in self.params for flag in option.opts}
        if unknown := set(self.first) - known:
            raise ValueError(f"{self.name} has no option {min(unknown)}")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[click.Option]] = {FIRST: [], ADVANCED: []}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option):
                sections.setdefault(self._heading(option), []).append(option)
        sections[FIRST].sort(key=self._place)
        for heading, options in sections.items():
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def _heading(self, option: click.Option) -> str:
        if not self.first or {*option.opts} & {*self.first, "--help"}:
            return getattr(option, "heading", FIRST)
        return getattr(option, "heading", ADVANCED)

    def _place(self, option: click.Option) -> int:
        return next((place for place, flag in enumerate(self.first) if flag in option.opts), len(self.first))


class HeadedGroup(Headed, click.Group):
    """A group whose commands are `Headed`; its own help is too."""

    command_class = Headed

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
