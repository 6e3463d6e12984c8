"""`osn encode` and `osn ingest --vectors`: the same index as with models, without loading one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import TEXT, job, letters, parts_of, records, small_tokenizer, snapshot, write_jsonl

from ingest.corpus import CorpusSource
from ingest.error_limit import TooManyErrors
from ingest.job import run_job
from ingest.settings import Models
from ingest.vectorizers import Encoders
from ingest.vectors import encode_corpus
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.vectors.stored_vectors import Manifest, StoredVectors, find_manifest
from opensearch_neural.corpus.documents import Document
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.hidden_index import LARGEST, read_largest
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.index.sparse_scale import MEASURED_ON, SCALE
from opensearch_neural.models.sparse.lexical import LexicalEncoder

MINILM = "all-MiniLM-L6-v2"


def encoding(corpus: Path | str, out: Path, **settings: Any) -> EncodeJob:
    source = CorpusSource(str(corpus))
    settings = {"sparse": "lexical", "tokenizer": small_tokenizer(), "shard_records": 64, **settings}
    return EncodeJob(source, out, **parts_of(settings))


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("passages", [None, PassageMeta(5, 3)], ids=["documents", "passages"])
def test_an_index_from_files_is_that_from_models(
    client: Any, index_name: str, tmp_path: Path, passages: PassageMeta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = records(300)
    lines[100:100] = ["torn", {"_id": "doc-0-000003", "text": "the same id"}]
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    with_models = run_job(client, job(corpus, f"{index_name}-m", passages=passages), show_progress=False)
    encoded = run_encode(encoding(corpus, tmp_path / "v", passages=passages), show_progress=False)
    # A repeated id is seen before a document is split, and else only when it is written.
    assert (encoded.rejected, encoded.unfit) == (1 if passages is None else 2, 0)

    def no_model(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("a document was encoded")

    monkeypatch.setattr(LexicalEncoder, "encode_documents", no_model)
    settings = job(corpus, f"{index_name}-v", tokenizer=None, vectors=tmp_path / "v")
    from_files = run_job(client, replace(settings, corpus=None), show_progress=False)
    assert (from_files.documents, from_files.letters) == (with_models.documents, with_models.letters)
    assert snapshot(client, f"{index_name}-v") == snapshot(client, f"{index_name}-m")
    mappings = [
        client.indices.get_mapping(index=f"{index_name}-{kind}")[f"{index_name}-{kind}"]["mappings"] for kind in "mv"
    ]
    # The scale of the sparse scores is measured on a sample, which the order of writing decides.
    scales = [mapping["_meta"]["osn"].pop(SCALE) for mapping in mappings]
    assert scales[0] == pytest.approx(scales[1], rel=0.1)
    assert mappings[0]["_meta"]["osn"][MEASURED_ON] == with_models.documents
    kept = [read_largest(client, mapping["_meta"]["osn"].pop(LARGEST)) for mapping in mappings]
    assert kept[0] is not None and kept[1] is not None and kept[0].weights == kept[1].weights
    assert mappings[0] == mappings[1]
    told = [letters(Path(f"{index_name}-{kind}.dead-letters.jsonl")) for kind in "mv"]
    assert told[0] == told[1] != []


def test_dense_vectors_too_in_every_type(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_encode(encoding(corpus, tmp_path / "v", dense=MINILM, sparse="none", tokenizer=None), show_progress=False)
    for type in ("float", "byte"):
        plain: dict[str, Any] = {"tokenizer": None, "dense_type": type}
        run_job(client, job(corpus, f"{index_name}-m{type}", dense=MINILM, sparse="none", **plain), show_progress=False)
        run_job(client, job(corpus, f"{index_name}-v{type}", vectors=tmp_path / "v", **plain), show_progress=False)
        one, other = (snapshot(client, f"{index_name}-{kind}{type}") for kind in "mv")
        assert one.keys() == other.keys()
        for id in one:
            assert one[id]["dense"] == pytest.approx(other[id]["dense"], abs=1e-4 if type == "float" else 1)


def test_vectors_of_passages_are_not_written_beside_whole_documents_nor_the_reverse(
    client: Any, index_name: str, tmp_path: Path, osn_home: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    run_job(client, job(corpus, f"{index_name}-whole"), show_progress=False)
    (model,) = (osn_home / "models").glob("lexical-*")
    split = {"sparse": str(model), "tokenizer": None, "passages": PassageMeta(5, 3)}
    run_job(client, job(corpus, f"{index_name}-split", **split), show_progress=False)
    before = [snapshot(client, f"{index_name}-{kind}") for kind in ("whole", "split")]
    run_encode(encoding(corpus, tmp_path / "split", **split), show_progress=False)
    run_encode(encoding(corpus, tmp_path / "whole", **{**split, "passages": None}), show_progress=False)
    for kind, vectors, told in (
        ("whole", "split", "holds whole documents, and this ingest brings passages of 5:3 tokens"),
        ("split", "whole", "holds passages of 5:3 tokens, and this ingest brings whole documents"),
    ):
        with pytest.raises(ModelError, match=told):
            run_job(client, job(corpus, f"{index_name}-{kind}", vectors=tmp_path / vectors), show_progress=False)
    assert [snapshot(client, f"{index_name}-{kind}") for kind in ("whole", "split")] == before


def test_on_a_machine_without_the_model_the_index_can_be_searched(
    client: Any, index_name: str, tmp_path: Path, osn_home: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(50))
    run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    shutil.rmtree(osn_home)
    run_job(client, job(corpus, index_name, tokenizer=None, vectors=tmp_path / "v"), show_progress=False)
    body = open_engines(client, index_name).body("sparse", records(50)[7]["text"], size=1)
    assert client.search(index=index_name, body=body)["hits"]["hits"][0]["_id"] == "doc-0-000007"


def test_killed_at_any_shard_the_files_end_as_if_undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(500), "torn"])
    undisturbed = run_encode(encoding(corpus, tmp_path / "a"), show_progress=False)
    assert undisturbed.shards == 8

    class Killed(BaseException):
        pass

    encoded = []
    whole = encode_corpus.write_shard

    def killed(path: Path, content: bytes) -> None:
        if len(encoded) in (0, 1, 5):
            encoded.append("killed")
            # As a kill leaves it: a part of the file under another name.
            (path.parent / f".{path.name}.x").write_bytes(content[:100])
            raise Killed
        encoded.append(path.name)
        whole(path, content)

    monkeypatch.setattr("ingest.vectors.encode_corpus.write_shard", killed)
    for _ in range(3):
        with pytest.raises(Killed):
            run_encode(encoding(corpus, tmp_path / "b"), show_progress=False)
        with pytest.raises(InputError, match="not complete"):
            StoredVectors(*find_manifest(tmp_path / "b"))
    last = run_encode(encoding(corpus, tmp_path / "b"), show_progress=False)
    assert last.reused == 3 and len(encoded) == 8 + 3
    left = {name: content for name, content in written(tmp_path / "b").items() if not Path(name).name.startswith(".")}
    assert left == written(tmp_path / "a")


def test_a_run_that_is_complete_encodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(100))
    first = run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    monkeypatch.setattr(Encoders, "vectors", None)
    second = run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    assert (second.reused, second.documents, second.manifest) == (2, 100, first.manifest)


def test_a_changed_corpus_is_noticed_when_encoding_and_when_ingesting(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    lines = records(100)
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    # With a given model: a lexical one built anew would be another one, and begin another encoding.
    settings = encoding(corpus, tmp_path / "v", sparse=str(lexical_model(corpus, tmp_path)))
    run_encode(settings, show_progress=False)
    lines[80]["text"] = "prism"
    write_jsonl(corpus, lines)
    with pytest.raises(InputError, match=r"records 65 to 100 differ"):
        run_encode(settings, show_progress=False)
    with pytest.raises(InputError, match=r"d.jsonl, line 81: the document 'doc-0-000080' has no vectors"):
        run_job(client, job(corpus, index_name, tokenizer=None, vectors=tmp_path / "v"), show_progress=False)
    # A corpus that grew is continued.
    write_jsonl(corpus, [*records(100), *records(30, seed=3)])
    grown = run_encode(settings, show_progress=False)
    assert (grown.documents, grown.reused, grown.shards) == (130, 1, 3)


def lexical_model(corpus: Path, folder: Path) -> Path:
    from opensearch_neural.corpus.reader import read_corpus
    from opensearch_neural.models.sparse.lexical import build_lexical

    model = folder / "model"
    build_lexical((document.contents for document in read_corpus(corpus)), tokenizer=small_tokenizer()).save(model)
    return model


def test_what_no_model_can_encode_ends_as_a_dead_letter(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(100))
    prism_is_not_finite(monkeypatch)
    encoded = run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    assert 0 < encoded.unfit < 50 and encoded.documents == 100 - encoded.unfit
    report = run_job(client, job(corpus, index_name, tokenizer=None, vectors=tmp_path / "v"), show_progress=False)
    assert report.letters == encoded.unfit
    assert report.dead_letters
    for letter in letters(report.dead_letters):
        assert "prism" in letter["document"]["text"] + letter["document"]["title"]
        assert letter["reason"] == "cannot be encoded: not finite"


def prism_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fails on every text with the word."""
    encode = LexicalEncoder.encode_documents

    def choosy(self: Any, texts: Any, **more: Any) -> Any:
        if any("prism" in text for text in texts):
            raise ModelError("not finite")
        return encode(self, texts, **more)

    monkeypatch.setattr(LexicalEncoder, "encode_documents", choosy)


