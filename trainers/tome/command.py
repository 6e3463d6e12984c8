"""The command `osn train tome`."""

from __future__ import annotations

import click

from trainers.common.config import backbone_option, config_options
from trainers.tome.settings import TomeConfig


@click.command("tome")
@config_options(TomeConfig, shortcuts=backbone_option("backbone"))
def tome_command(config: TomeConfig, dry_run: bool) -> None:
    """Train two models that retrieve by generating: a passage for a query, then the URL of that passage.

    If it is interrupted, run the same command again to continue. Afterwards `osn model urls` writes the URLs of a corpus,
    and `osn search --engine tome` searches with them.

    \b
    osn train mlm --set new.architecture=t5 --set "corpus=[tldr]" --output models/t5
    osn train tome --set corpus=tldr --set "queries=[{path: tldr}]" --set spans=5 --backbone models/t5 \\
        --output models/tome
    osn train tome --config tome --set stages=url --output models/tome          a stage of its own
    """
    from trainers.tome.train import rehearse, train_tome

    if dry_run:
        for stage, trained in rehearse(config).items():
            click.echo(f"{stage}: {trained.steps} steps {trained.measures}")
        click.echo("dry run: two steps per stage taken, nothing kept")
        return
    train_tome(config)
    click.echo(config.output)
