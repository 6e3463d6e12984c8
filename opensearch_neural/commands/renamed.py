"""Options that were renamed, so that a name means the same in every command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click


class Renamed(click.Option):
    """An option with its current name first, then its former names, which still work but are not listed.

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