@pytest.mark.parametrize("passages", [None, PassageMeta(5, 3)], ids=["documents", "passages"])
def test_what_has_no_vectors_is_in_the_dead_letter_file_once_and_can_be_encoded_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passages: PassageMeta | None
) -> None:
    lines: list[Any] = records(200)
    lines[100:100] = ["torn"]
    settings = encoding(write_jsonl(tmp_path / "d.jsonl", lines), tmp_path / "v", passages=passages)
    prism_is_not_finite(monkeypatch)
    for again in (False, True):
        encoded = run_encode(settings, show_progress=False)
        assert encoded.dead_letters == tmp_path / "v" / "encode.dead-letters.jsonl"
        told = letters(encoded.dead_letters)
        assert (encoded.rejected, len(told)) == (1, 1 + encoded.unfit) and encoded.unfit > 1
        assert (encoded.reused == encoded.shards) == again
    assert {letter["reason"] for letter in told if "document" in letter} == {"cannot be encoded: not finite"}
    assert [letter["raw"] for letter in told if "raw" in letter] == ["torn"]
    file = encoded.dead_letters
    file.write_text(file.read_text().replace("prism", "cube").replace('"torn"', '{"_id": "t", "text": "whole"}'))
    mended = run_encode(encoding(file, tmp_path / "w", passages=passages), show_progress=False)
    assert (mended.documents, mended.dead_letters) == (len(told), None)


