"""Training data: queries with their positives, hard negatives and, where known, teacher scores.

    data = load_training("squad-mix")                         a BEIR folder's train split
    data = load_training("nq-train.json")                     DPR's json
    data = load_training("triples.train.small.tsv.gz")        MS MARCO triples
    data = load_training("pairs.jsonl")                       sentence-transformers pairs, triples, scored lists
    data = load_training("squad-mix", negatives="mined.jsonl")    with what `osn mine` found
    train, dev = hold_back(data, share=0.05)                  dev shares no document with train
    data = merge([a, b])                                      several sets; `draw_batches` takes each batch out of one

Texts are held once (`TextStore`), examples as row numbers, so MS MARCO's 40 million triples are a few hundred MB beside
their texts. An example is one query: triples of the same query are put together.
"""

from __future__ import annotations

import hashlib
import logging
import random
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.judgements import BeirData, read_queries
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from trainers.data import formats
from trainers.data.formats import Passage, Record
from trainers.data.texts import Ragged, TextStore, normalised, text_id

logger = logging.getLogger(__name__)

FORMATS = ("beir", "dpr", "triples", "pairs", "generated")
NEGATIVES = "negatives"
GENERATED = "generated-queries"
Apart = Literal["documents", "questions"]


@dataclass(frozen=True, slots=True)
class Example:
    """One query as a trainer sees it. Documents are ids; `scores` holds teacher scores that stood in the file."""

    query_id: str
    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)


class SetRange(NamedTuple):
    """Where a set lies in merged data: its examples and its documents, as half-open ranges."""

    name: str
    start: int
    stop: int
    document_start: int
    document_stop: int


