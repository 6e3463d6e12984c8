"""What an ingest keeps on the cluster for searches: they need no model files, and know the largest weights."""

from __future__ import annotations

import asyncio
import base64
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cluster_servers
import pytest
from corpora import job, records, write_jsonl
from fault_proxy import Fault, FaultProxy, Request

from ingest.documents import Documents
from ingest.job import run_job
from ingest.versions import builds
from ingest.writing.target import existing_target
from opensearch_neural import QueryEncoder
from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import Bm25SparseSetting, HighIdfFirstSetting
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index import hidden_index
from opensearch_neural.index.hidden_index import INDEX, LARGEST, ask_largest, read_largest
from opensearch_neural.index.record import IndexMeta, PassageMeta, SparseMeta, existing_record, write_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.index.sparse_scale import MEASURED_ON, SAMPLE, SCALE
from opensearch_neural.models import registry
from opensearch_neural.models.sparse.lexical import build_lexical

pytestmark = pytest.mark.cluster


@pytest.fixture
def written(client: Any, index_name: str, tmp_path: Path) -> Iterator[str]:
    """An index of 120 documents with the lexical model's vectors."""
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(120))
    run_job(client, job(corpus, index_name), show_progress=False)
    yield index_name
    hidden_index.forget(client, index_name, existing_record(client, index_name))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine that knows no model."""
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "another-home")


def encoder_of(client: Any, index: str) -> tuple[str, dict[str, Any]]:
    """(id, header) of what the cluster keeps to encode queries for an index."""
    sparse = existing_record(client, index).sparse
    assert sparse is not None
    id = f"encoder-{sparse.query_hash}"
    return id, client.get(index=INDEX, id=id)["_source"]


def test_searches_need_no_model_files(
    client: Any, cluster_url: str, written: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = records(120)[7]["text"]
    here = open_engines(client, written)
    expected = here.models.query_encoder.encode(text)
    monkeypatch.setattr(registry, "home", lambda: tmp_path / "another-home")

    async def asked() -> QueryEncoder:
        async with await connect_async(cluster_url) as other:
            return await QueryEncoder.of_index_async(other, written)

    for encoder in (QueryEncoder.of_index(client, written), asyncio.run(asked())):
        assert encoder.encode(text) == expected and encoder.hash == here.models.query_encoder.hash
    there = open_engines(client, written)
    assert there.body("bm25-sparse", text) == here.body("bm25-sparse", text)
    assert client.search(index=written, body=there.body("sparse", text))["hits"]["hits"][0]["_id"] == "doc-0-000007"


def test_a_client_of_the_other_kind_is_named(client: Any, cluster_url: str, written: str) -> None:
    """Its answers are coroutines, of which an error told only that they have no length."""

    async def asked() -> None:
        async with await connect_async(cluster_url) as asynchronous:
            for opening in (open_engines, QueryEncoder.of_index, Documents):
                with pytest.raises(InputError, match="the client is an asynchronous one"):
                    opening(asynchronous, written)
            with pytest.raises(InputError, match="the client is not an asynchronous one"):
                await QueryEncoder.of_index_async(client, written)

    asyncio.run(asked())


def test_without_what_the_cluster_keeps_the_models_files_are_asked_for(
    client: Any, written: str, elsewhere: None
) -> None:
    id, _ = encoder_of(client, written)
    client.delete(index=INDEX, id=id)
    with pytest.raises(ModelError, match="is not on this machine"):
        QueryEncoder.of_index(client, written)
    with pytest.raises(ModelError, match="is not on this machine"):
        _ = open_engines(client, written).models.query_encoder


def test_loaded_engines_make_bodies_without_a_request_and_a_lost_encoder_fails_the_start(
    client: Any, cluster_url: str, written: str, elsewhere: None
) -> None:
    seen: list[cluster_servers.Request] = []
    with cluster_servers.forbidding_proxy(cluster_url, lambda request: None, seen) as url:
        engines = open_engines(connect(url), written)
        assert not any(INDEX in request.path for request in seen), "bm25 needs none"
        assert engines.load("bm25", "bm25-sparse", "sparse") is engines
        assert any(request.path.startswith(f"/{INDEX}/_doc/encoder-") for request in seen)
        seen.clear()
        assert engines.body("bm25-sparse", "rain") and engines.body("sparse", "rain") and not seen
    client.delete(index=INDEX, id=encoder_of(client, written)[0])
    opened = open_engines(client, written)
    assert opened.load("bm25").body("bm25", "rain")
    with pytest.raises(ModelError, match="was not found in the cluster's hidden index"):
        opened.load("bm25-sparse")


def test_an_encoder_that_was_lost_is_stored_again_by_one_command(
    client: Any, written: str, osn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, only an ingest of the same corpus did that, and the message named neither that nor what was missing."""
    id, header = encoder_of(client, written)
    for lost in (id, *header["parts"]):
        client.delete(index=INDEX, id=lost)
    wrote = existing_record(client, written).sparse
    assert wrote is not None
    with monkeypatch.context() as patch:
        patch.setattr(registry, "home", lambda: tmp_path / "another-home")
        with pytest.raises(ModelError, match=f"was not found in the cluster's hidden index '{INDEX}'") as error:
            QueryEncoder.of_index(client, written)
        assert f"`osn index store-encoder {written}`" in str(error.value.remedy)
        unknown = osn("index", "store-encoder", written)
        assert unknown.returncode == 1 and "is not on this machine" in unknown.stderr
        build_lexical(["another corpus altogether"]).save(tmp_path / "other")
        other = osn("index", "store-encoder", written, "--sparse", str(tmp_path / "other"))
        assert other.returncode == 1 and "was written with the sparse model" in other.stderr
        assert not client.exists(index=INDEX, id=id)
    stored = osn("index", "store-encoder", written)
    assert (stored.returncode, stored.stdout) == (0, f"the query encoder of {written} is in {INDEX}\n")
    assert encoder_of(client, written)[1] == header, "with its user"
    client.delete(index=INDEX, id=id)
    folder = shutil.copytree(registry.link_of(wrote.hash), tmp_path / "copied")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "home", lambda: tmp_path / "another-home")
        named = osn("index", "store-encoder", written, "--sparse", str(folder))
        assert named.returncode == 0, named.stderr
        assert QueryEncoder.of_index(client, written).hash == wrote.query_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": 10**12}, "at most 64,000,000"),
        ({"parts": []}, "too few or too many parts"),
        ({"parts": ["encoder-another-0"]}, "lists parts of another encoder"),
        ({"sha256": "0" * 64}, "the hash of its parts is wrong"),
    ],
)
def test_what_is_damaged_is_named(
    client: Any, written: str, elsewhere: None, change: dict[str, Any], message: str
) -> None:
    id, header = encoder_of(client, written)
    client.index(index=INDEX, id=id, body={**header, **change})
    with pytest.raises(ModelError, match=rf"'lexical', stored in 'osn-query-encoders', is damaged: .*{message}"):
        QueryEncoder.of_index(client, written)


