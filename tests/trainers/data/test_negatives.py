from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from opensearchpy import OpenSearch

from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import IndexMeta, write_record
from opensearch_neural.models.dense.dense_encoder import finite
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.vectors import SparseVectors
from trainers.data.embedding_cache import dense_vectors, sparse_vectors
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training
from trainers.data.negatives import Mining, RunRetriever, mine, mine_command, open_retriever
from trainers.data.splits import withholding
from trainers.data.texts import TextStore


class Fixed:
    """A retriever that answers what it was told, and counts how many queries it was asked."""

    def __init__(self, run: Mapping[str, list[str]], name: str = "fixed", stop_after: int | None = None) -> None:
        self.run, self.name, self.asked, self.stop_after = run, name, 0, stop_after

    def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        self.asked += len(queries)
        if self.stop_after is not None and self.asked > self.stop_after:
            raise KeyboardInterrupt
        return {
            query: {document: 10.0 - at for at, document in enumerate(self.run.get(query, [])[:k])} for query in queries
        }


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    documents = {"d1": "cats purr", "d2": "dogs bark", "d3": "birds sing", "d4": "Cats purr!", "d5": "Birds, sing"}
    queries = {"q1": "what purrs", "q2": "what barks", "q3": "what sings"}
    rows = [("q1", "d1"), ("q2", "d2"), ("q3", "d3")]
    folder = tmp_path / "animals"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in documents.items())
    )
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in queries.items()))
    text = "query-id\tcorpus-id\tscore\n" + "".join(f"{query}\t{document}\t1\n" for query, document in rows)
    (folder / "qrels" / "train.tsv").write_text(text)
    return load_training(folder)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def test_known_positives_same_texts_and_ids_without_a_document_are_no_negatives(
    data: TrainingData, tmp_path: Path
) -> None:
    run = {"q1": ["d4", "d3", "-1", "d1", "d5", "d2"], "q2": ["d2", "d9", "d3"], "q3": []}
    output = mine(data, Fixed(run), output=tmp_path / "negatives.jsonl", mining=Mining(6))

    one, two, three = lines(output)
    # d4 has the text of the positive d1, and d5 that of the negative d3.
    assert one == {
        "query_id": "q1",
        "positives": ["d1", "d4"],
        "negatives": ["d3", "d2"],
        "scores": [9.0, 5.0],
        "rank": 1,
    }
    assert two["negatives"] == ["d3"]
    assert three == {"query_id": "q3", "positives": ["d3", "d5"], "negatives": [], "scores": [], "rank": None}
    counts = json.loads(output.read_text().splitlines()[0])["counts"]
    assert counts == {
        "queries": 3,
        "left_out": 0,
        "without_negatives": 1,
        "negatives": 3,
        "known_positives": 3,
        "same_texts": 1,
        "ids_without_document": 2,
        "own_documents": 0,
    }


def test_a_query_that_is_a_document_is_no_negative_of_itself(tmp_path: Path) -> None:
    """As in ArguAna and Quora; an id that a query and another document share by chance is taken."""
    folder = tmp_path / "arguments"
    (folder / "qrels").mkdir(parents=True)
    documents = {"a": "cats purr", "b": "dogs bark", "c": "birds sing"}
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": id, "title": "on animals", "text": text}) + "\n" for id, text in documents.items())
    )
    queries = {"a": "Cats  purr", "b": "what sings"}
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in queries.items()))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\na\tb\t1\nb\tc\t1\n")
    output = mine(
        load_training(folder),
        Fixed({"a": ["a", "c", "b"], "b": ["b", "c"]}),
        output=tmp_path / "n.jsonl",
        mining=Mining(3),
    )
    assert [line["negatives"] for line in lines(output)] == [["c"], ["b"]]
    assert json.loads(output.read_text().splitlines()[0])["counts"]["own_documents"] == 1


