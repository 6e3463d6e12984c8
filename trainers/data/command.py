"""`osn data`: commands that prepare training data (found by entry point, group `osn.data`)."""

from __future__ import annotations

import click

from opensearch_neural.commands.groups import EntryPointGroup


@click.group(cls=EntryPointGroup, group="osn.data")
def data() -> None:
    """Prepare data: public sets, judgements and pairs from clicks, hard negatives, teachers, queries, leaks.

    \b
    osn data fetch ir:msmarco-passage/dev/small --output msmarco
    osn data from-clicks log.csv --output clicks --corpus corpus.jsonl
    osn data mine squad-mix --retriever bm25 --depth 100 --output negatives.jsonl
    osn data teach models/large squad-mix --output teachers/large
    osn data leaks squad-mix:train squad-mix:test
    """
