"""What a query's look-up table costs in a request, in several forms; and that the script's scores are faiss's.

    osn bench jpq-table --record benchmarks/results/jpq/table
    osn bench jpq-table --index scifact-jpq --data data/scifact --record benchmarks/results/jpq/table

Without an index: random clustered vectors and faiss's quantizers of several M, in indexes of their own that are deleted
again. With one: its own codes, and the queries of a folder. Every form is sent as bytes made beforehand, in random turns:

    JSON, 17 digits   M lists of 256 numbers, as Python writes doubles
    JSON, float32     the same, with as many digits as a float32 needs
    JSON, 6 decimals  the same, rounded
    1 character       15.7 bits in a character of three bytes (UTF-8)
    2 characters      13.1 bits in two printable characters
    3 characters      19.7 bits in three: what `queries.quantized_rescore` sends
    3, gzip           the same, compressed by the client

parse: median time of a request whose query matches nothing, less that of the same request without a table. scoring: median
time of a request that scores every document, less that of one that scores none, for 1,000 documents. error: the largest
difference of a document's score, less the constant, from faiss's.
"""

from __future__ import annotations

import gzip
import json
import random
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import orjson
from numpy.typing import NDArray

from opensearch_neural.cluster.connect import ConnectionSettings, connect, connection_options
from opensearch_neural.commands.engine_options import models_options
from opensearch_neural.corpus.readers import read_queries
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import (
    Data,
    Goal,
    Row,
    Summary,
    code_commit,
    command_line,
    data_facts,
    machine_facts,
)
from opensearch_neural.evaluation.tables import result_table
from opensearch_neural.index.mapping import IndexMeta, QuantizedMeta, index_body
from opensearch_neural.look_up_table import SCRIPT, PackedTable
from opensearch_neural.models.quantized import Codes, Quantizer, Vectors
from opensearch_neural.queries import Body
from opensearch_neural.retrievers.opensearch import MOST_HITS, read_codes

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

PRODUCT = "3 characters"
LARGEST_ERROR = 1e-5
UTF16_BASE = 0xD800 - 32  # what a character of two or three bytes can be, below the surrogates

_BEGIN = "byte[] code = doc['pq'].value.bytes; "
_NUMBERS = (
    _BEGIN + "double total = params.offset; "
    "for (int m = 0; m < code.length; m++) { total += params.table[m][code[m] & 255]; } return total;"
)
_PACKED = (
    _BEGIN + "String table = params.table; long steps = 0; "
    "for (int m = 0; m < code.length; m++) {{ int at = {characters} * (256 * m + (code[m] & 255)); {read} }} "
    "return params.scale * steps;"
)
_ONE = "steps += table.charAt(at) - 32;"
_TWO = "steps += 95 * (table.charAt(at) - 32) + table.charAt(at + 1) - 32;"


@dataclass(frozen=True)
class Form:
    """A script and its parameters. offset: what its result lies above the inner product."""

    name: str
    source: str
    params: Callable[[NDArray[np.float32]], dict[str, Any]]
    compressed: bool = False

    def request(self, table: NDArray[np.float32], over: Body, size: int = 0) -> bytes:
        script = {"source": self.source, "params": self.params(table)}
        body = {"size": size, "query": {"script_score": {"query": over, "script": script}}, "_source": False}
        sent = json.dumps(body).encode() if self.name == "JSON, 17 digits" else orjson.dumps(body, option=ORJSON)
        return gzip.compress(sent, 6) if self.compressed else sent


ORJSON = orjson.OPT_SERIALIZE_NUMPY


def offset_of(table: NDArray[np.float32]) -> float:
    return -float(table.min(axis=1).sum(dtype=np.float64))