def test_what_held_back_questions_are_about_is_not_mined(data: TrainingData, tmp_path: Path) -> None:
    train = withholding(data.take([0, 1]), [data.take([2], name="dev")])
    output = mine(
        train, Fixed({"q1": ["d3", "d2", "d5"], "q2": ["d4", "d5"]}), output=tmp_path / "n.jsonl", mining=Mining(3)
    )
    # d5 has the text of d3, which q3 is about.
    assert [line["negatives"] for line in lines(output)] == [["d2"], ["d4"]]
    assert json.loads(output.read_text().splitlines()[0])["counts"]["withheld"] == 3


def test_depth_skip_top_and_keep_choose_the_ranks(data: TrainingData, tmp_path: Path) -> None:
    run = {"q1": ["d1", "d2", "d3"], "q2": ["d1", "d3", "d2"], "q3": ["d1", "d2", "d4"]}

    def negatives(name: str, **settings: int) -> list[list[str]]:
        return [line["negatives"] for line in lines(mine(data, Fixed(run), Mining(**settings), output=tmp_path / name))]

    assert negatives("all", depth=3) == [["d2", "d3"], ["d1", "d3"], ["d1", "d2"]]
    assert negatives("depth", depth=2) == [["d2"], ["d1", "d3"], ["d1", "d2"]]
    assert negatives("skip", depth=3, skip_top=1) == [["d2", "d3"], ["d3"], ["d2", "d4"]]
    with pytest.raises(InputError, match="skip_top 3 leaves none of the 3 documents"):
        negatives("none", depth=3, skip_top=3)
    assert negatives("keep", depth=3, keep=1) == [["d2"], ["d1"], ["d1"]]


def test_queries_without_a_positive_in_the_top_are_left_out_of_training(data: TrainingData, tmp_path: Path) -> None:
    # q2's positive is third; q1 is answered by d4, whose text is the positive's; q3's positive lies beyond `depth`.
    run = {"q1": ["d3", "d4"], "q2": ["d1", "d3", "d2"], "q3": ["d1", "d3"]}
    output = mine(data, Fixed(run), output=tmp_path / "n.jsonl", mining=Mining(1, consistency=2))

    assert [line.get("left_out") for line in lines(output)] == [None, "no positive in the top 2", None]
    trained = load_training(tmp_path / "animals", negatives=output)
    assert [(e.query_id, e.negatives) for e in trained.examples] == [("q1", ("d3",)), ("q3", ("d1",))]
    assert any("1 queries left out by the consistency filter" in note for note in trained.notes)
    assert trained.documents.hash == data.documents.hash


def test_negatives_of_other_data_are_refused(data: TrainingData, tmp_path: Path) -> None:
    output = mine(data, Fixed({}), output=tmp_path / "n.jsonl", mining=Mining(1))
    corpus = tmp_path / "animals" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("bark", "howl"))
    with pytest.raises(InputError, match=r"mined for other documents \(hash \w{16}\) than animals has"):
        load_training(tmp_path / "animals", negatives=output)
    with pytest.raises(InputError, match="line 1: expected a header"):
        load_training(tmp_path / "animals", negatives=corpus)


def test_queries_that_were_not_mined_stay_without_negatives_and_are_counted(data: TrainingData, tmp_path: Path) -> None:
    output = mine(data.take([0]), Fixed({"q1": ["d2"]}), output=tmp_path / "n.jsonl", mining=Mining(1))
    trained = load_training(tmp_path / "animals", negatives=output)
    assert [example.negatives for example in trained.examples] == [("d2",), (), ()]
    assert any("2 of 3 queries were not mined" in note for note in trained.notes)


