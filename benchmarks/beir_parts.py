"""Parts of data sets in BEIR layout, written as sets of their own: other judgements, fewer documents."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import data_facts
from opensearch_neural.files import read_json_object, replaced, write_json, write_text
from opensearch_neural.models import directory
from trainers.data.loading import read_documents

T = TypeVar("T")


def check_data(work: Path, folders: Sequence[Path], *, models: Mapping[str, str | Path] = MappingProxyType({})) -> None:
    """Raises InputError if the folder `work` was begun with other data sets or other models.

    models: {name in messages: a folder, a hub id, or lexical}
    """
    file = work / "data.json"
    facts = {folder.name: data_facts(folder).files for folder in folders}
    known = read_json_object(file) if file.exists() else {}
    for folder in folders:
        if folder.name in known and known[folder.name] != facts[folder.name]:
            raise InputError(f"{work} was begun with another {folder.name} than {folder}", "give another --work")
    wanted = {
        name: "lexical" if model == "lexical" else directory.hash_files(directory.locate(model))
        for name, model in models.items()
    }
    there = {**wanted, **known.get("models", {})}
    if other := next((name for name in wanted if there[name] != wanted[name]), None):
        raise InputError(f"{work} was begun with another {other} than {models[other]}", "give another --work")
    if (made := {**facts, **known, "models": there}) != known:
        write_json(file, made)


def evenly(ids: Sequence[T], count: int) -> list[T]:
    """`count` ids (numbers or texts) at equal distances; all of them if there are fewer."""
    if count >= len(ids):
        return list(ids)
    return [ids[at * len(ids) // count] for at in range(count)]


def judgements(folder: Path, split: str) -> Iterator[str]:
    """The lines of a split's judgements, without the header."""
    yield from (folder / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]


def json_lines(file: Path) -> Iterator[dict[str, Any]]:
    plain = file.with_suffix("")
    with gzip.open(file, "rt", encoding="utf-8") if file.exists() else plain.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def articles(folder: Path) -> dict[str, str]:
    """{document id: its title, or the id if it has no title}."""
    return {line["_id"]: line.get("title") or line["_id"] for line in json_lines(folder / "corpus.jsonl.gz")}


def by_article(qrels: Mapping[str, Mapping[str, int]], of_document: Mapping[str, str]) -> dict[str, str]:
    """{question: the article of its first relevant document}: the `clusters` of `comparison.compare`, because questions
    about one article are not independent."""
    return {
        question: of_document[next(document for document, grade in judged.items() if grade > 0)]
        for question, judged in qrels.items()
        if any(grade > 0 for grade in judged.values())
    }


def write_judged(source: Path, folder: Path, splits: Mapping[str, list[str]], *, answers_only: bool = False) -> None:
    """Write `source` to `folder` with other judgements, unless the folder exists.

    splits: {split: lines of its judgements}; answers_only: write only documents that the judgements name
    """
    if folder.exists():
        return
    answers = {line.split("\t")[1] for lines in splits.values() for line in lines}
    with replaced(folder) as beside:
        (beside / "qrels").mkdir(parents=True)
        for name in ("corpus", "queries"):
            with (beside / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                for line in json_lines(source / f"{name}.jsonl.gz"):
                    if name == "queries" or not answers_only or line["_id"] in answers:
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        for split, lines in splits.items():
            (beside / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")


def write_part(source: Path, folder: Path, kept: set[str], splits: Sequence[str]) -> None:
    """Write a BEIR folder with only the documents in `kept`, the judgements on them, and the judged questions."""
    questions: dict[str, str] = {}
    for split in splits:
        beir = BeirData.load(source, split)
        judged = [
            (query, document, grade)
            for query, documents in beir.qrels.items()
            for document, grade in documents.items()
            if document in kept
        ]
        questions |= {query: beir.queries[query] for query, _, _ in judged}
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, line)) for line in judged)]
        write_text(folder / "qrels" / f"{split}.tsv", "".join(f"{line}\n" for line in lines))
    documents = [document.record() for document in read_documents(source) if document.id in kept]
    asked = [{"_id": query, "text": text} for query, text in questions.items()]
    for path, records in (("corpus.jsonl", documents), ("queries.jsonl", asked)):
        write_text(folder / path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
