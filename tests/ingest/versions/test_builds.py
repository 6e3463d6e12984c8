"""Rebuilding under an alias: searches never see half of an index, and the old one is there to go back to."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import killable
import pytest
from corpora import job, records, snapshot, write_jsonl
from opensearchpy.helpers import bulk

from ingest import stored_query_data
from ingest.documents import Documents
from ingest.error_limit import TooManyErrors
from ingest.job import Job, run_job
from ingest.settings import Models
from ingest.versions import builds as versions
from ingest.versions import unfinished
from ingest.versions.swap import Gate, Requirement, SwapRefused, check_swap, serve_build
from ingest.writing.lease import Lease
from ingest.writing.stored_documents import Counts
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta, QuantizedMeta, SparseMeta


def build(corpus: Path, alias: str, **settings: Any) -> Job:
    return replace(job(corpus, "", **settings), alias=alias)


def corpus(path: Path, count: int, *, seed: int = 0) -> Path:
    return write_jsonl(path, records(count, seed=seed))


def test_the_first_build_makes_the_alias_and_the_second_replaces_it_at_once(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    first = run_job(client, build(corpus(tmp_path / "d.jsonl", 200), index_name), show_progress=False)
    assert (first.alias, first.replaced) == (index_name, None)
    assert first.index.startswith(f"{index_name}-20")
    assert len(snapshot(client, index_name)) == 200
    seen: set[int] = set()
    done = threading.Event()

    def search() -> None:
        body = {"size": 0, "track_total_hits": True, "query": {"match_all": {}}}
        while not done.is_set():
            seen.add(client.search(index=index_name, body=body)["hits"]["total"]["value"])

    searching = threading.Thread(target=search)
    searching.start()
    second = run_job(client, build(corpus(tmp_path / "d.jsonl", 700), index_name), show_progress=False)
    done.set()
    searching.join()
    assert second.replaced == first.index and second.index != first.index
    assert seen <= {200, 700}, "a search saw an index that was being built"
    assert len(snapshot(client, index_name)) == 700 and len(snapshot(client, first.index)) == 200
    body = open_engines(client, index_name).body("sparse", "rain")
    assert client.search(index=index_name, body=body)["hits"]["hits"]


def test_a_build_without_the_vectors_of_the_serving_index_has_to_be_meant(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    path = corpus(tmp_path / "d.jsonl", 20)
    serving = run_job(client, build(path, index_name), show_progress=False).index
    with pytest.raises(SwapRefused, match=f"{serving}' has sparse vectors of lexical, and the build would have none"):
        run_job(client, build(path, index_name, sparse=None), show_progress=False)
    assert [version.index for version in versions.versions(client, index_name)] == [serving]
    unmet = replace(build(path, index_name, sparse="none"), gate=Gate(require=(Requirement("rain", "gone"),)))
    with pytest.raises(SwapRefused, match="does not find 'gone'"):
        run_job(client, unmet, show_progress=False)
    with pytest.raises(SwapRefused) as refused:
        run_job(client, build(path, index_name, sparse=None), show_progress=False)
    remedy = refused.value.remedy or ""
    assert "give --restart --sparse MODEL, or --sparse none to build without them" in remedy, "it continues that build"
    meant = run_job(client, build(path, index_name, sparse="none"), show_progress=False)
    assert meant.replaced == serving


def test_a_build_that_waits_is_caught_up_and_served_by_the_same_gate(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    first = run_job(client, build(corpus(tmp_path / "d.jsonl", 100), index_name), show_progress=False).index
    path = corpus(tmp_path / "d.jsonl", 85)
    waits = replace(build(path, index_name), swap=False)
    report = run_job(client, waits, show_progress=False)
    assert (report.alias, report.waits_for, report.replaced) == (None, index_name, None)
    assert str(report.counts) == "85 documents, before 100 (85.0%)"
    assert versions.serving_index(client, index_name) == first and report.index != first
    with pytest.raises(SwapRefused, match="holds 85 documents"):
        serve_build(client, index_name, None, Gate())
    Documents(client, report.index).add(records(10, seed=1))
    gate = Gate(require=(Requirement("rain", "gone"),))
    with pytest.raises(SwapRefused, match="does not find 'gone'"):
        serve_build(client, index_name, report.index, gate)
    tried = serve_build(client, index_name, None, Gate(), dry_run=True)
    assert (tried.index, tried.replaced, str(tried.counts)) == (report.index, first, "95 documents, before 100 (95.0%)")
    assert versions.serving_index(client, index_name) == first
    assert serve_build(client, index_name, None, Gate()) == tried
    assert versions.serving_index(client, index_name) == report.index
    assert versions.rollback(client, index_name) == (first, report.index)
    with pytest.raises(InputError, match=r"has served .* before") as refused:
        serve_build(client, index_name, report.index, Gate())
    assert refused.value.remedy == f"`osn index rollback {index_name} --to {report.index}` goes back to it"


def test_without_a_name_no_build_is_served_that_is_older_than_the_serving_one(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """A build that was given up was served, weeks later."""
    path = corpus(tmp_path / "d.jsonl", 10)
    old = run_job(client, replace(build(path, index_name, sparse="none"), swap=False), show_progress=False).index
    run_job(client, build(path, index_name, sparse="none", writing={"restart": True}), show_progress=False)
    with pytest.raises(InputError, match="waits that is newer than the serving index") as refused:
        serve_build(client, index_name, None, Gate())
    assert refused.value.remedy == f"to serve an older one, name it: {old}"
    assert serve_build(client, index_name, old, Gate()).index == old


def test_only_a_build_of_the_alias_is_served_and_by_its_own_name(client: Any, index_name: str, tmp_path: Path) -> None:
    path = corpus(tmp_path / "d.jsonl", 10)
    waits = run_job(client, replace(build(path, index_name, sparse="none"), swap=False), show_progress=False).index
    other, of_other = f"{index_name}-x", f"{index_name}-other"
    run_job(client, job(path, other, sparse="none"), show_progress=False)
    client.indices.put_alias(index=waits, name=of_other)
    for name in (other, of_other, f"{index_name}-*", f"{index_name}-gone"):
        with pytest.raises(InputError, match="is not the name of a build of") as refused:
            serve_build(client, index_name, name, Gate())
        assert refused.value.remedy == f"name one: {waits}"
    assert versions.serving_index(client, index_name) is None


def test_a_build_into_which_a_change_is_being_written_is_not_served(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    path = corpus(tmp_path / "d.jsonl", 10)
    waits = run_job(client, replace(build(path, index_name, sparse="none"), swap=False), show_progress=False).index
    with Lease(client, f"index:{waits}"), pytest.raises(ClusterError, match=f"is writing '{waits}' now"):
        serve_build(client, index_name, waits, Gate())
    torn = write_jsonl(tmp_path / "torn.jsonl", [*records(50, seed=1), *["torn"] * 30])
    with pytest.raises(TooManyErrors):
        run_job(client, job(torn, waits, sparse="none", writing={"max_errors": 5}), show_progress=False)
    with pytest.raises(ClusterError, match=r"torn\.jsonl into .* was interrupted") as refused:
        serve_build(client, index_name, None, Gate())
    assert f"`osn index finish {waits}`" in str(refused.value.remedy)
    assert unfinished.finish(client, waits) == waits
    assert serve_build(client, index_name, None, Gate()).index == waits


def test_an_alias_that_another_process_has_taken_is_not_moved(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = corpus(tmp_path / "d.jsonl", 10)
    first = run_job(client, build(path, index_name, sparse="none"), show_progress=False).index
    second = run_job(client, build(path, index_name, sparse="none"), show_progress=False).index
    waits = run_job(client, replace(build(path, index_name, sparse="none"), swap=False), show_progress=False).index
    with monkeypatch.context() as patch, pytest.raises(ClusterError, match="another ingest has taken over"):
        patch.setattr(Lease, "_take", lambda self, **how: not self._lost.set())  # as if each renewal came too late
        serve_build(client, index_name, waits, Gate())
    assert versions.serving_index(client, index_name) == second
    # A rollback takes no lease, so the alias may move between two requests.
    with pytest.raises(ClusterError, match=f"was moved from {first} to {second} meanwhile"):
        versions._name(client, index_name, waits, first)
    assert versions.serving_index(client, index_name) == second


def test_no_ingest_continues_a_finished_build_that_was_caught_up(client: Any, index_name: str, tmp_path: Path) -> None:
    """The next ingest of the corpus wrote all of it again, and deleted what was not in it."""
    path = corpus(tmp_path / "d.jsonl", 20)
    waits = replace(build(path, index_name, sparse="none"), swap=False)
    first = run_job(client, waits, show_progress=False).index
    Documents(client, first).add(records(3, seed=1))
    for again in (waits, replace(waits, swap=True)):
        with pytest.raises(InputError, match=f"{first} is a finished build of .* that waits to be served") as refused:
            run_job(client, again, show_progress=False)
    assert f"`osn index serve {index_name} {first}` serves it" in str(refused.value.remedy)
    assert "--restart begins another build" in str(refused.value.remedy)
    assert len(snapshot(client, first)) == 23
    anew = replace(waits, writing=replace(waits.writing, restart=True))
    second = run_job(client, anew, show_progress=False).index
    serve_build(client, index_name, second, Gate())
    third = run_job(client, waits, show_progress=False).index
    assert len({first, second, third}) == 3, "a build that is older than the serving one waits no longer"


def test_no_ingest_continues_a_build_that_was_accepted_as_it_is(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    """The next ingest of the corpus continued it, over what was written into it after it was accepted."""
    path = write_jsonl(tmp_path / "d.jsonl", [*records(50), *["torn"] * 30])
    settings = build(path, index_name, sparse="none", writing={"max_errors": 5})
    with pytest.raises(TooManyErrors):
        run_job(client, settings, show_progress=False)
    (half,) = versions.versions(client, index_name)
    ran = osn("index", "finish", index_name)
    assert ran.returncode == 0, ran.stderr
    Documents(client, half.index).add(records(3, seed=1))
    settings = replace(settings, writing=replace(settings.writing, max_errors=50))
    with pytest.raises(InputError, match=f"{half.index} is a finished build of .* that waits to be served"):
        run_job(client, settings, show_progress=False)
    assert len(snapshot(client, half.index)) >= 3
    serves = f"`osn index serve {index_name} {half.index}` moves the alias to it"
    assert ran.stdout == f"{half.index} is complete; {serves}\n"
    assert serve_build(client, index_name, None, Gate()).index == half.index
    assert run_job(client, settings, show_progress=False).replaced == half.index, (
        "once it serves, the next is a new one"
    )


def test_builds_that_cannot_be_served_are_refused(client: Any, index_name: str, tmp_path: Path) -> None:
    path = corpus(tmp_path / "d.jsonl", 20)
    waits = replace(build(path, index_name), swap=False)
    with pytest.raises(InputError) as refused:
        run_job(client, replace(waits, gate=Gate(allow_shrink=True)), show_progress=False)
    assert refused.value.remedy == "give them to `osn index serve`, or leave them out"
    with pytest.raises(InputError, match="--no-swap is for the build of an alias"):
        run_job(client, replace(job(path, index_name), swap=False), show_progress=False)
    with pytest.raises(InputError, match=r"no finished build of .* waits"):
        serve_build(client, index_name, None, Gate())
    one, two = (
        run_job(client, replace(waits, writing=replace(waits.writing, restart=True)), show_progress=False).index
        for _ in range(2)
    )
    with pytest.raises(InputError, match="has 2 finished builds that never served"):
        serve_build(client, index_name, None, Gate())
    assert serve_build(client, index_name, two, Gate()).replaced is None
    with pytest.raises(InputError, match=r"names .* already"):
        serve_build(client, index_name, two, Gate())
    assert unfinished.abort(client, one) == one
    torn = write_jsonl(tmp_path / "torn.jsonl", [*records(50), *["torn"] * 30])
    with pytest.raises(TooManyErrors):
        run_job(client, build(torn, index_name, writing={"max_errors": 5}), show_progress=False)
    half = versions.versions(client, index_name)[0].index
    with pytest.raises(ClusterError, match="is not complete"):
        serve_build(client, index_name, half, Gate())


def test_the_share_of_documents_that_a_new_build_must_hold_is_chosen_and_both_counts_are_told(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    def count(documents: int, least_share: float) -> Any:
        settings = build(corpus(tmp_path / "d.jsonl", documents), index_name, sparse="none")
        return run_job(client, replace(settings, gate=Gate(least_share=least_share)), show_progress=False).counts

    assert str(count(100, 0.9)) == "100 documents"
    assert str(count(98, 0.98)) == "98 documents, before 100 (98.0%)"
    with pytest.raises(SwapRefused, match=r"holds 95 documents, the current index '.*' 98, and at least 98% of them"):
        count(95, 0.98)
    assert str(count(95, 0.5)) == "95 documents, before 98 (96.9%)"


def test_documents_in_passages_are_counted_exactly(client: Any, index_name: str) -> None:
    """Beyond 40,000 documents the number was an estimate, by which 100 % could be 99."""
    body = index_body(IndexMeta(passages=PassageMeta(9, 9)), replicas=0)
    client.indices.create(index=index_name, body=body)
    passages = (
        {"_index": index_name, "_source": {"parent": str(number // 2), "passage": {"number": 1 + number % 2}}}
        for number in range(100_000)
    )
    bulk(client, passages, chunk_size=10_000)
    client.indices.refresh(index=index_name)
    assert check_swap(client, f"{index_name}-alias", index_name, Gate()) == Counts(50_000)


def test_rolling_back_and_forth(client: Any, index_name: str, tmp_path: Path) -> None:
    built = [
        run_job(client, build(corpus(tmp_path / "d.jsonl", count), index_name), show_progress=False).index
        for count in (10, 20, 30)
    ]
    assert [version.index for version in versions.versions(client, index_name)] == built[::-1]
    assert versions.rollback(client, index_name) == (built[1], built[2])
    assert versions.rollback(client, index_name) == (built[0], built[1])
    with pytest.raises(ClusterError, match=f"{built[0]} replaced no other index") as error:
        versions.rollback(client, index_name)
    assert error.value.remedy and built[2] in error.value.remedy
    assert versions.rollback(client, index_name, to=built[2]) == (built[2], built[0])
    assert len(snapshot(client, index_name)) == 30
    # What it replaced first is what it goes back to, whatever was named in between.
    assert versions.rollback(client, index_name) == (built[1], built[2])
    with pytest.raises(InputError, match=r"names .* already"):
        versions.rollback(client, index_name, to=built[1])
    with pytest.raises(ClusterError, match="was deleted"):
        versions.rollback(client, index_name, to=f"{index_name}-gone")
    assert versions.prune(client, index_name, keep=1) == [built[0]]
    assert versions.prune(client, index_name, keep=0) == [built[2]]
    assert len(snapshot(client, index_name)) == 20


def test_swap_and_rollback_keep_what_the_alias_says_besides_its_index(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """An alias that hides documents by its filter hid none of them after the next build."""
    rows = [{"_id": f"d{n}", "text": "rain", "public": n % 2 == 0} for n in range(10)]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    first = run_job(client, build(path, index_name, sparse="none"), show_progress=False).index
    says = {"filter": {"term": {"public": True}}, "is_write_index": True, "is_hidden": True, "routing": "a"}
    client.indices.update_aliases(body={"actions": [{"add": {"index": first, "alias": index_name, **says}}]})

    def told() -> Any:
        ((index, held),) = client.indices.get_alias(name=index_name).items()
        return index, held["aliases"][index_name]

    before = told()[1]
    assert before.keys() == {"filter", "is_write_index", "is_hidden", "index_routing", "search_routing"}
    second = run_job(client, build(path, index_name, sparse="none"), show_progress=False).index
    assert told() == (second, before)
    versions.rollback(client, index_name)
    assert told() == (first, before)


@pytest.fixture
def template(client: Any, index_name: str) -> Iterator[Callable[..., None]]:
    """Puts an index template for all builds of the alias."""

    def put(**template: Any) -> None:
        body = {"index_patterns": [f"{index_name}-*"], "template": template, "priority": 500}
        client.indices.put_index_template(name=index_name, body=body)

    yield put
    client.indices.delete_index_template(name=index_name, params={"ignore": 404})


def test_no_alias_of_an_index_template_shows_a_half_made_build(
    client: Any,
    index_name: str,
    tmp_path: Path,
    template: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Searches of the alias found the documents of the old build and, twice, those that the new one had so far."""
    hidden, other = {"filter": {"range": {"year": {"gte": 1905}}}}, f"{index_name}-other"
    template(aliases={index_name: hidden, other: {}})
    seen: list[dict[str, Any]] = []

    def look(*arguments: Any, **more: Any) -> Any:
        building = versions.versions(client, index_name)[0].index
        seen.append(client.indices.get_alias(index=building)[building]["aliases"])
        return keep_encoder(*arguments, **more)

    keep_encoder = stored_query_data.keep_encoder
    monkeypatch.setattr("ingest.job.keep_encoder", look)
    for count in (10, 20):
        built = run_job(client, build(corpus(tmp_path / "d.jsonl", count), index_name), show_progress=False).index
        assert client.indices.get_alias(index=built)[built]["aliases"] == {index_name: hidden, other: {}}
        assert client.count(index=index_name)["count"] == count - 5
        assert client.count(index=other)["count"] == count, "the build before is no longer found by it"
    assert [{name for name in names if not name.startswith("osn-write-")} for names in seen] == [set(), set()]
    assert f"an index template gave {built} the aliases {index_name}, {other}: removed until" in caplog.text


