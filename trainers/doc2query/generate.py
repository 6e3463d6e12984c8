"""`osn data generate-queries`: queries for every document of a corpus, written in chunks.

    osn data generate-queries scifact --model models/doc2query --candidates 5 --output queries.jsonl
    osn data generate-queries scifact --model models/doc2query --consistency 10 --retriever bm25 --output queries.jsonl

Samples several candidates per passage with top-k 25 and nucleus 0.95 (`query-as-context-pretraining`, section 3.1;
`tome-model-based-retrieval`, section 3.3). A generator trained on pairs of another corpus serves, too.

A line of the output is {"_id": document, "queries": [{"text", "log_probability", "tokens"}, …]}. log_probability is the
natural logarithm of the query's probability under the model, with copying and the end token, before top-k and nucleus.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.locks import locked
from opensearch_neural.models import directory
from opensearch_neural.retrievers import Retriever
from trainers.common.precision import computed_in
from trainers.data.formats import read_header, read_json_lines
from trainers.data.loading import GENERATED
from trainers.data.resumable_chunks import Chunk, write_in_chunks
from trainers.data.texts import TextStore, normalised
from trainers.doc2query.passage_words import Copying, copying_of
from trainers.doc2query.sampling import sample_queries
from trainers.doc2query.settings import GenerationSettings
from trainers.encoders import backbones

KIND = "doc2query"
"""The kind of a generator's model directory."""
CHUNK = 256
"""Passages between two writes."""


def generate_queries(
    generation: GenerationSettings,
    documents: TextStore,
    *,
    output: Path,
    shard: tuple[int, int] = (1, 1),
    device: str | None = None,
    chunk: int = CHUNK,
) -> bool:
    """Write generated queries for every document to `output`; returns False if other shards are not done yet.

    After an interruption the same call continues and gives the same file: each chunk of passages is seeded by its number.
    It waits while another process does the same work.
    Raises InputError if `output` was made by another model, from other documents or with other settings, ModelError for
    a model of `osn train` that is not a generator.
    """
    if not 1 <= shard[0] <= shard[1]:
        raise InputError(f"there is no shard {shard[0]}/{shard[1]}", "expected i/n with i from 1 to n")
    model, sampling = generation.generator, generation.sampling()
    info = directory.model_info(generator_folder(model), name=model, kind=KIND)
    computed = computed_in(generation.precision, device)
    made_by = {
        "model": {"name": info.name, "hash": info.hash},
        "documents": documents.hash,
        **asdict(sampling),
        "precision": computed,
        "chunk": chunk,
    }
    loaded: list[tuple[Any, PreTrainedTokenizerBase, Copying | None]] = []

    def work(number: int) -> Chunk:
        if not loaded:
            read, words = load_generator(generation)
            place = device or ("cuda" if torch.cuda.is_available() else "cpu")
            copies = copying_of(documents, words, sampling.passage_length) if sampling.copying else None
            loaded.append((read.to(place, dtype=getattr(torch, computed)).eval(), words, copies))
        generator, tokenizer, copying = loaded[0]
        rows = range(number * chunk, min((number + 1) * chunk, len(documents)))
        passages = [documents.text_at(row) for row in rows]
        seed = sampling.seed * 1_000_003 + number
        queries = sample_queries(generator, tokenizer, passages, sampling, seed=seed, copying=copying)
        lines = [
            {"_id": documents.ids[row], "queries": [asdict(candidate) for candidate in candidates]}
            for row, candidates in zip(rows, queries, strict=True)
        ]
        empty = sum(not candidate.text for candidates in queries for candidate in candidates)
        return lines, {"passages": len(lines), "queries": len(lines) * sampling.candidates, "empty": empty}

    chunks = -(-len(documents) // chunk)
    unit = f"× {chunk} passages"
    # Shards run in parallel; each is the work of one process.
    with locked(output.with_name(f"{output.name}.{shard[0]}-{shard[1]}"), done=output):
        return write_in_chunks(output, GENERATED, made_by, chunks, work, unit=unit, shard=shard)


def generator_folder(name_or_path: str | Path) -> Path:
    """The folder of a generator. Raises ModelError for a model of `osn train` that is not one."""
    folder = directory.locate(name_or_path)
    if (content := directory.read_osn_json(folder)) is not None and content["kind"] != KIND:
        raise ModelError(
            f"{folder} is a {content['kind']} model, which cannot write queries",
            "train a generator with `osn train doc2query`",
        )
    return folder


def load_generator(generation: GenerationSettings) -> tuple[Any, PreTrainedTokenizerBase]:
    """(model, tokenizer) of the generator. Raises ModelError if it is none or does not load, InputError if it has fewer
    positions than the settings ask for."""
    sampling = generation.sampling()
    model, tokenizer = backbones.sequence_to_sequence(generator_folder(generation.generator))
    backbones.check_lengths(model, read=sampling.passage_length, written=sampling.query_length)
    return model, tokenizer


def filter_generated(
    path: Path, documents: TextStore, retriever: Retriever, *, top: int, output: Path, chunk: int = CHUNK
) -> None:
    """Write those queries of `path` to `output` that find their own passage among the `top` best of `retriever`.

    A passage with the same normalised text counts too; equal queries of a passage are kept once. Passages without remaining
    queries stay in the file. After an interruption, the same call continues. It waits while another process does the same
    work.
    Raises InputError if `path` was made for other documents.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    header = read_header(path, GENERATED)
    if header.get("documents") != documents.hash:
        raise InputError(
            f"{path} holds queries for other documents (hash {header.get('documents')}) than these ({documents.hash})"
        )
    lines = (value for number, value in read_json_lines(path) if number > 1)  # one for each document
    passed = 0  # the number of lines read
    canonical = documents.canonical
    made_by = {key: value for key, value in header.items() if key not in ("osn", "format", "counts")}
    made_by |= {"consistency": top, "retriever": retriever.name}

    def work(number: int) -> Chunk:
        nonlocal passed
        first = number * chunk - passed
        part, passed = list(islice(lines, first, first + chunk)), (number + 1) * chunk
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
        filtered: list[dict[str, Any]] = []
        for line in part:
            own = int(canonical[documents.row(line["_id"])])
            seen: set[str] = set()
            queries = []
            for at, query in enumerate(line["queries"]):
                key = normalised(query["text"])
                if own in documents_for.get(f"{line['_id']}#{at}", ()) and key not in seen:
                    seen.add(key)
                    queries.append(query)
            filtered.append({"_id": line["_id"], "queries": queries})
        generated = sum(len(line["queries"]) for line in part)
        left = sum(len(line["queries"]) for line in filtered)
        without = sum(not line["queries"] for line in filtered)
        return filtered, {"passages": len(filtered), "queries": left, "left_out": generated - left, "without": without}

    with locked(output, done=output):
        write_in_chunks(output, GENERATED, made_by, -(-len(documents) // chunk), work, unit=f"× {chunk} passages")
