"""Keeps the generated queries that find their own passage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers import Retriever
from trainers.data.formats import read_header, read_json_lines
from trainers.data.loading import GENERATED
from trainers.data.resumable_chunks import Chunk, write_in_chunks
from trainers.data.texts import TextStore, normalised

CHUNK = 256
"""Passages between two writes."""


def filter_generated(
    path: Path, documents: TextStore, retriever: Retriever, *, top: int, output: Path, chunk: int = CHUNK
) -> dict[str, int]:
    """Keep the queries in `path` for which `retriever` finds their own passage in the top `top`.

    A passage with the same normalised text counts too; equal queries of a passage are kept once. Passages without remaining
    queries stay in the file. Returns the counts. After an interruption, the same call continues.
    Raises InputError if `path` was made for other documents.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    header = read_header(path, GENERATED)
    if header.get("documents") != documents.hash:
        raise InputError(
            f"{path} holds queries for other documents (hash {header.get('documents')}) than these ({documents.hash})"
        )
    lines = [value for number, value in read_json_lines(path) if number > 1]
    canonical = documents.canonical
    made_by = {key: value for key, value in header.items() if key not in ("osn", "format", "counts")}
    made_by |= {"consistency": top, "retriever": retriever.name}

    def work(number: int) -> Chunk:
        part = lines[number * chunk : (number + 1) * chunk]
        texts = {
            f"{line['_id']}#{at}": query["text"]
            for line in part
            for at, query in enumerate(line["queries"])
            if query["text"].strip()
        }
        run = retriever.retrieve(texts, top)
        documents_for = {
            query: {int(canonical[documents.row(hit)]) for hit in hits if hit in documents}
            for query, hits in run.items()
        }
        kept: list[dict[str, Any]] = []
        for line in part:
            own = int(canonical[documents.row(line["_id"])])
            seen: set[str] = set()
            queries = []
            for at, query in enumerate(line["queries"]):
                key = normalised(query["text"])
                if own in documents_for.get(f"{line['_id']}#{at}", ()) and key not in seen:
                    seen.add(key)
                    queries.append(query)
            kept.append({"_id": line["_id"], "queries": queries})
        counts = {
            "passages": len(kept),
            "queries": sum(len(line["queries"]) for line in kept),
            "left_out": sum(len(line["queries"]) for line in part) - sum(len(line["queries"]) for line in kept),
            "without": sum(not line["queries"] for line in kept),
        }
        return kept, counts

    counts = write_in_chunks(output, GENERATED, made_by, -(-len(lines) // chunk), work, unit=f"× {chunk} passages")
    assert counts is not None
    return counts