@dataclass(eq=False)
class TrainingData:
    """Queries, documents, and the examples over them, as row numbers of the two stores.

    query_rows: (examples,). positives, negatives: a list of document rows for each example, the hardest negative first.
    judged: for each row of `queries`, all documents known to be relevant. scored: for each example the rows of the
    documents with a teacher score, whose values are `score_values`, in the order of scored.values.
    notes: what was left out when reading, and how much of it.
    """

    name: str
    queries: TextStore
    documents: TextStore
    query_rows: npt.NDArray[np.int32]
    positives: Ragged
    negatives: Ragged
    judged: Ragged
    scored: Ragged
    score_values: npt.NDArray[np.float32]
    sets: tuple[SetRange, ...] = ()
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.sets:
            self.sets = (SetRange(self.name, 0, len(self.query_rows), 0, len(self.documents)),)

    def __len__(self) -> int:
        return len(self.query_rows)

    def __repr__(self) -> str:
        return f"TrainingData({self.name!r}, {len(self)} examples, {len(self.documents)} documents)"

    @property
    def examples(self) -> Sequence[Example]:
        """The examples, each built when it is asked for."""
        return _Examples(self)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over everything that trains: texts, ids, examples and scores."""
        digest = hashlib.sha256(f"{self.queries.hash} {self.documents.hash}".encode())
        for ragged in (self.positives, self.negatives, self.judged, self.scored):
            digest.update(ragged.offsets.tobytes() + ragged.values.tobytes())
        digest.update(self.query_rows.tobytes() + self.score_values.tobytes())
        return digest.hexdigest()[:16]

    def example(self, index: int) -> Example:
        query = int(self.query_rows[index])
        ids = self.documents.ids
        rows = self.scored[index]
        values = self.score_values[self.scored.offsets[index] : self.scored.offsets[index + 1]]
        return Example(
            self.queries.ids[query],
            self.queries.text_at(query),
            tuple(ids[row] for row in self.positives[index]),
            tuple(ids[row] for row in self.negatives[index]),
            {ids[row]: float(value) for row, value in zip(rows, values, strict=True)},
        )

    def query_texts(self) -> dict[str, str]:
        """{query id: text} of the examples, for a retriever."""
        return {self.queries.ids[row]: self.queries.text_at(row) for row in self.query_rows.tolist()}

    def qrels(self) -> dict[str, dict[str, int]]:
        """{query id: {document id: 1}} of the examples' positives, for `evaluate.measure`."""
        ids = self.documents.ids
        return {
            self.queries.ids[query]: {ids[row]: 1 for row in positives}
            for query, positives in zip(self.query_rows.tolist(), self.positives, strict=True)
        }

    def known_positives(self, query_id: str) -> frozenset[str]:
        """Every document known to be relevant to the query, documents of the same normalised text included."""
        canonical, members = self.documents.canonical(), self._members
        judged = self.judged[self.queries.row(query_id)].tolist()
        same = {row for known in judged for row in members.get(int(canonical[known]), [known])}
        return frozenset(self.documents.ids[row] for row in same)

    @cached_property
    def _members(self) -> dict[int, list[int]]:
        """Rows with the same normalised text, by their first row, where there are several."""
        canonical = self.documents.canonical()
        first, counts = np.unique(canonical, return_counts=True)
        repeated = first[counts > 1]
        members: dict[int, list[int]] = {int(row): [] for row in repeated}
        for row in np.flatnonzero(np.isin(canonical, repeated)).tolist():
            members[int(canonical[row])].append(row)
        return members

    def take(self, indices: Iterable[int], *, name: str | None = None) -> TrainingData:
        """The examples at `indices`, over the same texts (whose hashes, and teacher caches, stay valid)."""
        chosen = list(indices)
        return self._with(
            chosen, [self.positives[i].tolist() for i in chosen], [self.negatives[i].tolist() for i in chosen], name
        )

    def _with(
        self, chosen: Sequence[int], positives: list[list[int]], negatives: list[list[int]], name: str | None = None
    ) -> TrainingData:
        spans = [(self.scored.offsets[i], self.scored.offsets[i + 1]) for i in chosen]
        values = [self.score_values[start:stop] for start, stop in spans]
        sets: list[SetRange] = []
        for one in self.sets:
            # `chosen` may be in any order only within one set: a merged one keeps its ranges.
            inside = [at for at, i in enumerate(chosen) if one.start <= i < one.stop]
            if inside and inside != list(range(inside[0], inside[-1] + 1)):
                raise ValueError("examples of several sets cannot be interleaved")
            start = inside[0] if inside else (sets[-1].stop if sets else 0)
            sets.append(one._replace(start=start, stop=start + len(inside)))
        return TrainingData(
            name or self.name,
            self.queries,
            self.documents,
            self.query_rows[np.asarray(chosen, dtype=np.int64)],
            Ragged(positives),
            Ragged(negatives),
            self.judged,
            Ragged(self.scored[i].tolist() for i in chosen),
            np.concatenate(values) if values else np.empty(0, np.float32),
            tuple(sets),
            list(self.notes),
        )