def test_another_models_query_side_is_refused(client: Any, written: str, elsewhere: None) -> None:
    encoder = QueryEncoder.of_index(client, written)
    other = QueryEncoder(encoder.tokenizer, {token: 2 * weight for token, weight in encoder.weights.items()})
    wrote = existing_record(client, written).sparse
    assert wrote is not None
    hidden_index.store_encoder(client, written, wrote.query_hash, "lexical", other.to_bytes())
    with pytest.raises(ModelError, match=f"was written with the sparse model .*{wrote.query_hash}.* this is"):
        _ = open_engines(client, written).models.query_encoder


def test_where_it_may_not_be_kept_ingest_says_so_and_goes_on(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(30))
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 403) if request.path.startswith(f"/{INDEX}/_doc") else None
        with caplog.at_level(logging.WARNING, "ingest"):
            report = run_job(connect(proxy.url), job(corpus, index_name), show_progress=False)
    assert report.documents == 30
    assert sum("could not be stored on the cluster" in line for line in caplog.messages) == 1
    extra = existing_record(client, index_name).extra
    assert LARGEST not in extra and extra[SHARD_DOCUMENTS] == 30 and extra[SCALE] > 0, (
        "what the index's own record keeps is there"
    )


def kept(client: Any, index: str) -> dict[str, float]:
    largest = read_largest(client, existing_record(client, index).extra[LARGEST])
    assert largest is not None and largest.index == index
    return largest.weights