@pytest.mark.parametrize("most", [20, 0.1])
def test_more_errors_than_are_allowed_end_the_encoding_and_a_higher_limit_continues_it(
    tmp_path: Path, most: float
) -> None:
    lines: list[Any] = records(1200)
    lines[600:600] = ["torn"] * 150
    settings = encoding(write_jsonl(tmp_path / "d.jsonl", lines), tmp_path / "v", max_errors=most)
    told = rf"{'150' if most == 0.1 else '21'} documents were rejected, more than --max-errors "
    with pytest.raises(TooManyErrors, match=told):
        run_encode(settings, show_progress=False)
    encoded = run_encode(replace(settings, max_errors=0.2), show_progress=False)
    assert (encoded.documents, encoded.rejected) == (1200, 150) and encoded.reused > 5
    assert len(letters(tmp_path / "v" / "encode.dead-letters.jsonl")) == 150


def test_documents_that_a_model_cannot_encode_count_as_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = encoding(write_jsonl(tmp_path / "d.jsonl", records(200)), tmp_path / "v", max_errors=3)
    prism_is_not_finite(monkeypatch)
    with pytest.raises(
        TooManyErrors, match=r"more than --max-errors 3 allows\n  read the reasons in .*v/encode\.dead-letters"
    ):
        run_encode(settings, show_progress=False)
    assert len(letters(tmp_path / "v" / "encode.dead-letters.jsonl")) > 3