class _Examples(Sequence[Example]):
    def __init__(self, data: TrainingData) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self._data.example(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._data.example(index % len(self))


# ---------------------------------------------------------------- reading


def load_training(
    path: str | Path,
    *,
    split: str = "train",
    negatives: str | Path | None = None,
    corpus: str | Path | None = None,
    queries: str | Path | None = None,
    format: str | None = None,
    limit: int | None = None,
    name: str | None = None,
) -> TrainingData:
    """The training data in `path`.

    format: one of FORMATS; by default what the path says: a folder is BEIR, .json DPR, .tsv triples, .jsonl
    sentence-transformers or the output of `osn generate-queries`. corpus: the documents of triples by id and of
    generated queries (a BEIR folder, or any corpus, or MS MARCO's collection.tsv); the queries of triples by id.
    negatives: a file that `osn mine` made of the same texts; its negatives take the place of the data's own.
    limit: the first so many examples.

    Raises InputError with file, line and field for what is not as it should be, for judgements most of which name
    unknown documents, and for data that ends up without an example.
    """
    path = Path(path)
    format = format or format_of(path)
    name = name or path.resolve().name.partition(".")[0]
    data = _load_beir(path, split, name) if format == "beir" else _load_records(path, format, corpus, queries, name)
    if negatives is not None:
        data = with_negatives(data, negatives)
    if limit is not None:
        data = data.take(range(min(limit, len(data))))
    if not len(data):
        raise InputError(f"{path} gives no training example", "; ".join(data.notes) or None)
    for note in data.notes:
        logger.warning("%s", note)
    logger.info("%s: %d examples over %d documents, hash %s", name, len(data), len(data.documents), data.hash)
    return data


def format_of(path: Path) -> str:
    """Which of FORMATS a path holds, by its name and, of JSON lines, its first. Raises InputError where none."""
    if path.is_dir():
        return "beir"
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the path of the training data")
    stem = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if stem.endswith(".json"):
        return "dpr"
    if stem.endswith((".tsv", ".txt")):
        return "triples"
    if stem.endswith((".jsonl", ".ndjson")):
        _, first = next(formats.read_json_lines(path), (0, None))
        if isinstance(first, dict) and first.get("osn") == NEGATIVES:
            raise InputError(
                f"{path} holds mined negatives, no texts", "give the data they were mined for, and this as negatives"
            )
        if isinstance(first, dict) and (first.get("osn") == GENERATED or {"_id", "queries"} <= first.keys()):
            return "generated"
        return "pairs"
    raise InputError(
        f"{path}: the name does not say what kind of training data it is",
        "expected a BEIR folder, DPR's .json, triples .tsv, or .jsonl (also with .gz or .zst)",
    )


class _Builder:
    """Examples under construction: one for each query id, in the order of their first record."""

    def __init__(self, name: str, queries: TextStore | None = None, documents: TextStore | None = None) -> None:
        self.name = name
        # Stores that were given are complete: a record may only name what they hold.
        self.closed_queries, self.closed_documents = queries is not None, documents is not None
        self.queries = TextStore(what="query") if queries is None else queries
        self.documents = TextStore() if documents is None else documents
        self.examples: dict[int, tuple[array[int], array[int], dict[int, float]]] = {}
        self.unknown_queries: dict[str, int] = {}
        self.unknown_documents: dict[str, int] = {}
        self.references = {"query": 0, "document": 0}
        self.notes: list[str] = []

    def add(self, record: Record) -> None:
        query = self._query(record)
        positives = [self._document(passage, record) for passage in record.positives]
        negatives = [self._document(passage, record) for passage in record.negatives]
        if query is None or not any(row is not None for row in positives):
            return
        known, wrong, scores = self.examples.setdefault(query, (array("i"), array("i"), {}))
        known.extend(row for row in positives if row is not None and row not in known)
        wrong.extend(row for row in negatives if row is not None)
        for row, score in zip([*positives, *negatives], record.scores or [], strict=False):
            if row is not None:
                scores[row] = score

    def _query(self, record: Record) -> int | None:
        self.references["query"] += 1
        if self.closed_queries:
            return self._known(self.queries, record.query_id or "", self.unknown_queries)
        text = (record.query or "").strip()
        if not text:
            raise InputError(f"{record.where}: the query is empty")
        return self.queries.add(record.query_id or text_id(text), text)

    def _document(self, passage: Passage, record: Record) -> int | None:
        self.references["document"] += 1
        if self.closed_documents:
            return self._known(self.documents, passage.id or "", self.unknown_documents)
        text = (passage.text or "").strip()
        if not text:
            raise InputError(f"{record.where}: a document is empty")
        return self.documents.add(passage.id or text_id(text), text)

    @staticmethod
    def _known(store: TextStore, identifier: str, unknown: dict[str, int]) -> int | None:
        if identifier in store:
            return store.row(identifier)
        unknown[identifier] = unknown.get(identifier, 0) + 1
        return None

    def build(self, source: str) -> TrainingData:
        """`source`: the file whose references are reported where they name what is unknown."""
        for what, unknown in (("query", self.unknown_queries), ("document", self.unknown_documents)):
            if not unknown:
                continue
            plural = {"query": "queries", "document": "documents"}[what]
            times, shown = sum(unknown.values()), ", ".join(repr(one) for one in islice(unknown, 3))
            message = (
                f"{source}: {times} references name {len(unknown)} {plural} that the data does not hold "
                f"({'first: ' if len(unknown) > 3 else ''}{shown})"
            )
            if what == "document" and not len(self.documents):
                raise InputError(f"{self.name}: the corpus holds no document with text", f"{source} names {times}")
            if times * 2 > self.references[what]:
                raise InputError(message, f"is this the right {'corpus' if what == 'document' else 'query file'}?")
            self.notes.append(message + "; left out")
        positives, negatives, scored, values = [], [], [], array("f")
        judged: list[list[int]] = [[] for _ in range(len(self.queries))]
        for query, (known, wrong, scores) in self.examples.items():
            known_rows = known.tolist()
            positives.append(known_rows)
            # A document that is a positive elsewhere in the file, or comes again, is no further negative.
            seen = set(known_rows)
            negatives.append([row for row in wrong if not (row in seen or seen.add(row))])  # type: ignore[func-returns-value]
            judged[query] = known_rows
            scored.append(list(scores))
            values.extend(scores.values())
        return TrainingData(
            self.name,
            self.queries,
            self.documents,
            np.array(list(self.examples), dtype=np.int32),
            Ragged(positives),
            Ragged(negatives),
            Ragged(judged),
            Ragged(scored),
            np.array(values, dtype=np.float32),
            notes=self.notes,
        )


def training_pairs(
    name: str, queries: TextStore, documents: TextStore, pairs: Iterable[tuple[int, int]]
) -> TrainingData:
    """(query row, document row) pairs as training data over these stores, one example a query."""
    positives: dict[int, list[int]] = {}
    for query, document in pairs:
        positives.setdefault(query, []).append(document)
    judged: list[list[int]] = [positives.get(row, []) for row in range(len(queries))]
    nothing: list[list[int]] = [[] for _ in positives]
    return TrainingData(
        name,
        queries,
        documents,
        np.array(list(positives), dtype=np.int32),
        Ragged(positives.values()),
        Ragged(nothing),
        Ragged(judged),
        Ragged(nothing),
        np.empty(0, np.float32),
    )


def _load_beir(folder: Path, split: str, name: str) -> TrainingData:
    beir = BeirData.load(folder, split)
    builder = _Builder(
        name,
        TextStore(beir.queries.items(), what="query"),
        TextStore((document.id, document.contents) for document in read_documents(beir.corpus_path)),
    )
    irrelevant = without = 0
    for query, judgements in beir.qrels.items():
        relevant = [Passage(document) for document, grade in judgements.items() if grade > 0]
        others = [Passage(document) for document, grade in judgements.items() if grade <= 0]
        irrelevant += len(others)
        without += not relevant
        builder.add(Record(query, None, relevant, others, None, query))
    if irrelevant:
        builder.notes.append(f"{name}: {irrelevant} documents judged not relevant are taken as hard negatives")
    if without:
        builder.notes.append(f"{name}: {without} queries without a relevant document left out")
    return builder.build(str(folder / "qrels" / f"{split}.tsv"))


def _load_records(
    path: Path, format: str, corpus: str | Path | None, queries: str | Path | None, name: str
) -> TrainingData:
    if format == "generated":
        if corpus is None:
            raise InputError(f"{path}: generated queries name their passages by id", "give the corpus they came from")
        builder = _Builder(name, None, _read_documents(Path(corpus)))
        records = formats.read_generated(path)
    elif format == "triples" and (corpus is not None or queries is not None):
        if corpus is None or queries is None:
            raise InputError(f"{path}: triples by id need both the corpus and the queries")
        builder = _Builder(name, TextStore(read_queries(queries).items(), what="query"), _read_documents(Path(corpus)))
        records = formats.read_triples(path, by_id=True)
    else:
        builder = _Builder(name)
        if format == "dpr":
            records = formats.read_dpr(path)
        elif format == "triples":
            records = formats.read_triples(path, by_id=False)
        elif format == "pairs":
            records = formats.read_pairs(path)
        else:
            raise InputError(f"unknown format of training data {format!r}", f"known: {', '.join(FORMATS)}")
    for record in records:
        builder.add(record)
    return builder.build(str(path))


def _read_documents(path: Path) -> TextStore:
    """A corpus of any kind; two columns without a header, as MS MARCO's collection.tsv has them, included."""
    if path.is_file() and ".tsv" in path.suffixes:
        _, first = next(formats.read_lines(path), (0, ""))
        if first.count("\t") == 1 and first.split("\t")[0] not in ("id", "_id", "docid", "doc_id", "docno"):
            return TextStore(formats.read_id_texts(path))
    return TextStore((document.id, document.contents) for document in read_documents(path))


def read_documents(path: str | Path, *, limit: int | None = None) -> Iterator[Document]:
    """The documents of a corpus that can be read; how many cannot is logged, with the first of them.

    A record without text has nothing to train on: it is no reason to refuse the corpus, as it is for an ingest.
    """
    rejected: list[str] = []
    count = 0

    def note(reject: Rejected) -> None:
        nonlocal count
        count += 1
        if len(rejected) < 3:
            rejected.append(str(reject))

    yield from read_corpus(path, limit=limit, on_reject=note)
    if count:
        logger.warning("%s: %d records left out (%s%s)", path, count, "; ".join(rejected), "; …" * (count > 3))


def with_negatives(data: TrainingData, path: str | Path, *, add: bool = False) -> TrainingData:
    """`data` with the negatives of an `osn mine` file; queries that its filter left out are left out here too.

    add: beside the data's own negatives instead of in their place: taken in turns, the hardest of each first.
    Raises InputError for a file that was mined for other texts.
    """
    path = Path(path)
    header = formats.read_header(path, NEGATIVES)
    for what, store in (("queries", data.queries), ("documents", data.documents)):
        if header.get(what) != store.hash:
            raise InputError(
                f"{path} was mined for other {what} (hash {header.get(what)}) than those of {data.name} ({store.hash})",
                "mine again for this data: osn mine",
            )
    mined: dict[int, list[int]] = {}
    left_out: set[int] = set()
    for number, line in formats.read_json_lines(path):
        if number == 1:
            continue
        try:
            query = data.queries.row(line["query_id"])
            mined[query] = [data.documents.row(document) for document in line["negatives"]]
        except (KeyError, TypeError):
            raise InputError(f"{path}, line {number}: expected an object with 'query_id' and 'negatives'") from None
        if line.get("left_out"):
            left_out.add(query)
    rows = data.query_rows.tolist()
    chosen = [index for index, query in enumerate(rows) if query not in left_out]
    positives = [data.positives[index].tolist() for index in chosen]
    negatives = [mined.get(rows[index], []) for index in chosen]
    if add:
        own = [data.negatives[index].tolist() for index in chosen]
        negatives = [_in_turns(one, other) for one, other in zip(negatives, own, strict=True)]
    result = data._with(chosen, positives, negatives)
    if left_out:
        result.notes.append(f"{path}: {len(rows) - len(chosen)} queries left out by the consistency filter")
    if without := sum(rows[index] not in mined for index in chosen):
        result.notes.append(f"{path}: {without} of {len(chosen)} queries were not mined and have no hard negatives")
    return result


def _in_turns(one: list[int], other: list[int]) -> list[int]:
    taken = [row for pair in zip_longest(one, other) for row in pair if row is not None]
    return list(dict.fromkeys(taken))


# ---------------------------------------------------------------- several sets, and parts of one


def fewer_documents(data: TrainingData, count: int) -> TrainingData:
    """`data`, as it was read, over those documents that its examples name and the first `count` of its corpus."""
    asked = np.unique(data.query_rows)
    named = [data.positives.values, data.negatives.values, data.scored.values, *(data.judged[row] for row in asked)]
    kept = np.unique(np.concatenate([*named, np.arange(min(count, len(data.documents)))])).astype(np.int64)
    place = np.full(len(data.documents), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))

    def moved(rows: Iterable[npt.NDArray[np.int32]]) -> Ragged:
        return Ragged([at for at in place[row].tolist() if at >= 0] for row in rows)

    return TrainingData(
        data.name,
        data.queries,
        TextStore((data.documents.ids[row], data.documents.text_at(row)) for row in kept.tolist()),
        data.query_rows,
        moved(data.positives),
        moved(data.negatives),
        moved(data.judged),
        moved(data.scored),
        data.score_values,
        notes=list(data.notes),
    )


