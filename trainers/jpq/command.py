"""The command `osn train jpq`."""

from __future__ import annotations

import click

from trainers.common.config import config_options
from trainers.jpq.settings import JpqConfig


@click.command("jpq")
@config_options(JpqConfig)
def jpq_command(config: JpqConfig, dry_run: bool) -> None:
    """Train a query encoder and the centroids of a product quantization together: M bytes per document.

    \b
    osn train jpq --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/jpq
    osn train jpq --config jpq --set quantizer.subvectors=24 --output models/jpq
    osn encode docs.jsonl.gz --pq models/jpq --output codes

    It prints the dev measures of OPQ and of the result. If it is stopped, run the same command again to continue.
    """
    from trainers.common.run_folder import print_result
    from trainers.jpq.train import rehearse, train_jpq

    print_result(config.output, rehearse(config) if dry_run else train_jpq(config), dry_run)
