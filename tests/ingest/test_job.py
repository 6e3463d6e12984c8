"""`run_job` end to end: every kind of corpus into a real index, found complete and as it should be."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import job, letters, records, small_tokenizer, snapshot, write_jsonl

from ingest.corpus import Records, everything
from ingest.error_limit import TooManyErrors
from ingest.index_content import Content
from ingest.job import run_job
from ingest.settings import NewIndex
from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.hidden_index import LARGEST
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import IndexMeta, existing_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.index.sparse_scale import MEASURED_ON, SCALE
from opensearch_neural.query_encoder import QueryEncoder

MINILM = "all-MiniLM-L6-v2"
TWENTY = records(20)
COLUMNS = ("_id", "title", "text", "url", "year")
# As a table has them: null where a record has no value.
ROWS = [{name: record.get(name) for name in COLUMNS} for record in TWENTY]


def as_jsonl() -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in TWENTY)


def as_table(delimiter: str) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(TWENTY)
    return buffer.getvalue().encode()


def beir(folder: Path) -> Path:
    (folder / "beir").mkdir()
    (folder / "beir" / "corpus.jsonl").write_bytes(as_jsonl())
    return folder / "beir"


def jsonl(folder: Path) -> Path:
    (folder / "docs.jsonl").write_bytes(as_jsonl())
    return folder / "docs.jsonl"


def gzipped(folder: Path) -> Path:
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress(as_jsonl()))
    return folder / "docs.jsonl.gz"


def zstandard(folder: Path) -> Path:
    import zstandard

    (folder / "docs.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(as_jsonl()))
    return folder / "docs.jsonl.zst"


def comma(folder: Path) -> Path:
    (folder / "docs.csv").write_bytes(as_table(","))
    return folder / "docs.csv"


def tab(folder: Path) -> Path:
    (folder / "docs.tsv").write_bytes(as_table("\t"))
    return folder / "docs.tsv"


def parquet(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "docs.parquet")
    return folder / "docs.parquet"


def hugging_face(folder: Path) -> Path:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return folder / "saved"


@pytest.mark.parametrize("form", [beir, jsonl, gzipped, zstandard, comma, tab, parquet, hugging_face])
def test_every_kind_of_corpus_ends_in_the_same_index(client, index_name: str, tmp_path: Path, form: Any) -> None:
    report = run_job(client, job(form(tmp_path), index_name), show_progress=False)
    assert (report.documents, report.letters, report.dead_letters) == (20, 0, None)
    found = snapshot(client, index_name)
    assert found.keys() == {record["_id"] for record in TWENTY}
    for record in TWENTY:
        source = found[record["_id"]]
        assert source.pop("sparse") and source.pop("sparse_forward")
        expected = {key: value for key, value in record.items() if key != "_id"}
        if form in (comma, tab):
            expected["year"] = str(expected["year"])  # csv knows no numbers
        assert source == expected


def test_a_new_index_is_as_the_schema_says_and_left_as_a_cluster_would_have_it(
    client, index_name: str, tmp_path: Path
) -> None:
    settings = job(jsonl(tmp_path), index_name, replicas=2, shards=3, analyzer="standard", store_vectors=False)
    run_job(client, settings, show_progress=False)
    ((name, index),) = client.indices.get(index=index_name).items()
    assert name == index_name
    meta = IndexMeta.from_mapping(index["mappings"], index_name)
    assert (
        meta.sparse
        and meta.sparse.name == "lexical"
        and meta.analyzer == "standard"
        and meta.extra.keys() == {SCALE, MEASURED_ON, LARGEST, SHARD_DOCUMENTS}
    )
    expected = index_body(meta, shards=3)["mappings"]
    written = index["mappings"]
    assert written["_source"]["excludes"] == expected["_source"]["excludes"]
    for field in expected["properties"]:
        assert {**written["properties"][field]}.items() >= {
            key: value if key != "copy_to" else ["contents"] for key, value in expected["properties"][field].items()
        }.items()
    assert index["settings"]["index"]["number_of_replicas"] == "2"
    assert index["settings"]["index"]["number_of_shards"] == "3"
    assert "refresh_interval" not in index["settings"]["index"]
    assert all("sparse" not in source for source in snapshot(client, index_name).values())


def test_while_loading_there_are_neither_replicas_nor_refreshes(
    client, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingest.writing import pipeline

    seen = {}

    def look(*arguments: Any) -> Any:
        seen.update(client.indices.get_settings(index=index_name)[index_name]["settings"]["index"])
        return write_all(*arguments)

    write_all = pipeline._Run.write_all
    monkeypatch.setattr(pipeline._Run, "write_all", look)
    run_job(client, job(jsonl(tmp_path), index_name, replicas=1), show_progress=False)
    assert (seen["number_of_replicas"], seen["refresh_interval"]) == ("0", "-1")
    run_job(client, job(jsonl(tmp_path), f"{index_name}-b", replicas=1, keep_replicas=True), show_progress=False)
    after = client.indices.get_settings(index=f"{index_name}-b")[f"{index_name}-b"]["settings"]["index"]
    assert after["number_of_replicas"] == "1"


def test_an_index_template_decides_how_often_a_new_index_is_refreshed(client, index_name: str, tmp_path: Path) -> None:
    template = {"index_patterns": [f"{index_name}*"], "template": {"settings": {"refresh_interval": "30s"}}}
    client.indices.put_index_template(name=index_name, body=template)
    try:
        broken = write_jsonl(tmp_path / "d.jsonl", [*records(20), "broken"])
        with pytest.raises(TooManyErrors):
            run_job(client, job(broken, index_name, writing={"max_errors": 0}), show_progress=False)
        settings = client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]
        assert settings["refresh_interval"] == "-1", "it is still being loaded"
        run_job(client, job(broken, index_name), show_progress=False)
        settings = client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]
        assert settings["refresh_interval"] == "30s"
    finally:
        client.indices.delete_index_template(name=index_name)


@pytest.mark.parametrize("asked", [{}, {"keep_replicas": True}, {"shards": 1, "replicas": 1}], ids=str)
def test_an_index_template_decides_shards_and_replicas_unless_they_are_asked_for(
    client: Any, index_name: str, tmp_path: Path, asked: dict[str, Any]
) -> None:
    """A template's three shards became one, and its two replicas one, without a word."""

    def has() -> tuple[str, str]:
        settings = client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]
        return settings["number_of_shards"], settings["number_of_replicas"]

    template = {
        "index_patterns": [f"{index_name}*"],
        "template": {"settings": {"number_of_shards": 3, "number_of_replicas": 2}},
    }
    client.indices.put_index_template(name=index_name, body=template)
    try:
        broken = write_jsonl(tmp_path / "d.jsonl", [*records(20), "broken"])
        asked = {"replicas": None, "sparse": "none", **asked}
        with pytest.raises(TooManyErrors):
            run_job(client, job(broken, index_name, writing={"max_errors": 0}, **asked), show_progress=False)
        shards, replicas = ("1", "1") if "shards" in asked else ("3", "2")
        assert has() == (shards, replicas if "keep_replicas" in asked else "0"), "it is still being loaded"
        run_job(client, job(broken, index_name, **asked), show_progress=False)
        assert has() == (shards, replicas)
    finally:
        client.indices.delete_index_template(name=index_name)