def asked(client: Any, index: str) -> dict[str, float]:
    client.indices.refresh(index=index)
    return ask_largest(client, index, QueryEncoder.of_index(client, index).vocabulary)


def test_the_largest_weights_are_those_in_the_index_also_as_it_grows(client: Any, written: str, tmp_path: Path) -> None:
    assert kept(client, written) == asked(client, written) != {}
    # The shorter a text, the more each of its words weighs.
    Documents(client, written).add([{"_id": "short", "text": "rain"}])
    raised = kept(client, written)
    assert raised == asked(client, written) and raised["rain"] > 0.5
    Documents(client, written).update("doc-0-000003", {"text": "mountain", "title": ""})
    assert kept(client, written) == asked(client, written) | {
        token: weight for token, weight in raised.items() if weight >= asked(client, written).get(token, 0)
    }
    more = write_jsonl(tmp_path / "more.jsonl", [{"_id": "other", "text": "sky"}, *records(20, seed=4)])
    run_job(client, job(more, written), show_progress=False)
    assert all(kept(client, written)[token] >= weight for token, weight in asked(client, written).items())
    assert kept(client, written)["sky"] == asked(client, written)["sky"]


def test_documents_raise_the_largest_weights_of_an_index_that_was_made_again(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """Those of the new index were not raised, since the words had weighed as much in the deleted one."""
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(20)), index_name)
    run_job(client, settings, show_progress=False)
    documents, short = Documents(client, index_name), [{"_id": "short", "text": "rain"}]
    documents.add(short)
    client.indices.delete(index=index_name)
    run_job(client, settings, show_progress=False)
    assert documents.add(short).created == 1
    assert kept(client, index_name) == asked(client, index_name)


def test_of_an_index_that_did_not_keep_them_the_next_ingest_asks(client: Any, written: str, tmp_path: Path) -> None:
    id = existing_record(client, written).extra[LARGEST]
    client.delete(index=INDEX, id=id)
    Documents(client, written).add([{"_id": "short", "text": "rain"}])
    run_job(client, job(write_jsonl(tmp_path / "more.jsonl", records(9, seed=4)), written), show_progress=False)
    assert kept(client, written) == asked(client, written) and "rain" in kept(client, written)


def test_storing_the_encoder_again_drops_largest_weights_that_may_be_older_than_the_documents(
    client: Any, written: str, osn: Callable[..., Any], tmp_path: Path
) -> None:
    """Restored from an earlier snapshot they called pages certain that were not: an ingest renews only what is missing."""
    id, target = existing_record(client, written).extra[LARGEST], existing_target(client, written)
    hidden_index.store_largest(client, written, target.uuid, {"rain": 1e-6})
    more = job(write_jsonl(tmp_path / "more.jsonl", records(9, seed=4)), written)
    run_job(client, more, show_progress=False)
    assert kept(client, written) != asked(client, written), "they are older, and stay"
    assert osn("index", "store-encoder", written).returncode == 0
    assert read_largest(client, id) is None
    run_job(client, more, show_progress=False)
    assert kept(client, written) == asked(client, written)