def merge(sets: Sequence[TrainingData], *, name: str | None = None) -> TrainingData:
    """The examples of several sets as one, every id prefixed by its set's name and a slash. Sets over the same documents
    share them, under the first one's name.

    Raises InputError where two sets have the same name.
    """
    names = [data.name for data in sets]
    if len(set(names)) != len(names):
        raise InputError(f"two data sets have the same name: {', '.join(names)}", "give each its own name")
    queries, documents = TextStore(what="query"), TextStore()
    ranges: list[SetRange] = []
    notes: list[str] = []
    query_rows: list[npt.NDArray[np.int32]] = []
    rows: dict[str, list[list[int]]] = {"positives": [], "negatives": [], "judged": [], "scored": []}
    start = 0
    merged: dict[str, int] = {}  # where the documents of a hash begin
    for data in sets:
        query_base, document_base = len(queries), merged.setdefault(data.documents.hash, len(documents))
        new = [(data.queries, queries)]
        if document_base == len(documents):
            new.append((data.documents, documents))
        for source, target in new:
            for row, identifier in enumerate(source.ids):
                target.add(f"{data.name}/{identifier}", source.text_at(row))
        query_rows.append(data.query_rows + query_base)
        for part, target_rows in rows.items():
            target_rows.extend((documents_of_one + document_base).tolist() for documents_of_one in getattr(data, part))
        document_stop = document_base + len(data.documents)
        ranges.append(SetRange(data.name, start, start + len(data), document_base, document_stop))
        start += len(data)
        notes += data.notes
    return TrainingData(
        name or "+".join(names),
        queries,
        documents,
        np.concatenate(query_rows).astype(np.int32),
        Ragged(rows["positives"]),
        Ragged(rows["negatives"]),
        Ragged(rows["judged"]),
        Ragged(rows["scored"]),
        np.concatenate([data.score_values for data in sets]),
        tuple(ranges),
        notes,
    )