def test_sparse_and_dense_vectors_find_documents(client, index_name: str, tmp_path: Path, osn_home: Path) -> None:
    texts = {"sky": "Droplets refract sunlight into an arc of colours.", "cake": "Beat the eggs, then fold in flour."}
    corpus = write_jsonl(tmp_path / "d.jsonl", ({"_id": id, "text": text} for id, text in texts.items()))
    settings = job(corpus, index_name, dense=MINILM, dense_type="byte", tokenizer=None)
    run_job(client, settings, show_progress=False)
    (model,) = (osn_home / "models").glob("lexical-*")
    tokens = QueryEncoder.load(model).encode("sunlight")
    assert [
        hit["_id"]
        for hit in client.search(index=index_name, body=queries.neural_sparse(tokens, plugin=False))["hits"]["hits"]
    ] == ["sky"]
    source = snapshot(client, index_name)["cake"]
    assert len(source["dense"]) == 384 and all(isinstance(number, int) for number in source["dense"])


def test_a_number_of_replicas_that_the_cluster_refuses_can_be_corrected(
    client, index_name: str, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match="maximum shards open"):
        run_job(client, job(jsonl(tmp_path), index_name, replicas=900_000), show_progress=False)
    assert run_job(client, job(jsonl(tmp_path), index_name, replicas=0), show_progress=False).documents == 20
    settings = client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]
    assert settings["number_of_replicas"] == "0" and "refresh_interval" not in settings


