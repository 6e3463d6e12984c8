"""`osn data fetch`: writes a public data set of ir_datasets as a folder in BEIR layout, which every command takes.

    osn data fetch ir:beir/scifact/train ir:beir/scifact/test --output scifact
    osn data fetch ir:msmarco-passage/train/judged ir:msmarco-passage/dev/small --output msmarco
    osn data fetch ir:beir/nq --output nq

ir_datasets downloads free data once, and says where to request the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from opensearch_neural.corpus.documents import first_line
from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.files import replaced, write_json_lines
from opensearch_neural.progress import counted

PREFIX = "ir:"
SPLITS = ("train", "dev", "test")


def fetch(names: Iterable[str], out: Path) -> dict[str, int]:
    """Write the documents, queries and judgements of data sets with the same corpus into the folder `out`.

    names: "ir:NAME", or "ir:NAME=SPLIT" if the name does not contain the split. Returns the numbers of documents, queries,
    and judgements by split. Raises InputError for invalid names, for documents or queries without a text, and for a folder
    with judgements of other splits, whose queries would be lost, and MissingExtra without ir_datasets.
    """
    splits: dict[str, Any] = {}
    corpora: dict[str, str] = {}
    for reference in names:
        name, split = split_of(reference)
        if split in splits:
            raise InputError(
                f"{reference} would be a second split {split!r}", f"give it another split: {PREFIX}{name}=SPLIT"
            )
        splits[split], corpus = opened(name)
        corpora[corpus] = reference
    if len(corpora) > 1:
        raise InputError(
            f"{' and '.join(corpora.values())} have different corpora: {', '.join(corpora)}", "use a folder for each"
        )
    first = next(iter(splits.values()))
    judged_splits = {split: data for split, data in splits.items() if data.has_queries() and data.has_qrels()}
    if others := [split for split in splits_in(out) if split not in judged_splits]:
        raise InputError(
            f"{out} has judgements of {', '.join(others)}, whose queries would be lost",
            "name all splits in one command, or another --output",
        )
    _check_texts(corpora.popitem()[1], first.docs_cls())
    for split, data in judged_splits.items():
        _check_texts(f"the split {split}", data.queries_cls())
    written = {"documents": 0, "queries": 0}
    out.mkdir(parents=True, exist_ok=True)
    queries: dict[str, str] = {}
    for split, dataset in judged_splits.items():
        queries.update((query.query_id, text_of(query)) for query in downloaded(dataset.queries_iter()))
        with replaced(out / "qrels" / f"{split}.tsv") as part, part.open("w", encoding="utf-8") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            written[split] = 0
            for judged in downloaded(dataset.qrels_iter()):
                file.write(f"{judged.query_id}\t{judged.doc_id}\t{judged.relevance}\n")
                written[split] += 1
    texts = ({"_id": id, "text": text} for id, text in queries.items())
    written["queries"] = write_json_lines(out / "queries.jsonl", texts)
    # Written last, so that a folder with a corpus is complete.
    documents = counted(downloaded(first.docs_iter()), "fetch", total=first.docs_count(), unit="documents")
    written["documents"] = write_json_lines(out / "corpus.jsonl", map(record_of, documents))
    return written


def splits_in(folder: Path) -> list[str]:
    """The splits that a folder in BEIR layout has judgements of."""
    names = [file.name.removesuffix(".gz").removesuffix(".zst") for file in (folder / "qrels").glob("*")]
    return sorted(name.removesuffix(".tsv") for name in names if name.endswith(".tsv") and not name.startswith("."))


def split_of(reference: str) -> tuple[str, str]:
    """(name, split) of "ir:NAME" or "ir:NAME=SPLIT"; the split is the last of train, dev, test in the name, else test."""
    name, _, split = reference.removeprefix(PREFIX).partition("=")
    if not reference.startswith(PREFIX) or not name or "/" in split:
        raise InputError(
            f"{reference!r} is not the name of a data set",
            f"expected {PREFIX}NAME or {PREFIX}NAME=SPLIT, such as {PREFIX}beir/nq",
        )
    return name, split or next((part for part in reversed(name.split("/")) if part in SPLITS), "test")


def opened(name: str) -> tuple[Any, str]:
    """(a data set of ir_datasets, the name of its corpus)."""
    try:
        import ir_datasets
    except ImportError:
        raise MissingExtra(f"{PREFIX}{name}", "ir") from None
    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        raise InputError(f"ir_datasets has no data set {name!r}", "`ir_datasets list` shows its names") from None
    if not dataset.has_docs():
        raise InputError(f"{PREFIX}{name} has no documents")
    return dataset, str(ir_datasets.docs_parent_id(name))


def record_of(document: Any) -> dict[str, str]:
    """A document of ir_datasets as a line of corpus.jsonl; without a field `text`, its default text is taken, without the
    title that it begins with."""
    fields = {name: str(getattr(document, name, None) or "") for name in ("title", "text", "url")}
    text = fields["text"] or text_of(document).removeprefix(fields["title"]).lstrip()
    return {"_id": document.doc_id, **{name: value for name, value in fields.items() if value}, "text": text}


def text_of(item: Any) -> str:
    """The default text of a document or query of ir_datasets; a few kinds have only a field `text`."""
    return str(item.default_text() if hasattr(item, "default_text") else item.text)


def _check_texts(name: str, kind: Any) -> None:
    """Raise InputError for a class of documents or queries that have no text."""
    if not hasattr(kind, "default_text") and not hasattr(kind, "text"):
        fields = ", ".join(getattr(kind, "_fields", ()))
        raise InputError(
            f"ir_datasets does not say which field of {name} is the text; the fields are: {fields}",
            "write corpus.jsonl and queries.jsonl by ir_datasets itself, with the text that you choose",
        )


def downloaded(rows: Iterable[Any]) -> Iterator[Any]:
    """Rows that ir_datasets may have to download first. If that fails, raises InputError with its message."""
    try:
        yield from rows
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"ir_datasets could not get the data: {first_line(error)}", "run the same command again to continue"
        ) from None


@click.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="ir:NAME[=SPLIT]…")
@click.option(
    "--output", "out", type=click.Path(path_type=Path, file_okay=False), required=True, help="The folder to write."
)
def fetch_command(names: tuple[str, ...], out: Path) -> None:
    """Write a public data set of ir_datasets as a folder in BEIR layout, which every command takes.

    \b
    osn data fetch ir:beir/scifact/train ir:beir/scifact/test --output scifact
    osn data fetch ir:msmarco-passage/train/judged ir:msmarco-passage/dev/small --output msmarco

    Several names must be splits of one corpus: train, dev or test in the name, or ir:NAME=SPLIT. Some data must be
    requested first; ir_datasets says where.
    """
    written = fetch(names, out)
    splits = ", ".join(
        f"{count:,} judgements of {split}" for split, count in written.items() if split not in ("documents", "queries")
    )
    click.echo(
        f"{out}: {written['documents']:,} documents, {written['queries']:,} queries{', ' if splits else ''}{splits}"
    )
