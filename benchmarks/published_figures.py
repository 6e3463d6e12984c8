"""Figures that others published for BM25 and MiniLM, measured again on SciFact with the functions of `osn ingest` and
`osn eval`. None of the figures is from the five papers.

    osn bench published --data DIR --record benchmarks/results/published

The corpus is encoded once (`osn encode`); the float and the byte index are written from the same vectors.

The published figures are those of BM25 over title and text (nDCG@10 between 0.665 and 0.690, depending on analyzer and field
weights) and all-MiniLM-L6-v2 (0.645). The lexical engine has no published figure: it is BM25 over word pieces, so it
should be close to BM25 with the standard analyzer, which does no stemming either.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.experiment import publish, record_option
from benchmarks.local_cluster import ingested, judged_result
from ingest.corpus import CorpusSource
from ingest.job import Job
from ingest.settings import Models, NewIndex
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import open_engines
from opensearch_neural.evaluation.measures import Measured, label
from opensearch_neural.evaluation.result_rows import rows
from opensearch_neural.evaluation.results import Goal
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

DENSE = "all-MiniLM-L6-v2"
MEASURES = ("nDCG@10", "RR@10", "R@100")


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path), help="The folder of SciFact in BEIR layout.")
@record_option()
@connection_options
def published(connection: ConnectionSettings, data: Path, record: Path | None) -> None:
    """Measure published figures of BM25 and all-MiniLM-L6-v2 (Lucene k-NN) on SciFact again; not those of the papers."""
    judged = BeirData.load(data, "test")
    client = connect(settings=connection)
    corpus = CorpusSource(str(judged.corpus_path))
    with tempfile.TemporaryDirectory(prefix="osn-published-") as folder:
        vectors = Path(folder) / "vectors"
        run_encode(EncodeJob(corpus, vectors, Models(dense=DENSE)))
        words = Job(corpus, models=Models(sparse="lexical"), new_index=NewIndex(analyzer="standard", replicas=0))
        floats, bytes = (
            Job(corpus, vectors=vectors, new_index=NewIndex(dense_type=dense_type, replicas=0))
            for dense_type in ("float", "byte")
        )
        measured = {
            **measure(client, judged, floats, {"bm25": "bm25 (english)", "dense": "dense (float)"}),
            **measure(client, judged, bytes, {"dense": "dense (byte)"}),
            **measure(client, judged, words, {"bm25": "bm25 (standard)", "sparse": "lexical"}),
        }
    publish(
        rows(data.name, measured, baseline="bm25 (english)"),
        goals({name: of_engine.mean["nDCG@10"] for name, of_engine in measured.items()}),
        title="Published figures of BM25 and MiniLM, measured again",
        data=[data],
        seeds=[0],
        shown=lambda row: row.column in map(label, MEASURES),
        record=record,
    )


def measure(client: OpenSearch, judged: BeirData, job: Job, engines: dict[str, str]) -> dict[str, Measured]:
    """Ingest the corpus by `job`, measure the engines, and delete the index. engines: {engine: name in the result}"""
    with ingested(client, job) as index:
        opened = open_engines(client, index)
        retrievers = {engine: OpenSearchRetriever(client, index, engine, opened.body_of(engine)) for engine in engines}
        return {
            engines[engine]: judged_result(client, index, retriever, judged.queries, judged.qrels, MEASURES).measured
            for engine, retriever in retrievers.items()
        }


def goals(ndcg: dict[str, float]) -> list[Goal]:
    """The goals, each in its original words."""

    def between(name: str, low: float, high: float, words: str) -> Goal:
        return Goal(words, f"{low} to {high}", round(ndcg[name], 4), low <= ndcg[name] <= high)

    gap = abs(ndcg["lexical"] - ndcg["bm25 (standard)"])
    return [
        between("bm25 (english)", 0.66, 0.70, "OpenSearch BM25 nDCG@10 between 0.66 and 0.70"),
        between("dense (float)", 0.640, 0.655, "all-MiniLM-L6-v2 on Lucene k-NN (float) between 0.640 and 0.655"),
        between("dense (byte)", 0.640, 0.655, "all-MiniLM-L6-v2 on Lucene k-NN (byte) between 0.640 and 0.655"),
        Goal("the lexical engine within 0.02 of BM25 with the standard analyzer", "0.02", round(gap, 4), gap <= 0.02),
    ]