def hold_back(
    data: TrainingData,
    share: float | int = 0.1,
    *,
    seed: int = 0,
    name: str | None = None,
    apart: Apart = "documents",
    sets: Collection[str] | None = None,
) -> tuple[TrainingData, TrainingData]:
    """(train, dev), with no query and no document, by id or normalised text, in both.

    share: the part of the examples that dev gets, or their number, of each set as many. Examples that share a query text
    or a positive's text stay together, whichever part they fall into. A negative that the other part has as a positive,
    or that train still has as a negative, is taken out (counted in the notes). Mine negatives after splitting to lose
    none.
    apart: with "questions", only queries are in one part alone, and nothing is taken out: dev is then new questions to
    documents some of which train has asked about. sets: the names of those that examples are held back of, all by default.

    Raises InputError where the examples hang together so much that no part can be held back.
    """
    chosen = [one for one in data.sets if one.stop > one.start and (sets is None or one.name in sets)]
    part = np.full(len(data), -1)  # of which of the `parts` an example is
    for number, one in enumerate(chosen):
        part[one.start : one.stop] = 0 if isinstance(share, float) else number
    parts = [int(count) for count in np.bincount(part[part >= 0], minlength=1)]
    room = np.array([round(share * count) if isinstance(share, float) else share for count in parts])
    for count, target, named in zip(parts, room.tolist(), chosen, strict=False):
        if not 0 < target < count:
            what = data.name if isinstance(share, float) else named.name
            raise InputError(f"{what}: cannot hold back {target} of {count} examples")
    component = _components(data, with_documents=apart == "documents")
    groups: dict[int, list[int]] = {}
    for index, root in enumerate(component):
        groups.setdefault(root, []).append(index)
    order = list(groups)
    random.Random(f"{seed} hold back").shuffle(order)
    held: set[int] = set()
    for root in order:
        inside = part[groups[root]]
        taken = np.bincount(inside[inside >= 0], minlength=len(room))
        if taken.any() and (taken <= room).all():
            held.update(groups[root])
            room -= taken
        if not room.any():
            break
    if not held:
        smallest = min(len(group) for group in groups.values())
        raise InputError(
            f"{data.name}: the smallest part that shares no {apart.removesuffix('s')} with the rest has {smallest} "
            "examples, more than are to be held back",
            "raise the share, or use another set as dev",
        )
    # What hangs together with held-back examples, and is of none of `sets`, is in neither part.
    dev = sorted(index for index in held if part[index] >= 0)
    train = [index for index in range(len(data)) if index not in held]
    dev_name = name or f"{data.name}-dev"
    if apart == "questions":
        return data.take(train), data.take(dev, name=dev_name)
    return _disjoint(data, train, dev, dev_name)