def test_a_retriever_over_another_corpus_is_refused(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fixed found 3 documents, 2 of which.*'x'"):
        mine(data, Fixed({"q1": ["x", "y", "d1"]}), output=tmp_path / "n.jsonl")
    assert not (tmp_path / "n.jsonl").exists()


def test_an_interrupted_run_goes_on_and_ends_in_the_same_file(data: TrainingData, tmp_path: Path) -> None:
    run = {"q1": ["d2"], "q2": ["d3"], "q3": ["d1"]}
    undisturbed = mine(data, Fixed(run), output=tmp_path / "whole.jsonl", chunk=1)
    output = tmp_path / "n.jsonl"
    with pytest.raises(KeyboardInterrupt):
        mine(data, Fixed(run, stop_after=2), output=output, chunk=1)
    assert not output.exists()

    second = Fixed(run)
    mine(data, second, output=output, chunk=1)
    assert second.asked == 1
    assert output.read_bytes() == undisturbed.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["animals", "n.jsonl", "whole.jsonl"]

    third = Fixed(run)
    mine(data, third, output=output, chunk=1)
    assert third.asked == 0


def test_who_finds_another_at_it_waits_and_takes_what_is_there(data: TrainingData, tmp_path: Path) -> None:
    begun, asked = threading.Event(), []

    class Slow(Fixed):
        def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
            asked.extend(queries)
            begun.set()
            time.sleep(0.1)
            return super().retrieve(queries, k)

    output = tmp_path / "n.jsonl"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(mine, data, Slow({"q1": ["d2"]}), output=output, chunk=1)
        begun.wait()
        second = pool.submit(mine, data, Slow({"q1": ["d2"]}), output=output, chunk=1)
        assert first.result() == second.result() == output
    assert sorted(asked) == ["q1", "q2", "q3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["animals", "n.jsonl"]


def test_work_begun_or_finished_with_other_settings_is_refused(data: TrainingData, tmp_path: Path) -> None:
    output = tmp_path / "n.jsonl"
    with pytest.raises(KeyboardInterrupt):
        mine(data, Fixed({}, stop_after=1), output=output, chunk=1, mining=Mining(5))
    with pytest.raises(InputError, match="depth: 5 there, 6 now"):
        mine(data, Fixed({}), output=output, chunk=1, mining=Mining(6))
    mine(data, Fixed({}), output=output, chunk=1, mining=Mining(5))
    with pytest.raises(InputError, match="retriever: 'fixed' there, 'other' now"):
        mine(data, Fixed({}, name="other"), output=output, chunk=1, mining=Mining(5))


def test_a_process_killed_in_the_middle_is_continued_by_the_same_call(data: TrainingData, tmp_path: Path) -> None:
    """SIGKILL leaves no chance to clean up; what was written must be whole chunks."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_negatives import Fixed
from trainers.data.loading import load_training
from trainers.data.negatives import mine
class Slow(Fixed):
    def retrieve(self, queries, k):
        print("asked", flush=True)
        if self.asked:
            time.sleep(60)
        return super().retrieve(queries, k)
data = load_training({str(tmp_path / "animals")!r})
mine(data, Slow({{"q1": ["d2"]}}), output=Path({str(tmp_path / "n.jsonl")!r}), chunk=1)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "asked\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    retriever = Fixed({"q1": ["d2"]})
    output = mine(data, retriever, output=tmp_path / "n.jsonl", chunk=1)
    assert retriever.asked == 2
    assert lines(output)[0]["negatives"] == ["d2"]


# ------------------------------------------------------------------------------------------------ retrievers by name


def test_bm25_and_a_run_file_mine_by_name(data: TrainingData, tmp_path: Path) -> None:
    queries = {"q": "who barks and sings"}
    assert list(open_retriever("bm25", data.documents).retrieve(queries, 2)["q"]) == ["d2", "d3"]
    (tmp_path / "any.run").write_text("q Q0 d1 1 2.5 x\nq Q0 d2 2 3.5 x\n")
    retriever = open_retriever(f"run:{tmp_path / 'any.run'}", data.documents)
    assert retriever.retrieve({"q": "", "other": ""}, 1) == {"q": {"d2": 3.5}, "other": {}}
    with pytest.raises(InputError, match="no hits for 1 queries, 'other' first"):
        RunRetriever(tmp_path / "any.run").check({"other"})
    # Of several chunks of queries some may have no line.
    (tmp_path / "one.run").write_text("q1 Q0 d2 1 2.5 x\n")
    mined = mine(data, RunRetriever(tmp_path / "one.run"), output=tmp_path / "one.jsonl", chunk=1)
    assert [line["negatives"] for line in lines(mined)][:1] == [["d2"]]
    before = retriever.name
    (tmp_path / "any.run").write_text("q Q0 d1 1 9.5 x\n")
    assert open_retriever(f"run:{tmp_path / 'any.run'}", data.documents).name != before
    german = open_retriever("bm25:german", data.documents)
    assert german.name != open_retriever("bm25", data.documents).name
    with pytest.raises(InputError, match="the analyzer 'klingon'"):
        open_retriever("bm25:klingon", data.documents)
    for unknown in ("splade", "dense:", "bm26", "bm25:", "run:"):
        with pytest.raises(InputError, match="there is no retriever"):
            open_retriever(unknown, data.documents)
    with pytest.raises(ModelError):
        open_retriever("dense:./nothing", data.documents)


def test_a_lexical_model_mines_by_name(data: TrainingData, tmp_path: Path) -> None:
    from opensearch_neural.models.sparse.lexical import build_lexical
    from opensearch_neural.models.sparse.word_pieces import train_word_pieces

    texts = list(data.documents.values())
    build_lexical(texts, tokenizer=train_word_pieces(texts, 200)).save(tmp_path / "lexical")
    retriever = open_retriever(f"sparse:{tmp_path / 'lexical'}", data.documents, cache=tmp_path / "cache")
    assert next(iter(retriever.retrieve({"q": "dogs bark"}, 5)["q"])) == "d2"
    assert (tmp_path / "cache" / "documents.weights.npy").exists()


def test_an_index_of_the_cluster_mines_by_name(
    client: OpenSearch, cluster_url: str, index_name: str, data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.indices.create(index=index_name, body=index_body(IndexMeta(), replicas=0))
    for identifier, text in data.documents.items():
        client.index(index=index_name, id=identifier, body={"text": text})
    client.indices.refresh(index=index_name)
    monkeypatch.setenv("OSN_URL", cluster_url)
    retriever = open_retriever(f"opensearch:{index_name}:bm25", data.documents)
    assert next(iter(retriever.retrieve({"q": "dogs that bark and birds"}, 2)["q"])) == "d2"
    assert retriever.name == f"opensearch {index_name} bm25"

    def noted() -> str:
        return open_retriever(f"opensearch:{index_name}", data.documents, by_record=True).name

    before = noted()
    assert before.startswith(f"{retriever.name} ")
    write_record(client, index_name, IndexMeta().with_extra(shard_documents=3))
    assert noted() == before
    write_record(client, index_name, IndexMeta().with_extra(bm25_sparse={"weight": 0.5}))
    assert noted() != before, "it may find others now"
    with pytest.raises(ClusterError, match="there is no index"):
        open_retriever("opensearch:nothing", data.documents).retrieve({"q": "dogs"}, 2)


def test_the_command_writes_the_file_and_says_where(data: TrainingData, tmp_path: Path) -> None:
    output = tmp_path / "n.jsonl"
    arguments = [str(tmp_path / "animals"), "--retriever", "bm25", "--depth", "5", "--output", str(output)]
    result = CliRunner().invoke(mine_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == f"{output}\n"
    assert "queries 3, left out 0" in result.stderr
    assert [line["query_id"] for line in lines(output)] == ["q1", "q2", "q3"]


def test_the_command_takes_triples_by_id(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("0\tdogs bark\n1\tbirds sing\n2\tdogs and birds\n")
    (tmp_path / "queries.tsv").write_text("10\twho barks, dogs\n11\twho sings, birds\n")
    (tmp_path / "triples.tsv").write_text("10\t0\t1\n11\t1\t0\n")
    arguments = [str(tmp_path / "triples.tsv"), "--retriever", "bm25", "--output", str(tmp_path / "n.jsonl")]
    texts = ["--corpus", str(tmp_path / "collection.tsv"), "--queries", str(tmp_path / "queries.tsv")]
    result = CliRunner().invoke(mine_command, arguments + texts, catch_exceptions=False)
    assert result.exit_code == 0
    assert {line["query_id"]: line["negatives"] for line in lines(tmp_path / "n.jsonl")} == {"10": ["2"], "11": ["2"]}


# ------------------------------------------------------------------------------------------------ cached vectors

MODEL = ModelInfo("m", Path("m"), "dense", "0123456789abcdef")


def store(count: int, word: str = "text") -> TextStore:
    return TextStore((str(i), f"{word} {i}") for i in range(count))


def embed(texts: list[str]) -> np.ndarray:
    return np.array([[int(text.split()[1]), 1.5] for text in texts], dtype=np.float32)


def test_dense_vectors_are_encoded_once_and_go_on_after_an_interruption(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trainers.data.embedding_cache.CHUNK", 4)
    asked: list[int] = []

    def encode(texts: list[str]) -> np.ndarray:
        if len(asked) == 2:
            asked.append(-1)
            raise KeyboardInterrupt
        asked.append(len(texts))
        return embed(texts)

    def vectors() -> np.ndarray:
        return dense_vectors(encode, store(10), tmp_path / "documents", model=MODEL, dimension=2)

    with pytest.raises(KeyboardInterrupt):
        vectors()
    np.testing.assert_array_equal(vectors(), [[i, 1.5] for i in range(10)])
    assert asked == [4, 4, -1, 2]
    assert vectors().dtype == np.float16
    assert asked == [4, 4, -1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.json", "documents.npy"]


def test_vectors_of_another_model_or_other_texts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "documents"
    dense_vectors(embed, store(3), path, model=MODEL, dimension=2)
    other = ModelInfo("other", Path("o"), "dense", "f" * 16)
    with pytest.raises(ModelError, match=r"model: {'name': 'm'.*there, {'name': 'other'"):
        dense_vectors(embed, store(3), path, model=other, dimension=2)
    with pytest.raises(ModelError, match=r"texts: .*'rows': 3.*there.*'rows': 3"):
        dense_vectors(embed, store(3, "word"), path, model=MODEL, dimension=2)
    with pytest.raises(ModelError, match="precision: 'float16' there, 'float32' now"):
        dense_vectors(embed, store(3), path, model=MODEL, dimension=2, precision="float32")


def test_a_vector_that_is_not_finite_is_named_by_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.data.embedding_cache.CHUNK", 2)

    def broken(texts: list[str]) -> np.ndarray:
        rows = embed(texts)
        rows[[text == "text 3" for text in texts]] = np.nan
        return finite(rows, 2, MODEL)

    with pytest.raises(ModelError, match=r"the vector of document '3' is not finite\n.*look for NaN"):
        dense_vectors(broken, store(4), tmp_path / "d", model=MODEL, dimension=2)


def test_a_vector_beyond_float16_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the vector of document '2' is not finite in float16"):
        dense_vectors(lambda t: embed(t) * 40_000, store(4), tmp_path / "d", model=MODEL, dimension=2)


def test_sparse_vectors_go_on_after_an_interruption_and_keep_empty_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trainers.data.embedding_cache.CHUNK", 2)
    calls: list[int] = []

    def encode(texts: list[str]) -> SparseVectors:
        calls.append(len(texts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        numbers = [int(text.split()[1]) for text in texts]
        indptr = np.cumsum([0, *(number % 3 for number in numbers)])
        ids = np.concatenate([np.arange(number % 3, dtype=np.int32) for number in numbers])
        weights = np.concatenate([np.full(number % 3, number + 1, dtype=np.float32) for number in numbers])
        return SparseVectors(indptr.astype(np.int64), ids, weights, ["a", "b"])

    def vectors() -> SparseVectors:
        return sparse_vectors(encode, store(5), tmp_path / "documents", model=MODEL, vocabulary=["a", "b"])

    with pytest.raises(KeyboardInterrupt):
        vectors()
    expected = [{}, {"a": 2}, {"a": 3, "b": 3}, {}, {"a": 5}]
    assert list(vectors().rows()) == expected
    assert list(vectors().rows()) == expected
    assert calls == [2, 2, 2, 1]
    with pytest.raises(ModelError, match="dimension: 2 there, 3 now"):
        sparse_vectors(encode, store(5), tmp_path / "documents", model=MODEL, vocabulary=["a", "b", "c"])
