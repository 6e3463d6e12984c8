"""Corpora to ingest, and what an index then holds."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.corpus import CorpusSource
from ingest.job import Job
from ingest.settings import Models, NewIndex, Writing
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.files import write_text

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

TEXT = """
rain bow light drop sun water glass angle prism sky cloud storm colour arc beam wave eye red blue green
engine piston spark fuel valve crank shaft wheel brake gear clutch oil heat pump coolant belt torque speed
bread flour yeast salt butter oven crust dough sugar egg milk cream honey nut spice apple pear plum
"""
WORDS = TEXT.split()


def records(count: int, *, seed: int = 0, words: int = 12) -> list[dict[str, Any]]:
    """Documents with all that a document can have; the same for the same arguments."""
    random_ = random.Random(seed)
    made = []
    for number in range(count):
        record: dict[str, Any] = {
            "_id": f"doc-{seed}-{number:06}",
            "text": " ".join(random_.choices(WORDS, k=words)),
            "year": 1900 + number % 120,
        }
        if number % 2:
            record["title"] = " ".join(random_.choices(WORDS, k=3))
        if number % 3:
            record["url"] = f"https://example.org/{number}"
        made.append(record)
    return made


def small_tokenizer() -> str:
    """A tokenizer of the words above, whose lexical model is built in no time."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    path = Path(tempfile.gettempdir()) / f"osn-tests-tokenizer-{os.getuid()}" / "tokenizer.json"
    if not path.exists():
        vocabulary = {word: number for number, word in enumerate(["[UNK]", "the", "and", ".", "same", *WORDS])}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        write_text(path, tokenizer.to_str())
    return str(path)


def write_jsonl(path: Path, lines: Iterable[dict[str, Any] | str | bytes]) -> Path:
    with path.open("wb") as file:
        for line in lines:
            if isinstance(line, dict):
                line = json.dumps(line)
            file.write((line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line) + b"\n")
    return path


def job(corpus: Path | str, index: str, **settings: Any) -> Job:
    """A small ingest with the lexical model: many small batches, and vectors in `_source`, so that they can be compared."""
    writing = {
        "writers": 2,
        "batch_documents": 50,
        "retry": RetryPolicy(patience=60, base=0.05, cap=1.0),
        **settings.pop("writing", {}),
    }
    sparse = settings.setdefault("sparse", None if "vectors" in settings else "lexical")
    tokenizer = small_tokenizer() if sparse == "lexical" else None
    settings = {"replicas": 0, "store_vectors": True, "tokenizer": tokenizer, **settings}
    return Job(CorpusSource(str(corpus)), index, writing=Writing(**writing), **parts_of(settings))


def parts_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `Job` or `EncodeJob` takes, of settings by their own names: those of `Models` and of `NewIndex` put together."""
    models = {field.name: settings[field.name] for field in fields(Models) if field.name in settings}
    new_index = {field.name: settings[field.name] for field in fields(NewIndex) if field.name in settings}
    parts: dict[str, Any] = {name: value for name, value in settings.items() if name not in models | new_index}
    if models:
        parts["models"] = Models(**models)
    if new_index:
        parts["new_index"] = NewIndex(**new_index)
    return parts


def snapshot(client: OpenSearch, index: str) -> dict[str, dict[str, Any]]:
    """{id: source} of everything in an index, vectors included where the index stores them."""
    client.indices.refresh(index=index)
    found: dict[str, dict[str, Any]] = {}
    after: list[Any] | None = None
    while True:
        body: dict[str, Any] = {"size": 2000, "query": {"match_all": {}}, "sort": [{"_id": "asc"}]}
        if after is not None:
            body["search_after"] = after
        answer = client.search(index=index, body=body)
        assert answer["_shards"]["failed"] == 0
        hits = answer["hits"]["hits"]
        if not hits:
            return found
        for hit in hits:
            assert hit["_id"] not in found, "a search returned one id twice"
            found[hit["_id"]] = hit["_source"]
        after = hits[-1]["sort"]


def letters(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