def test_a_load_with_replicas_that_goes_on_gets_another_number_of_them(client, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(100), "broken"])
    begun = job(corpus, index_name, replicas=1, keep_replicas=True, sparse="none", writing={"max_errors": 0})
    with pytest.raises(TooManyErrors):
        run_job(client, begun, show_progress=False)
    more = replace(begun, writing=replace(begun.writing, max_errors=1))
    with pytest.raises(InputError, match="without --shards 3") as refused:
        run_job(client, replace(more, new_index=NewIndex(shards=3)), show_progress=False)
    assert refused.value.remedy and f"`osn index abort {index_name}`" in refused.value.remedy
    assert run_job(client, replace(more, new_index=NewIndex(replicas=2)), show_progress=False).documents == 100
    assert client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]["number_of_replicas"] == "2"


def test_of_an_unfinished_build_the_remedy_begins_another(client, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(100), "broken"])
    begun = replace(job(corpus, "", sparse="none", writing={"max_errors": 0}), alias=index_name)
    with pytest.raises(TooManyErrors):
        run_job(client, begun, show_progress=False)
    other = replace(begun, new_index=NewIndex(shards=3, replicas=0))
    with pytest.raises(InputError, match="without --shards 3") as refused:
        run_job(client, other, show_progress=False)
    assert refused.value.remedy and refused.value.remedy.endswith("(--restart)")
    with pytest.raises(ModelError, match="holds no sparse vectors") as refused_model:
        run_job(client, replace(begun, models=job(corpus, "").models), show_progress=False)
    assert refused_model.value.remedy == "leave out --sparse, or give --restart to begin another build"
    again = replace(other, writing=replace(other.writing, restart=True, max_errors=1))
    assert run_job(client, again, show_progress=False).documents == 100


def test_without_models_the_index_serves_bm25(client, index_name: str, tmp_path: Path) -> None:
    run_job(client, job(jsonl(tmp_path), index_name, sparse="none"), show_progress=False)
    mapping = client.indices.get_mapping(index=index_name)[index_name]["mappings"]
    assert "sparse" not in mapping["properties"]
    assert (
        client.search(index=index_name, body=queries.bm25(TWENTY[0]["text"]))["hits"]["hits"][0]["_id"]
        == "doc-0-000000"
    )


