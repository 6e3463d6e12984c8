"""What an index says about itself, and what a larger one would cost."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import WORDS, job, records, write_jsonl

from ingest.documents import Documents
from ingest.inspection import inspect_index, plan
from ingest.job import run_job
from ingest.settings import NewIndex
from ingest.writing import target
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.record import PassageMeta


def ingested(client: Any, index: str, lines: list[Any], tmp_path: Path, **settings: Any) -> str:
    corpus = write_jsonl(tmp_path / f"{index}.jsonl", lines)
    run_job(
        client, job(corpus, index, writing={"merge": True, "batch_documents": 500}, **settings), show_progress=False
    )
    return index


def test_models_counts_and_sizes(client: Any, index_name: str, tmp_path: Path, osn_home: Path) -> None:
    ingested(client, index_name, records(300), tmp_path, shards=2, store_vectors=False, dense="all-MiniLM-L6-v2")
    inspection = inspect_index(client, index_name)
    assert (inspection.index, inspection.documents, inspection.parents, inspection.shards, inspection.replicas) == (
        index_name,
        300,
        None,
        2,
        0,
    )
    assert [(model.kind, model.name, model.here) for model in inspection.models] == [
        ("sparse", "lexical", True),
        ("dense", "all-MiniLM-L6-v2", True),
    ]
    # 384 float components of 4 bytes, once: not among the doc values too. The rest is the graph.
    assert 1 <= inspection.sizes["dense"] / (300 * 384 * 4) < 1.2
    assert inspection.sizes["fields"] < 300 * 384
    assert all(size >= 0 for size in inspection.sizes.values())
    assert {"_source", "sparse (estimated)", "words (estimated)", "words: positions"} <= inspection.sizes.keys()
    import shutil

    shutil.rmtree(osn_home)
    gone = inspect_index(client, index_name)
    assert [model.here for model in gone.models] == [False, False]
    assert gone.drift is None, "without the model there is no table to compare with"


def test_all_bytes_of_an_index_with_several_formats_of_postings_are_counted(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """A field of type completion has a format of its own, and OpenSearch tells the size of one file for each extension."""
    (tmp_path / "mapping.json").write_text(json.dumps({"suggest": {"type": "completion"}}))
    lines = [line | {"suggest": line["text"]} for line in records(500)]
    inspection = inspect_index(client, ingested(client, index_name, lines, tmp_path, mapping=tmp_path / "mapping.json"))
    assert sum(inspection.sizes.values()) > 0.95 * inspection.bytes
    assert plan(inspection, 5000).bytes > 0.95 * 10 * inspection.bytes
    assert inspection.sizes["not told apart"] > 0 and "sparse (estimated)" not in inspection.sizes


def test_passages_are_counted_as_documents_too(client: Any, index_name: str, tmp_path: Path) -> None:
    ingested(client, index_name, records(40), tmp_path, passages=PassageMeta(5, 5))
    inspection = inspect_index(client, index_name)
    assert inspection.parents == 40 and inspection.documents >= 120


def test_the_parts_of_postings_are_near_those_of_an_index_without_the_other(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    random_ = random.Random(8)
    words = [f"{a}{b}" for a in WORDS for b in WORDS]
    lines = [{"_id": str(n), "text": " ".join(random_.choices(words, k=60))} for n in range(3000)]
    both = inspect_index(client, ingested(client, index_name, lines, tmp_path, tokenizer=None), sample=0)
    words_only = inspect_index(client, ingested(client, f"{index_name}-w", lines, tmp_path, sparse="none"), sample=0)
    postings = both.sizes["words (estimated)"] + both.sizes["sparse (estimated)"]
    assert 0.7 < both.sizes["words (estimated)"] / words_only.sizes["words"] < 1.4
    assert postings > 1.5 * words_only.sizes["words"]


def test_drift_is_what_chance_makes_of_it_until_the_documents_change(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    everywhere = [{**record, "text": f"{record['text']} same"} for record in records(1000)]  # a word without chance
    ingested(client, index_name, everywhere, tmp_path)
    before = inspect_index(client, index_name).drift
    assert before is not None and before.documents == 1000
    assert before.mean < 0.02 and before.tokens == []
    more = records(800, seed=3, words=6)
    for record in more:
        record["text"] += " prism"
    Documents(client, index_name).add(more)
    after = inspect_index(client, index_name).drift
    assert after is not None
    assert after.mean > 10 * after.by_chance or after.mean > 0.2
    token, table, now = after.tokens[0]
    assert token == "prism" and now < table - 0.8
    assert inspect_index(client, index_name, sample=0).drift is None


def test_a_plan_from_a_tenth_foretells_the_whole(client: Any, index_name: str, tmp_path: Path) -> None:
    random_ = random.Random(8)
    words = [f"{a} {b}" for a in WORDS for b in WORDS]
    lines = [
        {"_id": f"document-{n}", "text": " ".join(random_.choices(words, k=random_.randrange(20, 80)))}
        for n in range(5000)
    ]
    sample = ingested(client, index_name, lines[:500], tmp_path)
    whole = inspect_index(client, ingested(client, f"{index_name}-w", lines, tmp_path), sample=0)
    # What a shard stores is counted every ten seconds, and after a merge the parts that were merged are counted, too.
    deadline = time.monotonic() + 15
    while (made := plan(inspect_index(client, sample, sample=0), 5000)).bytes != pytest.approx(whole.bytes, rel=0.2):
        assert time.monotonic() < deadline, (made.bytes, whole.bytes)
        time.sleep(1)
        whole = inspect_index(client, whole.index, sample=0)
    assert (made.documents, made.sampled, made.replicas, made.shards, made.heap) == (5000, 500, 0, 1, 0)


def test_a_plan_grows_with_documents_and_copies(client: Any, index_name: str, tmp_path: Path) -> None:
    inspection = inspect_index(client, ingested(client, index_name, records(100), tmp_path), sample=0)
    small, large = plan(inspection, 10**6, replicas=0), plan(inspection, 10**9, replicas=2)
    assert large.bytes == pytest.approx(1000 * small.bytes, rel=0.01)
    assert large.disk == pytest.approx(3000 * small.disk, rel=0.01)
    assert large.shards > small.shards >= 1
    assert large.cache < 3 * large.bytes


def test_the_nested_documents_of_several_vectors_count_for_shards(client: Any, index_name: str, tmp_path: Path) -> None:
    inspection = inspect_index(client, ingested(client, index_name, records(100), tmp_path), sample=0)
    # So few bytes a document that Lucene's limit decides.
    small = replace(inspection, sizes={"other": 100}, documents=100)
    several = replace(small, lucene_documents=4 * inspection.lucene_documents)
    assert (plan(small, 4 * 10**9).shards, plan(several, 4 * 10**9).shards) == (2, 8)


def test_nested_documents_of_the_callers_own_are_parts_of_their_document(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    (tmp_path / "mapping.json").write_text('{"comments": {"type": "nested"}}')
    lines = [{**record, "comments": [{"by": "a"}, {"by": "b"}]} for record in records(50)]
    ingested(client, index_name, lines, tmp_path, mapping=tmp_path / "mapping.json")
    inspection = inspect_index(client, index_name, sample=0)
    assert (inspection.documents, inspection.lucene_documents, inspection.deleted) == (50, 150, 0)
    Documents(client, index_name).delete([line["_id"] for line in lines[:10]])
    inspection = inspect_index(client, index_name, sample=0)
    assert (inspection.documents, inspection.lucene_documents) == (40, 120)
    assert inspection.deleted < 20, "a delete leaves a mark that counts as deleted, too"


def test_what_cannot_be_inspected(client: Any, index_name: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no index"):
        inspect_index(client, index_name)
    client.indices.create(index=index_name)
    with pytest.raises(ModelError, match="was not written by osn"):
        inspect_index(client, index_name)
    empty = f"{index_name}-empty"
    from opensearch_neural.index.record import IndexMeta

    target.open_target(client, empty, IndexMeta(), NewIndex(replicas=0), corpus_name="c")
    with pytest.raises(InputError, match="holds no documents to scale from"):
        plan(inspect_index(client, empty), 10)


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    ingested(client, index_name, records(50), tmp_path)
    ran = osn("index", "inspect", index_name, "--json")
    told = json.loads(ran.stdout)
    assert told["documents"] == 50 and told["meta"]["sparse"]["name"] == "lexical"
    ran = osn("index", "inspect", index_name)
    assert "idf drift" in ran.stdout and "sparse" in ran.stdout
    ran = osn("index", "plan", index_name, "--docs", "1000000", "--replicas", "1")
    assert "1,000,000 documents, from 50" in ran.stdout and "page cache" in ran.stdout
    ran = osn("index", "plan", index_name, "--docs", "1000000", "--json")
    assert json.loads(ran.stdout)["documents"] == 1_000_000
