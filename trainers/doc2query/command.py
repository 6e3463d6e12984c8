"""The command `osn train doc2query`."""

from __future__ import annotations

import click

from trainers.common.config import backbone_option, config_options
from trainers.doc2query.settings import Doc2QueryConfig


@click.command("doc2query")
@config_options(Doc2QueryConfig, shortcuts=backbone_option("backbone"))
def doc2query_command(config: Doc2QueryConfig, dry_run: bool) -> None:
    """Train a model that writes queries for passages, on pairs of both.

    If it is interrupted, run the same command again to continue.

    \b
    osn train doc2query --backbone models/t5 --set "data=[squad-mix]" --output models/doc2query
    """
    from trainers.doc2query.train import rehearse, train_doc2query

    if dry_run:
        rehearse(config)
        click.echo("dry run: two steps taken, nothing kept")
        return
    click.echo(train_doc2query(config))
