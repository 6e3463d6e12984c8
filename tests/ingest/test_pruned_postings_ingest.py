"""Postings that are pruned while rows keep whole vectors: however documents come, and what is refused."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import TEXT, job, records, small_tokenizer, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy
from forward_rows import unpacked

from ingest.corpus import CorpusSource
from ingest.documents import Documents
from ingest.inspection import inspect_index
from ingest.job import run_job
from ingest.settings import Models
from ingest.stored_query_data import keep_measures
from ingest.vectorizers import NotingLargest
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.versions.builds import rollback, serve
from ingest.writing.target import existing_target
from opensearch_neural.cluster.connect import connect
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.hidden_index import LARGEST, read_largest
from opensearch_neural.index.record import PassageMeta, existing_record, write_record
from opensearch_neural.index.sparse_scale import SCALE
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries.forward_index import FIELD, token_hash
from opensearch_neural.query_encoder import QueryEncoder

pytestmark = pytest.mark.cluster
HEAVY = Pruning("top_k", 3)


def most_added(source: dict[str, Any], idf: dict[str, float], count: int = 3) -> set[str]:
    """The tokens that can add most to a score."""
    return set(sorted(source["sparse"], key=lambda token: -source["sparse"][token] * idf[token])[:count])


def row_of(source: dict[str, Any]) -> dict[int, float]:
    return unpacked(b64decode(source[FIELD]))


def check(held: dict[str, dict[str, Any]], whole: dict[str, dict[str, Any]], idf: dict[str, float]) -> None:
    """That postings hold the heaviest of the whole vectors, and rows hold them all."""
    assert held.keys() == whole.keys()
    for id_, source in whole.items():
        assert held[id_]["sparse"].items() <= source["sparse"].items()
        expected = most_added(source, idf, min(3, len(source["sparse"])))
        least = min(source["sparse"][token] * idf[token] for token in expected)
        assert len(held[id_]["sparse"]) == len(expected)
        assert all(source["sparse"][token] * idf[token] >= least * (1 - 2**-8) for token in held[id_]["sparse"]), id_
        assert row_of(held[id_]) == row_of(source)
        assert row_of(held[id_]).keys() == {token_hash(token) for token in source["sparse"]}


def test_postings_are_pruned_and_rows_are_whole_however_documents_come(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus, more = write_jsonl(tmp_path / "d.jsonl", records(40)), records(10, seed=3)
    added = write_jsonl(tmp_path / "more.jsonl", more[:5])
    names = [f"{index_name}-{kind}" for kind in ("whole", "models", "files")]
    models = Models(sparse="lexical", tokenizer=small_tokenizer())
    encoded = run_encode(EncodeJob(CorpusSource(str(corpus)), tmp_path / "v", models), show_progress=False).manifest
    run_job(client, job(corpus, names[0]), show_progress=False)
    run_job(client, job(corpus, names[1], prune_postings=HEAVY), show_progress=False)
    run_job(client, job(corpus, names[2], vectors=encoded, prune_postings=HEAVY), show_progress=False)
    run_job(client, job(corpus, names[2], vectors=encoded), show_progress=False)  # as the index has it
    idf = QueryEncoder.of_index(client, names[0]).weights
    whole = snapshot(client, names[0])
    weights = [source["sparse"] for source in whole.values()]
    assert any(most_added({"sparse": row}, idf) != set(sorted(row, key=lambda t: -row[t])[:3]) for row in weights), (
        "of IDF"
    )
    for name in names[1:]:
        check(snapshot(client, name), whole, idf)
        assert existing_record(client, name).prune_postings == "top_k:3"
    records_ = [existing_record(client, name) for name in names]
    largest = [read_largest(client, record.extra[LARGEST]) for record in records_[:2]]
    assert largest[0] is not None and largest[1] is not None and largest[0].weights == largest[1].weights
    assert records_[0].extra[SCALE] == pytest.approx(records_[1].extra[SCALE], rel=1e-3), "by whole scores"
    # What is added later is pruned likewise, by a corpus as by single documents.
    for name in names[:2]:
        run_job(client, job(added, name), show_progress=False)
        documents = Documents(client, name)
        documents.add(more[5:])
        documents.update(more[6]["_id"], {"text": TEXT})
    check(snapshot(client, names[1]), snapshot(client, names[0]), idf)
    largest = [read_largest(client, record.extra[LARGEST]) for record in records_[:2]]
    assert largest[0] is not None and largest[1] is not None and largest[0].weights == largest[1].weights


def test_rows_hold_what_other_pruning_leaves(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    both = job(corpus, index_name, prune=Pruning("top_k", 5), prune_postings=Pruning("top_k", 2))
    run_job(client, both, show_progress=False)
    assert {(len(source["sparse"]), len(row_of(source))) for source in snapshot(client, index_name).values()} == {
        (2, 5)
    }


def test_a_document_of_which_no_posting_is_left_is_not_without_tokens(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(20), {"_id": "none", "text": "?"}])
    report = run_job(client, job(corpus, index_name, prune_postings=Pruning("abs_value", 1e6)), show_progress=False)
    held = snapshot(client, index_name)
    assert report.without_tokens == 1 and not report.dead_letters
    assert all(not source["sparse"] and row_of(source) for id_, source in held.items() if id_ != "none")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"forward_index": False}, "--no-forward-index excludes it"),
        ({"passages": PassageMeta(10, 5)}, "an index of passages has no forward index"),
        ({"sparse": "none"}, "this ingest writes no sparse vectors"),
    ],
)
def test_without_a_forward_index_it_is_refused(
    client: Any, index_name: str, tmp_path: Path, how: dict[str, Any], why: str
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(5))
    with pytest.raises(InputError, match=f"top_k:3 needs the forward index, which holds whole vectors: {why}"):
        run_job(client, job(corpus, index_name, prune_postings=HEAVY, **how), show_progress=False)
    assert not client.indices.exists(index=index_name)


def test_a_cluster_that_refuses_scripts_takes_no_pruned_postings(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(5))
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 400) if b"script_score" in request.body else None
        with pytest.raises(ClusterError, match="cannot have pruned postings, because this cluster refuses scripts"):
            run_job(connect(proxy.url), job(corpus, index_name, prune_postings=HEAVY), show_progress=False)
    assert not snapshot(client, index_name)


def test_other_pruning_than_the_indexs_is_refused(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus, whole = write_jsonl(tmp_path / "d.jsonl", records(10)), f"{index_name}-whole"
    run_job(client, job(corpus, index_name, prune_postings=HEAVY), show_progress=False)
    run_job(client, job(corpus, whole), show_progress=False)
    before = snapshot(client, index_name)
    with pytest.raises(InputError, match=r"are pruned by top_k:3, not pruned by max_ratio:0\.5"):
        run_job(client, job(corpus, index_name, prune_postings=Pruning("max_ratio", 0.5)), show_progress=False)
    with pytest.raises(InputError, match="are whole, not pruned by top_k:3"):
        run_job(client, job(corpus, whole, prune_postings=HEAVY), show_progress=False)
    assert snapshot(client, index_name) == before
    assert "prune_postings" not in existing_record(client, whole).to_dict(), (
        "its record is as it was before this option"
    )


def test_documents_are_written_as_the_build_that_serves_now_has_them(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    builds = (f"{index_name}-20260314-150926", f"{index_name}-20260321-150926")
    for build, prune in zip(builds, (None, HEAVY), strict=True):
        run_job(client, job(corpus, build, prune_postings=prune), show_progress=False)
    client.indices.put_alias(index=builds[0], name=index_name)
    documents = Documents(client, index_name)
    for build, count in zip(builds, (len(TEXT.split()), 3), strict=True):
        serve(client, index_name, build, patience=0)
        caplog.clear()
        documents.add([{"_id": "new", "text": TEXT}])
        assert len(snapshot(client, build)["new"]["sparse"]) == count
    with caplog.at_level("WARNING"):
        rollback(client, index_name, to=builds[0])
    assert "must open" not in caplog.text, "requests for pruned postings are right for whole ones"
    with caplog.at_level("WARNING"):
        rollback(client, index_name, to=builds[1])
    assert f"{builds[1]} has pruned postings, unlike {builds[0]}: applications" in caplog.text


def test_documents_are_written_as_an_index_of_the_same_name_has_them_now(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    documents = None
    for prune, count in ((HEAVY, 3), (None, len(TEXT.split()))):
        client.indices.delete(index=index_name, ignore_unavailable=True)
        run_job(client, job(corpus, index_name, prune_postings=prune), show_progress=False)
        documents = documents or Documents(client, index_name)
        documents.add([{"_id": "new", "text": TEXT}])
        assert len(snapshot(client, index_name)["new"]["sparse"]) == count


def test_the_largest_weights_are_not_asked_of_pruned_postings(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_job(client, job(corpus, index_name, prune_postings=HEAVY), show_progress=False)
    write_record(client, index_name, existing_record(client, index_name).with_extra(**{LARGEST: None}))
    target, query = existing_target(client, index_name), QueryEncoder.of_index(client, index_name)

    class Unused:
        def vectors(self, documents: Any) -> Any:
            raise AssertionError

    keep_measures(client, target, query, NotingLargest(Unused()), everything=False)
    assert LARGEST not in existing_record(client, index_name).extra
    assert "no page" in caplog.text and "can be certified" in caplog.text


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    lexical = ["--sparse", "lexical", "--tokenizer", small_tokenizer(), "--replicas", "0"]
    ran = osn("ingest", str(corpus), "--index", index_name, "--prune-postings", "alpha_mass:0.5", *lexical)
    assert ran.returncode == 0, ran.stderr
    assert existing_record(client, index_name).prune_postings == "alpha_mass:0.5"
    assert inspect_index(client, index_name, sample=0).meta.prune_postings == "alpha_mass:0.5"
    ran = osn("index", "inspect", index_name)
    assert "postings    pruned by alpha_mass:0.5; the forward index holds whole vectors" in ran.stdout
    ran = osn("ingest", str(corpus), "--index", f"{index_name}-x", "--prune-postings", "half")
    assert ran.returncode != 0 and "'half' is no pruning" in ran.stderr
    added = write_jsonl(tmp_path / "one.jsonl", [{"_id": "new", "text": TEXT}])
    ran = osn("documents", "add", str(added), "--index", index_name)
    assert ran.returncode == 0, ran.stderr
    assert 0 < len(tokens_of_postings(client, index_name, "new")) < len(TEXT.split())


def tokens_of_postings(client: Any, index: str, id_: str) -> list[str]:
    """The tokens of a document's postings, which are not in its `_source`."""
    encoder = QueryEncoder.of_index(client, index)
    own = {"ids": {"values": [id_]}}
    return [
        token
        for token in encoder.encode(TEXT)
        if client.count(
            index=index,
            body={"query": {"bool": {"must": [{"rank_feature": {"field": f"sparse.{token}"}}], "filter": [own]}}},
        )["count"]
    ]
