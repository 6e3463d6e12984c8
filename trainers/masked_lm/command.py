"""The command `osn train mlm`."""

from __future__ import annotations

import click

from trainers.common.config import backbone_option, config_options
from trainers.masked_lm.settings import MaskedLmConfig


@click.command("mlm")
@config_options(MaskedLmConfig, shortcuts=backbone_option("backbone"))
def mlm_command(config: MaskedLmConfig, dry_run: bool) -> None:
    """Train a masked language model (BERT-like) or by span corruption (T5) on a corpus.

    It continues from a backbone (`backbone`), or makes a small model with its own tokenizer (`new`). If it is interrupted,
    run the same command again to continue.

    \b
    osn train mlm --output models/base --set "corpus=[squad-mix, tldr]" --set new.layers=4
    osn train mlm --config mlm.yaml --set training.steps=20000
    """
    from trainers.masked_lm.train import rehearse, train_masked_lm

    if dry_run:
        rehearse(config)
        click.echo("dry run: two steps taken, nothing kept")
        return
    click.echo(train_masked_lm(config))
