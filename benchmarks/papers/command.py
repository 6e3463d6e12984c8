"""`osn paper NAME`: the experiments of the papers (entry points of the group `osn.paper`)."""

from __future__ import annotations

import click

from opensearch_neural.commands.groups import EntryPointGroup


@click.group(cls=EntryPointGroup, group="osn.paper")
def paper() -> None:
    """Run a paper's experiments, each with its goals, and record the results."""