def test_no_index_is_made_while_the_cluster_does_not_tell_its_release(
    client, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects would be mapped as for an old release, and a mapping stays."""
    slow = Capabilities(notes={"version": "no answer in time", "plugins": "no answer in time"})
    monkeypatch.setattr("ingest.job.quick_capabilities", lambda client: slow)
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "1", "text": "rain", "more": {"of": "it"}}])
    with pytest.raises(ClusterError, match="did not tell its release, which decides how objects are mapped: no answer"):
        run_job(client, job(corpus, index_name, sparse="none"), show_progress=False)
    assert not client.indices.exists(index=index_name)


def test_twice_the_same_command_changes_nothing(client, index_name: str, tmp_path: Path) -> None:
    settings = job(jsonl(tmp_path), index_name)
    run_job(client, settings, show_progress=False)
    before = snapshot(client, index_name)
    assert run_job(client, settings, show_progress=False).documents == 20
    assert snapshot(client, index_name) == before


def lose(client: Any, patch: pytest.MonkeyPatch, index: str, id: str, *, times: int = 1) -> None:
    """Have a document disappear after OpenSearch has acknowledged it, before it is looked for."""
    from ingest.writing import stored_documents

    count, look_up, left = stored_documents.count, stored_documents.missing_ids, [times]

    def delete() -> None:
        if left[0]:
            left[0] -= 1
            client.delete(index=index, id=id, params={"refresh": "true", "ignore": 404})

    def count_later(*arguments: Any) -> Any:
        delete()
        return count(*arguments)

    def look_up_later(*arguments: Any) -> Any:
        delete()
        return look_up(*arguments)

    patch.setattr(stored_documents, "count", count_later)
    patch.setattr(stored_documents, "missing_ids", look_up_later)


@pytest.mark.parametrize("existing", [False, True], ids=["a new index", "an index with other documents"])
def test_what_was_acknowledged_and_is_lost_is_written_again(
    client,
    index_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    existing: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if existing:
        run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    corpus = write_jsonl(tmp_path / "more.jsonl", records(20, seed=1))
    with monkeypatch.context() as patch, caplog.at_level("WARNING", "ingest"):
        # A new index is counted before it is written, too, and then has no document to lose.
        lose(client, patch, index_name, "doc-1-000007", times=1 if existing else 2)
        run_job(client, job(corpus, index_name), show_progress=False)
    assert f"1 document that '{index_name}' had acknowledged was not in it" in caplog.messages
    found = snapshot(client, index_name)
    assert len(found) == (40 if existing else 20)
    assert found["doc-1-000007"]["sparse"]


def test_what_is_lost_is_written_again_even_if_its_id_is_among_the_dead_letters(
    client, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id occurs twice, so its second document is a letter; another letter is refused once more and keeps nothing up."""
    lines = [*records(20), {"_id": "doc-0-000007", "text": "the same id"}, {"_id": "x", "text": "rain", "year": "MCM"}]
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    with monkeypatch.context() as patch:
        lose(client, patch, index_name, "doc-0-000007")
        report = run_job(client, job(corpus, index_name), show_progress=False)
    assert (report.documents, report.letters) == (20, 2)
    found = snapshot(client, index_name)
    assert found.keys() == {record["_id"] for record in records(20)}
    assert found["doc-0-000007"]["text"] == records(20)[7]["text"]


def test_an_index_that_keeps_losing_documents_is_not_called_complete(
    client, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        lose(client, patch, index_name, "doc-0-000007", times=9)
        with pytest.raises(ClusterError, match="lacks 1 documents"):
            run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    settings = client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]
    assert settings["refresh_interval"] == "-1", "an incomplete index is still set up for loading"
    assert run_job(client, job(jsonl(tmp_path), index_name), show_progress=False).documents == 20
    assert len(snapshot(client, index_name)) == 20


def test_an_index_deleted_under_way_is_noticed(
    client, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingest.writing import pipeline

    def delete_first(self: Any, *arguments: Any) -> None:
        client.indices.delete(index=index_name)
        write_all(self, *arguments)

    write_all = pipeline._Run.write_all
    monkeypatch.setattr(pipeline._Run, "write_all", delete_first)
    with pytest.raises(ClusterError, match="deleted or replaced"):
        run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)


def test_an_index_that_osn_did_not_write_is_left_alone(client, index_name: str, tmp_path: Path) -> None:
    client.indices.create(index=index_name, body={"mappings": {"properties": {"text": {"type": "text"}}}})
    with pytest.raises(ModelError, match="was not written by osn"):
        run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    assert client.count(index=index_name)["count"] == 0


def test_another_model_is_refused_and_both_are_named(client, index_name: str, tmp_path: Path, osn_home: Path) -> None:
    run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    (first,) = (osn_home / "models").glob("lexical-*")
    other_corpus = write_jsonl(tmp_path / "other.jsonl", records(30, seed=5))
    run_job(client, job(other_corpus, f"{index_name}-other"), show_progress=False)
    (second,) = set((osn_home / "models").glob("lexical-*")) - {first}
    with pytest.raises(ModelError) as error:
        run_job(client, job(other_corpus, index_name, sparse=str(second)), show_progress=False)
    hashes = [folder.name.removeprefix("lexical-") for folder in (first, second)]
    assert all(hash in error.value.message for hash in hashes) and "lexical" in error.value.message
    assert error.value.remedy and "--index" in error.value.remedy
    assert len(snapshot(client, index_name)) == 20


def test_vectors_that_are_missing_or_too_many_are_refused(client, index_name: str, tmp_path: Path) -> None:
    run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    with pytest.raises(ModelError, match="holds sparse vectors, and this ingest brings none"):
        run_job(client, job(jsonl(tmp_path), index_name, sparse="none"), show_progress=False)
    with pytest.raises(ModelError, match="does not hold dense vectors, and this ingest brings them"):
        run_job(client, job(jsonl(tmp_path), index_name, dense=MINILM), show_progress=False)


def test_another_corpus_into_an_existing_index_is_encoded_by_the_model_that_wrote_it(
    client, index_name: str, tmp_path: Path
) -> None:
    run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    more = write_jsonl(tmp_path / "more.jsonl", records(20, seed=1))
    before = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["_meta"]
    run_job(client, job(more, index_name), show_progress=False)
    assert client.indices.get_mapping(index=index_name)[index_name]["mappings"]["_meta"] == before
    assert len(snapshot(client, index_name)) == 40


def test_the_lexical_model_is_made_again_where_the_cache_was_cleared(
    client, index_name: str, tmp_path: Path, osn_home: Path
) -> None:
    import shutil

    corpus = jsonl(tmp_path)
    run_job(client, job(corpus, index_name), show_progress=False)
    shutil.rmtree(osn_home)
    assert run_job(client, job(corpus, index_name), show_progress=False).documents == 20
    shutil.rmtree(osn_home)
    with pytest.raises(ModelError, match="is not on this machine"):
        run_job(client, job(write_jsonl(tmp_path / "x.jsonl", records(9, seed=9)), index_name), show_progress=False)


def test_what_is_wrong_in_a_corpus_costs_its_record_and_is_kept(client, index_name: str, tmp_path: Path) -> None:
    lines = [
        {"_id": "good", "text": "rain and sun"},
        '{"_id": "torn", "text": ',
        {"_id": "good", "text": "the same id again"},
        {"_id": "empty", "text": " "},
        b'{"_id": "utf", "text": "\xff\xfe"}',
        {"_id": "x" * 600, "text": "a long id"},
        {"_id": "conflict", "text": "a field of another type", "year": "nineteen hundred"},
        {"_id": "last", "text": "sun", "year": 1900},
    ]
    # The type of `year` is decided by the first document that has it.
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "first", "text": "rain", "year": 1}, *lines])
    settings = job(corpus, index_name, writing={"batch_documents": 4, "writers": 1})
    report = run_job(client, settings, show_progress=False)
    assert set(snapshot(client, index_name)) == {"first", "good", "last"}
    assert (report.documents, report.letters) == (3, 6)
    assert report.dead_letters == Path(f"{index_name}.dead-letters.jsonl")
    told = {letter["line"]: letter for letter in letters(report.dead_letters)}
    assert {line: letter["reason"].split(":")[0].split(" (")[0] for line, letter in told.items()} == {
        3: "not JSON",
        4: "the id 'good' occurs twice",
        5: "text and title are both empty",
        6: "invalid UTF-8 at byte 25 of the line",
        7: "the id",
        8: "failed to parse field [year] of type [double] in document with id 'conflict'. Preview of field's value",
    }
    assert told[8]["status"] == 400 and told[8]["document"]["_id"] == "conflict"
    assert told[4]["document"] == {"_id": "good", "title": "", "text": "the same id again"}
    assert told[3]["raw"] == lines[1]
    assert all(letter["file"] == str(corpus) for letter in told.values())