def in_characters(table: NDArray[np.float32], characters: int, base: int) -> dict[str, Any]:
    """As `PackedTable.of`, with other numbers of characters and of values that one can have."""
    values = table.astype(np.float64)
    least = values.min(axis=1, keepdims=True)
    scale = float((values - least).max()) / (base**characters - 1)
    steps = np.rint((values - least) / scale).astype(np.int64).ravel()
    digits = [steps // base**place % base + 32 for place in reversed(range(characters))]
    return {"table": "".join(map(chr, np.stack(digits, axis=1).ravel().tolist())), "scale": scale}


def _packed(table: NDArray[np.float32]) -> dict[str, Any]:
    return PackedTable.of(table).params("pq")


FORMS = [
    Form("JSON, 17 digits", _NUMBERS, lambda table: {"table": table.tolist(), "offset": offset_of(table)}),
    Form("JSON, float32", _NUMBERS, lambda table: {"table": table.astype(np.float32), "offset": offset_of(table)}),
    Form(
        "JSON, 6 decimals",
        _NUMBERS,
        lambda table: {"table": np.round(table.astype(np.float64), 6).tolist(), "offset": offset_of(table)},
    ),
    Form(
        "1 character",
        _PACKED.format(characters=1, read=_ONE),
        lambda table: in_characters(table, 1, UTF16_BASE),
    ),
    Form("2 characters", _PACKED.format(characters=2, read=_TWO), lambda table: in_characters(table, 2, 95)),
    Form(PRODUCT, SCRIPT, _packed),
    Form("3, gzip", SCRIPT, _packed, compressed=True),
]


@dataclass(frozen=True)
class Ground:
    """What is measured on: an index whose documents are numbered by `ids`, their codes, and some queries' vectors."""

    name: str
    index: str
    quantizer: Quantizer
    ids: list[str]
    codes: Codes
    asked: Vectors


def clustered(count: int, dimension: int, seed: int) -> Vectors:
    """Unit vectors around 200 centres, as those of texts are: (count, dimension)."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(200, dimension))
    vectors = centres[rng.integers(0, len(centres), count)] + 0.7 * rng.normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def trained_quantizer(vectors: Vectors, parts: int) -> Quantizer:
    """faiss's product quantizer, unrotated; scoring centroids that differ from the assigning ones, as trained ones do."""
    import faiss

    dimension = vectors.shape[1]
    pq = faiss.ProductQuantizer(dimension, parts, 8)
    pq.cp.niter, pq.cp.min_points_per_centroid = 5, 1
    pq.train(vectors)
    centroids = faiss.vector_to_array(pq.centroids).reshape(parts, 256, -1)
    moved = centroids * np.float32(1.05)
    return Quantizer(np.eye(dimension, dtype=np.float32), centroids, moved)


@contextmanager
def random_ground(client: OpenSearch, documents: int, dimension: int, parts: int, queries_: int) -> Iterator[Ground]:
    vectors = clustered(documents + queries_, dimension, seed=parts)
    quantizer = trained_quantizer(vectors[:documents], parts)
    codes = quantizer.encode(vectors[:documents])
    index = f"osn-bench-jpq-table-{uuid.uuid4().hex[:8]}"
    meta = IndexMeta(quantized=QuantizedMeta("random", "0" * 16, parts))
    client.indices.create(index=index, body=index_body(meta, replicas=0))
    try:
        lines: list[dict[str, Any]] = []
        for number, code in enumerate(codes):
            lines += [{"index": {"_id": str(number)}}, {"pq": b64encode(code).decode()}]
        client.bulk(index=index, body=lines, refresh=True)
        ids = [str(number) for number in range(documents)]
        yield Ground(
            f"{documents:,} random vectors of {dimension} dimensions, M = {parts}",
            index,
            quantizer,
            ids,
            codes,
            vectors[documents:],
        )
    finally:
        client.indices.delete(index=index)


def faiss_scores(ground: Ground) -> NDArray[np.float32]:
    """(queries, documents) by faiss's own look-ups, over the same codes."""
    from opensearch_neural.retrievers.faiss import quantized_index

    found, positions = quantized_index(ground.quantizer, ground.codes).search(ground.asked, len(ground.ids))
    scores = np.empty_like(found)
    np.put_along_axis(scores, positions, found, axis=1)
    return scores


def measure(client: OpenSearch, ground: Ground, requests: int, seed: int = 0) -> list[Row]:
    """Bytes, times and errors of every form; the first request of each, which compiles its script, is not timed."""
    tables = [ground.quantizer.table(vector) for vector in ground.asked]
    expected = faiss_scores(ground)
    place = {id: number for number, id in enumerate(ground.ids)}
    empty = Form("no table", "return 0", lambda table: {})
    none: Body = {"match_none": {}}
    everything: Body = {"exists": {"field": "pq"}}
    rows = []
    sent: dict[tuple[str, str], list[bytes]] = {}
    making: dict[str, list[float]] = {}
    for form in [empty, *FORMS]:
        making[form.name] = []
        for table in tables:
            began = time.perf_counter()
            bytes_ = form.request(table, none)
            making[form.name].append((time.perf_counter() - began) * 1000)
            sent.setdefault((form.name, "none"), []).append(bytes_)
            sent.setdefault((form.name, "all"), []).append(form.request(table, everything))
    times: dict[tuple[str, str], list[float]] = {key: [] for key in sent}
    compressed = {form.name for form in FORMS if form.compressed}
    random_ = random.Random(seed)
    for number in range(-1, requests):
        for key in random_.sample(list(sent), len(sent)):
            body = sent[key][number % len(tables)]
            began = time.perf_counter()
            _post(client, ground.index, body, key[0] in compressed)
            if number >= 0:
                times[key].append((time.perf_counter() - began) * 1000)
    thousands = len(ground.ids) / 1000
    for form in FORMS:
        errors = []
        for table, of_query in zip(tables, expected, strict=True):
            request = form.request(table, everything, MOST_HITS)
            hits = _post(client, ground.index, request, form.compressed)["hits"]["hits"]
            if len(hits) != len(ground.ids):
                raise InputError(f"{ground.index!r} changed while it was measured")
            found = np.array([hit["_score"] for hit in hits]) - offset_of(table)
            errors.append(float(abs(found - of_query[[place[hit["_id"]] for hit in hits]]).max()))
        none_, all_ = times[form.name, "none"], times[form.name, "all"]
        rows += [
            _bytes_row(ground.name, form.name, sent[form.name, "none"]),
            _difference(ground.name, form.name, "make ms", making[form.name], making[empty.name], 1.0, seed),
            _difference(ground.name, form.name, "parse ms", none_, times[empty.name, "none"], 1.0, seed),
            _difference(ground.name, form.name, "scoring ms per 1,000 documents", all_, none_, thousands, seed),
            Row(ground.name, form.name, "largest error", max(errors), None, None, len(errors) * len(ground.ids)),
        ]
    return rows


def _post(client: OpenSearch, index: str, body: bytes, compressed: bool) -> Any:
    return client.transport.perform_request(
        "POST",
        f"/{index}/_search",
        params={"request_cache": "false"},
        body=body,
        headers={"content-encoding": "gzip"} if compressed else {},
    )


def _bytes_row(set_: str, form: str, sent: Sequence[bytes]) -> Row:
    sizes = [len(body) for body in sent]
    return Row(set_, form, "request bytes", float(np.mean(sizes)), float(min(sizes)), float(max(sizes)), len(sizes))


def _difference(
    set_: str, form: str, what: str, times: Sequence[float], least: Sequence[float], by: float, seed: int
) -> Row:
    """Difference of two medians, with a 95% bootstrap interval."""
    rng = np.random.default_rng(seed)
    drawn = [np.median(rng.choice(side, size=(1000, len(side))), axis=1) for side in (times, least)]
    low, high = np.percentile((drawn[0] - drawn[1]) / by, [2.5, 97.5])
    value = (np.median(times) - np.median(least)) / by
    return Row(set_, form, what, float(value), float(low), float(high), len(times))


def goals(rows: Sequence[Row]) -> list[Goal]:
    by: dict[tuple[str, str, str], float] = {(row.set, row.engine, row.measure): row.value for row in rows}
    sets = list(dict.fromkeys(row.set for row in rows))
    error = max(by[set_, PRODUCT, "largest error"] for set_ in sets)
    made = [Goal("the script's scores equal faiss's within 1e-5 on every document of a set", LARGEST_ERROR, error,
                 error <= LARGEST_ERROR)]  # fmt: skip
    for measure_ in ("request bytes", "parse ms"):
        before, after = ([by[set_, form, measure_] for set_ in sets] for form in ("JSON, float32", PRODUCT))
        value = "; ".join(f"{one:,.5g} to {other:,.5g}" for one, other in zip(before, after, strict=True))
        met = all(other < one for one, other in zip(before, after, strict=True))
        made.append(Goal(f"{measure_} of the look-up table reduced, for {', '.join(sets)}", "less", value, met))
    return made


@click.command(name="jpq-table")
@click.option("--index", default=None, help="An index with codes.  [default: random vectors in indexes of their own]")
@click.option("--data", type=click.Path(path_type=Path), default=None, help="With --index: queries, in BEIR layout.")
@click.option("--dimension", type=click.IntRange(min=1), default=384, show_default=True, help="Of random vectors.")
@click.option("--parts", default="16,48,96", show_default=True, help="Their M.")
@click.option("--documents", type=click.IntRange(min=256, max=MOST_HITS), default=5000, show_default=True)
@click.option("--queries", "queries_", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--requests", type=click.IntRange(min=10), default=300, show_default=True, help="Of each kind.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@models_options
@connection_options
def jpq_table(
    connection: ConnectionSettings,
    index: str | None,
    data: Path | None,
    dimension: int,
    parts: str,
    documents: int,
    queries_: int,
    requests: int,
    record: Path | None,
    sparse: str | None,
    dense: str | None,
    pq: str | None,
    backend: str,
) -> None:
    """What a query's look-up table costs in a request, in several forms, and that scores by script are faiss's.

    \b
    osn bench jpq-table
    osn bench jpq-table --index scifact-jpq --data data/scifact
    """
    client = connect(settings=connection)
    rows: list[Row] = []
    used: list[Data] = []
    if index is not None:
        if data is None:
            raise InputError("an index is measured by queries about it", "give --data, a folder in BEIR layout")
        engines = open_engines(client, index, pq_model=pq, backend=backend)
        quantizer = engines.quantized_model.quantizer
        ids, codes = read_codes(client, index, quantizer.subvectors)
        if len(ids) > MOST_HITS:
            raise InputError(
                f"{index!r} holds {len(ids):,} codes, and one answer {MOST_HITS:,}", "measure a smaller one"
            )
        texts = list(read_queries(data).values())[:queries_]
        asked = engines.quantized_model.encode_queries(texts)
        name = f"{data.resolve().name}, {len(ids):,} documents, M = {quantizer.subvectors}"
        rows += measure(client, Ground(name, index, quantizer, ids, codes, asked), requests)
        used.append(data_facts(data, [path.name for path in sorted(data.glob("*.jsonl*"))]))
    else:
        for number in [int(part) for part in parts.split(",")]:
            if dimension % number:
                raise InputError(f"--parts: {number} does not divide the dimension, {dimension}")
            with random_ground(client, documents, dimension, number, queries_) as ground:
                rows += measure(client, ground, requests)
    summary = Summary(
        title="The look-up table in a request",
        command=command_line(),
        code=code_commit(),
        machine={**machine_facts(), "opensearch": client.info()["version"]["number"]},
        data=used,
        seeds=[0],
        rows=rows,
        goals=goals(rows),
    )
    measures = list(dict.fromkeys(row.measure for row in rows))
    print(result_table(rows, measures))
    for goal in summary.goals:
        print(goal)
    if record is not None:
        print(f"wrote {summary.write(record)}")
