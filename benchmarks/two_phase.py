"""`osn bench two-phase`: what high-IDF-first loses against all tokens, on judged sets.

    osn bench two-phase --data data/scifact --data data/wikiqa-sent --record benchmarks/results/two-phase

The load benchmark's large indexes are drawn from real documents, to which judgements do not carry over; so the quality of
the settings whose cost it measures is taken here, from the sets themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.evaluation.results import Goal, Row

EXACT = "sparse"
MOST_LOST = 0.5  # points of nDCG@10


@click.command("two-phase")
@click.option("--data", required=True, multiple=True, type=click.Path(path_type=Path), help="A folder in BEIR layout.")
@click.option("--split", default="test", show_default=True, help="Which judgements.")
@click.option("--sparse", default="lexical", show_default=True, help="Sparse model, trained or lexical.")
@click.option("--engines", default="paper", show_default=True, help="As for `osn bench load`; `sparse` is among them.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@connection_options
def two_phase(
    connection: ConnectionSettings, data: tuple[Path, ...], split: str, sparse: str, engines: str, record: Path | None
) -> None:
    """nDCG@10 of high-IDF-first, as the load benchmark asks for it, beside all tokens and BM25, on each of the sets.

    Each set is ingested into an index of its own, which is deleted again.
    """
    from benchmarks.load.quality import Judged, judged_rows
    from benchmarks.load.variants import parse_variants
    from benchmarks.load.workload import LoadTarget, prepare, stored_pipelines
    from benchmarks.publish import publish
    from benchmarks.reproduction import ingested
    from ingest.corpus import CorpusSource
    from ingest.job import Job
    from opensearch_neural.corpus.judgements import BeirData
    from opensearch_neural.errors import InputError

    variants = parse_variants(engines)
    if EXACT not in (variant.name for variant in variants):
        raise InputError(f"--engines {engines}: {EXACT!r} is what the others are compared with, and is not among them")
    client = connect(settings=connection)
    rows: list[Row] = []
    goals: list[Goal] = []
    for folder in data:
        judged = BeirData.load(folder, split)
        job = Job(CorpusSource(str(judged.corpus_path)), sparse=sparse, replicas=0)
        with translate_errors(), stored_pipelines(client, variants) as pipelines, ingested(client, job) as index:
            texts = list(judged.queries.values())
            workload = prepare(client, LoadTarget(connection), index, variants, texts, pipelines=pipelines)
            measured = judged_rows(client, workload, Judged(judged.queries, judged.qrels), folder.name, baseline=EXACT)
        rows += measured
        ndcg = {row.engine: row.value for row in measured if (row.kind, row.measure) == ("value", "nDCG@10")}
        goals += goals_of(folder.name, ndcg, [each.name for each in variants if each.engine == "high-idf-first"])
    publish(rows, goals, title="High-IDF-first against all tokens", data=data, seeds=[0], shown=None, record=record)


def goals_of(set_: str, ndcg: Mapping[str, float], engines: list[str]) -> list[Goal]:
    """What each of `engines` loses, in points of nDCG@10."""
    lost = {engine: 100 * (ndcg[EXACT] - ndcg[engine]) for engine in engines}
    words = f"nDCG@10 within {MOST_LOST} points of all tokens on {set_}"
    return [Goal(f"{each}: {words}", MOST_LOST, round(lost[each], 2), lost[each] <= MOST_LOST) for each in engines]
