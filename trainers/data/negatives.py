"""Hard negatives: documents that a retriever finds for a training query and that are not known to be relevant.

    osn data mine squad-mix --retriever bm25 --depth 100 --output negatives.jsonl
    osn data mine squad-mix --retriever dense:models/retriever-1 --depth 200 --keep-negatives 15 --output negatives.jsonl
    osn data mine squad-mix --retriever sparse:models/student --depth 100 --consistency 10 --output negatives.jsonl

The consistency filter leaves out a query if the retriever finds none of its positives in the top n: the pair is noise, or
too hard for the model (`inference-free-sparse`, section 4.2). First BM25's negatives, then the model's own: these are the
two stages of `query-as-context-pretraining`, section 3.2, and `multi-layer-representations`, section 4.3.2.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.commands.option_groups import Renamed, options_of, setting, setting_options
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import TUNED
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import rank
from opensearch_neural.evaluation.run_files import read_run
from opensearch_neural.index.record import existing_record
from opensearch_neural.locks import locked
from opensearch_neural.models import registry
from opensearch_neural.models.dense.multi_layer import load_multi_layer
from opensearch_neural.models.dense.quantized import load_quantized
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import ModelInfo, locate, model_info
from opensearch_neural.models.generative.generative_model import load_generative
from opensearch_neural.models.generative.url_trie import CorpusUrls
from opensearch_neural.retrievers import Retriever, Run
from opensearch_neural.retrievers.analyzers import analyzer
from opensearch_neural.retrievers.exact_multi_vector import MultiVectorRetriever
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from opensearch_neural.retrievers.faiss import FaissRetriever, QuantizedRetriever
from opensearch_neural.retrievers.generative import GenerativeRetriever
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from trainers.common.config import fingerprint
from trainers.data.embedding_cache import dense_vectors, several_vectors, sparse_vectors
from trainers.data.examples import TrainingData
from trainers.data.loading import NEGATIVES, load_training, with_negatives
from trainers.data.resumable_chunks import Chunk, summary, write_in_chunks
from trainers.data.teacher_models import sparse_sides
from trainers.data.texts import TextStore

DEPTH = 200
CHUNK = 256
COUNTS = (
    "queries",
    "left_out",  # by the consistency filter
    "without_negatives",
    "negatives",
    "known_positives",  # from here on: documents that were found but not taken
    "same_texts",
    "ids_without_document",
    "own_documents",  # the query itself, if queries are documents
    "withheld",  # what held-back questions are about; counted where something is held back
)
MODELS = ("dense", "multi-layer", "quantized", "sparse")
"""The kinds of retrievers that are a model, which encodes the documents."""
RETRIEVERS = (
    "bm25, bm25:ANALYZER, dense:MODEL, multi-layer:MODEL, quantized:MODEL, sparse:MODEL, opensearch:INDEX:ENGINE, "
    "tome:URLS, run:FILE"
)


@dataclass(frozen=True)
class Mining:
    """Which of a retriever's hits become negatives. Raises InputError for settings that leave none."""

    depth: int = setting(DEPTH, "Documents to retrieve for a query.")
    keep: int | None = setting(
        None,
        "Negatives to keep for a query, the hardest first.  [default: all]",
        "--keep-negatives --keep",
        cls=Renamed,
        type=int,
    )
    skip_top: int = setting(0, "Ranks to skip at the top.")
    """Unjudged positives are most likely there."""
    consistency: int | None = setting(None, "Leave out queries without a positive in the top N.", type=int, metavar="N")

    def __post_init__(self) -> None:
        depth, keep, skip_top, consistency = self.depth, self.keep, self.skip_top, self.consistency
        if (
            depth < 1
            or skip_top < 0
            or (keep is not None and keep < 1)
            or (consistency is not None and consistency < 1)
        ):
            raise InputError(
                f"depth {depth}, keep {keep}, skip_top {skip_top}, consistency {consistency}: expected numbers above 0"
            )
        if skip_top >= depth:
            raise InputError(f"skip_top {skip_top} leaves none of the {depth} documents of depth", "raise depth")


mining_options = options_of(Mining, "mining", *setting_options(Mining).values())


