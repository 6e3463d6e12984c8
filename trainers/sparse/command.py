"""The command `osn train sparse`."""

from __future__ import annotations

from functools import partial

import click

from trainers.common.config import backbone_option, config_options
from trainers.common.own_loss import LOSS_OPTION
from trainers.sparse.settings import SparseConfig


@click.command("sparse")
@config_options(SparseConfig, shortcuts=backbone_option("start") | LOSS_OPTION)
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="[NAME:] FIELD=VALUE[; …]",
    help="Also try these settings: train without each train set in turn, and keep the settings that are best on the sets "
    "left out; repeatable.",
)
@click.option("--trust-remote-code", is_flag=True, help="Run the code that the start brings along. Read it first.")
def sparse_command(config: SparseConfig, dry_run: bool, tries: tuple[str, ...], trust_remote_code: bool) -> None:
    """Train an inference-free sparse model: documents are encoded, queries only tokenized.

    \b
    osn train sparse --config inference-free-sparse --print-config
    osn train sparse --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/sparse
    osn train sparse --set 'train=[{path: docs.jsonl.gz, questions: title}]' --set objective.base=bm25
    osn train sparse --config splade --output models/splade     # a teacher; its network encodes queries, too
    osn train sparse --config my.yaml --try regularization.weight=0.002 --try student.revive=0.1 --output models/sparse

    It prints dev measures and sparsity, and baselines that need no training: presence and BM25 over word pieces, and BM25.
    If it is stopped, run the same command again to continue.
    """
    from trainers.common.processes import is_main_process
    from trainers.common.run_folder import print_result
    from trainers.sparse import leave_one_out
    from trainers.sparse.student_measures import BASELINES
    from trainers.sparse.train import rehearse, train_sparse
    from trainers.sparse.trials_table import trials_table

    train = partial(train_sparse, trust_remote_code=trust_remote_code)
    if dry_run:
        for text in tries:
            rehearse(leave_one_out.changed(config, text), trust_remote_code=trust_remote_code)
    elif tries:
        tried = leave_one_out.trials(config, tries, train)
        best = leave_one_out.chosen(tried)
        if is_main_process():
            result = leave_one_out.result(tried)
            click.echo(f"{trials_table(result.rows)}\ntaken: {best.name}")
            click.echo(f"written: {result.write(leave_one_out.folder(config))}")
        config = best.config
    trained = rehearse(config, trust_remote_code=trust_remote_code) if dry_run else train(config)
    # The baselines are the same before and after training.
    print_result(
        config.output, trained, dry_run, width=40, without=tuple(f"start {baseline} nDCG" for baseline in BASELINES)
    )
