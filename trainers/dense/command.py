"""The command `osn train dense`."""

from __future__ import annotations

import click

from trainers.common.config import backbone_option, config_options
from trainers.common.own_loss import LOSS_OPTION
from trainers.dense.settings import DenseConfig


@click.command("dense")
@config_options(DenseConfig, shortcuts=backbone_option("start") | LOSS_OPTION)
def dense_command(config: DenseConfig, dry_run: bool) -> None:
    """Train a bi-encoder (one vector per text) on questions and the passages that answer them.

    \b
    osn train dense --set 'train=[{path: squad-mix}]' --set selection.hold_back=0.02 --output models/dense
    osn train dense --config dense.yaml --print-config

    It prints the dev measures before and after. If it is stopped, run the same command again to continue.
    """
    from trainers.common.run_folder import print_result
    from trainers.dense.train import rehearse, train_dense

    print_result(config.output, rehearse(config) if dry_run else train_dense(config), dry_run)