def test_mended_letters_can_be_ingested(client, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(
        tmp_path / "d.jsonl",
        [
            {"_id": "a", "text": "rain", "year": 1},
            {"_id": "b", "text": "sun", "year": "x"},
            '{"_id": "c", "text": "glass"',
            "gone for good",
        ],
    )
    first = run_job(client, job(corpus, index_name), show_progress=False)
    assert first.dead_letters and first.letters == 3
    mended = letters(first.dead_letters)
    mended.sort(key=lambda letter: letter["line"])
    mended[0]["document"]["year"] = 2
    mended[1]["raw"] += "}"
    write_jsonl(first.dead_letters, mended)
    second = run_job(client, job(first.dead_letters, index_name), show_progress=False)
    assert set(snapshot(client, index_name)) == {"a", "b", "c"}
    # What is still not right goes into another file, under the place where it came from.
    assert second.dead_letters == Path(f"{index_name}.dead-letters.2.jsonl") and second.letters == 1
    (left,) = letters(second.dead_letters)
    assert (left["file"], left["line"], left["raw"]) == (str(corpus), 4, "gone for good")
    with pytest.raises(InputError, match="is the corpus"):
        run_job(client, job(first.dead_letters, index_name, dead_letters=first.dead_letters), show_progress=False)


def test_too_many_errors_stop_the_run_and_a_higher_limit_continues_it(client, index_name: str, tmp_path: Path) -> None:
    lines: list[Any] = records(400)
    for number in range(100, 160):
        lines[number] = "broken"
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    settings = job(corpus, index_name, writing={"max_errors": 20})
    with pytest.raises(TooManyErrors, match="more than --max-errors 20"):
        run_job(client, settings, show_progress=False)
    more = replace(settings, writing=replace(settings.writing, max_errors=60))
    report = run_job(client, more, show_progress=False)
    assert report.skipped > 0
    assert (report.documents, report.letters) == (340, 60)
    assert len(letters(Path(f"{index_name}.dead-letters.jsonl"))) == 60


@pytest.mark.parametrize(("good", "limit", "read"), [(2000, 20, 21), (2000, 0.02, 41), (2000, 0.5, 2001), (0, 20, 21)])
def test_of_a_corpus_of_bad_records_no_more_is_read_than_the_limit_allows(
    client, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int, limit: float, read: int
) -> None:
    """Rejected records wait for the next document, and of records without ids there is none."""
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(good, words=3), *[{"text": "no id"}] * 5000])
    settings = job(corpus, index_name, sparse="none", writing={"max_errors": limit, "batch_documents": 500})
    rejected: list[Rejected] = []

    def watched(records: Records, *more: Any) -> Iterator[Document | Rejected]:
        def watching(on_reject: Callable[[Rejected], None]) -> Iterator[Document]:
            def reject(record: Rejected) -> None:
                rejected.append(record)
                on_reject(record)

            return records(reject)

        return everything(watching, *more)

    for module in ("ingest.writing.pipeline", "ingest.job"):
        monkeypatch.setattr(f"{module}.everything", watched)
    for new in (not good, False):
        rejected.clear()
        with pytest.raises(TooManyErrors, match="more than --max-errors"):
            run_job(client, settings, show_progress=False)
        # Before an empty index is made, one record is looked at.
        assert len(rejected) == (1 + read if new else read)
    told = letters(Path(f"{index_name}.dead-letters.jsonl"))
    first = good + 1 if good else 1001  # the names of fields are looked for in the first thousand
    assert [letter["line"] for letter in told] == list(range(first, first + read))


