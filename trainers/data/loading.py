"""Reads training data from files into `TrainingData`.

data = load_training("squad-mix")                         a BEIR folder's train split
data = load_training("nq-train.json")                     DPR's json
data = load_training("triples.train.small.tsv.gz")        MS MARCO triples
data = load_training("pairs.jsonl")                       sentence-transformers pairs, triples, scored lists
data = load_training("squad-mix", negatives="mined.jsonl")    with negatives of `osn data mine`
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.judgements import BeirData, read_queries
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.corpus.text_files import not_there
from opensearch_neural.errors import InputError
from trainers.data import formats
from trainers.data.examples import TrainingData
from trainers.data.formats import Record, RecordDocument
from trainers.data.texts import Ragged, TextStore, text_id

logger = logging.getLogger(__name__)
FORMATS = ("beir", "dpr", "triples", "pairs", "generated")
TRAIN = "train"
"""The default split of a BEIR folder's judgements."""
LONGEST = 60
"""Most characters of an id in a message."""
OWN_TEXTS = ("beir", "dpr", "pairs")
"""The formats whose documents and queries are in the folder or file itself, and nowhere else."""
GENERATED = "generated-queries"
"""The kind in the header of a file of `osn data generate-queries`."""
NEGATIVES = "negatives"
"""The kind in the header of a file of `osn data mine`."""


def load_training(
    path: str | Path,
    *,
    split: str = TRAIN,
    negatives: str | Path | None = None,
    corpus: str | Path | None = None,
    queries: str | Path | None = None,
    format: str | None = None,
    limit: int | None = None,
    name: str | None = None,
) -> TrainingData:
    """The training data in `path`.

    format: one of FORMATS; by default detected by the path: a folder is BEIR, .json DPR, .tsv triples, .jsonl
    sentence-transformers or the output of `osn data generate-queries`. corpus: the documents of triples by id and of
    generated queries (a BEIR folder, any corpus, or MS MARCO's collection.tsv). queries: the queries of triples by id.
    negatives: a file that `osn data mine` made for the same texts; its negatives replace the data's own.
    limit: only the first N examples.

    Raises InputError with file, line and field for invalid content, if most judgements name unknown documents, if no
    example is left, for a corpus or queries beside data that holds its own texts, and for a split of a file.
    """
    path = Path(path)
    format = format or format_of(path)
    if format == "generated" and queries is not None:
        raise InputError(f"{path} holds its own queries; `queries` is for triples by id", "leave it out")
    if format in OWN_TEXTS and (corpus is not None or queries is not None):
        raise InputError(
            f"{path} holds its own texts; `corpus` is for triples by id and generated queries, `queries` for triples by id",
            "leave them out, or write a BEIR folder of the corpus, the queries and their judgements",
        )
    if format != "beir" and split != TRAIN:
        raise InputError(f"{path} has no split {split!r}: only BEIR folders have splits", "name the file of that split")
    name = name or name_of(path)
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


def name_of(path: Path) -> str:
    """The name of the data set at a path, if it is given no other: the file's or folder's, without endings."""
    return path.resolve().name.partition(".")[0]


def format_of(path: Path) -> str:
    """Which of FORMATS a path has, by its name and, for JSON lines, the first line. Raises InputError if none fits."""
    if path.is_dir():
        return "beir"
    if not path.exists():
        raise not_there(path, "check the path of the training data")
    stem = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if stem.endswith(".json"):
        return "dpr"
    if stem.endswith((".tsv", ".txt")):
        return "triples"
    if stem.endswith((".jsonl", ".ndjson")):
        _, first = next(formats.read_json_lines(path), (0, None))
        if isinstance(first, dict) and first.get("osn") == NEGATIVES:
            raise InputError(
                f"{path} holds mined negatives, not texts",
                "give the data they were mined for, and this file as negatives",
            )
        if isinstance(first, dict) and (first.get("osn") == GENERATED or {"_id", "queries"} <= first.keys()):
            return "generated"
        return "pairs"
    raise InputError(
        f"{path}: the name does not say what kind of training data it is",
        "expected a BEIR folder, DPR's .json, triples .tsv, or .jsonl (also with .gz or .zst)",
    )


