"""Sparse vectors that are pruned when they are written: from models, from files, one document at a time; and never mixed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import job, records, small_tokenizer, snapshot, write_jsonl

from ingest.corpus import CorpusSource
from ingest.documents import Documents
from ingest.job import run_job
from ingest.settings import Models
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.vectors.stored_vectors import Manifest
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.hidden_index import LARGEST, read_largest
from opensearch_neural.index.record import SparseMeta, existing_record
from opensearch_neural.models.sparse.pruning import Pruning

pytestmark = pytest.mark.cluster
HEAVY = Pruning("top_k", 3)


def heaviest(source: dict[str, Any], count: int = 3) -> dict[str, float]:
    return dict(sorted(source["sparse"].items(), key=lambda term: -term[1])[:count])


def test_an_index_holds_pruned_documents_alone_however_they_come(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus, more = write_jsonl(tmp_path / "d.jsonl", records(40)), records(10, seed=3)
    run_job(client, job(corpus, f"{index_name}-whole"), show_progress=False)
    whole = snapshot(client, f"{index_name}-whole")
    assert max(len(source["sparse"]) for source in whole.values()) > 3
    run_job(client, job(corpus, index_name, prune=HEAVY), show_progress=False)
    meta = existing_record(client, index_name)
    assert meta.prune == "top_k:3" and meta.format == existing_record(client, f"{index_name}-whole").format
    held = snapshot(client, index_name)
    for id_, source in whole.items():
        assert sorted(held[id_]["sparse"].values()) == pytest.approx(sorted(heaviest(source).values())), id_
        assert held[id_]["sparse"].items() <= source["sparse"].items()
    largest = read_largest(client, meta.extra[LARGEST])
    assert largest is not None and set(largest.weights) == {token for each in held.values() for token in each["sparse"]}
    # What is added later is pruned likewise, by a corpus as by single documents.
    run_job(client, job(write_jsonl(tmp_path / "more.jsonl", more[:5]), index_name), show_progress=False)
    Documents(client, index_name).add(more[5:])
    held = snapshot(client, index_name)
    assert len(held) == 50 and {len(source["sparse"]) for source in held.values()} == {3}
    assert existing_record(client, index_name).prune == "top_k:3"


def test_other_pruning_than_the_indexs_is_refused(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_job(client, job(corpus, index_name, prune=HEAVY), show_progress=False)
    run_job(client, job(corpus, f"{index_name}-whole"), show_progress=False)
    before = snapshot(client, index_name)
    with pytest.raises(ModelError, match="are pruned by top_k:3, and this ingest brings pruned by max_ratio") as error:
        run_job(client, job(corpus, index_name, prune=Pruning("max_ratio", 0.5)), show_progress=False)
    assert "--prune top_k:3" in str(error.value.remedy)
    with pytest.raises(ModelError, match="are whole, and this ingest brings pruned by top_k:3 ones") as error:
        run_job(client, job(corpus, f"{index_name}-whole", prune=HEAVY), show_progress=False)
    assert "leave out --prune" in str(error.value.remedy)
    assert snapshot(client, index_name) == before
    with pytest.raises(InputError, match="needs sparse vectors, and this ingest writes none"):
        run_job(client, job(corpus, f"{index_name}-none", sparse="none", prune=HEAVY), show_progress=False)


def test_files_are_pruned_when_encoded_or_when_written(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(40))
    source = CorpusSource(str(corpus))
    models = Models(sparse="lexical", tokenizer=small_tokenizer())
    whole = run_encode(EncodeJob(source, tmp_path / "whole", models), show_progress=False).manifest
    pruned = run_encode(
        EncodeJob(source, tmp_path / "pruned", replace(models, prune=HEAVY)), show_progress=False
    ).manifest
    assert Manifest.read(pruned).prune == "top_k:3" and Manifest.read(whole).hash != Manifest.read(pruned).hash
    run_job(client, job(corpus, f"{index_name}-models", prune=HEAVY), show_progress=False)
    expected = snapshot(client, f"{index_name}-models")
    run_job(client, job(corpus, f"{index_name}-a", vectors=pruned), show_progress=False)
    run_job(client, job(corpus, f"{index_name}-b", vectors=whole, prune=HEAVY), show_progress=False)
    run_job(client, job(corpus, f"{index_name}-b", vectors=whole), show_progress=False)  # as the index has
    for name in ("a", "b"):
        assert snapshot(client, f"{index_name}-{name}") == expected
        assert existing_record(client, f"{index_name}-{name}").prune == "top_k:3"
    with pytest.raises(InputError, match="are pruned by top_k:3, not by max_ratio"):
        other = job(corpus, f"{index_name}-c", vectors=pruned, prune=Pruning("max_ratio", 0.5))
        run_job(client, other, show_progress=False)


def test_encodings_and_records_from_before_there_was_pruning_stay_as_they_were() -> None:
    manifest = Manifest(CorpusSource("hf:data"), SparseMeta("m", "0" * 16, "1" * 16), None)
    assert manifest.hash == "3c153008707e7954", "the hash that this encoding had then"
    assert replace(manifest, prune="top_k:3").hash != manifest.hash


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    lexical = ["--sparse", "lexical", "--tokenizer", small_tokenizer()]
    ran = osn("ingest", str(corpus), "--index", index_name, "--prune", "alpha_mass:0.5", *lexical, "--replicas", "0")
    assert ran.returncode == 0, ran.stderr
    assert existing_record(client, index_name).prune == "alpha_mass:0.5"
    ran = osn("encode", str(corpus), "--output", "v", "--prune", "max_ratio:0.5", *lexical)
    assert ran.returncode == 0, ran.stderr
    (manifest,) = (tmp_path / "v").glob("*.json")
    assert json.loads(manifest.read_text())["prune"] == "max_ratio:0.5"
    ran = osn("ingest", str(corpus), "--index", f"{index_name}-x", "--prune", "half")
    assert ran.returncode != 0 and "'half' is no pruning" in ran.stderr and "max_ratio:0.1" in ran.stderr