def test_the_command_tells_of_what_has_no_vectors_as_an_ingest_does(
    osn: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(20), "torn"])
    command = ["encode", str(corpus), "--output", "v", "--sparse", "lexical", "--tokenizer", small_tokenizer()]
    ran = osn(*command)
    assert ran.returncode == 3 and "1 records have no vectors: see v/encode.dead-letters.jsonl" in ran.stdout, (
        ran.stderr
    )
    assert len(letters(tmp_path / "v" / "encode.dead-letters.jsonl")) == 1
    ran = osn(*command, "--dead-letters", "own.jsonl", "--max-errors", "0", "--json")
    assert ran.returncode == 1 and "more than --max-errors 0 allows" in ran.stderr
    assert len(letters(tmp_path / "own.jsonl")) == 1
    ran = osn(*command, "--json")
    assert ran.returncode == 3 and json.loads(ran.stdout)["dead_letters"] == "v/encode.dead-letters.jsonl"
    ran = osn(*command, "--dead-letters", str(corpus))
    assert ran.returncode == 1 and "is the corpus; it cannot be the dead-letter file too" in ran.stderr
    assert osn(*command, "--max-errors", "200%").returncode == 1
    model = lexical_model(write_jsonl(tmp_path / "good.jsonl", records(20)), tmp_path)
    write_jsonl(corpus, ["torn"])
    ran = osn("encode", str(corpus), "--output", "w", "--sparse", str(model))
    assert ran.returncode == 1 and "no document was accepted; the first of 1: not JSON" in ran.stderr


def test_documents_are_found_in_any_order(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(300))
    run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    stored = StoredVectors(*find_manifest(tmp_path / "v"), cached=1)
    documents = list(CorpusSource(str(corpus)).reader(str(corpus))(print))
    straight = list(stored.vectors(documents).sparse.rows())  # type: ignore[union-attr]
    backwards = list(stored.vectors(documents[::-1]).sparse.rows())  # type: ignore[union-attr]
    assert straight == backwards[::-1]
    with pytest.raises(InputError, match="'unknown' has no vectors"):
        stored.vectors([Document("unknown", TEXT)])


def test_several_encodings_in_a_folder_must_be_told_apart(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(10))
    with pytest.raises(InputError, match="holds no vectors"):
        find_manifest(tmp_path)
    first = run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    run_encode(encoding(corpus, tmp_path / "v", passages=PassageMeta(4, 4)), show_progress=False)
    with pytest.raises(InputError, match="holds 2 encodings"):
        find_manifest(tmp_path / "v")
    assert find_manifest(first.manifest)[1].passages is None
    settings = job(corpus, index_name, tokenizer=None, vectors=first.manifest)
    assert run_job(client, settings, show_progress=False).documents == 10
    with pytest.raises(InputError, match="--vectors holds finished vectors"):
        run_job(client, replace(settings, models=Models(sparse="lexical")), show_progress=False)
    with pytest.raises(InputError, match="--dtype"):
        run_job(client, replace(settings, models=Models(dtype="bf16")), show_progress=False)


