"""A click log to try things on: simulated users search a judged collection by two rankings, and click.

    python examples/simulate_clicks.py --index docs --data my-beir-folder --output log.csv

They look at a place with the chance of PROPENSITIES, and click what they look at, a relevant document more often than
another. BM25 answers half of the searches, BM25 with titles that count more the other half, as if the ranking had changed.
"""

from __future__ import annotations

import csv
from pathlib import Path

import click
import numpy as np

from opensearch_neural.cluster.connect import connect
from opensearch_neural.corpus.judgements import JudgedQueries
from opensearch_neural.queries import bm25
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

PROPENSITIES = np.array([1 / place**0.8 for place in range(1, 11)])
RELEVANT, OTHER = 0.6, 0.04
"""The chance of a click on a document that is looked at."""


@click.command()
@click.option("--index", required=True, help="The index to search.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="A folder in BEIR layout.")
@click.option("--split", default="test", show_default=True, help="Which judgements.")
@click.option(
    "--searches", default=20_000, show_default=True, help="How many; a few queries are asked much more often."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the users.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The csv to write.")
def simulate(index: str, data: Path, split: str, searches: int, seed: int, output: Path) -> None:
    """Write a click log of simulated users."""
    judged = JudgedQueries.of_folder(data, split)
    client = connect()
    rankings = [
        OpenSearchRetriever(client, index, "text", lambda text, size: bm25(text, size=size)),
        OpenSearchRetriever(
            client, index, "titles", lambda text, size: bm25(text, fields=["contents", "title^2"], size=size)
        ),
    ]
    runs = [ranking.retrieve(judged.queries, len(PROPENSITIES)) for ranking in rankings]
    generator = np.random.default_rng(seed)
    queries = generator.permutation(list(judged.queries))
    weights = 1 / np.arange(1, len(queries) + 1)  # Zipf
    with output.open("w", newline="", encoding="utf-8") as file:
        log = csv.writer(file)
        log.writerow(["query", "document", "position", "clicked"])
        for query in generator.choice(queries, size=searches, p=weights / weights.sum()).tolist():
            grades = judged.qrels[query]
            for place, document in enumerate(runs[generator.integers(2)][query]):
                attraction = RELEVANT if grades.get(document, 0) > 0 else OTHER
                clicked = generator.random() < PROPENSITIES[place] * attraction
                log.writerow([judged.queries[query], document, place + 1, int(clicked)])
    print(f"{searches:,} searches in {output}; true propensities: {', '.join(f'{each:.3f}' for each in PROPENSITIES)}")


if __name__ == "__main__":
    simulate()
