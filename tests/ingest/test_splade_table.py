"""The IDF table of a SPLADE is counted while its corpus is written, and ends as if it had been counted first."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import killable
import pytest
from corpora import job, records, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request
from tiny_splade import write_splade, write_two_networks

pytest.importorskip("torch", reason="needs the extra [encode]")

import ingest.job
from ingest.corpus import CorpusSource
from ingest.documents import Documents
from ingest.job import Job, run_job
from ingest.model_request import ModelRequest
from ingest.settings import Models, NewIndex
from ingest.stored_query_data import store_encoder_again
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.versions.builds import serving_index
from ingest.versions.swap import Gate, SwapRefused, parse_requirement
from ingest.writing import journal
from ingest.writing.bulk import BulkWriter
from ingest.writing.verification import Verification
from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index import hidden_index
from opensearch_neural.index.hidden_index import LARGEST, read_encoder, read_largest
from opensearch_neural.index.record import PassageMeta, existing_record
from opensearch_neural.index.sparse_scale import SCALE
from opensearch_neural.models import directory, registry
from opensearch_neural.models.sparse import lexical
from opensearch_neural.models.sparse.encoder import TorchSparseEncoder
from opensearch_neural.models.sparse.lexical import DocumentCounter
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.query_encoder import QueryEncoder

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

Osn = Callable[..., subprocess.CompletedProcess[str]]
QUERY = "rainbow rain bow light"
UNCOUNTED = "has no IDF table yet: .*docs.jsonl is being written, or that was interrupted"

run = partial(run_job, show_progress=False)


class Killed(BaseException):
    """As a kill, nothing catches it."""


def killed(*_: object, **__: object) -> Any:
    raise Killed


def corpus_of(folder: Path, count: int = 150) -> Path:
    """A corpus with records that cannot be read and ids that occur twice: the table counts the latter, not the former."""
    lines: list[Any] = records(count)
    lines.insert(count // 3, "torn {")
    lines.insert(count // 2, {"_id": "doc-0-000003", "text": "piston piston spark"})
    return write_jsonl(folder / "docs.jsonl", lines)


def splade_job(corpus: Path | str, index: str, splade: Path, **settings: Any) -> Job:
    """One writer: then the documents have the same sequence numbers in every run."""
    writing = {"writers": 1, "batch_documents": 20, **settings.pop("writing", {})}
    return job(corpus, index, sparse=str(splade), writing=writing, **settings)


def outcome(client: OpenSearch, index: str) -> dict[str, Any]:
    """Everything that an ingest leaves for searches."""
    meta = existing_record(client, index)
    assert meta.sparse is not None
    largest = read_largest(client, meta.extra[LARGEST])
    assert largest is not None
    model = registry.link_of(meta.sparse.hash).resolve()
    assert directory.hash_files(model) == meta.sparse.hash
    # The id of the largest weights, and the build, name the index.
    entries = {name: value for name, value in meta.to_dict().items() if name not in (LARGEST, "build")}
    tokens = QueryEncoder.of_index(client, index).encode(QUERY)
    hits = client.search(index=index, body=open_engines(client, index).body("sparse", QUERY, size=200))["hits"]["hits"]
    return {
        "documents": snapshot(client, index),
        "record": entries,
        "encoder": read_encoder(client, meta.sparse.query_hash),
        "largest": largest.weights,
        "table": (model / "idf.json").read_bytes(),
        "osn.json": (model / "osn.json").read_bytes(),
        "tokens": tokens,
        "scores": sorted((hit["_id"], hit["_score"]) for hit in hits),
    }


def assert_same_but_rewritten(left: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same, of an index in which documents were written twice: BM25's statistics, and so the scale of the scores, count
    those that were replaced until they are merged away."""
    scales = [each["record"].pop(SCALE) for each in (left, expected)]
    assert scales[0] == pytest.approx(scales[1], rel=0.02)
    assert left["record"] == expected["record"]
    assert left == expected


def by_two_passes(client: OpenSearch, settings: Job, monkeypatch: pytest.MonkeyPatch, home: Path) -> dict[str, Any]:
    """What the same ingest leaves if it counts the table first, on a machine of its own; the index is deleted then."""
    with monkeypatch.context() as patch:
        patch.setattr(registry, "home", lambda: home)
        counted_first = partial(counting_first, ingest.job.content_by_models)
        patch.setattr("ingest.job.content_by_models", counted_first)
        run(client, settings)
        left = outcome(client, settings.index)
        meta = existing_record(client, settings.index)
    client.indices.delete(index=settings.index)
    assert meta.sparse is not None
    client.delete(index=hidden_index.INDEX, id=f"encoder-{meta.sparse.query_hash}")
    return left