@pytest.mark.parametrize("damage", ["", "{}", '{"format": 99}', '{"format": 1}', "not json"])
def test_a_damaged_manifest_or_shard_is_named(tmp_path: Path, damage: str) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(10))
    encoded = run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    folder, manifest = find_manifest(encoded.manifest)
    (shard,) = (folder / manifest.hash).glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-50])
    with pytest.raises(InputError, match=str(shard)):
        StoredVectors(folder, manifest).vectors([Document("a", "b")])
    encoded.manifest.write_text(damage)
    with pytest.raises(InputError, match=str(encoded.manifest)):
        Manifest.read(encoded.manifest)


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(60))
    ran = osn(
        "encode",
        "--corpus",
        str(corpus),
        "--out",
        "v",
        "--sparse",
        "lexical",
        "--tokenizer",
        small_tokenizer(),
        "--json",
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["documents"] == 60
    ran = osn("ingest", "--vectors", "v", "--index", index_name, "--replicas", "0")
    assert ran.returncode == 0, ran.stderr
    assert f"60 documents in {index_name}, verified" in ran.stdout
    ran = osn("ingest", "--index", index_name)
    assert ran.returncode == 1 and "osn ingest CORPUS …, or give --vectors" in ran.stderr


def test_of_the_options_of_reading_a_limit_counts_beside_vectors_and_what_contradicts_them_is_refused(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(60))
    encoded = encoding(corpus, tmp_path / "v")
    run_encode(replace(encoded, corpus=replace(encoded.corpus, limit=40)), show_progress=False)
    for number, named in enumerate(([], [str(corpus)])):
        index = f"{index_name}-{number}"
        command = ["ingest", *named, "--vectors", "v", "--index", index, "--replicas", "0"]
        ran = osn(*command, "--limit", "41")
        assert ran.returncode == 1 and "only the first 40 documents were encoded" in ran.stderr, ran.stderr
        ran = osn(*command, "--text-field", "title")
        assert ran.returncode == 1, ran.stderr
        assert "--text-field title: the vectors were encoded with the default" in ran.stderr
        assert not client.indices.exists(index=index)
        ran = osn(*command, "--limit", "5")
        assert ran.returncode == 0, ran.stderr
        assert snapshot(client, index).keys() == {record["_id"] for record in records(5)}
        ran = osn(*command)
        assert ran.returncode == 0, ran.stderr
        assert len(snapshot(client, index)) == 40


def test_vectors_fit_a_corpus_that_lies_in_another_format(client: Any, index_name: str, tmp_path: Path) -> None:
    lines = [{"_id": record["_id"], "text": record["text"]} for record in records(20)]
    run_encode(encoding(write_jsonl(tmp_path / "d.jsonl", lines), tmp_path / "v"), show_progress=False)
    table = tmp_path / "d.txt"
    table.write_text("_id,text\n" + "".join(f"{line['_id']},{line['text']}\n" for line in lines))
    settings = job(table, index_name, tokenizer=None, vectors=tmp_path / "v")
    settings = replace(settings, corpus=CorpusSource(str(table), format="csv"))
    assert run_job(client, settings, show_progress=False).documents == 20


def test_options_of_a_ray_cluster_without_one_are_refused(
    osn: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(3))
    ran = osn("encode", str(corpus), "--output", "v", "--sparse", "lexical", "--ray-gpus", "1")
    assert ran.returncode == 1 and "give --ray too" in ran.stderr, ran.stderr
    assert not (tmp_path / "v").exists()


def test_vectors_of_standard_input_are_found_again(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    lines = write_jsonl(tmp_path / "d.jsonl", records(20)).read_text()
    ran = osn("encode", "-", "--output", "v", "--sparse", "lexical", "--tokenizer", small_tokenizer(), input=lines)
    assert ran.returncode == 0, ran.stderr
    command = ["--vectors", "v", "--index", index_name, "--replicas", "0"]
    ran = osn("ingest", *command)
    assert ran.returncode == 1 and "the corpus was read from standard input" in ran.stderr, ran.stderr
    for corpus, input in (("-", lines), ("d.jsonl", "")):
        ran = osn("ingest", corpus, *command, input=input)
        assert ran.returncode == 0 and "20 documents" in ran.stdout, ran.stderr


def test_vectors_are_found_again_if_the_corpus_has_moved_and_a_link_leads_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    corpus = write_jsonl(folder / "d.jsonl", records(5))
    run_encode(encoding(corpus, tmp_path / "v"), show_progress=False)
    folder.rename(tmp_path / "b")
    folder.symlink_to(tmp_path / "b")
    assert StoredVectors(*find_manifest(tmp_path / "v")).manifest.documents == 5