def test_other_aliases_of_an_index_template_go_with_a_swap_and_back_with_a_rollback(
    client: Any, index_name: str, tmp_path: Path, template: Callable[..., None]
) -> None:
    """They were removed from each build, and nothing added them again."""
    path, one, two = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-one", f"{index_name}-two"

    def built(**settings: Any) -> str:
        return str(run_job(client, build(path, index_name, sparse="none", **settings), show_progress=False).index)

    def named() -> dict[str, set[str]]:
        told = client.indices.get_alias(index=f"{index_name}-*")
        return {name: set(each["aliases"]) for name, each in told.items() if each["aliases"]}

    first = built()
    template(aliases={one: {}, two: {"filter": {"term": {"year": 1900}}}})
    second = built()
    assert named() == {second: {index_name, one, two}}, "the build before had none of them"
    assert client.count(index=two)["count"] == 1
    client.indices.delete_alias(index=second, name=one)
    client.indices.put_alias(index=second, name=two, body={"filter": {"range": {"year": {"gte": 1905}}}})
    third = built()
    assert named() == {third: {index_name, one, two}}
    assert client.count(index=two)["count"] == 5, "it says what it said of the build before"
    client.indices.delete_alias(index=third, name=one)
    versions.rollback(client, index_name)
    assert named() == {second: {index_name, two}}, "what a person took away stays away"
    versions.rollback(client, index_name, to=first)
    assert named() == {first: {index_name, two}}, "also to a build that no template gave an alias"


