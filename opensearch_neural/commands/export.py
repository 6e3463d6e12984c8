"""`osn model export`: a model in the form that other software takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click


@click.group()
def export() -> None:
    """Write a model in the form that other software takes."""


@export.command("ml-commons")
@click.argument("model")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the files.")
@click.option("--name", help="What the models are called in OpenSearch.  [default: the directory's name]")
@click.option("--version", default="1.0.0", show_default=True, help="Version of the models in OpenSearch.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def ml_commons(model: str, out: Path, name: str | None, version: str, as_json: bool) -> None:
    """Write a sparse MODEL for OpenSearch's own model framework: an encoder and a tokenizer, each with its configuration.

    \b
    osn model export ml-commons models/sparse --out exported
    Then serve the zip files where the cluster can read them, and for each
    POST /_plugins/_ml/models/_register?deploy=true with its .json and the "url" of its .zip.
    """
    from opensearch_neural.models.ml_commons import export as write

    written = write(model, out, name=name, version=version)
    if as_json:
        print(json.dumps([asdict(each) for each in written], default=str))
        return
    for each in written:
        print(f"{each.zip} ({each.zip.stat().st_size / 2**20:.1f} MB), {each.config.name}")
    print(f"largest difference between the traced encoder and the model: {written[0].largest_difference:.1e}")
