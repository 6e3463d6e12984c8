"""Options that got another name, so that one name means one thing in every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


class Renamed(click.Option):
    """An option whose first name is its own; the others are former ones, which still work and are not listed.

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