def test_the_scale_is_measured_again_once_the_index_has_grown(client: Any, written: str, tmp_path: Path) -> None:
    def ingested(count: int, seed: int) -> tuple[float, int | None]:
        corpus = write_jsonl(tmp_path / f"{seed}.jsonl", records(count, seed=seed))
        run_job(client, job(corpus, written), show_progress=False)
        extra = existing_record(client, written).extra
        return extra[SCALE], extra[MEASURED_ON]

    def stored(**extra: Any) -> None:
        write_record(client, written, existing_record(client, written).with_extra(**extra))

    first = existing_record(client, written).extra
    assert first[MEASURED_ON] == 120 and first[SCALE] < 99
    stored(**{SCALE: 99.0})
    assert ingested(120, seed=5) == (99.0, 120), "twice as many are not more than that"
    scale, documents = ingested(1, seed=6)
    assert scale == pytest.approx(first[SCALE], rel=0.5) and documents == 241
    stored(**{SCALE: 99.0, MEASURED_ON: None})
    assert MEASURED_ON not in existing_record(client, written).extra, "as an older version kept it"
    scale, documents = ingested(1, seed=7)
    assert scale < 99 and documents == 242


def test_the_scale_is_that_of_the_corpus_in_whatever_order_it_is_written(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = list(records(2 * SAMPLE))
    scales = []
    for name, ordered in (("a", corpus), ("b", corpus[::-1])):
        path = write_jsonl(tmp_path / f"{name}.jsonl", ordered)
        run_job(client, job(path, f"{index_name}-{name}"), show_progress=False)
        scales.append(existing_record(client, f"{index_name}-{name}").extra[SCALE])
    assert scales[0] == scales[1]
    for name in (f"{index_name}-a", f"{index_name}-b"):
        hidden_index.forget(client, name, existing_record(client, name))


def default_windows(engines: Engines) -> tuple[int, int]:
    """Of bm25-sparse and of high-idf-first."""
    return Bm25SparseSetting.of(engines).window, HighIdfFirstSetting.of(engines).window


def test_a_growing_index_has_one_default_window_until_an_ingest_has_doubled_it(
    client: Any, cluster_url: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ingested(count: int, seed: int) -> Engines:
        run_job(client, job(write_jsonl(tmp_path / "more.jsonl", records(count, seed=seed)), written))
        return open_engines(client, written)

    monkeypatch.setattr("opensearch_neural.engines.settings.FITTED", 30)
    before = open_engines(client, written)
    later = ingested(120, seed=5)
    assert default_windows(before) == default_windows(later) == (60, 42), "of 120 documents, as they were before"
    Documents(client, written).add(records(80, seed=6))
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 403) if "_count" in request.path else None
        assert default_windows(open_engines(connect(proxy.url), written)) == (60, 42), "nothing is counted"
    assert default_windows(ingested(40, seed=7)) == (104, 56), "of 360 documents"


def kept_documents(client: Any, index: str) -> int | None:
    number: int | None = existing_record(client, index).extra.get(SHARD_DOCUMENTS)
    return number


def test_an_index_that_documents_fill_keeps_how_many_a_shard_holds(client: Any, written: str) -> None:
    with Documents(client, written) as documents:
        documents.add(records(100, seed=5))
    assert kept_documents(client, written) == 120, "220 are not more than twice as many"
    with Documents(client, written) as documents:
        documents.add(records(30, seed=6), refresh=False)
        assert kept_documents(client, written) == 120
    assert kept_documents(client, written) == 250, "at the end"
    documents = Documents(client, written)
    documents.add(records(200, seed=7))
    documents.add(records(200, seed=7))
    assert kept_documents(client, written) == 250, "who replaces adds none"
    documents.add(records(101, seed=8), refresh=False)
    assert kept_documents(client, written) == 551, "301 more, in use"
    documents.close()


def test_an_index_that_documents_fill_measures_the_scale_again_once_it_has_doubled(client: Any, written: str) -> None:
    """Before, it kept the scale of the documents with which `osn ingest` had begun it."""

    def stored(**extra: Any) -> None:
        write_record(client, written, existing_record(client, written).with_extra(**extra))

    def scale() -> tuple[float, int]:
        extra = existing_record(client, written).extra
        return extra[SCALE], extra[MEASURED_ON]

    first, _ = scale()
    tuned = {"weight": 0.3, "window": 20}
    stored(**{SCALE: 99.0, Bm25SparseSetting.key: tuned})
    with Documents(client, written) as documents:
        documents.add(records(120, seed=5))
    assert scale() == (99.0, 120), "twice as many are not more than that"
    with Documents(client, written) as documents:
        documents.add(records(1, seed=6), refresh=False)
        assert scale() == (99.0, 120)
    measured, on = scale()
    assert on == 241 and measured == pytest.approx(first, rel=0.5), "at the end"
    stored(**{SCALE: 99.0})
    documents = Documents(client, written)
    documents.add(records(300, seed=7))
    measured, on = scale()
    assert on == 541 and measured < 99, "in use"
    assert existing_record(client, written).extra[Bm25SparseSetting.key] == tuned, "what `osn tune` stored stays"
    documents.close()


def test_the_command_that_adds_documents_measures_the_scale_again(
    client: Any, written: str, osn: Callable[..., Any], tmp_path: Path
) -> None:
    write_record(client, written, existing_record(client, written).with_extra(**{SCALE: 99.0, MEASURED_ON: 50}))
    more = write_jsonl(tmp_path / "more.jsonl", records(2, seed=5))
    assert osn("documents", "add", "--index", written, str(more)).returncode == 0
    extra = existing_record(client, written).extra
    assert extra[MEASURED_ON] == 122 and extra[SCALE] < 99


def test_documents_are_written_where_the_scale_cannot_be_measured(
    client: Any, cluster_url: str, written: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(cluster_url, everything=True) as proxy, caplog.at_level(logging.WARNING, "ingest"):
        proxy.fault = lambda request: Fault("status", 403) if "_msearch" in request.path else None
        with Documents(connect(proxy.url), written) as documents:
            assert documents.add(records(121, seed=5)).created == 121
    assert sum(f"the scale of {written} could not be stored" in line for line in caplog.messages) == 1
    assert kept_documents(client, written) == 241 and existing_record(client, written).extra[MEASURED_ON] == 120


def test_writes_of_documents_do_not_count_the_index_each_time(client: Any, cluster_url: str, written: str) -> None:
    write_record(client, written, existing_record(client, written).with_extra(**{SHARD_DOCUMENTS: 10}))
    with FaultProxy(cluster_url, everything=True) as proxy, Documents(connect(proxy.url), written) as documents:
        counted: list[str] = []

        def note(request: Request) -> None:
            if "_count" in request.path:
                counted.append(request.path)

        proxy.fault = note
        for number in range(10):
            documents.add([{"_id": f"more-{number}", "text": "rain"}])
        assert not counted
        for number in range(10, 30):
            documents.add([{"_id": f"more-{number}", "text": "rain"}])
        assert len(counted) == 2, "for the windows, and for the scale"
        assert kept_documents(client, written) == 131


def test_an_index_whose_record_does_not_say_it_and_one_of_passages_keep_it_too(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(20))
    run_job(client, job(corpus, index_name, passages=PassageMeta(5, 3), shards=2), show_progress=False)
    write_record(client, index_name, existing_record(client, index_name).with_extra(**{SHARD_DOCUMENTS: None}))
    with Documents(client, index_name) as documents:
        documents.add([{"_id": "more", "text": "rain bow light drop sun water glass angle"}])
    assert kept_documents(client, index_name) == client.count(index=index_name)["count"] // 2 > 21
    hidden_index.forget(client, index_name, existing_record(client, index_name))


def test_documents_are_written_where_the_record_may_not_be_and_that_is_told_seldom(
    client: Any, cluster_url: str, written: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(cluster_url, everything=True) as proxy, caplog.at_level(logging.WARNING, "ingest"):
        proxy.fault = lambda request: Fault("status", 403) if "_count" in request.path else None
        with Documents(connect(proxy.url), written) as documents:
            added = documents.add(records(121, seed=5))
            assert added.created == 121 and not added.refused
            documents.add(records(100, seed=6))
            assert sum("could not be stored" in line for line in caplog.messages) == 1
    assert kept_documents(client, written) == 120


def test_while_an_ingest_writes_the_index_documents_leave_the_record_to_it(client: Any, written: str) -> None:
    meta = existing_record(client, written)
    write_record(client, written, meta.with_extra(adding=["more.jsonl"]))
    with Documents(client, written) as documents:
        documents.add(records(130, seed=5))
    assert kept_documents(client, written) == 120
    write_record(client, written, meta)
    with Documents(client, written) as documents:
        documents.add([{"_id": "more", "text": "rain"}])
    assert kept_documents(client, written) == 251


def test_the_default_window_is_that_of_a_shard(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opensearch_neural.engines.settings.FITTED", 10)
    run_job(client, job(write_jsonl(tmp_path / "docs.jsonl", records(120)), index_name, shards=3), show_progress=False)
    meta = existing_record(client, index_name)
    assert meta.extra[SHARD_DOCUMENTS] == 40 and default_windows(open_engines(client, index_name))[0] == 60
    write_record(client, index_name, meta.with_extra(**{SHARD_DOCUMENTS: None}))
    assert default_windows(open_engines(client, index_name))[0] == 60, "counted, as an older version kept nothing"
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 403) if "_count" in request.path else None
        with pytest.raises(ClusterError, match=r"refused POST .*_count \(403\)"):
            default_windows(open_engines(connect(proxy.url), index_name))


def test_the_error_of_a_scale_that_cannot_be_measured_is_one_in_words(
    client: Any, cluster_url: str, written: str
) -> None:
    write_record(client, written, existing_record(client, written).with_extra(**{SCALE: None}))
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lambda request: Fault("status", 403) if "_msearch" in request.path else None
        with pytest.raises(ClusterError, match=r"refused POST .*_msearch \(403\)"):
            open_engines(connect(proxy.url), written).body("bm25-sparse", "rain")


def test_a_page_is_certified_by_the_largest_weights_that_are_kept(client: Any, written: str) -> None:
    engines = open_engines(client, written, window=60, weight=0.01)
    text, engine = records(120)[7]["text"], engines.engine("bm25-sparse")
    assert isinstance(engine, Windowed)

    def certain() -> bool:
        asked: dict[str, float] = {}
        found = engine.certified(client, text, engines.page(size=2), asked)
        assert bool(asked) == other, "it asks only where nothing is kept"
        return found

    other = False
    assert certain(), "so little can be added that the window suffices"
    id = engines.meta.extra[LARGEST]
    hidden_index.raise_largest(client, id, dict.fromkeys(engines.models.query_encoder.encode(text), 1e9))
    assert not certain(), "nothing is certain any more, also where it was read before"
    # Of another index, to which the alias leads by now, they say nothing.
    client.index(index=INDEX, id=id, body={**client.get(index=INDEX, id=id)["_source"], "index": "another"})
    other = True
    assert certain()


def test_what_is_kept_goes_with_the_last_index_that_needs_it(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(30, seed=9))
    for _ in range(3):
        run_job(client, replace(job(corpus, ""), alias=index_name), show_progress=False)
    id, header = encoder_of(client, index_name)
    largest = [version.meta.extra[LARGEST] for version in builds.versions(client, index_name)]
    assert len(builds.prune(client, index_name, keep=0)) == 2
    assert [client.exists(index=INDEX, id=each) for each in largest] == [True, False, False]
    assert client.exists(index=INDEX, id=id), "the one that serves needs it"
    meta, last = existing_record(client, index_name), builds.serving_index(client, index_name)
    assert client.get(index=INDEX, id=id)["_source"]["users"] == [last]
    client.indices.delete(index=last)
    hidden_index.forget(client, str(last), meta)
    assert not any(client.exists(index=INDEX, id=each) for each in (id, *header["parts"], largest[0]))


def test_an_encoder_stays_while_an_index_uses_it_that_this_user_may_not_see(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    """With do_not_fail_on_forbidden the Security plugin leaves out of `GET */_mapping` what the user may not see. Before,
    a prune then deleted the encoder of another team's index."""
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(30, seed=11))
    run_job(client, job(corpus, f"{index_name}-theirs"), show_progress=False)
    run_job(client, replace(job(corpus, ""), alias=f"{index_name}-ours"), show_progress=False)
    id, _ = encoder_of(client, f"{index_name}-theirs")

    def sees_nothing(request: cluster_servers.Request) -> cluster_servers.Answer | None:
        return cluster_servers.Answer.of_json({}) if request.path.startswith("/*/_mapping") else None

    with cluster_servers.forbidding_proxy(cluster_url, sees_nothing) as url:
        narrow = connect(url)
        run_job(narrow, replace(job(corpus, ""), alias=f"{index_name}-ours"), show_progress=False)
        assert len(builds.prune(narrow, f"{index_name}-ours", keep=0)) == 1
        serving = str(builds.serving_index(client, f"{index_name}-ours"))
        assert client.get(index=INDEX, id=id)["_source"]["users"] == [serving, f"{index_name}-theirs"]
        for name in (serving, f"{index_name}-theirs"):
            assert client.exists(index=INDEX, id=id)
            hidden_index.forget(narrow, name, existing_record(client, name))
        assert not client.exists(index=INDEX, id=id)


def test_an_encoder_that_lists_no_users_is_never_deleted(client: Any, index_name: str, tmp_path: Path) -> None:
    """Those of earlier versions: nobody knows who uses them."""
    corpus = write_jsonl(tmp_path / "docs.jsonl", records(30, seed=13))
    run_job(client, job(corpus, index_name), show_progress=False)
    id, header = encoder_of(client, index_name)
    client.index(index=INDEX, id=id, body={name: value for name, value in header.items() if name != "users"})
    meta = existing_record(client, index_name)
    assert meta.sparse is not None
    content = hidden_index.read_encoder(client, meta.sparse.query_hash)
    assert content is not None
    hidden_index.store_encoder(client, "another", meta.sparse.query_hash, "lexical", content)
    assert "users" not in encoder_of(client, index_name)[1], "a list of the later ones would not be whole"
    hidden_index.forget(client, index_name, meta)
    hidden_index.forget(client, "another", meta)
    client.indices.delete(index=index_name)
    hidden_index.forget(client, index_name, meta)
    assert hidden_index.read_encoder(client, meta.sparse.query_hash) == content
    client.delete(index=INDEX, id=id)


@pytest.mark.parametrize("meanwhile", ["before the header goes", "before the parts go"])
def test_an_encoder_that_is_stored_again_while_it_is_deleted_is_whole(
    client: Any, cluster_url: str, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_index, "PART_BYTES", 100)
    hash, content = "test-stored-again", bytes(range(250))
    hidden_index.store_encoder(client, "first", hash, "a model", content)
    meta = IndexMeta(sparse=SparseMeta("a model", "any", hash))

    def store_again(request: Request) -> None:
        is_part = request.path.rpartition("-")[2].isdigit()
        if request.method == "DELETE" and is_part == (meanwhile == "before the parts go"):
            hidden_index.store_encoder(client, "second", hash, "a model", content)

    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = store_again
        hidden_index.forget(connect(proxy.url), "first", meta)
    assert hidden_index.read_encoder(client, hash) == content
    assert client.get(index=INDEX, id=f"encoder-{hash}")["_source"]["users"] == ["second"]
    hidden_index.forget(client, "second", meta)
    assert hidden_index.read_encoder(client, hash) is None


def test_a_large_query_side_lies_in_parts(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_index, "PART_BYTES", 100)
    content = bytes(range(250)) * 2
    hidden_index.store_encoder(client, "docs", "test-parts", "a model", content)
    assert hidden_index.read_encoder(client, "test-parts") == content
    part = client.get(index=INDEX, id="encoder-test-parts")["_source"]["parts"][1]
    client.index(index=INDEX, id=part, body={"content": base64.b64encode(b"x" * 100).decode()})
    with pytest.raises(ModelError, match=r"'a model'.* the hash of its parts is wrong"):
        hidden_index.read_encoder(client, "test-parts")