def mine(
    data: TrainingData, retriever: Retriever, mining: Mining | None = None, *, output: Path, chunk: int = CHUNK
) -> Path:
    """Write the hard negatives of every example of `data` to `output`; `load_training(negatives=output)` reads them.

    Never negatives: known positives, documents with the normalised text of a positive or an earlier negative, ids without a
    document (faiss's -1), a query's own document (same id and text), and documents that `data` withholds.

    A line is {"query_id", "positives", "negatives", "scores", "rank"}: the retriever's scores of the negatives, and the rank
    of the best positive (null if not found). After an interruption, the same call continues (`chunk` queries at a time); it
    waits while another process does the same work.

    Raises InputError if `output` was made with other settings, or if the retriever searches another corpus.
    """
    mining = mining or Mining()
    made_by = {
        "data": data.hash,
        "queries": data.queries.hash,
        "documents": data.documents.hash,
        "retriever": retriever.name,
        **asdict(mining),
        "chunk": chunk,
    }
    if isinstance(retriever, RunRetriever):
        retriever.check(data.query_texts())

    def work(number: int) -> Chunk:
        examples = [data.example(index) for index in range(number * chunk, min((number + 1) * chunk, len(data)))]
        queries = {example.query_id: example.query for example in examples}
        run = retriever.retrieve(queries, max(mining.depth, mining.consistency or 0))
        _refuse_other_corpus(run, data.documents, retriever.name)
        lines: list[dict[str, Any]] = []
        counts = dict.fromkeys(COUNTS if len(data.withheld) else COUNTS[:-1], 0)
        for query in queries:
            lines.append(_line(data, query, run.get(query, {}), mining, counts))
        return lines, counts

    with locked(output, done=output):
        write_in_chunks(output, NEGATIVES, made_by, -(-len(data) // chunk), work, unit=f"× {chunk} queries")
    return output


def with_mined(
    data: TrainingData,
    retriever: str,
    file: Path,
    mining: Mining,
    *,
    cache: Path | None = None,
    add: int = 0,
) -> TrainingData:
    """`data` with hard negatives that `retriever` (see `open_retriever`) finds; mined into `file` unless they are there.

    cache: as in `open_retriever`. add: as in `with_negatives`. With several processes, the first mines while the others
    wait.
    """
    from trainers.common.processes import main_process_first  # here, because it imports torch; BM25 needs no torch

    with main_process_first():
        engine = open_retriever(retriever, data.documents, cache=cache, by_record=True)
        mine(data, engine, mining, output=file)
    return with_negatives(data, file, add=add)


def _line(
    data: TrainingData, query: str, hits: Mapping[str, float], mining: Mining, counts: dict[str, int]
) -> dict[str, Any]:
    """One line of the output: the negatives among the hits of a query; none if the consistency filter leaves it out.
    Counts in `counts`."""
    positives = data.known_positives(query)
    ranked = rank(hits)
    best = next((at for at, (document, _) in enumerate(ranked, start=1) if document in positives), None)
    negatives = _negatives(data, query, ranked[mining.skip_top : mining.depth], mining.keep, counts)
    left_out: dict[str, str] = {}
    if mining.consistency is not None and (best is None or best > mining.consistency):
        negatives, left_out = [], {"left_out": f"no positive in the top {mining.consistency}"}
    counts["queries"] += 1
    counts["left_out"] += bool(left_out)
    counts["negatives"] += len(negatives)
    counts["without_negatives"] += not negatives
    return {
        "query_id": query,
        "positives": sorted(positives),
        "negatives": [document for document, _ in negatives],
        "scores": [score for _, score in negatives],
        "rank": best,
        **left_out,
    }


def _negatives(
    data: TrainingData, query: str, ranked: Sequence[tuple[str, float]], keep: int | None, counts: dict[str, int]
) -> list[tuple[str, float]]:
    """(document, score) of the negatives among the ranked documents. Counts in `counts` those that are not taken."""
    canonical = data.documents.canonical
    positives = data.known_positives(query)
    own = data.own_documents.get(data.queries.row(query))
    seen: set[int] = set()
    negatives: list[tuple[str, float]] = []
    for document, score in ranked:
        if document in positives:
            counts["known_positives"] += 1
        elif document not in data.documents:
            counts["ids_without_document"] += 1
        elif (row := data.documents.row(document)) == own:
            counts["own_documents"] += 1
        elif row in data.withheld_rows:
            counts["withheld"] += 1
        elif (text := int(canonical[row])) in seen:
            counts["same_texts"] += 1
        elif keep is None or len(negatives) < keep:
            seen.add(text)
            negatives.append((document, round(float(score), 6)))
    return negatives


def _refuse_other_corpus(run: Run, documents: TextStore, name: str) -> None:
    """Raises InputError if most ids are unknown. A few are ignored: an index may hold more than the data."""
    retrieved = {document for hits in run.values() for document in hits if document != "-1"}
    unknown = sorted(document for document in retrieved if document not in documents)
    if len(unknown) * 2 > len(retrieved):
        raise InputError(
            f"{name} found {len(retrieved)} documents, {len(unknown)} of which are not in the training data "
            f"({unknown[0]!r} first)",
            "search an index of the same corpus",
        )


# ---------------------------------------------------------------- retrievers by name


@dataclass
class LazyRetriever:
    """A retriever that is built at its first query: finished work, found by `name`, costs no encoding."""

    name: str
    """names retriever, model and settings, so that finished work can be found"""
    build: Callable[[], Retriever]
    """called once; it loads the model and encodes the corpus"""

    @cached_property
    def built(self) -> Retriever:
        return self.build()

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        return self.built.retrieve(queries, k)


def check_spec(spec: str) -> None:
    """Raises InputError for a name or an analyzer that `open_retriever` does not know, ModelError for a missing model."""
    kind, _, name = spec.partition(":")
    if spec == "bm25" or (kind in ("run", "opensearch", "tome") and name):
        return
    if kind == "bm25" and name:
        analyzer(name)
        return
    if kind not in MODELS or not name:
        raise InputError(f"there is no retriever {spec!r}", f"expected one of {RETRIEVERS}")
    locate(name)


def open_retriever(
    spec: str,
    documents: TextStore,
    *,
    cache: Path | None = None,
    device: str | None = None,
    batch_size: int = 32,
    by_record: bool = False,
) -> Retriever:
    """The retriever that `spec` names, for searching `documents`.

    "bm25" (bm25s, with its own rules for English); "bm25:german" (bm25s, with the terms of an index with this analyzer,
    one of `analyzers.ANALYZERS`); "dense:MODEL" (exact, inner products of the model's vectors); "multi-layer:MODEL" (exact,
    the largest inner product with a document's vectors); "quantized:MODEL" (exact, on documents' codes); "sparse:MODEL"
    (exact; also a lexical model, or a SPLADE whose network encodes queries); "opensearch:INDEX:ENGINE" (an index that
    `osn ingest` wrote, on the cluster of the environment, and an engine of `osn search`); "tome:URLS", the folder of
    `osn model urls`, whose model is found by its hash; "run:FILE", a TREC run of any other engine. cache: a folder that
    keeps the documents' vectors, so that an interrupted run need not encode again. by_record: whether the name of an index's
    retriever includes a hash of the models and tuning in the index's record; the record is then read at once.

    Raises InputError for another name or analyzer, ModelError as the models do, ClusterError as the cluster does.
    """
    check_spec(spec)
    kind, _, name = spec.partition(":")
    if kind == "bm25":
        from opensearch_neural.retrievers.bm25 import BM25Retriever

        return LazyRetriever(
            f"bm25s {name}" if name else "bm25s",
            lambda: BM25Retriever(documents.ids, documents.values(), analyzer=name or None),
        )
    if kind == "run":
        return RunRetriever(Path(name))
    if kind == "opensearch":
        index, _, engine = name.partition(":")
        return _opensearch(index, engine or "bm25", by_record=by_record)
    if kind == "tome":
        return _tome(Path(name), device, batch_size)
    model = model_info(locate(name), name=name, kind=kind)
    path = None if cache is None else cache / "documents"
    return LazyRetriever(
        f"{kind} {model.name} {model.hash}", lambda: _of_model(name, model, documents, path, device, batch_size)
    )


def _of_model(
    name: str, model: ModelInfo, documents: TextStore, path: Path | None, device: str | None, batch_size: int
) -> Retriever:
    """Exact search by a model of one of MODELS. path: of the cache of the documents' vectors; None keeps them in memory."""
    if model.kind == "sparse":
        sides = sparse_sides(name, model.path, device, batch_size, None)
        weights = sparse_vectors(sides.documents, documents, path, model=model, vocabulary=sides.vocabulary)
        return ExactSparseRetriever(documents.ids, weights, lambda text: sides.queries([text]).row(0))
    if model.kind == "multi-layer":
        several = load_multi_layer(name, device=device)
        of_documents = several_vectors(several, documents, path, batch_size=batch_size)
        return MultiVectorRetriever(documents.ids, of_documents, several.encode_queries)
    quantized = load_quantized(name, device=device) if model.kind == "quantized" else None
    dense = load_dense(name, device=device) if quantized is None else quantized.dense
    encode = partial(dense.encode_documents, batch_size=batch_size)
    vectors = dense_vectors(encode, documents, path, model=dense.info, dimension=dense.dimension, precision="float32")
    if quantized is None:
        return FaissRetriever(documents.ids, vectors, dense.encode_queries)
    codes = quantized.quantizer.encode(vectors)
    return QuantizedRetriever(documents.ids, codes, quantized.quantizer, quantized.encode_queries)


def _tome(folder: Path, device: str | None, batch_size: int) -> Retriever:
    urls = CorpusUrls.load(folder)

    def build() -> Retriever:
        place = registry.find(urls.model["hash"], urls.model["name"], "generative")
        return GenerativeRetriever(load_generative(place, device=device), urls, batch_size=batch_size)

    return LazyRetriever(f"tome {urls.model['name']} {urls.model['hash']} {urls.corpus}", build)


def _opensearch(index: str, engine: str, *, by_record: bool) -> Retriever:
    name = f"opensearch {index} {engine}"
    if by_record:
        # An index of the same name may have been written anew by another model, or tuned since: it gives other negatives.
        # With another number of documents, for instance, it still counts as the same index.
        meta = existing_record(connect(), index)
        models = (meta.sparse, meta.dense, meta.quantized, meta.passages, meta.prune, meta.prune_postings)
        tuned = [meta.extra.get(tunable.key) for tunable in TUNED]
        name += f" {fingerprint([repr(model) for model in models], meta.analyzer, tuned)}"

    def build() -> Retriever:
        client = connect()
        return OpenSearchRetriever(client, index, engine, open_engines(client, index).body_of(engine))

    return LazyRetriever(name, build)


class RunRetriever:
    """The hits in a TREC run file; a query without a line has no hits, as the format defines."""

    def __init__(self, path: Path) -> None:
        self.run = read_run(path)
        self.path = path
        # Finished work is found by this name, so it includes a hash of the file.
        self.name = f"run {path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"

    def check(self, queries: Collection[str]) -> None:
        """Raises InputError if the run has hits for none of the queries."""
        if queries and self.run.keys().isdisjoint(queries):
            raise InputError(f"{self.path} has no hits for {len(queries)} queries, {min(queries)!r} first")

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        return {query: dict(rank(self.run.get(query, {}))[:k]) for query in queries}


@click.command("mine")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--retriever", required=True, metavar="NAME", help=f"One of {RETRIEVERS}.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The file of negatives (jsonl).")
@click.option("--split", default="train", show_default=True, help="Split of a BEIR folder's judgements.")
@click.option("--corpus", type=click.Path(path_type=Path), help="The documents of triples by id, or generated queries.")
@click.option("--queries", type=click.Path(path_type=Path), help="The queries of triples by id.")
@mining_options
@click.option("--device", help="cpu, cuda, …  [default: a GPU if there is one]")
@click.option("--batch-size", default=32, show_default=True, help="Texts to encode at once.")
def mine_command(
    data: Path,
    retriever: str,
    output: Path,
    split: str,
    corpus: Path | None,
    queries: Path | None,
    mining: Mining,
    device: str | None,
    batch_size: int,
) -> None:
    """Find hard negatives for training data: documents that a retriever ranks high and that are not known to be relevant.

    DATA is a BEIR folder, DPR json, MS MARCO triples, sentence-transformers jsonl, or the output of `osn data
    generate-queries`. Run the same command again to continue an interrupted run.

    \b
    osn data mine squad-mix --retriever bm25 --depth 100 --output negatives.jsonl
    osn data mine squad-mix --retriever dense:models/retriever-1 --keep-negatives 15 --output negatives.jsonl
    """
    training = load_training(data, split=split, corpus=corpus, queries=queries)
    cache = output.with_name(f"{output.name}.vectors")
    engine = open_retriever(
        retriever, training.documents, cache=cache, device=device, batch_size=batch_size, by_record=True
    )
    mine(training, engine, mining, output=output)
    shutil.rmtree(cache, ignore_errors=True)
    click.echo(summary(output, NEGATIVES), err=True)
    click.echo(output)
