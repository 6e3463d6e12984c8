"""Parts of data sets in BEIR layout, written as sets of their own: other judgements, fewer documents."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from opensearch_neural.corpus.judgements import read_queries, write_beir
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import data_facts
from opensearch_neural.files import read_json_object, replaced, write_json
from opensearch_neural.locks import locked
from opensearch_neural.models import directory
from trainers.data.loading import read_documents

T = TypeVar("T")


def check_data(work: Path, folders: Sequence[Path], *, models: Mapping[str, str | Path] = MappingProxyType({})) -> None:
    """Raises InputError if the folder `work` was begun with other data sets or other models.

    models: {name in messages: a folder, a hub id, or lexical}
    """
    file = work / "data.json"
    facts = {folder.name: data_facts(folder).files for folder in folders}
    recorded = read_json_object(file, missing_ok=True)
    for folder in folders:
        if recorded.get(folder.name, facts[folder.name]) != facts[folder.name]:
            raise InputError(f"{work} was begun with another {folder.name} than {folder}", "give another --work")
    hashes = {
        name: "lexical" if model == "lexical" else directory.hash_files(directory.locate(model))
        for name, model in models.items()
    }
    recorded_hashes = recorded.get("models", {})
    for name, model_hash in hashes.items():
        if recorded_hashes.get(name, model_hash) != model_hash:
            raise InputError(f"{work} was begun with another {name} than {models[name]}", "give another --work")
    content = {**facts, **recorded, "models": {**hashes, **recorded_hashes}}
    if content != recorded:
        write_json(file, content)


def evenly(ids: Sequence[T], count: int) -> list[T]:
    """`count` ids (numbers or texts) at equal distances; all of them if there are fewer."""
    if count >= len(ids):
        return list(ids)
    return [ids[at * len(ids) // count] for at in range(count)]


def judgements(folder: Path, split: str) -> list[str]:
    """The lines of a split's judgements, without the header."""
    return (folder / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]


def judged_documents(lines: Iterable[str]) -> set[str]:
    """The ids of the documents that lines of judgements name."""
    return {line.split("\t")[1] for line in lines}


def articles(folder: Path) -> dict[str, str]:
    """{document id: its title, or the id if it has no title}."""
    return {document.id: document.title or document.id for document in read_documents(folder)}


def write_part(
    source: Path, folder: Path, splits: Mapping[str, Sequence[str]], documents: Container[str] | None = None
) -> None:
    """Write `source` to `folder` with other judgements, unless the folder exists.

    splits: {split: lines of its judgements}; documents: the ids of the documents to write, None for all
    """
    with locked(folder, done=folder):  # several copies of a command may run at once
        if folder.exists():
            return
        chosen = (document for document in read_documents(source) if documents is None or document.id in documents)
        with replaced(folder) as beside:
            write_beir(beside, chosen, read_queries(source), splits)