def test_a_changed_corpus_is_not_half_skipped(client, index_name: str, tmp_path: Path) -> None:
    lines: list[Any] = records(300)
    corpus = write_jsonl(tmp_path / "d.jsonl", [*lines[:250], *["broken"] * 50])
    settings = job(corpus, index_name, writing={"max_errors": 0})
    with pytest.raises(TooManyErrors):
        run_job(client, settings, show_progress=False)
    # Only the text of one document, its id is the same.
    lines[10]["text"] = "prism"
    write_jsonl(corpus, lines)
    with pytest.raises(InputError, match=r"records 1 to 50 differ") as error:
        run_job(client, settings, show_progress=False)
    assert error.value.remedy and "--restart" in error.value.remedy
    again = replace(settings, writing=replace(settings.writing, restart=True))
    assert run_job(client, again, show_progress=False).documents == 300
    assert snapshot(client, index_name)["doc-0-000010"]["text"] == "prism"


def test_batches_are_bounded_by_their_text_too(client, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(40, words=50))
    settings = job(corpus, index_name, sparse="none", writing={"batch_bytes": 1000})
    from ingest.writing import pipeline

    sizes = []

    class Counted:
        def vectors(self, documents: Any) -> Any:
            from ingest.vectorizers import Vectors

            sizes.append(len(documents))
            return Vectors()

    from ingest.writing.target import open_target

    target = open_target(client, index_name, IndexMeta(), NewIndex(replicas=0), corpus_name="c")
    pipeline.ingest(
        client,
        target,
        Content(target.meta, settings.corpus.reader(str(corpus)), Counted(), None),
        pipeline.CorpusOfRun("c", "", tmp_path / "dead.jsonl"),
        writing=settings.writing,
        show_progress=False,
    )
    assert sum(sizes) == 40 and max(sizes) <= 6