class _Builder:
    """Builds examples from records: one for each query id, in the order of their first record."""

    def __init__(self, name: str, queries: TextStore | None = None, documents: TextStore | None = None) -> None:
        self.name = name
        # Given stores are complete: records may only name ids in them.
        self.complete = {store.what for store in (queries, documents) if store is not None}
        self.queries = TextStore(what="query") if queries is None else queries
        self.documents = TextStore() if documents is None else documents
        self.examples: dict[int, tuple[array[int], array[int], dict[int, float]]] = {}
        self.unknown: dict[str, Counter[str]] = {"query": Counter(), "document": Counter()}
        self.references: Counter[str] = Counter()
        self.notes: list[str] = []

    def add(self, record: Record) -> None:
        query = self._row(self.queries, record.query_id, record.query, record)
        positives = [self._row(self.documents, passage.id, passage.text, record) for passage in record.positives]
        negatives = [self._row(self.documents, passage.id, passage.text, record) for passage in record.negatives]
        # A record may have only negatives: the query's positives may be in another record.
        if query is None or (record.positives and not any(row is not None for row in positives)):
            return
        known, wrong, scores = self.examples.setdefault(query, (array("i"), array("i"), {}))
        known.extend(row for row in positives if row is not None and row not in known)
        wrong.extend(row for row in negatives if row is not None)
        for row, score in zip([*positives, *negatives], record.scores or [], strict=False):
            if row is not None:
                scores[row] = score

    def _row(self, store: TextStore, identifier: str | None, text: str | None, record: Record) -> int | None:
        """The row of a text in `store`; None for an id that a complete store lacks."""
        self.references[store.what] += 1
        if store.what in self.complete:
            identifier = identifier or ""
            if identifier in store:
                return store.row(identifier)
            self.unknown[store.what][identifier] += 1
            return None
        text = (text or "").strip()
        if not text:
            raise InputError(f"{record.where}: {'the query' if store is self.queries else 'a document'} is empty")
        return store.add(identifier or text_id(text), text)

    def build(self, source: str) -> TrainingData:
        """The data. source: the file to name in messages about references to unknown ids."""
        for what, plural in (("query", "queries"), ("document", "documents")):
            unknown = self.unknown[what]
            if not unknown:
                continue
            times, shown = unknown.total(), ", ".join(map(_shortened, islice(unknown, 3)))
            message = (
                f"{source}: {times} references name {len(unknown)} {plural} that the data does not hold "
                f"({'first: ' if len(unknown) > 3 else ''}{shown})"
            )
            if what == "document" and not len(self.documents):
                raise InputError(f"{self.name}: the corpus holds no document with text", f"{source} names {times}")
            if times * 2 > self.references[what]:
                raise InputError(message, f"is this the right {'corpus' if what == 'document' else 'query file'}?")
            self.notes.append(message + "; left out")
        without = [query for query, (known, _, _) in self.examples.items() if not known]
        for query in without:
            del self.examples[query]
        if without:
            self.notes.append(f"{self.name}: {len(without)} queries without a relevant document left out")
        positives, negatives, scored, values = [], [], [], array("f")
        judged: list[list[int]] = [[] for _ in range(len(self.queries))]
        for query, (known, wrong, scores) in self.examples.items():
            known_rows = known.tolist()
            positives.append(known_rows)
            # A repeated negative, or one that is a positive in another record, is left out.
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


def _shortened(identifier: str) -> str:
    return repr(identifier if len(identifier) <= LONGEST else f"{identifier[: LONGEST - 1]}…")


def _load_beir(folder: Path, split: str, name: str) -> TrainingData:
    beir = BeirData.load(folder, split)
    builder = _Builder(
        name,
        TextStore(beir.queries.items(), what="query"),
        text_store(beir.corpus_path),
    )
    irrelevant = 0
    for query, judgements in beir.qrels.items():
        relevant = [RecordDocument(document) for document, grade in judgements.items() if grade > 0]
        others = [RecordDocument(document) for document, grade in judgements.items() if grade <= 0]
        irrelevant += len(others)
        builder.add(Record(query, None, relevant, others, None, query))
    if irrelevant:
        builder.notes.append(f"{name}: {irrelevant} documents judged not relevant are taken as hard negatives")
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
    if (
        format == "triples"
        and corpus is None
        and len(builder.documents)
        and all(map(_is_id, builder.documents.values()))
    ):
        raise InputError(
            f"{path} names its passages by id: each is one word with a digit",
            "give `corpus` and `queries`, which hold the texts",
        )
    return builder.build(str(path))


def _is_id(passage: str) -> bool:
    """Whether a passage of a file of triples looks like an id."""
    return len(passage.split()) == 1 and any(map(str.isdigit, passage))


def _read_documents(path: Path) -> TextStore:
    """The documents of any corpus, also of two columns without a header, as in MS MARCO's collection.tsv."""
    if path.is_file() and ".tsv" in path.suffixes:
        _, first = next(formats.read_lines(path), (0, ""))
        if first.count("\t") == 1 and first.split("\t")[0] not in ("id", "_id", "docid", "doc_id", "docno"):
            return TextStore(formats.read_id_texts(path))
    return text_store(path)


def text_store(path: str | Path, *, limit: int | None = None) -> TextStore:
    """The documents of a corpus by id, title and text together."""
    return TextStore((document.id, document.contents) for document in read_documents(path, limit=limit))


def read_documents(path: str | Path, *, limit: int | None = None) -> Iterator[Document]:
    """The readable documents of a corpus; logs the number of the others, with the first few.

    A record without text is skipped: training does not need it. (An ingest refuses such a corpus.)
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


def with_negatives(data: TrainingData, path: str | Path, *, add: int = 0) -> TrainingData:
    """`data` with the negatives of an `osn data mine` file, without the queries that its filter left out.

    add: how many of a query's own negatives in `data`, the hardest, to keep too; the two lists alternate. Raises InputError
    for a file that was mined for other texts.
    """
    path = Path(path)
    header = formats.read_header(path, NEGATIVES)
    for what, store in (("queries", data.queries), ("documents", data.documents)):
        if header.get(what) != store.hash:
            raise InputError(
                f"{path} was mined for other {what} (hash {header.get(what)}) than {data.name} has ({store.hash})",
                "mine again for this data: osn data mine",
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
        own = [data.negatives[index][:add].tolist() for index in chosen]
        negatives = [_in_turns(mined_rows, own_rows) for mined_rows, own_rows in zip(negatives, own, strict=True)]
    result = data.take(chosen, positives=positives, negatives=negatives)
    if left_out:
        result.notes.append(f"{path}: {len(rows) - len(chosen)} queries left out by the consistency filter")
    if without := sum(rows[index] not in mined for index in chosen):
        result.notes.append(f"{path}: {without} of {len(chosen)} queries were not mined and have no hard negatives")
    return result


def _in_turns(first: list[int], second: list[int]) -> list[int]:
    rows = [row for pair in zip_longest(first, second) for row in pair if row is not None]
    return list(dict.fromkeys(rows))
