"""The command `osn train query-as-context`."""

from __future__ import annotations

import click

from trainers.common.config import backbone_option, config_options
from trainers.query_as_context.settings import QueryAsContextConfig


@click.command("query-as-context")
@config_options(
    QueryAsContextConfig,
    shortcuts={
        **backbone_option("backbone"),
        "variant": ("variant", "cocondenser or cot-mae.  [default: cocondenser]"),
        "context": ("context", "query, random-passage, mixed or none.  [default: query]"),
    },
)
def query_as_context_command(config: QueryAsContextConfig, dry_run: bool) -> None:
    """Pre-train an encoder on passages and the queries generated for them (coCondenser or CoT-MAE).

    \b
    osn train query-as-context --set 'corpora=[{path: squad-mix}]' --backbone models/mlm \\
        --set generation.model=models/doc2query --output models/pretrained
    osn train query-as-context --variant cot-mae --context random-passage --set 'corpora=[{path: squad-mix}]' \\
        --backbone models/mlm --output models/random
    osn train query-as-context --config query-as-context --output models/pretrained

    Then run osn train dense --set start=models/pretrained … (with this start its defaults are CLS and raw inner products).
    With `retriever` in the configuration, fine-tuning follows at once. If it is stopped, run the same command again to
    continue.
    """
    from trainers.common.processes import is_main_process
    from trainers.query_as_context.train import rehearse, steps_per_second, train_query_as_context

    steps = rehearse(config) if dry_run else train_query_as_context(config)
    if not is_main_process():
        return
    for step in steps:
        place = "nothing kept (dry run)" if dry_run else str(step.model)
        click.echo(f"{step.name}: {place}")
        for name, measures in step.measures.items():
            click.echo(f"{name:>24}  " + "  ".join(f"{measure} {value:.4f}" for measure, value in measures.items()))
    if not dry_run and (rate := steps_per_second(config.output)) is not None:
        click.echo(f"pre-training: {rate:.3g} steps/s of {config.training.batch_size} pairs")