def counting_first(content_by_models: Callable[..., Any], request: ModelRequest, new_index: NewIndex) -> Any:
    return content_by_models(replace(request, counts_while_writing=False), new_index)


@pytest.fixture(scope="module")
def two_passes(client: OpenSearch, splade: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By two passes, of the corpus of `corpus_of`."""
    folder = tmp_path_factory.mktemp("two-passes")
    settings = splade_job(corpus_of(folder), f"osn-test-{uuid.uuid4().hex[:12]}", splade)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "home", lambda: folder / "home")
        patch.chdir(folder)
        return by_two_passes(client, settings, patch, folder / "home")


@pytest.fixture
def expected(client: OpenSearch, two_passes: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """By two passes, of the corpus `docs.jsonl`, which is written; the cluster keeps no query encoder of it."""
    corpus_of(tmp_path)
    id = f"encoder-{two_passes['record']['sparse']['query_hash']}"
    client.delete(index=hidden_index.INDEX, id=id, ignore=[404])
    return copy.deepcopy(two_passes)


@pytest.fixture
def half(client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The settings of an ingest that was killed after some batches."""
    settings = splade_job(corpus_of(tmp_path), index_name, splade)
    kill(client, settings, monkeypatch, WHILE_ENCODING)
    client.indices.refresh(index=index_name)
    assert 0 < client.count(index=index_name)["count"] < 150
    assert existing_record(client, index_name).counting
    return settings


WHILE_ENCODING = "while documents are encoded"
MOMENTS: dict[str, tuple[str, bool]] = {
    "before the index is verified": ("ingest.writing.verification.Verification.verify", True),
    "before the model is saved": ("ingest.counted_idf._saved", True),
    "before the query encoder is kept": ("ingest.stored_query_data.keep_encoder", True),
    "before the record names the table": ("ingest.stored_query_data.write_record", True),
    "before the index is finished": ("ingest.writing.target.finish", False),
}
"""{moment: (what a run that is killed then calls next, whether the table is still to be recorded)}"""


def kill(client: OpenSearch, settings: Job, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    with monkeypatch.context() as patch:
        if moment == WHILE_ENCODING:
            encode, calls = TorchSparseEncoder.encode_documents, []

            def third(self: Any, texts: Any, **options: Any) -> Any:
                calls.append(len(texts))
                return encode(self, texts, **options) if len(calls) < 3 else killed()

            patch.setattr(TorchSparseEncoder, "encode_documents", third)
        else:
            patch.setattr(MOMENTS[moment][0], killed)
        with pytest.raises(Killed):
            run(client, settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"passages": PassageMeta(8, 6)},
        {"prune": Pruning("top_k", 5)},
        {"shards": 3, "forward_index": False},
    ],
    ids=["whole documents", "passages", "pruned", "shards"],
)
def test_one_pass_leaves_what_two_passes_leave(
    client: OpenSearch,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    asked = splade_job(corpus_of(tmp_path), index_name, splade, **settings)
    expected = by_two_passes(client, asked, monkeypatch, tmp_path / "two passes")
    monkeypatch.setattr(
        "opensearch_neural.models.sparse.lexical.count_documents", None
    )  # which reads a corpus for its counts
    run(client, asked)
    assert outcome(client, index_name) == expected


def test_of_a_router_with_two_networks_the_one_of_documents_encodes_and_the_table_weighs_queries(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path
) -> None:
    queries = write_splade(tmp_path / "queries", seed=1)
    write_two_networks(tmp_path / "router", documents=splade, queries=queries)
    corpus, left = corpus_of(tmp_path), []
    for name, model in ((index_name, tmp_path / "router"), (f"{index_name}-siamese", splade)):
        run(client, splade_job(corpus, name, model))
        left.append(outcome(client, name))
    for what in ("documents", "tokens", "table", "largest", "scores"):
        assert left[0][what] == left[1][what], what
    assert left[0]["tokens"] and left[0]["scores"]
    hidden_index.forget(client, f"{index_name}-siamese", existing_record(client, f"{index_name}-siamese"))


def test_a_search_that_names_a_splade_without_a_table_is_told_to_leave_it_out(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path
) -> None:
    run(client, splade_job(corpus_of(tmp_path, 20), index_name, splade))
    with pytest.raises(ModelError, match="queries need a table of weights") as refused:
        open_engines(client, index_name, sparse=str(splade)).load("bm25-sparse")
    assert str(refused.value.remedy).startswith("leave --sparse out to search an index that this model wrote")
    assert open_engines(client, index_name).load("bm25-sparse").body("bm25-sparse", QUERY)["rescore"]


def test_an_index_that_has_outgrown_its_table_is_told_of(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a corpus of thousands that followed one of five was searched by the table of the five, and nobody knew."""
    for count, told in ((30, False), (50, False), (150, True), (150, False)):
        caplog.clear()
        run(client, splade_job(write_jsonl(tmp_path / f"{count}.jsonl", records(count)), index_name, splade))
        assert ("150 documents, and had 30: its IDF table was counted" in caplog.text) == told, count


def test_documents_are_written_before_the_table_is_counted(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    add, write = DocumentCounter.add, BulkWriter.write

    def counted(self: DocumentCounter, contents: Any) -> None:
        events.append("counted")
        add(self, contents)

    def written(self: BulkWriter, actions: Any) -> Any:
        events.append("written")
        return write(self, actions)

    monkeypatch.setattr(DocumentCounter, "add", counted)
    monkeypatch.setattr(BulkWriter, "write", written)
    run(client, splade_job(corpus_of(tmp_path, 400), index_name, splade))
    last = len(events) - 1 - events[::-1].index("counted")
    assert events[:last].count("written") > 10


@pytest.mark.parametrize("moment", [WHILE_ENCODING, *MOMENTS])
def test_killed_at_any_moment_the_same_command_leaves_what_two_passes_leave(
    client: OpenSearch,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
    moment: str,
) -> None:
    settings = splade_job(tmp_path / "docs.jsonl", index_name, splade)
    kill(client, settings, monkeypatch, moment)
    _, counting = MOMENTS.get(moment, ("", True))
    assert existing_record(client, index_name).counting == counting
    if counting:
        with pytest.raises(ModelError, match=UNCOUNTED):
            QueryEncoder.of_index(client, index_name)
    encode, encoded = TorchSparseEncoder.encode_documents, []

    def noted(self: Any, texts: Any, **options: Any) -> Any:
        encoded.extend(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(TorchSparseEncoder, "encode_documents", noted)
    report = run(client, settings)
    assert report.documents == 150 and report.skipped == 150 - len(encoded)
    assert (len(encoded) > 0) == (moment == WHILE_ENCODING), "what is written is not encoded again"
    assert outcome(client, index_name) == expected
    assert existing_record(client, index_name).unfinished is None


def fault_from(
    comes: Callable[[Request], bool], first: int, fault: Fault, now: threading.Event
) -> Callable[[Request], Fault | None]:
    """What happens to requests of a kind from the `first` of them on; `now` is set then."""
    requests: list[Request] = []

    def happens(request: Request) -> Fault | None:
        if not comes(request):
            return None
        requests.append(request)
        if len(requests) < first:
            return None
        now.set()
        return fault

    return happens


def test_killed_again_and_again_by_the_system_it_ends_as_by_two_passes(
    client: OpenSearch,
    cluster_url: str,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    osn_home: Path,
    expected: dict[str, Any],
) -> None:
    """SIGKILL while a request is on its way, which arrives or does not. Of other moments: the test before."""

    def bulk(request: Request) -> bool:
        return request.path.endswith("/_bulk")

    def recorded(request: Request) -> dict[str, Any]:
        if request.method != "PUT" or request.path != f"/{index_name}/_mapping":
            return {}
        return dict(json.loads(request.body)["_meta"]["osn"])

    def naming(request: Request) -> bool:
        return bool(recorded(request).get("sparse", {}).get("query_hash")) and "loading" in recorded(request)

    settings = splade_job(tmp_path / "docs.jsonl", index_name, splade)
    moments: list[tuple[Callable[[Request], bool], Any, bool]] = [
        (bulk, "drop", True),
        (bulk, "drop_after", True),
        (naming, "drop", True),
        (naming, "drop_after", False),
    ]
    for number, (comes, kind, counting) in enumerate(moments):
        now = threading.Event()
        with FaultProxy(cluster_url, everything=True) as proxy:
            proxy.fault = fault_from(comes, 3 if comes is bulk else 1, Fault(kind), now)
            process = killable.begin(proxy.url, settings, osn_home, tmp_path)
            assert now.wait(240), number
            process.kill()
            process.join()
        assert existing_record(client, index_name).counting == counting, number
        assert existing_record(client, index_name).unfinished == str(tmp_path / "docs.jsonl")
    killable.finish(killable.begin(cluster_url, settings, osn_home, tmp_path))
    assert_same_but_rewritten(outcome(client, index_name), expected)
    assert existing_record(client, index_name).unfinished is None


def test_a_half_written_index_is_not_searched_by_its_sparse_vectors(
    client: OpenSearch, cluster_url: str, index_name: str, half: Job, osn: Osn, splade: Path
) -> None:
    engines = open_engines(client, index_name)
    for search in (
        lambda: engines.body(engines.default, QUERY),
        lambda: engines.body_of("sparse"),
        lambda: open_engines(client, index_name, sparse=str(splade)).body("high-idf-first", QUERY),
        lambda: QueryEncoder.of_index(client, index_name),
        lambda: Documents(client, index_name),
        lambda: Documents(client, index_name, sparse=str(splade)),
    ):
        with pytest.raises(ModelError, match=UNCOUNTED):
            search()

    async def asked() -> QueryEncoder:
        async with await connect_async(cluster_url) as other:
            return await QueryEncoder.of_index_async(other, index_name)

    with pytest.raises(ModelError, match=UNCOUNTED):
        asyncio.run(asked())
    ran = osn("search", "--index", index_name, QUERY)
    assert ran.returncode == 1 and "has no IDF table yet" in ran.stderr and "--engine bm25" in ran.stderr
    ran = osn("search", "--index", index_name, "--engine", "bm25", "rain")
    assert ran.returncode == 0 and "is not complete" in ran.stderr
    ran = osn("index", "inspect", index_name)
    assert "NOT COMPLETE" in ran.stdout and "IDF table not counted yet" in ran.stdout, ran.stderr
    assert "osn index finish" not in ran.stdout


def test_a_half_written_index_without_a_table_is_not_finished_but_deleted(
    client: OpenSearch, index_name: str, half: Job, osn: Osn
) -> None:
    ran = osn("index", "finish", index_name)
    assert ran.returncode == 1 and "has no IDF table" in ran.stderr
    assert existing_record(client, index_name).unfinished is not None
    ran = osn("index", "abort", index_name)
    assert ran.returncode == 0 and not client.indices.exists(index=index_name), ran.stderr


def test_a_half_written_index_takes_its_own_corpus_and_model_alone(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, expected: dict[str, Any], half: Job
) -> None:
    corpus = tmp_path / "docs.jsonl"
    other_corpus = write_jsonl(tmp_path / "other.jsonl", records(30, seed=5))
    other_model = write_splade(tmp_path / "other-splade", seed=1)
    run_encode(
        EncodeJob(CorpusSource(str(corpus)), tmp_path / "vectors", Models(sparse=str(splade))), show_progress=False
    )
    refused: list[tuple[Job, type[Exception], str]] = [
        (splade_job(other_corpus, index_name, splade), InputError, r"the ingest of .*docs\.jsonl, which counts it"),
        (splade_job(corpus, index_name, other_model), ModelError, "other-splade .* is another model"),
        (job(corpus, index_name, sparse="none"), ModelError, UNCOUNTED),
        (job(corpus, index_name, sparse="lexical"), ModelError, UNCOUNTED),
        (job(corpus, index_name, vectors=tmp_path / "vectors"), ModelError, UNCOUNTED),
        (splade_job(corpus, index_name, splade, prune_postings=Pruning("top_k", 3)), InputError, "are whole, not"),
    ]
    before = existing_record(client, index_name)
    for settings, error, message in refused:
        with pytest.raises(error, match=message):
            run(client, settings)
        assert existing_record(client, index_name) == before
    # The model need not be named again.
    assert run(client, replace(half, models=Models())).skipped > 0
    assert outcome(client, index_name) == expected


def test_a_half_written_index_is_begun_anew(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, monkeypatch: pytest.MonkeyPatch, half: Job
) -> None:
    """Of a corpus that has changed, with `--restart`: the table is of the corpus as it is now."""
    lines = records(90, seed=3)
    write_jsonl(tmp_path / "docs.jsonl", lines)
    with pytest.raises(InputError, match="the corpus changed since the earlier run"):
        run(client, half)
    again = replace(half, writing=replace(half.writing, restart=True))
    assert run(client, again).skipped == 0
    left = outcome(client, index_name)
    client.indices.delete(index=index_name)
    expected = by_two_passes(client, half, monkeypatch, tmp_path / "two passes")
    assert_same_but_rewritten(left, expected)
    assert len(left["documents"]) == 90


def test_the_only_copy_of_a_counted_table_is_named(
    client: OpenSearch,
    cluster_url: str,
    index_name: str,
    splade: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 403) if "/_doc/encoder-" in request.path else None
        # A corpus of its own, since the cluster may have the encoder of another test's.
        run(connect(proxy.url), splade_job(corpus_of(tmp_path, 61), index_name, splade))
    sparse = existing_record(client, index_name).sparse
    assert sparse is not None
    (named,) = (line for line in caplog.messages if "counted from this corpus" in line)
    assert str(registry.link_of(sparse.hash).resolve()) in named and f"store-encoder {index_name}" in named
    assert read_encoder(client, sparse.query_hash) is None
    assert store_encoder_again(client, index_name) == index_name
    assert read_encoder(client, sparse.query_hash) is not None
    hidden_index.forget(client, index_name, existing_record(client, index_name))


def test_another_machine_goes_on(
    client: OpenSearch,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
    half: Job,
) -> None:
    """It has no journal, and knows the model by its folder alone."""
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "another machine's")
    monkeypatch.setattr(journal, "home", lambda: tmp_path / "another machine's")
    with pytest.raises(ModelError, match=r"my-splade .* is not on this machine"):
        run(client, replace(half, models=Models()))
    copied = Path(shutil.copytree(splade, tmp_path / "copied"))
    assert run(client, replace(half, models=Models(sparse=str(copied)))).skipped == 0
    assert_same_but_rewritten(outcome(client, index_name), expected)  # the name in the record is the first one


def test_a_model_that_changes_while_it_encodes_makes_no_table(
    client: OpenSearch,
    index_name: str,
    tmp_path: Path,
    splade: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
) -> None:
    model = Path(shutil.copytree(splade, tmp_path / "changing" / "my-splade"))
    settings = splade_job(tmp_path / "docs.jsonl", index_name, model)
    changed = write_splade(tmp_path / "changed", seed=1) / "model.safetensors"
    with monkeypatch.context() as patch:
        finish = Verification.verify

        def change(self: Verification, *arguments: Any) -> int:
            shutil.copy(changed, model / "model.safetensors")
            return finish(self, *arguments)

        patch.setattr(Verification, "verify", change)
        with pytest.raises(ModelError, match=r"my-splade in .* changed while the corpus was written"):
            run(client, settings)
    assert existing_record(client, index_name).counting
    shutil.copy(splade / "model.safetensors", model / "model.safetensors")
    assert run(client, settings).skipped == 150
    assert outcome(client, index_name) == expected


def test_a_corpus_that_is_read_once(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, osn: Osn, expected: dict[str, Any]
) -> None:
    options = ["--sparse", str(splade), "--writers", "1", "--batch-docs", "20", "--store-vectors", "--replicas", "0"]
    ran = osn("ingest", "-", "--index", index_name, *options, input=(tmp_path / "docs.jsonl").read_text())
    assert ran.returncode == 3, ran.stderr  # two records are set aside
    assert outcome(client, index_name) == expected


def test_a_build_is_searched_by_its_table_before_it_serves(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(splade_job(corpus_of(tmp_path), "", splade), alias=index_name)
    kill(client, settings, monkeypatch, WHILE_ENCODING)
    assert serving_index(client, index_name) is None
    text = records(150)[7]["text"]
    with pytest.raises(SwapRefused, match="does not find 'doc-0-000008'"):
        run(client, replace(settings, gate=Gate(require=(parse_requirement(f"{text} => doc-0-000008 @1"),))))
    assert serving_index(client, index_name) is None
    report = run(client, replace(settings, gate=Gate(require=(parse_requirement(f"{text} => doc-0-000007 @1"),))))
    assert report.skipped == 150 and serving_index(client, index_name) == report.index
    assert not existing_record(client, index_name).counting


def test_pruned_postings_and_vectors_in_files_count_the_table_first(
    client: OpenSearch, index_name: str, tmp_path: Path, splade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tmp_path)
    counted = []
    count = lexical.count_documents

    def noted(contents: Any, tokenizer: Any) -> Any:
        assert not client.indices.exists(index=index_name)
        counted.append(index_name)
        return count(contents, tokenizer)

    monkeypatch.setattr(lexical, "count_documents", noted)
    settings = splade_job(corpus, index_name, splade, prune_postings=Pruning("top_k", 3))
    run(client, settings)
    assert len(counted) == 1
    pruned = existing_record(client, index_name).sparse
    client.indices.delete(index=index_name)
    models = Models(sparse=str(splade))
    encoded = run_encode(EncodeJob(CorpusSource(str(corpus)), tmp_path / "vectors", models), show_progress=False)
    assert len(counted) == 2 and encoded.documents == 151, "the files hold both documents of one id"
    run(client, job(corpus, index_name, vectors=tmp_path / "vectors", writing={"writers": 1, "batch_documents": 20}))
    by_files = outcome(client, index_name)
    client.indices.delete(index=index_name)
    run(client, splade_job(corpus, index_name, splade))
    assert len(counted) == 2
    assert outcome(client, index_name) == by_files
    assert existing_record(client, index_name).sparse == pruned
