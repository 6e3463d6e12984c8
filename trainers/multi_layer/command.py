"""The command `osn train mlr`."""

from __future__ import annotations

import click

from trainers.common.config import backbone_option, config_options
from trainers.multi_layer.settings import MlrConfig


@click.command("mlr")
@config_options(
    MlrConfig,
    shortcuts={
        **backbone_option("start"),
        "layers": ("representation.layers", "Numbers (4,6), all, or last:M, first:M, uniform:M.  [default: last:2]"),
        "pooling": (
            "representation.pooling",
            "multi-vector, self-contrastive, average or scalar-mix.  [default: self-contrastive]",
        ),
    },
)
def mlr_command(config: MlrConfig, dry_run: bool) -> None:
    """Train multi-layer representations: several layers' vectors of a document, pooled into one vector or all kept.

    \b
    osn train mlr --layers last:2 --pooling self-contrastive --set 'train=[{path: squad-mix}]' \\
        --set selection.hold_back=0.02 --output models/mlr
    osn train mlr --config multi-layer-representations --dry-run --output models/mlr

    A self-contrastive model is an ordinary dense model: load_dense, SentenceTransformer and `osn ingest --dense` take it.
    It prints the dev measures before and after. If it is stopped, run the same command again to continue.
    """
    from trainers.common.run_folder import print_result
    from trainers.multi_layer.train import rehearse, train_mlr

    print_result(config.output, rehearse(config) if dry_run else train_mlr(config), dry_run)