def _components(data: TrainingData, *, with_documents: bool) -> list[int]:
    """For each example the root of its connected component over normalised query and, if asked, positive texts."""
    parent = list(range(len(data)))

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    queries, documents = data.queries.canonical(), data.documents.canonical()
    first: dict[tuple[str, int], int] = {}
    for index, query in enumerate(data.query_rows.tolist()):
        nodes = [("query", int(queries[query]))]
        if with_documents:
            nodes += [("document", int(documents[row])) for row in data.positives[index]]
        for node in nodes:
            parent[find(index)] = find(first.setdefault(node, index))
    return [find(index) for index in range(len(data))]


def _disjoint(data: TrainingData, train: list[int], dev: list[int], dev_name: str) -> tuple[TrainingData, TrainingData]:
    canonical = data.documents.canonical()

    def texts(ragged: Ragged, indices: list[int]) -> set[int]:
        return {int(canonical[row]) for index in indices for row in ragged[index]}

    def without(indices: list[int], taken: set[int]) -> list[list[int]]:
        return [[row for row in data.negatives[i].tolist() if int(canonical[row]) not in taken] for i in indices]

    train_negatives = without(train, texts(data.positives, dev))
    of_train = texts(data.positives, train) | {int(canonical[row]) for rows in train_negatives for row in rows}
    dev_negatives = without(dev, of_train)
    parts = (
        data._with(train, [data.positives[i].tolist() for i in train], train_negatives),
        data._with(dev, [data.positives[i].tolist() for i in dev], dev_negatives, dev_name),
    )
    for part, indices, other in zip(parts, (train, dev), ("dev", "train"), strict=True):
        if lost := sum(len(data.negatives[i]) for i in indices) - len(part.negatives.values):
            part.notes.append(f"{part.name}: {lost} hard negatives left out because {other} has them")
    return parts