class Recorded:
    """A vectorizer that makes nothing, notes what it is given, and refuses texts with a word that it does not know."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.interrupt_at: int | None = None

    def vectors(self, documents: Any) -> Any:
        from ingest.vectorizers import Vectors

        if any("glass" in document.text for document in documents):
            raise ModelError("not finite")
        if len(self.given) == self.interrupt_at:
            raise KeyboardInterrupt
        self.given.append(len(documents))
        return Vectors()


def test_batches_that_are_encoded_at_once_are_written_and_journalled_apart(
    client, index_name: str, tmp_path: Path
) -> None:
    from ingest.writing import pipeline
    from ingest.writing.target import open_target

    lines: list[Any] = [{"_id": str(n), "text": "rain"} for n in range(100)]
    lines[13]["text"] = "glass"  # in the second batch
    lines[25] = {"_id": "24", "text": "an id again"}  # in the third
    lines[27] = "torn {"
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    settings = job(corpus, index_name, writing={"batch_documents": 10})
    target = open_target(client, index_name, IndexMeta(), NewIndex(replicas=0), corpus_name="c")
    vectorizer = Recorded()

    def write() -> Any:
        return pipeline.ingest(
            client,
            target,
            Content(target.meta, settings.corpus.reader(str(corpus)), vectorizer, None, pads=True),
            pipeline.CorpusOfRun("c", "", tmp_path / "dead.jsonl"),
            writing=settings.writing,
            show_progress=False,
        )

    vectorizer.interrupt_at = 6
    with pytest.raises(KeyboardInterrupt):
        write()
    # Three batches at once, in halves where one document cannot be encoded; then three more, and the interrupt.
    assert vectorizer.given == [7, 3, 2, 1, 14, 30]
    # Two of these may not have been sent yet.
    before = len(snapshot(client, index_name))
    assert 37 <= before <= 57
    vectorizer.interrupt_at = None
    report = write()
    assert sum(vectorizer.given) == 97 + (57 - before), "nothing that was written is encoded again"
    assert (report.documents, report.letters, report.skipped) == (97, 3, before)
    assert {letter["line"]: letter["reason"].split(":")[0] for letter in letters(tmp_path / "dead.jsonl")} == {
        14: "cannot be encoded",
        26: "the id '24' occurs twice",
        28: "not JSON",
    }
    assert len(snapshot(client, index_name)) == 97


def test_the_dtype_is_that_of_the_sparse_models_network(
    client, cluster_url: str, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from ingest.commands.ingest import ingest
    from opensearch_neural.models.sparse import encoder as sparse

    asked = []

    def load(name: str, **options: Any) -> Any:
        asked.append(options["dtype"])
        raise ModelError("far enough")

    monkeypatch.setattr(sparse, "load_sparse", load)
    model = tmp_path / "model"
    model.mkdir()
    (model / "idf.json").write_text('{"rain": 2.0}')
    arguments = ["--url", cluster_url, "--corpus", str(jsonl(tmp_path)), "--index", index_name, "--sparse", str(model)]
    CliRunner().invoke(ingest, arguments)
    CliRunner().invoke(ingest, [*arguments, "--dtype", "bf16"])
    assert asked == ["fp32", "bf16"]


def test_an_index_name_that_opensearch_refuses_is_no_traceback(client, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="must be lowercase"):
        run_job(client, job(jsonl(tmp_path), "Upper"), show_progress=False)


def test_nothing_is_logged_as_lost_when_nothing_is(
    client, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ingest"):
        run_job(client, job(jsonl(tmp_path), index_name), show_progress=False)
    assert caplog.records == []


def test_own_fields_are_mapped_as_is_said_and_what_will_clash_is_named(
    client, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"_id": "1", "text": "rain", "size": 1, "price": 10}, {"_id": "2", "text": "sun", "size": "large"}]
    corpus = write_jsonl(tmp_path / "docs.jsonl", rows)
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"price": {"type": "scaled_float", "scaling_factor": 100}}')
    report = run_job(client, job(corpus, index_name, sparse="none", mapping=mapping), show_progress=False)
    assert "the field 'size' holds numbers (first in '1') and strings (first in '2')" in caplog.text
    assert report.letters == 1
    properties = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    assert properties["price"]["type"] == "scaled_float" and properties["size"]["type"] == "double"


def test_without_a_sparse_model_bm25_alone_is_written(
    client, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", [{"_id": "1", "text": "สวัสดี ชาวโลก"}, {"_id": "2", "text": "ฝนตก"}])
    settings = job(corpus, index_name, sparse=None, tokenizer=None, analyzer="standard")
    with caplog.at_level(logging.INFO, "ingest"):
        report = run_job(client, settings, show_progress=False)
    assert (report.documents, report.letters) == (2, 0)
    assert sum("--sparse MODEL" in line and "osn model list" in line for line in caplog.messages) == 1
    assert existing_record(client, index_name).sparse is None
    assert "sparse" not in client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    answer = client.search(index=index_name, body=queries.bm25("สวัสดี"))
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["1"]
    caplog.clear()
    assert run_job(client, settings, show_progress=False).documents == 2
    assert "osn model list" not in caplog.text, "it is said of a new index"
    with pytest.raises(InputError, match="no token to count"):
        run_job(client, job(corpus, f"{index_name}-b"), show_progress=False)


def test_an_index_keeps_its_sparse_model_where_none_is_named(client, index_name: str, tmp_path: Path) -> None:
    corpus = jsonl(tmp_path)
    run_job(client, job(corpus, index_name), show_progress=False)
    wrote = existing_record(client, index_name).sparse
    more = write_jsonl(tmp_path / "more.jsonl", records(5, seed=5))
    run_job(client, job(more, index_name, sparse=None, tokenizer=None), show_progress=False)
    assert existing_record(client, index_name).sparse == wrote is not None
    assert all(source["sparse"] for source in snapshot(client, index_name).values())


def test_documents_without_a_word_of_the_vocabulary_are_counted_and_found_by_bm25(
    osn: Any, client, index_name: str, tmp_path: Path
) -> None:
    """Before, they had no sparse vector, and nobody said so."""
    thai = [{"_id": f"thai-{n}", "text": text} for n, text in enumerate(("สวัสดี ชาวโลก", "ฝนตก", "🌧 🌈"))]
    corpus = write_jsonl(tmp_path / "docs.jsonl", [*records(20), *thai])
    arguments = ["--sparse", "lexical", "--tokenizer", small_tokenizer(), "--analyzer", "standard", "--replicas", "0"]
    command = ["ingest", "--corpus", str(corpus), "--index", index_name, *arguments]
    ran = osn(*command)
    assert "3 documents in it have no word of the sparse model's vocabulary" in ran.stdout, ran.stderr
    assert json.loads(osn(*command, "--json").stdout)["without_tokens"] == 3, "of the index, though nothing was encoded"
    for query, id in (("สวัสดี", "thai-0"), ("🌈", "thai-2")):
        hits = json.loads(osn("search", "--index", index_name, "--engine", "bm25-sparse", "--json", query).stdout)[
            "hits"
        ]
        assert [hit["id"] for hit in hits] == [id]
    assert osn("documents", "delete", "--index", index_name, "thai-1").returncode == 0
    assert "no token    2 of them" in osn("index", "inspect", index_name).stdout
    assert json.loads(osn("index", "inspect", index_name, "--json").stdout)["without_tokens"] == 2
    hits = json.loads(osn("search", "--index", index_name, "--engine", "sparse", "--json", "rain").stdout)["hits"]
    assert hits and not {hit["id"] for hit in hits} & {"thai-0", "thai-2"}
