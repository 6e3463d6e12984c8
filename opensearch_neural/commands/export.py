"""`osn model export`: writes a model in the format of other software."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from opensearch_neural.commands.option_groups import output_option


@click.group()
def export() -> None:
    """Write a model in the format of other software."""


@export.command("ml-commons")
@click.argument("model")
@output_option("Folder of the files.", required=True, file_okay=False)
@click.option("--name", help="Name of the models in OpenSearch.  [default: the directory's name]")
@click.option("--version", default="1.0.0", show_default=True, help="Version in the JSON; OpenSearch counts its own.")
@click.option("--queries-only", is_flag=True, help="Write only the query tokenizer; for any sparse model with a table.")
@click.option("--trust-remote-code", is_flag=True, help="Run the code that the model brings along. Read it first.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def ml_commons(
    model: str, out: Path, name: str | None, version: str, queries_only: bool, trust_remote_code: bool, as_json: bool
) -> None:
    """Write a sparse MODEL for OpenSearch's own model framework: an encoder and a tokenizer, each with its configuration.

    Of a model whose queries a network encodes, the encoder alone is written: it serves queries, too.

    \b
    osn model export ml-commons models/sparse --output exported
    osn model export ml-commons models/lexical --output exported --queries-only
    Then serve the zip files where the cluster can read them, and for each zip file
    POST /_plugins/_ml/models/_register?deploy=true with its .json and the "url" of its .zip.
    """
    from opensearch_neural.models.sparse.ml_commons import export as write

    written = write(
        model, out, name=name, version=version, queries_only=queries_only, trust_remote_code=trust_remote_code
    )
    if as_json:
        print(json.dumps([asdict(each) for each in written], default=str))
        return
    for each in written:
        print(f"{each.zip} ({each.zip.stat().st_size / 2**20:.1f} MB), {each.config.name}")
        if each.largest_difference is not None:
            print(f"largest difference between the traced encoder and the model: {each.largest_difference:.1e}")


@export.command("hub")
@click.argument("model")
@output_option("Folder to write.", required=True, file_okay=False)
@click.option("--licence", required=True, help="The model's licence, as the hub writes it: apache-2.0, cc-by-4.0, …")
@click.option("--name", help="Name of the model in its card.  [default: the directory's name]")
@click.option("--language", help="Its language, as the hub writes it: en, multilingual, …")
@click.option("--base-model", help="The hub id of the model that it was trained from.")
@click.option(
    "--results",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A summary.json of a measurement, whose rows go into the card; may be repeated.",
)
@click.option("--variant", multiple=True, help="Of --results, the rows of this variant alone; may be repeated.")
@click.option("--engine", multiple=True, help="Of --results, the rows of this engine alone; may be repeated.")
@click.option("--measure", multiple=True, help="Of --results, the rows of this measure alone; may be repeated.")
def hub(
    model: str,
    out: Path,
    licence: str,
    name: str | None,
    language: str | None,
    base_model: str | None,
    results: tuple[Path, ...],
    variant: tuple[str, ...],
    engine: tuple[str, ...],
    measure: tuple[str, ...],
) -> None:
    """Write a sparse MODEL as a folder that is ready to upload: sentence-transformers' layout, and a model card.

    The card has the licence, the names of the training data, the measures at the end of training, and the rows of the
    result files that you give; --variant, --engine and --measure choose among these rows. A model with code of its own is
    refused.

    \b
    osn model export hub models/sparse --output upload --licence apache-2.0 --results results/mine/summary.json
    hf upload my-name/my-model upload
    """
    from opensearch_neural import __version__
    from opensearch_neural.evaluation.model_card import card_table
    from opensearch_neural.models.sparse.hub_export import export_for_hub

    card = export_for_hub(
        model,
        out,
        licence=licence,
        name=name,
        language=language,
        base_model=base_model,
        measured=card_table(results, {"variant": variant, "engine": engine, "measure": measure}),
        written_by=f"opensearch-neural {__version__}",
    )
    print(f"{out} is ready to upload; read {card} first")