# ---------------------------------------------------------------- drawing


def draw_batches(
    sets: Sequence[SetRange],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    weights: Sequence[float] | float | None = None,
) -> Iterator[list[int]]:
    """One epoch of batches as lists of example indices, each batch out of one set.

    (`inference-free-sparse`, section 5.1.1: one data set drawn per step.) Every set is shuffled anew in each pass over
    it; the examples left over at its end wait for another pass, except in a set smaller than a batch, which is one batch.
    weights: None draws each example once, so that sets come in proportion to their size; a list gives each set's
    share of the steps; a number p makes the shares proportional to size ** p. With weights, the epoch has as many
    batches as without, and small sets are passed over several times. The same arguments give the same batches.
    """
    if batch_size < 1:
        raise InputError(f"the batch size must be at least 1, not {batch_size}")
    filled = [one for one in sets if one.stop > one.start]
    sizes = np.array([one.stop - one.start for one in filled])
    counts = np.maximum(sizes // batch_size, 1)
    rng = np.random.default_rng([seed, epoch, 0])
    if weights is None:
        choices = rng.permutation(np.repeat(np.arange(len(filled)), counts))
    else:
        if isinstance(weights, (int, float)):
            shares = sizes.astype(float) ** weights
        else:
            if len(weights) != len(sets) or min(weights) < 0 or sum(weights) <= 0:
                raise InputError(f"expected {len(sets)} weights, one for each data set, none negative: {list(weights)}")
            shares = np.array([w for w, one in zip(weights, sets, strict=True) if one.stop > one.start], dtype=float)
        choices = rng.choice(len(filled), size=int(counts.sum()), p=shares / shares.sum())
    passes = [_passes(one, batch_size, [seed, epoch, 1 + at]) for at, one in enumerate(filled)]
    for choice in choices.tolist():
        yield next(passes[choice])


def _passes(one: SetRange, batch_size: int, seed: list[int]) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    while True:
        order = (rng.permutation(one.stop - one.start) + one.start).tolist()
        for start in range(0, max(len(order) - batch_size, 0) + 1, batch_size):
            yield order[start : start + batch_size]


def sample_candidates(
    data: TrainingData,
    index: int,
    count: int,
    *,
    rng: random.Random,
    depth: int | None = None,
    positive: Literal["first", "random"] = "random",
) -> tuple[str, list[str]]:
    """(positive, `count` negatives) of the example at `index`, as document ids.

    The negatives are drawn from the first `depth` hard ones; where these are fewer, the rest are random documents of
    the same set that are not known to be relevant. Raises InputError where even those do not suffice.
    """
    ids, documents = data.documents.ids, data.documents
    positives = data.positives[index]
    chosen = int(positives[0] if positive == "first" else positives[rng.randrange(len(positives))])
    hard = data.negatives[index][:depth].tolist()
    rows = rng.sample(hard, min(count, len(hard)))
    if len(rows) < count:
        one = next(one for one in data.sets if one.start <= index < one.stop)
        known = set(data.judged[int(data.query_rows[index])].tolist()) | set(hard)
        texts = {normalised(documents.text_at(row)) for row in known}
        tries = 0
        while len(rows) < count:
            row = rng.randrange(one.document_start, one.document_stop)
            tries += 1
            if row not in known and normalised(documents.text_at(row)) not in texts:
                rows.append(row)
                known.add(row)
                texts.add(normalised(documents.text_at(row)))
            elif tries > 100 * (count + len(known)):
                raise InputError(
                    f"{one.name} has too few documents for {count} negatives a query "
                    f"(query {data.queries.ids[int(data.query_rows[index])]!r})"
                )
    return ids[chosen], [ids[row] for row in rows]


def known_positive_mask(
    data: TrainingData, query_ids: Sequence[str], document_ids: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Which of a batch's documents are known to be relevant to which of its queries: (queries, documents).

    With in-batch negatives, the document of one query may well answer another one; what is known of that goes by
    judgement and by normalised text, of documents and of queries.
    """
    documents = data.documents
    keys = [normalised(documents[identifier]) for identifier in document_ids]
    texts: dict[str, set[str]] = {}
    names = [normalised(data.queries[query]) for query in query_ids]
    for name, query in zip(names, query_ids, strict=True):
        judged = data.judged[data.queries.row(query)]
        texts.setdefault(name, set()).update(normalised(documents.text_at(row)) for row in judged)
    return np.array([[key in texts[name] for key in keys] for name in names], dtype=bool).reshape(
        len(query_ids), len(document_ids)
    )
