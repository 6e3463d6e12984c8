"""`osn data generate-queries`: every document gets its queries, whatever interrupts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from doc2query_setup import read, small

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import write_osn_json
from trainers.data.loading import load_training
from trainers.data.texts import TextStore
from trainers.doc2query import generate
from trainers.doc2query.generate import filter_generated, generate_queries
from trainers.doc2query.generate_command import generate_queries_command
from trainers.doc2query.settings import Sampling
from trainers.encoders import backbones


def test_every_document_gets_its_candidates_in_order(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    output = tmp_path / "q.jsonl"
    assert generate_queries(small(t5), documents, output=output, chunk=4)
    header, *lines = read(output)
    assert header["osn"] == "generated-queries"
    assert (header["candidates"], header["top_k"], header["top_p"], header["seed"]) == (2, 25, 0.95, 42)
    assert header["counts"]["queries"] == 20
    assert [line["_id"] for line in lines] == documents.ids
    for line in lines:
        assert len(line["queries"]) == 2
        assert all(query["log_probability"] < 0 and 1 <= query["tokens"] <= 6 for query in line["queries"])


def test_an_interrupted_generation_goes_on_and_ends_in_the_same_file(
    t5: Path, documents: TextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_queries(small(t5), documents, output=tmp_path / "whole.jsonl", chunk=3)
    calls = 0
    original = generate.sample_queries

    def stopping(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(generate, "sample_queries", stopping)
    output = tmp_path / "q.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generate_queries(small(t5), documents, output=output, chunk=3)
    assert not output.exists()
    # The random state of the process that goes on is another one.
    torch.manual_seed(99)
    generate_queries(small(t5), documents, output=output, chunk=3)
    assert calls == 5
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert generate_queries(small(t5), documents, output=output, chunk=3)
    assert calls == 5


def test_a_generator_that_fails_at_once_leaves_nothing_in_the_way(
    t5: Path, documents: TextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "generated.jsonl"

    def fail(*_: Any, **__: Any) -> None:
        raise ModelError("does not load")

    with monkeypatch.context() as broken:
        broken.setattr(backbones, "sequence_to_sequence", fail)
        with pytest.raises(ModelError, match="does not load"):
            generate_queries(small(t5, seed=8), documents, output=output)
    assert not list(tmp_path.iterdir())
    assert generate_queries(small(t5), documents, output=output)


def test_a_model_that_was_trained_for_something_else_writes_no_queries(
    t5: Path, documents: TextStore, tmp_path: Path
) -> None:
    other = shutil.copytree(t5, tmp_path / "t5")
    write_osn_json(other, "masked-lm")
    with pytest.raises(ModelError, match="is a masked-lm model, which cannot write queries"):
        generate_queries(small(other), documents, output=tmp_path / "generated.jsonl")
    assert [one.name for one in tmp_path.iterdir()] == ["t5"]


def test_shards_together_are_the_whole(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    generate_queries(small(t5), documents, output=tmp_path / "whole.jsonl", chunk=2)
    output = tmp_path / "q.jsonl"
    ended = [generate_queries(small(t5), documents, output=output, chunk=2, shard=(shard, 3)) for shard in (2, 1, 3)]
    assert ended == [False, False, True]
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(InputError, match="there is no shard 4/3"):
        generate_queries(small(t5), documents, output=tmp_path / "x.jsonl", shard=(4, 3))


def test_queries_of_another_model_or_other_settings_are_refused(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    output = tmp_path / "q.jsonl"
    generate_queries(small(t5), documents, output=output)
    with pytest.raises(InputError, match="top_k: 25 there, 10 now"):
        generate_queries(small(t5, top_k=10), documents, output=output)
    other = TextStore([("d0", "another text")])
    with pytest.raises(InputError, match="documents: "):
        generate_queries(small(t5), other, output=output)
    with pytest.raises(InputError, match="top_p must be in"):
        Sampling(top_p=0)


class Finds:
    """A retriever that knows which document each text is about."""

    name = "finds"

    def __init__(self, hits: Mapping[str, list[str]]) -> None:
        self.hits = hits

    def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        return {
            query: {document: 9.0 - at for at, document in enumerate(self.hits.get(text, [])[:k])}
            for query, text in queries.items()
        }


def test_only_queries_that_find_their_own_passage_are_kept(tmp_path: Path) -> None:
    documents = TextStore([("a", "cats"), ("b", "dogs"), ("c", "Cats!"), ("e", "emus")])
    path = tmp_path / "q.jsonl"
    header = {"osn": "generated-queries", "format": 1, "documents": documents.hash, "counts": {}}
    rows = {"a": ["purr", "Purr?", "bark", ""], "b": ["bark", "late"], "c": ["purr"], "e": ["run"]}
    lines = [
        {"_id": key, "queries": [{"text": text, "log_probability": -1} for text in texts]}
        for key, texts in rows.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    retriever = Finds({"purr": ["a"], "Purr?": ["b", "a"], "bark": ["b"], "late": ["a", "c", "b"], "run": ["a"]})

    filter_generated(path, documents, retriever, top=2, output=tmp_path / "kept.jsonl", chunk=2)
    header, *kept = read(tmp_path / "kept.jsonl")
    assert [[query["text"] for query in line["queries"]] for line in kept] == [["purr"], ["bark"], ["purr"], []]
    assert kept[0]["queries"][0]["log_probability"] == -1
    assert header["counts"] == {"passages": 4, "queries": 3, "left_out": 5, "without": 1}
    assert (header["consistency"], header["retriever"]) == (2, "finds")
    with pytest.raises(InputError, match="queries for other documents"):
        filter_generated(path, TextStore([("a", "x")]), retriever, top=2, output=tmp_path / "o.jsonl")


@pytest.fixture
def generated(tmp_path: Path) -> tuple[Path, TextStore]:
    """A file with one query for each of three documents, which is the document's id."""
    documents, path = TextStore([("a", "cats"), ("b", "dogs"), ("c", "emus")]), tmp_path / "q.jsonl"
    header = {"osn": "generated-queries", "format": 1, "documents": documents.hash, "counts": {}}
    lines = [{"_id": key, "queries": [{"text": key, "log_probability": -1}]} for key in documents]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    return path, documents


