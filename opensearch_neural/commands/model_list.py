"""`osn model list`: published sparse models, and sparse models on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click


@click.command("list")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print both lists as JSON.")
def list_models(folders: tuple[Path, ...], as_json: bool) -> None:
    """List sparse models for `osn ingest --sparse`: published models, and models on this machine.

    Models on this machine are found below FOLDERS (default: models/), in installed packages, in the hub's cache, and among
    the models of indexes.

    \b
    osn model list
    osn model list ~/models --json
    """
    from opensearch_neural.models.sparse.on_this_machine import local_models
    from opensearch_neural.models.sparse.published import DOCUMENT_TOKENS, PUBLISHED

    here = local_models(folders or [Path("models")])
    if as_json:
        published = [asdict(each) | {"multiply_adds": each.multiply_adds} for each in PUBLISHED]
        print(json.dumps({"published": published, "here": [asdict(each) for each in here]}, default=str, indent=2))
        return
    print("Published (the time to read a document grows with its multiply-adds; queries need no network):")
    for each in PUBLISHED:
        print(f"\n  {each.name}")
        print(f"    {each.parameters:g} million parameters, {each.language}, {each.licence}, queries by {each.queries}")
        if each.multiply_adds is not None:
            billions = each.multiply_adds / 1e9
            print(f"    {billions:.1f} billion multiply-adds for a document of {DOCUMENT_TOKENS} tokens")
        if each.score:
            print(f"    {each.score}")
        print(f"    {each.source}")
        if each.remote_code:
            print("    has code of its own: read it, then run it with --trust-remote-code")
        if each.note:
            print(f"    {each.note}")
    print("\n  lexical\n    BM25's weights over word pieces, counted in the corpus: no network, adds no words")
    print("\nOn this machine:" if here else "\nOn this machine: none")
    for model in here:
        print(f"\n  {model.name}\n    {model.kind}, {model.megabytes:,.1f} MB")
