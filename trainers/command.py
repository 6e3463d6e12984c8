"""`osn train METHOD`: one subcommand per method, found by entry point (group `osn.train`), imported when it runs."""

from __future__ import annotations

import click

from opensearch_neural.commands.groups import EntryPointGroup


@click.group(cls=EntryPointGroup, group="osn.train")
def train() -> None:
    """Train a model on your own corpus.

    \b
    osn train dense --config dense.yaml                    a bi-encoder, from a backbone and question–passage pairs
    osn train dense --config dense.yaml --print-config     every field with its value, explained
    osn train dense --config dpr --dry-run                 a paper's recipe, two steps on a few rows

    If it is stopped or killed, run the same command again to continue; it ends in the same weights.
    """