FINDS_ALL = {"a": ["a"], "b": ["b"], "c": ["c"]}


def test_one_process_filters_while_others_wait(generated: tuple[Path, TextStore], tmp_path: Path) -> None:
    """The shards that end last all come to the filter: one of them removed the chunks that another still needed."""
    output = tmp_path / "kept.jsonl"
    held: list[bool] = []

    class Watching(Finds):
        def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
            with locked(output, wait=False) as free:
                held.append(not free)
            return super().retrieve(queries, k)

    filter_generated(*generated, Watching(FINDS_ALL), top=2, output=output, chunk=1)
    assert held == [True, True, True] and len(read(output)) == 4


def test_an_interrupted_filter_goes_on_and_keeps_no_more_than_a_chunk_in_memory(
    generated: tuple[Path, TextStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus of millions has more text in its queries than memory holds."""
    lines, chunks = [0], []
    original = generate.read_json_lines

    def counted(path: Path) -> Any:
        for number, value in original(path):
            lines[0] = number
            yield number, value

    class Watching(Finds):
        def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
            chunks.append((lines[0], list(queries.values())))
            if len(chunks) == 2:
                raise KeyboardInterrupt
            return super().retrieve(queries, k)

    monkeypatch.setattr(generate, "read_json_lines", counted)
    output = tmp_path / "kept.jsonl"
    with pytest.raises(KeyboardInterrupt):
        filter_generated(*generated, Watching(FINDS_ALL), top=2, output=output, chunk=1)
    filter_generated(*generated, Watching(FINDS_ALL), top=2, output=output, chunk=1)
    assert chunks == [(2, ["a"]), (3, ["b"]), (3, ["b"]), (4, ["c"])]
    assert [line["_id"] for line in read(output)[1:]] == ["a", "b", "c"]


def test_the_command_generates_filters_and_gives_training_data(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": key, "text": text}) + "\n" for key, text in documents.items()))
    output = tmp_path / "q.jsonl"
    arguments = [str(corpus), "--model", str(t5), "--output", str(output), "--candidates", "2", "--query-length", "5"]
    result = CliRunner().invoke(generate_queries_command, [*arguments, "--consistency", "10"], catch_exceptions=False)
    assert result.exit_code == 0
    assert (tmp_path / "q.unfiltered.jsonl").exists()
    assert len(read(output)) == 11
    data = load_training(tmp_path / "q.unfiltered.jsonl", corpus=corpus)
    texts = {query["text"] for line in read(tmp_path / "q.unfiltered.jsonl")[1:] for query in line["queries"]}
    assert {example.query for example in data.examples} == {text for text in texts if text}
    assert data.documents.hash == documents.hash
    assert all(example.query_id.split("#")[0] == example.positives[0] for example in data.examples)
    with pytest.raises(InputError, match="expected I/N"):
        CliRunner().invoke(generate_queries_command, [*arguments, "--shard", "2"], catch_exceptions=False)


def test_the_command_refuses_a_filter_that_does_not_exist_before_it_generates(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "cats purr"}\n')
    arguments = [str(tmp_path / "corpus.jsonl"), "--model", "no-model", "--output", str(tmp_path / "q.jsonl")]
    with pytest.raises(InputError, match="there is no retriever 'bm52'"):
        CliRunner().invoke(
            generate_queries_command,
            [*arguments, "--consistency", "10", "--retriever", "bm52"],
            catch_exceptions=False,
        )
    result = CliRunner().invoke(generate_queries_command, [*arguments, "--consistency", "0"])
    assert result.exit_code == 2 and "0 is not in the range x>=1" in result.output