def test_no_swap_moves_an_alias_that_has_builds_of_its_own(
    client: Any, index_name: str, tmp_path: Path, template: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """The builds of docs-en match the template of docs, too: docs named an index of each, and had no next build."""
    path, english = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-en"
    template(aliases={index_name: {}})

    def built(alias: str, **settings: Any) -> str:
        return str(run_job(client, replace(build(path, alias, sparse="none"), **settings), show_progress=False).index)

    first_english = built(english)
    assert versions.indexes_of(client, index_name) == [first_english], "so far it has no builds"
    first = built(index_name)
    assert versions.indexes_of(client, index_name) == [first]
    client.indices.delete_alias(index=first, name=index_name)
    client.indices.put_alias(index=first_english, name=index_name)
    second_english = built(english)
    assert versions.indexes_of(client, english) == [second_english]
    assert versions.indexes_of(client, index_name) == [first_english], "neither added nor taken away"
    assert f"gave {second_english} the aliases {index_name}: it does not get them" in caplog.text
    client.indices.delete_alias(index=first_english, name=index_name)
    client.indices.put_alias(index=first, name=index_name)
    client.indices.close(index=first)
    caplog.clear()
    built(english)
    assert versions.indexes_of(client, index_name) == [first], "also of closed builds"
    client.indices.open(index=first)
    second = built(index_name)
    assert versions.rollback(client, index_name) == (first, second)
    assert versions.versions(client, english)[0].serving


def test_a_write_index_of_an_index_template_has_a_next_build(
    client: Any, index_name: str, tmp_path: Path, template: Callable[..., None]
) -> None:
    """The first build kept the flag, and OpenSearch refused to create the second: an alias has one write index."""
    path, one, of_person = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-one", f"{index_name}-person"
    template(aliases={alias: {"is_write_index": True} for alias in (index_name, one, of_person)})

    def built(alias: str = index_name, **settings: Any) -> str:
        return str(run_job(client, replace(build(path, alias, sparse="none"), **settings), show_progress=False).index)

    def told(index: str) -> Any:
        return client.indices.get_alias(index=index)[index]["aliases"]

    first = built()
    assert told(first) == {index_name: {}, one: {}, of_person: {}}
    client.index(index=one, id="new", body={"text": "rain"}, refresh=True)
    assert client.count(index=first)["count"] == 11, "an alias of one index is written to without the flag"
    says = {"is_write_index": True, "filter": {"range": {"year": {"gte": 1905}}}}
    for alias in (index_name, of_person):
        client.indices.put_alias(index=first, name=alias, body=says)
    second = built()
    assert told(second) == {index_name: says, one: {}, of_person: says}, "what a person said goes with the swap"
    waits = built(swap=False, writing=replace(build(path, "").writing, restart=True))
    assert told(waits) == {} and told(second)[of_person] == says
    client.indices.delete_alias(index=second, name=of_person)
    serve_build(client, index_name, waits, Gate())
    assert told(waits) == {index_name: says, one: {}, of_person: {"filter": says["filter"]}}
    plain = f"{index_name}-plain"
    with pytest.raises(ClusterError, match="more than one write index"):
        run_job(client, job(path, plain, sparse="none"), show_progress=False)


def test_an_alias_that_another_index_holds_can_still_be_written_to(
    client: Any, index_name: str, tmp_path: Path, template: Callable[..., None]
) -> None:
    path, logs, foreign = corpus(tmp_path / "d.jsonl", 10), f"{index_name[::-1]}-logs", f"{index_name[::-1]}-foreign"
    client.indices.create(index=foreign, body={"aliases": {logs: {}}, "settings": {"number_of_replicas": 0}})
    try:
        template(aliases={logs: {"is_write_index": True}})
        build_ = str(run_job(client, build(path, index_name, sparse="none"), show_progress=False).index)
        assert client.indices.get_alias(index=build_)[build_]["aliases"][logs] == {"is_write_index": True}
        assert client.index(index=logs, body={"text": "rain"})["_index"] == build_
    finally:
        client.indices.delete(index=foreign)


def test_a_rollback_to_an_alias_is_refused_with_a_message(client: Any, index_name: str, tmp_path: Path) -> None:
    path, old = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-old"
    first = str(run_job(client, build(path, index_name, sparse="none"), show_progress=False).index)
    run_job(client, build(path, index_name, sparse="none"), show_progress=False)
    client.indices.put_alias(index=first, name=old)
    with pytest.raises(InputError, match=f"'{old}' is no build") as refused:
        versions.rollback(client, index_name, to=old)
    assert refused.value.remedy == f"name one with --to: {first}"


def test_an_alias_goes_back_only_to_its_own_builds(client: Any, index_name: str, tmp_path: Path) -> None:
    path, other, plain = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-other", f"{index_name}-plain"
    run_job(client, job(path, plain, sparse="none"), show_progress=False)
    client.indices.put_alias(index=plain, name=index_name)
    first, second = (
        str(run_job(client, build(path, index_name, sparse="none"), show_progress=False).index) for _ in range(2)
    )
    foreign = str(run_job(client, build(path, other, sparse="none"), show_progress=False).index)
    unused = f"{index_name}-unused"
    run_job(client, job(path, unused, sparse="none"), show_progress=False)
    for index, told in ((foreign, f"is a build of '{other}'"), (unused, "is no build")):
        with pytest.raises(InputError, match=f"'{index}' {told}") as refused:
            versions.rollback(client, index_name, to=index)
        assert refused.value.remedy == f"name one with --to: {first}"
    assert versions.rollback(client, index_name, to=plain) == (plain, second), "the first build replaced it"
    assert versions.rollback(client, index_name, to=first) == (first, plain)
    assert versions.rollback(client, index_name) == (plain, first)


def test_the_first_build_over_an_index_of_somebody_else_goes_back_to_it(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`osn ingest` promised it, and `osn index rollback` refused it."""
    theirs = f"{index_name}-theirs"
    client.indices.create(index=theirs, body={"aliases": {index_name: {"filter": {"match_all": {}}}}})
    first, second = (
        str(run_job(client, build(corpus(tmp_path / "d.jsonl", 10), index_name), show_progress=False).index)
        for _ in range(2)
    )
    assert versions.rollback(client, index_name) == (first, second)
    caplog.clear()
    assert versions.rollback(client, index_name) == (theirs, first)
    assert f"{theirs} has no forward index, so that requests which read it fail" in caplog.text
    (held,) = client.indices.get_alias(name=index_name).values()
    assert held["aliases"][index_name] == {"filter": {"match_all": {}}}
    with pytest.raises(ClusterError, match=f"{theirs} replaced no other index"):
        versions.rollback(client, index_name)
    assert versions.prune(client, index_name, keep=0) == [second, first] and client.indices.exists(index=theirs)


def test_the_first_swap_leaves_an_alias_that_a_person_gave_the_build(
    client: Any, index_name: str, tmp_path: Path, template: Callable[..., None]
) -> None:
    """An alias with a filter lost it, since the index template had none."""
    path, one, two = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-one", f"{index_name}-two"
    template(aliases={one: {}, two: {}})
    hides = {"filter": {"range": {"year": {"gte": 1905}}}}
    waits = replace(build(path, index_name, sparse="none", writing={"restart": True}), swap=False)
    built = []
    for alias in (one, two):  # the second time both name the build before
        built.append(run_job(client, waits, show_progress=False).index)
        client.indices.put_alias(index=built[-1], name=alias, body=hides)
        serve_build(client, index_name, built[-1], Gate())
        others = client.indices.get_alias(index=built[-1])[built[-1]]["aliases"]
        assert others == {index_name: {}, one: hides, two: hides if alias == two else {}}
    assert client.indices.get_alias(index=built[0])[built[0]]["aliases"] == {}
    assert client.count(index=one)["count"] == client.count(index=two)["count"] == 5


def test_a_build_that_is_continued_keeps_the_aliases_that_a_person_gave_it(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were removed, and an index template was blamed."""
    path = write_jsonl(tmp_path / "d.jsonl", [*records(50), *["torn"] * 30])
    with pytest.raises(TooManyErrors):
        run_job(client, build(path, index_name, sparse="none", writing={"max_errors": 5}), show_progress=False)
    (half,) = versions.versions(client, index_name)
    for alias in (index_name, f"{index_name}-look"):
        client.indices.put_alias(index=half.index, name=alias)
    gate = Gate(require=(Requirement("rain", "gone"),))
    unmet = replace(build(path, index_name, sparse="none", writing={"max_errors": 50}), gate=gate)
    with pytest.raises(SwapRefused):
        run_job(client, unmet, show_progress=False)
    names = client.indices.get_alias(index=half.index)[half.index]["aliases"].keys()
    assert f"{index_name}-look" in names and index_name not in names
    assert "index template" not in caplog.text
    assert f"the alias {index_name} named {half.index}: removed until the swap" in caplog.text


def test_a_half_made_build_is_aborted_by_its_name_whatever_its_alias_names(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    first = run_job(client, build(corpus(tmp_path / "d.jsonl", 10), index_name), show_progress=False).index
    path = write_jsonl(tmp_path / "torn.jsonl", [*records(50), *["torn"] * 30])
    begun = []
    for _ in range(2):
        with pytest.raises(TooManyErrors):
            run_job(client, build(path, index_name, writing={"max_errors": 5, "restart": True}), show_progress=False)
        begun.append(versions.versions(client, index_name)[0].index)
    client.indices.put_alias(index=",".join(begun), name=index_name)
    assert unfinished.finish(client, begun[0]) == begun[0]
    assert unfinished.abort(client, begun[1]) == begun[1]
    client.indices.delete_alias(index=begun[0], name=index_name)
    assert versions.serving_index(client, index_name) == first


def test_a_build_that_another_alias_names_is_aborted_by_its_own_name_alone(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """`osn index abort ALIAS` deleted a finished build that others searched by an alias of their own."""
    path, other = corpus(tmp_path / "d.jsonl", 10), f"{index_name}-look"
    built = run_job(client, replace(build(path, index_name, sparse="none"), swap=False), show_progress=False).index
    client.indices.put_alias(index=built, name=other)
    with pytest.raises(InputError, match=f"{built}' is also named by {other}") as refused:
        unfinished.abort(client, index_name)
    assert refused.value.remedy == f"`osn index abort {built}` deletes it all the same"
    assert unfinished.abort(client, built) == built


def test_a_build_that_is_closed_is_not_rolled_back_to(client: Any, index_name: str, tmp_path: Path) -> None:
    first, second = (
        run_job(client, build(corpus(tmp_path / "d.jsonl", count), index_name), show_progress=False).index
        for count in (10, 20)
    )
    client.indices.close(index=first)
    with pytest.raises(ClusterError, match=f"the index '{first}' is closed") as error:
        versions.rollback(client, index_name)
    assert error.value.remedy == f"open it first (POST {first}/_open)"
    assert versions.serving_index(client, index_name) == second
    client.indices.open(index=first)
    assert versions.rollback(client, index_name) == (first, second)


def test_closed_builds_are_pruned_and_aborted_too(client: Any, index_name: str, tmp_path: Path) -> None:
    built = [
        run_job(client, build(corpus(tmp_path / "d.jsonl", count), index_name), show_progress=False).index
        for count in (5, 10, 20, 30)
    ]
    unmet = replace(build(tmp_path / "d.jsonl", index_name), gate=Gate(require=(Requirement("rain", "gone"),)))
    with pytest.raises(SwapRefused):
        run_job(client, unmet, show_progress=False)
    waiting = versions.versions(client, index_name)[0].index
    client.indices.close(index=f"{built[0]},{built[2]},{waiting}")
    assert versions.prune(client, index_name, keep=1) == [built[0]], "the newest that is open stays beside a closed one"
    assert versions.prune(client, index_name, keep=0) == [built[2], built[1]]
    assert unfinished.abort(client, waiting) == waiting
    left = client.indices.get(index=f"{index_name}-*", params={"expand_wildcards": "open,closed"})
    assert list(left) == [built[3]]


def test_a_copy_of_a_build_is_no_build(client: Any, index_name: str, tmp_path: Path) -> None:
    """A clone has the whole record. It was deleted as a build, or counted as the previous one, which was then deleted."""
    path = corpus(tmp_path / "d.jsonl", 10)
    first, second = (
        str(run_job(client, build(path, index_name, sparse="none"), show_progress=False).index) for _ in range(2)
    )
    backup, empty = f"{index_name}-backup", f"{index_name}-empty"
    client.indices.put_settings(index=second, body={"index.blocks.write": True})
    client.indices.clone(index=second, target=backup, body={"settings": {"index.blocks.write": None}})
    client.indices.put_settings(index=second, body={"index.blocks.write": None})
    mapping = client.indices.get_mapping(index=first)[first]["mappings"]
    client.indices.create(index=empty, body={"mappings": mapping})
    assert [version.index for version in versions.versions(client, index_name)] == [second, first]
    for copy in (backup, empty):
        with pytest.raises(InputError, match=f"'{copy}' is no build") as refused:
            versions.rollback(client, index_name, to=copy)
        assert refused.value.remedy == f"name one with --to: {first}"
    assert versions.prune(client, index_name, keep=1) == []
    assert versions.prune(client, index_name, keep=0) == [first]
    assert client.count(index=backup)["count"] == 10 and client.indices.exists(index=empty)
    with pytest.raises(ClusterError, match="was deleted") as gone:
        versions.rollback(client, index_name)
    assert gone.value.remedy == "there is nothing to go back to"


def test_builds_of_earlier_versions_are_known_by_their_dates(client: Any, index_name: str) -> None:
    dated = [f"{index_name}-20260314-150926", f"{index_name}-20260314-150926-2"]
    for name in (*dated, f"{index_name}-backup", f"{index_name}-20260314-150926-backup"):
        record = {"format": 1, "build": {"alias": index_name, "corpus": "c", "swapped": True}}
        client.indices.create(index=name, body={"mappings": {"_meta": {"osn": record}}})
    assert {version.index for version in versions.versions(client, index_name)} == {*dated}


def test_a_build_that_another_alias_names_is_not_pruned(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built = [
        run_job(client, build(corpus(tmp_path / "d.jsonl", count), index_name), show_progress=False).index
        for count in (5, 10, 20)
    ]
    client.indices.put_alias(index=built[0], name=f"{index_name}-archive")
    client.indices.put_alias(index=built[1], name=f"osn-write-{index_name}")
    assert versions.prune(client, index_name, keep=0) == [built[1]]
    assert f"{built[0]} is kept: it is named by {index_name}-archive" in caplog.text
    client.indices.delete_alias(index=built[0], name=f"{index_name}-archive")
    assert versions.prune(client, index_name, keep=0) == [built[0]]


def test_finishing_passes_over_closed_builds(client: Any, index_name: str, tmp_path: Path) -> None:
    """A closed index takes no refresh, and the open build of the alias is the one that is meant."""
    begun = []
    for name in ("a", "b"):
        path = write_jsonl(tmp_path / f"{name}.jsonl", [*records(50), *["torn"] * 30])
        with pytest.raises(TooManyErrors):
            run_job(client, build(path, index_name, writing={"max_errors": 5}), show_progress=False)
        begun.append(versions.versions(client, index_name)[0].index)
    with pytest.raises(InputError, match="2 builds that never served"):
        unfinished.finish(client, index_name)
    client.indices.close(index=begun[0])
    assert unfinished.finish(client, index_name) == begun[1]
    assert [version.complete for version in versions.versions(client, index_name, closed=True)] == [True, False]


def test_a_build_that_fails_leaves_the_old_one_serving_and_is_continued(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    path = corpus(tmp_path / "d.jsonl", 200)
    first = run_job(client, build(path, index_name), show_progress=False)
    lines: list[Any] = records(400)
    lines[350:350] = ["torn"] * 30
    write_jsonl(path, lines)
    settings = build(path, index_name, writing={"max_errors": 5})
    with pytest.raises(TooManyErrors):
        run_job(client, settings, show_progress=False)
    assert versions.serving_index(client, index_name) == first.index
    half = versions.versions(client, index_name)[0]
    assert not half.complete and not half.serving
    with pytest.raises(ClusterError, match="is not complete"):
        versions.rollback(client, index_name, to=half.index)
    second = run_job(client, replace(settings, writing=replace(settings.writing, max_errors=50)), show_progress=False)
    assert second.index == half.index and second.skipped > 0
    assert second.replaced == first.index
    assert len(snapshot(client, index_name)) == 400


SPARSE = SparseMeta("m", "a", "b")
DENSE = DenseMeta("d", "e", 8, "byte", True, 2.0)


@pytest.mark.parametrize(
    ("before", "after", "other"),
    [
        (IndexMeta(), IndexMeta(SPARSE, DENSE), None),
        (IndexMeta(SPARSE, DENSE), IndexMeta(replace(SPARSE, hash="x"), DENSE), None),
        (IndexMeta(SPARSE), IndexMeta(replace(SPARSE, query_hash="x")), "another sparse model or IDF table"),
        (IndexMeta(SPARSE), IndexMeta(replace(SPARSE, query_hash="")), "an IDF table that is counted anew"),
        (IndexMeta(SPARSE), IndexMeta(), "no sparse model"),
        (
            IndexMeta(SPARSE, DENSE),
            IndexMeta(SPARSE, replace(DENSE, scale=3.0)),
            "another dense model, or another type of its vectors",
        ),
        (IndexMeta(SPARSE, DENSE), IndexMeta(SPARSE, replace(DENSE, name="a folder")), None),
        (IndexMeta(quantized=QuantizedMeta("q", "a", 8)), IndexMeta(), "no quantized model"),
        (IndexMeta(), IndexMeta(passages=PassageMeta(9, 9)), "passages"),
        (IndexMeta(passages=PassageMeta(9, 9)), IndexMeta(passages=PassageMeta(5, 5)), None),
        (IndexMeta(passages=PassageMeta(9, 9)), IndexMeta(), "whole documents"),
    ],
)
def test_what_makes_the_requests_of_a_running_application_wrong_is_named(
    before: IndexMeta, after: IndexMeta, other: str | None
) -> None:
    assert versions.other_for_requests(before, after) == other


def test_a_swap_to_another_sparse_model_is_told(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = corpus(tmp_path / "d.jsonl", 20)
    run_job(client, build(path, index_name), show_progress=False)
    run_job(client, build(path, index_name), show_progress=False)
    assert "again once it serves" not in caplog.text
    run_job(client, build(corpus(tmp_path / "d.jsonl", 60), index_name), show_progress=False)
    assert "has another sparse model or IDF table, unlike" in caplog.text
    assert "must open their engines and `Documents` again" in caplog.text


def test_a_swap_that_only_concerns_what_writes_is_told(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The requests of `bm25` find the same, but `Documents` that were opened before are refused."""
    settings = build(corpus(tmp_path / "d.jsonl", 20), index_name)
    run_job(client, replace(settings, models=Models()), show_progress=False)
    documents = Documents(client, index_name)
    run_job(client, settings, show_progress=False)
    assert "applications that are running must open `Documents` again once it serves" in caplog.text
    with pytest.raises(ModelError, match="open Documents again"):
        documents.add([{"_id": "new", "text": "a text"}])


def test_that_requests_of_running_applications_will_fail_is_told_before_anything_is_written(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told at the swap, after hours of building."""
    path = corpus(tmp_path / "d.jsonl", 20)
    first = run_job(client, build(path, index_name), show_progress=False).index
    monkeypatch.setattr("ingest.job.pipeline.ingest", lambda *arguments, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_job(client, build(path, index_name, forward_index=False), show_progress=False)
    assert f"has no forward index, so that requests which read it fail, unlike {first}: applications" in caplog.text


def test_killed_before_the_swap_it_is_swapped_by_the_same_command(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = build(corpus(tmp_path / "d.jsonl", 100), index_name)

    class Killed(BaseException):
        pass

    def killed(*arguments: Any, **more: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("ingest.job.serve", killed)
        with pytest.raises(Killed):
            run_job(client, settings, show_progress=False)
    assert versions.serving_index(client, index_name) is None
    (built,) = versions.versions(client, index_name)
    assert built.complete and not built.serving
    killable.finish(killable.begin(cluster_url, settings, osn_home, tmp_path))
    assert versions.serving_index(client, index_name) == built.index
    assert killable.encoded(tmp_path) == 0, "nothing is encoded again"


@pytest.mark.parametrize("remembered", [True, False], ids=["with its journal", "from another machine"])
def test_of_a_corpus_that_changed_under_way_nothing_stale_is_served(
    client: Any, index_name: str, tmp_path: Path, osn_home: Path, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    path = corpus(tmp_path / "d.jsonl", 100)
    settings = build(path, index_name)
    with monkeypatch.context() as patch:
        patch.setattr("ingest.job.serve", lambda *arguments, **more: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_job(client, settings, show_progress=False)
    corpus(path, 60)
    if not remembered:
        shutil.rmtree(osn_home / "ingest")
    assert versions.serving_index(client, index_name) is None
    assert run_job(client, settings, show_progress=False).documents == 60
    assert snapshot(client, index_name).keys() == {record["_id"] for record in records(60)}


def test_documents_are_changed_under_the_alias(client: Any, index_name: str, tmp_path: Path) -> None:
    run_job(client, build(corpus(tmp_path / "d.jsonl", 20), index_name), show_progress=False)
    documents = Documents(client, index_name)
    assert documents.add(records(5, seed=1)).created == 5
    assert documents.delete(["doc-0-000000"]) == 1
    assert len(snapshot(client, index_name)) == 24


def test_names_that_cannot_be(client: Any, index_name: str, tmp_path: Path) -> None:
    path = corpus(tmp_path / "d.jsonl", 5)
    run_job(client, job(path, index_name), show_progress=False)
    with pytest.raises(ClusterError, match="is an index, so no alias can have its name"):
        run_job(client, build(path, index_name), show_progress=False)
    with pytest.raises(InputError, match="give --index or --alias"):
        run_job(client, replace(build(path, index_name), index="both"), show_progress=False)
    with pytest.raises(ClusterError, match="there is no alias"):
        versions.rollback(client, f"{index_name}-missing")


@pytest.mark.parametrize(
    ("alias", "told"),
    [
        ("a,b", "is a pattern"),
        ("a*", "is a pattern"),
        ("<a-{now/d}>", "is a pattern"),
        ("a b", "may not hold ' '"),
        ("a/b?", "may not hold '/' '[?]'"),
        ("Docs", "may not hold capital letters"),
        ("_docs", "may not begin with '_'"),
        ("d" * 161, "^the alias 'd{80}…' is longer than 160 bytes, which leaves no room"),
    ],
)
def test_an_alias_whose_builds_no_cluster_takes_is_refused_before_anything_is_read(
    client: Any, tmp_path: Path, alias: str, told: str
) -> None:
    with pytest.raises((InputError, ClusterError), match=told):
        run_job(client, build(corpus(tmp_path / "d.jsonl", 3), alias), show_progress=False)


def test_an_empty_alias_is_told_as_one(client: Any, tmp_path: Path) -> None:
    settings = replace(build(corpus(tmp_path / "d.jsonl", 3), ""), index="docs")
    with pytest.raises(InputError, match=r"^the name of the alias is empty"):
        run_job(client, settings, show_progress=False)


def test_the_longest_name_of_an_alias_has_builds(client: Any, index_name: str, tmp_path: Path) -> None:
    alias = index_name + "x" * (versions.LONGEST_NAME - len(index_name))
    lines = [*records(3), {"_id": "empty", "text": ""}]
    built = run_job(client, build(write_jsonl(tmp_path / "d.jsonl", lines), alias, sparse="none"), show_progress=False)
    assert (built.documents, built.letters) == (3, 1)
    client.indices.delete(index=built.index)


def test_a_pattern_names_no_index_to_finish_or_to_delete_and_no_alias(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """Not even if it matches one alone: it might match another tomorrow."""
    run_job(client, job(corpus(tmp_path / "d.jsonl", 3), index_name), show_progress=False)
    pattern = f"{index_name}*"
    for refusing in (unfinished.abort, unfinished.finish, versions.rollback, versions.prune):
        with pytest.raises(ClusterError, match="is a pattern"):
            refusing(client, pattern)
    with pytest.raises(ClusterError, match="is a pattern"):
        serve_build(client, pattern, None, Gate())
    assert client.indices.exists(index=index_name)


@pytest.mark.parametrize("end", [unfinished.finish, unfinished.abort])
def test_an_alias_of_several_indexes_names_none_to_finish_or_to_delete(client: Any, index_name: str, end: Any) -> None:
    mapping = index_body(IndexMeta())["mappings"]
    for part in ("a", "b"):
        client.indices.create(
            index=f"{index_name}-{part}", body={"mappings": mapping, "aliases": {f"{index_name}-both": {}}}
        )
    with pytest.raises(ClusterError, match=f"names 2 indexes: {index_name}-a, {index_name}-b"):
        end(client, f"{index_name}-both")


def test_a_refused_swap_tells_of_the_documents_that_were_rejected(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"_id": "1", "text": ""}, {"_id": "2"}])
    with pytest.raises(SwapRefused, match="holds no document"):
        run_job(client, build(path, index_name, sparse="none"), show_progress=False)
    told = f"2 documents were rejected: see {index_name}.dead-letters.jsonl; the first in this run: "
    assert f"{told}text and title are both empty" in caplog.text


@pytest.mark.parametrize("option", [("--require", "rain => nosuch"), ("--allow-shrink",)])
def test_checks_before_a_swap_are_refused_where_no_alias_is_swapped(
    osn: Callable[..., subprocess.CompletedProcess[str]],
    client: Any,
    index_name: str,
    tmp_path: Path,
    option: tuple[str, ...],
) -> None:
    path = corpus(tmp_path / "d.jsonl", 5)
    ran = osn("ingest", str(path), "--index", index_name, *option)
    assert ran.returncode == 1 and "give --alias in place of --index" in ran.stderr, ran.stderr
    assert not client.indices.exists(index=index_name)


def test_an_index_that_a_shared_alias_names_is_inspected_with_the_builds_of_its_own(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    path, other = corpus(tmp_path / "d.jsonl", 5), f"{index_name}-other"
    run_job(client, build(path, index_name, sparse="none"), show_progress=False)
    run_job(client, job(path, other, sparse="none"), show_progress=False)
    serving = versions.serving_index(client, index_name)
    client.indices.put_alias(index=f"{serving},{other}", name=f"{index_name}-all")
    ran = osn("index", "inspect", index_name)
    assert f"build       {serving}: serves now, 5 documents" in ran.stdout, ran.stderr
    ran = osn("index", "inspect", other, "--json")
    told = json.loads(ran.stdout)
    assert (told["alias"], told["builds"]) == ([f"{index_name}-all"], []), ran.stderr


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    names = []
    for count in (10, 20):
        path = corpus(tmp_path / "d.jsonl", count)
        ran = osn("ingest", "--corpus", str(path), "--alias", index_name, "--replicas", "0", "--sparse", "none")
        assert ran.returncode == 0, ran.stderr
        names.append(versions.serving_index(client, index_name))
    assert f"{index_name} now names {names[1]}, before {names[0]}\n  20 documents, before 10 (200.0%)\n" in ran.stdout
    ran = osn("index", "inspect", index_name)
    assert f"build       {names[1]}: serves now, 20 documents" in ran.stdout, ran.stderr
    ran = osn("index", "rollback", index_name)
    assert f"{index_name} now names {names[0]}, before {names[1]}" in ran.stdout
    ran = osn("index", "prune", index_name, "--keep", "0")
    assert f"{names[1]} deleted" in ran.stdout
