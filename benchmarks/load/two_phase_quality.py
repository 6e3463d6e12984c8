"""`osn bench two-phase`: what high-IDF-first loses against all tokens, on judged sets.

    osn bench two-phase --data data/scifact --data data/wikiqa-sent --record benchmarks/results/two-phase

The load benchmark's large indexes are drawn from real documents, to which judgements do not carry over; so the quality of
the setting whose cost it measures is taken here, from the sets themselves.
"""

from __future__ import annotations

from pathlib import Path

import click

from opensearch_neural.cluster import ConnectionSettings, connect, connection_options, translate_errors
from opensearch_neural.results import Goal, Row

ENGINES = ("bm25", "sparse", "high-idf-first")
MEASURES = ("nDCG@10", "R@10")
MOST_LOST = 0.5  # points of nDCG@10


@click.command("two-phase")
@click.option("--data", required=True, multiple=True, type=click.Path(path_type=Path), help="A folder in BEIR layout.")
@click.option("--split", default="test", show_default=True, help="Which judgements.")
@click.option("--sparse", default="lexical", show_default=True, help="Sparse model, trained or lexical.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@connection_options
def two_phase(
    connection: ConnectionSettings, data: tuple[Path, ...], split: str, sparse: str, record: Path | None
) -> None:
    """nDCG@10 of high-IDF-first as it is by default, beside all tokens and BM25, on each of the sets.

    Each set is ingested into an index of its own, which is deleted again.
    """
    from benchmarks.publish import publish
    from benchmarks.published import measure
    from ingest.job import Job
    from ingest.source import CorpusSource
    from opensearch_neural.corpus import BeirData
    from opensearch_neural.evaluate import rows

    client = connect(settings=connection)
    found: list[Row] = []
    goals: list[Goal] = []
    for folder in data:
        judged = BeirData.load(folder, split)
        job = Job(CorpusSource(str(judged.corpus_path)), sparse=sparse, replicas=0)
        with translate_errors():
            measured = measure(client, judged, job, {engine: engine for engine in ENGINES})
        found += rows(folder.name, measured, baseline="sparse")
        goals.append(goal(folder.name, {engine: each.mean["nDCG@10"] for engine, each in measured.items()}))
    publish(found, goals, title="High-IDF-first against all tokens", data=data, seeds=[0], shown=None, record=record)


def goal(set_: str, ndcg: dict[str, float]) -> Goal:
    points = 100 * (ndcg["sparse"] - ndcg["high-idf-first"])
    words = f"high-idf-first: nDCG@10 within {MOST_LOST} points of all tokens on {set_}"
    return Goal(words, MOST_LOST, round(points, 2), points <= MOST_LOST)
