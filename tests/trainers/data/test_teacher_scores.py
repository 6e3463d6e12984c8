from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from own_code import give_own_code
from tiny_splade import write_two_networks

from opensearch_neural.cli import osn
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.models.sparse.word_pieces import train_word_pieces
from trainers.data import teach as teaching
from trainers.data.candidates import candidate_rows
from trainers.data.embedding_cache import dense_vectors
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training
from trainers.data.teach import Teaching, teach, teach_command
from trainers.data.teacher_models import detect, sparse_sides
from trainers.data.teacher_scores import check_encoded, open_teacher
from trainers.data.texts import TextStore
from trainers.encoders.backbones import new_backbone, save, train_tokenizer
from trainers.encoders.settings import NewBackbone

TEXTS = ["cats purr softly", "dogs bark at night", "birds sing songs", "fish swim in water", "snakes hiss"]


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return train_tokenizer(TEXTS * 3, "wordpiece", 120)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, tokenizer: object) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    save(new_backbone(NewBackbone(layers=1, hidden=16, heads=2), tokenizer), tokenizer, folder)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    from sentence_transformers import SentenceTransformer

    folder = tmp_path_factory.mktemp("dense")
    SentenceTransformer(str(bert), device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    from sentence_transformers import SparseEncoder

    folder = tmp_path_factory.mktemp("splade")
    SparseEncoder(str(bert), device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory, tokenizer: object) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.5, **sizes)  # type: ignore[arg-type]
    folder = tmp_path_factory.mktemp("cross")
    save(BertForSequenceClassification(config), tokenizer, folder)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    rows = [
        {"query": "what purrs", "positive": TEXTS[0], "negatives": [TEXTS[1], TEXTS[2]]},
        {"query": "what barks", "positive": TEXTS[1], "negatives": [TEXTS[0]]},
        {"query": "what sings", "positive": TEXTS[2], "negatives": [TEXTS[3], TEXTS[4], TEXTS[0]]},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_training(path)


def ids(data: TrainingData) -> tuple[list[str], list[str]]:
    return [example.query_id for example in data.examples], list(data.documents)


def test_a_dense_teacher_scores_any_pair_as_its_model_does(dense: Path, data: TrainingData, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    teacher = open_teacher(teach(dense, data, teaching=Teaching(precision="float32"), output=tmp_path / "t"), data)
    queries, documents = ids(data)
    scores = teacher.scores(queries, documents)

    model = SentenceTransformer(str(dense), device="cpu")
    expected = model.encode([data.queries[q] for q in queries]) @ model.encode([data.documents[d] for d in documents]).T
    assert scores.shape == (3, 5)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    half = open_teacher(teach(dense, data, output=tmp_path / "half"), data).scores(queries, documents)
    np.testing.assert_allclose(half, expected, rtol=5e-3, atol=5e-3)


def test_documents_that_are_not_there_or_come_twice_keep_their_places(
    dense: Path, data: TrainingData, tmp_path: Path
) -> None:
    teacher = open_teacher(teach(dense, data, output=tmp_path / "t"), data)
    queries, documents = ids(data)
    everything = teacher.scores(queries, documents)
    some = teacher.scores(queries, [documents[2], "nothing", documents[0], documents[2]])
    np.testing.assert_array_equal(some[:, [0, 2, 3]], everything[:, [2, 0, 2]])
    assert np.isnan(some[:, 1]).all()
    # One query and one candidate keep two dimensions.
    assert teacher.scores(queries[:1], documents[:1]).shape == (1, 1)
    with pytest.raises(InputError, match="no query 'nothing'"):
        teacher.scores(["nothing"], documents)


def test_the_lexical_teacher_scores_as_bm25_over_word_pieces(data: TrainingData, tmp_path: Path) -> None:
    teacher = open_teacher(teach("lexical", data, output=tmp_path / "t"), data)
    queries, documents = ids(data)
    encoder = build_lexical(list(data.documents.values()))
    vectors = encoder.encode_documents(list(data.documents.values()))
    expected = [
        [
            sum(weight * vectors.row(d).get(token, 0.0) for token, weight in encoder.query.encode(text).items())
            for d in range(5)
        ]
        for text in data.queries.values()
    ]
    np.testing.assert_allclose(teacher.scores(queries, documents), expected, rtol=1e-5)
    assert teacher.scores(queries, documents)[0].argmax() == 0


def test_caches_whose_names_differ_behind_a_dot_are_apart(data: TrainingData, tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        found = dense_vectors(
            lambda texts, value=value: np.full((len(texts), 2), value, np.float32),  # type: ignore[misc]
            data.documents,
            tmp_path / f"run-0.{value:.0f}",
            model=ModelInfo("m", tmp_path, "dense", f"{value}"),
            dimension=2,
        )
        assert float(found[0, 0]) == value


def test_an_inference_free_sparse_teacher_is_cached_with_its_own_queries(data: TrainingData, tmp_path: Path) -> None:
    lexical = build_lexical(TEXTS, tokenizer=train_word_pieces(TEXTS * 3, 200))
    lexical.save(tmp_path / "lexical")
    assert detect(tmp_path / "lexical") == "sparse"
    teacher = open_teacher(teach(tmp_path / "lexical", data, output=tmp_path / "t"), data)
    queries, documents = ids(data)
    row = lexical.encode_documents([data.documents[documents[1]]]).row(0)
    expected = sum(weight * row.get(token, 0.0) for token, weight in lexical.query.encode("what barks").items())
    assert expected > 0
    assert teacher.scores(queries[1:2], documents[1:2])[0, 0] == pytest.approx(expected, rel=1e-5)


def test_a_splade_teacher_encodes_queries_with_its_network_too(
    splade: Path, data: TrainingData, tmp_path: Path
) -> None:
    from sentence_transformers import SparseEncoder

    assert detect(splade) == "sparse"
    teacher = open_teacher(teach(splade, data, output=tmp_path / "t"), data)
    queries, documents = ids(data)
    model = SparseEncoder(str(splade), device="cpu")
    of_queries = model.encode_query([data.queries[q] for q in queries], convert_to_sparse_tensor=False)
    of_documents = model.encode_document([data.documents[d] for d in documents], convert_to_sparse_tensor=False)
    expected = (of_queries @ of_documents.T).numpy()
    assert expected.max() > 0
    np.testing.assert_allclose(teacher.scores(queries, documents), expected, rtol=1e-4, atol=1e-5)


def test_a_router_with_two_networks_teaches_by_both_and_each_keeps_its_own_length(
    bert: Path, tokenizer: object, data: TrainingData, tmp_path: Path
) -> None:
    """Before, it was loaded as a model with a table, and refused."""
    torch.manual_seed(1)
    other = new_backbone(NewBackbone(layers=1, hidden=16, heads=2), tokenizer)  # type: ignore[arg-type]
    save(other, tokenizer, tmp_path / "queries")  # type: ignore[arg-type]
    model = write_two_networks(tmp_path / "router", documents=bert, queries=tmp_path / "queries")
    assert detect(tmp_path / "router") == "sparse"
    teacher = open_teacher(teach(tmp_path / "router", data, output=tmp_path / "t"), data)
    queries, documents = ids(data)
    texts = ([data.queries[query] for query in queries], [data.documents[document] for document in documents])
    weights = [
        encode(side).to_dense() for encode, side in zip((model.encode_query, model.encode_document), texts, strict=True)
    ]
    expected = (weights[0] @ weights[1].T).numpy()
    assert expected.max() > 0
    np.testing.assert_allclose(teacher.scores(queries, documents), expected, rtol=1e-4, atol=1e-5)

    # A limit of tokens applies to each network, and raises none.
    readers = [modules[0] for modules in model[0].sub_modules.values()]
    readers[0].max_seq_length, readers[1].max_seq_length = 3, 8
    model.save_pretrained(str(tmp_path / "short"))
    long = " ".join(TEXTS)
    sides = sparse_sides(tmp_path / "short", tmp_path / "short", "cpu", 8, 5)
    readers[1].max_seq_length = 5
    for found, encode in ((sides.queries, model.encode_query), (sides.documents, model.encode_document)):
        expected = encode([long]).to_dense().numpy()
        np.testing.assert_allclose(found([long]).to_scipy().toarray(), expected, rtol=1e-4, atol=1e-5)


def test_networks_with_different_tokens_cannot_teach(bert: Path, data: TrainingData, tmp_path: Path) -> None:
    other = train_tokenizer(["quite other words"], "wordpiece", 60)
    save(new_backbone(NewBackbone(layers=1, hidden=16, heads=2), other), other, tmp_path / "queries")
    write_two_networks(tmp_path / "router", documents=bert, queries=tmp_path / "queries")
    with pytest.raises(ModelError, match="networks for queries and documents have different tokens"):
        teach(tmp_path / "router", data, output=tmp_path / "t")


def test_a_bare_masked_language_model_teaches_as_splade(
    bert: Path, dense: Path, data: TrainingData, tmp_path: Path
) -> None:
    from sentence_transformers import SparseEncoder

    assert (detect(bert), detect(dense)) == ("sparse", "dense")
    teacher = open_teacher(teach(bert, data, output=tmp_path / "t"), data)
    model = SparseEncoder(str(bert), device="cpu")
    example = data.example(0)
    texts = [data.documents[document] for document in data.documents.ids]
    expected = model.similarity(model.encode_query([example.query]), model.encode_document(texts)).to_dense()
    np.testing.assert_allclose(teacher.scores([example.query_id], data.documents.ids), expected.cpu(), rtol=1e-4)


def test_a_cross_encoder_is_cached_for_positives_and_the_hardest_negatives(
    cross_encoder: Path, data: TrainingData, tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder

    assert detect(cross_encoder) == "cross-encoder"
    folder = teach(cross_encoder, data, teaching=Teaching(depth=2), output=tmp_path / "t")
    teacher = open_teacher(folder, data)
    queries, documents = ids(data)
    scores = teacher.scores(queries, documents)

    shown = [[data.documents.row(d) for d in (*e.positives, *e.negatives[:2])] for e in data.examples]
    model = CrossEncoder(str(cross_encoder), device="cpu", activation_fn=torch.nn.Identity())
    for at, example in enumerate(data.examples):
        assert np.isfinite(scores[at]).sum() == len(shown[at])
        expected = model.predict([(example.query, data.documents.text_at(row)) for row in shown[at]])
        np.testing.assert_allclose(scores[at, shown[at]], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(teacher.scores(queries[1:], documents[::-1]), scores[1:, ::-1])
    assert np.isnan(scores).sum() == 7


def test_half_a_surrogate_pair_in_a_text_is_scored(cross_encoder: Path, splade: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text(
        json.dumps({"query": "what \ud83d", "positive": f"{TEXTS[0]} \udc00", "negatives": [TEXTS[1]]}) + "\n"
    )
    data = load_training(path)
    (query,) = data.query_texts()
    for name, model in (("cross", cross_encoder), ("splade", splade)):
        teacher = open_teacher(teach(model, data, output=tmp_path / name), data)
        assert np.isfinite(teacher.scores([query], list(data.documents))).all()


def test_a_cross_encoder_needs_negatives_and_one_output(
    cross_encoder: Path, data: TrainingData, tmp_path: Path
) -> None:
    path = tmp_path / "bare.jsonl"
    path.write_text('{"query": "q", "positive": "p"}\n')
    with pytest.raises(InputError, match="no hard negatives"):
        teach(cross_encoder, load_training(path), output=tmp_path / "t")
    folder = tmp_path / "classifier"
    folder.mkdir()
    for file in cross_encoder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="a classifier with 2 outputs"):
        teach(folder, data, output=tmp_path / "t")


def test_a_cache_of_other_data_is_refused_with_both_hashes(dense: Path, data: TrainingData, tmp_path: Path) -> None:
    folder = teach(dense, data, output=tmp_path / "t")
    path = tmp_path / "other.jsonl"
    path.write_text('{"query": "what purrs", "positive": "cats"}\n')
    other = load_training(path)
    with pytest.raises(ModelError, match="scores for other queries than other has") as caught:
        open_teacher(folder, other)
    assert data.queries.hash in str(caught.value)
    assert other.queries.hash in str(caught.value)
    with pytest.raises(ModelError, match=r"queries: .*there.*now"):
        teach(dense, other, output=folder)
    # A part of the data has the same texts: the cache serves it.
    part = data.take([1])
    assert open_teacher(folder, part).scores([part.examples[0].query_id], part.examples[0].positives).shape == (1, 1)


def test_a_cache_of_another_model_or_of_other_settings_is_refused(
    dense: Path, splade: Path, data: TrainingData, tmp_path: Path
) -> None:
    folder = teach(dense, data, output=tmp_path / "t")
    with pytest.raises(ModelError, match=r"kind: 'dense' there, 'sparse' now.*model: "):
        teach(splade, data, output=folder)
    with pytest.raises(ModelError, match="precision: 'float16' there, 'float32' now"):
        teach(dense, data, teaching=Teaching(precision="float32"), output=folder)
    with pytest.raises(ModelError, match="max_length: None there, 8 now"):
        teach(dense, data, teaching=Teaching(max_length=8), output=folder)
    with pytest.raises(ModelError, match="is not a teacher's cache"):
        open_teacher(tmp_path / "nothing", data)
    (folder / "queries.npy").write_bytes(b"broken")
    with pytest.raises(ModelError, match=r"queries\.npy cannot be read"):
        open_teacher(folder, data)


def test_an_interrupted_cross_encoder_goes_on_and_ends_in_the_same_scores(
    cross_encoder: Path, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching, "QUERIES_A_CHUNK", 1)
    undisturbed = teach(cross_encoder, data, output=tmp_path / "whole")
    calls: list[int] = []
    original = teaching.cross_encoder

    def interrupted(*arguments: object, **options: object) -> object:
        predict = original(*arguments, **options)  # type: ignore[arg-type]

        def stopping(pairs: list) -> object:
            calls.append(len(pairs))
            if len(calls) == 2:
                raise KeyboardInterrupt
            return predict(pairs)

        return stopping

    monkeypatch.setattr(teaching, "cross_encoder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        teach(cross_encoder, data, output=tmp_path / "t")
    with pytest.raises(ModelError, match="is not finished"):
        open_teacher(tmp_path / "t", data)
    with pytest.raises(ModelError, match=r"begun\.json is for another model or other data"):
        teach(cross_encoder, data, teaching=Teaching(max_length=7), output=tmp_path / "t")
    teach(cross_encoder, data, output=tmp_path / "t")
    assert calls == [3, 2, 2, 4]
    assert (tmp_path / "t" / "pairs.npz").read_bytes() == (undisturbed / "pairs.npz").read_bytes()
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["pairs.npz", "teacher.json"]
    # Complete: nothing is computed again.
    teach(cross_encoder, data, output=tmp_path / "t")
    assert len(calls) == 4


@pytest.mark.parametrize("kind", ["dense", "lexical"])
def test_who_finds_another_at_a_cache_waits_and_takes_it(
    kind: str, dense: Path, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, encoded = threading.Event(), []
    encode = teaching.sparse_vectors if kind == "lexical" else teaching.dense_vectors

    def slowly(encoder: Any, texts: TextStore, *arguments: Any, **named: Any) -> Any:
        encoded.append(texts.what)
        begun.set()
        time.sleep(0.1)
        return encode(encoder, texts, *arguments, **named)

    monkeypatch.setattr(teaching, encode.__name__, slowly)
    model = kind if kind == "lexical" else dense
    with ThreadPoolExecutor() as pool:
        first = pool.submit(teach, model, data, output=tmp_path / "t")
        begun.wait()
        second = pool.submit(teach, model, data, output=tmp_path / "t")
        assert first.result() == second.result() == tmp_path / "t"
    assert encoded == [data.queries.what, data.documents.what]


@pytest.mark.parametrize("kind", ["dense", "splade", "cross_encoder", "inference-free"])
def test_a_teachers_own_code_runs_only_where_it_is_trusted(
    kind: str, request: pytest.FixtureRequest, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    known: Path = request.getfixturevalue("bert" if kind == "inference-free" else kind)
    known = Path(shutil.copytree(known, tmp_path / "known"))
    if kind == "inference-free":
        (known / "idf.json").write_text('{"cats": 2.0}')
    odd = give_own_code(Path(shutil.copytree(known, tmp_path / "odd")))
    arguments = [str(odd), str(tmp_path / "pairs.jsonl"), "--output", str(tmp_path / "t")]
    refused = CliRunner().invoke(osn, ["data", "teach", *arguments])
    assert isinstance(refused.exception, ModelError) and "has code of its own" in refused.exception.message
    assert refused.exception.remedy is not None and "data teach" in refused.exception.remedy
    assert "--trust-remote-code" in refused.exception.remedy
    assert not (odd / ".ran").exists()
    trusted = CliRunner().invoke(osn, ["data", "teach", *arguments, "--trust-remote-code"], catch_exceptions=False)
    assert trusted.exit_code == 0 and (odd / ".ran").exists()
    queries, documents = ids(data)
    if kind == "cross_encoder":
        queries, documents = queries[:1], documents[:3]
    expected = open_teacher(teach(known, data, output=tmp_path / "of-known"), data).scores(queries, documents)
    assert np.isfinite(expected).any()
    assert np.array_equal(open_teacher(tmp_path / "t", data).scores(queries, documents), expected, equal_nan=True)


def test_the_command_caches_a_teacher(dense: Path, data: TrainingData, tmp_path: Path) -> None:
    arguments = [str(dense), str(tmp_path / "pairs.jsonl"), "--output", str(tmp_path / "t")]
    result = CliRunner().invoke(teach_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "t" / "teacher.json").read_text())
    assert record["kind"] == "dense"
    assert record["documents"] == {"hash": data.documents.hash, "rows": 5}


@pytest.fixture
def judged(tmp_path: Path) -> TrainingData:
    """Three questions, each with a positive and one hard negative or two: rows 1, 3, 5 and 6 of a corpus of eight."""
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    corpus = ["ants dig", TEXTS[0], "bees hum", TEXTS[1], "cows moo", TEXTS[2], TEXTS[3], "deer run"]
    for name, texts in (("corpus", corpus), ("queries", ["what purrs", "what barks", "what sings"])):
        lines = [json.dumps({"_id": f"{name[0]}{at}", "text": text}) + "\n" for at, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    judgements = ["q0\tc1\t1", "q0\tc3\t0", "q0\tc6\t0", "q1\tc3\t1", "q1\tc1\t0", "q2\tc5\t1", "q2\tc3\t0"]
    (folder / "qrels" / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judgements]) + "\n")
    return load_training(folder)


@pytest.mark.parametrize("kind", ["dense", "splade", "lexical"])
def test_the_command_encodes_the_documents_that_queries_are_compared_with(
    kind: str, request: pytest.FixtureRequest, judged: TrainingData, tmp_path: Path
) -> None:
    model = kind if kind == "lexical" else str(request.getfixturevalue(kind))
    arguments = [model, str(tmp_path / "judged"), "--output"]
    assert CliRunner().invoke(teach_command, [*arguments, str(tmp_path / "few")], catch_exceptions=False).exit_code == 0
    record = json.loads((tmp_path / "few" / "teacher.json").read_text())
    held = judged.documents.at([1, 3, 5, 6])
    assert record["candidates"] == {"hash": held.hash, "rows": 4}
    assert record["documents"] == {"hash": judged.documents.hash, "rows": 8}
    assert json.loads((tmp_path / "few" / "documents.json").read_text())["texts"]["rows"] == 4

    every = [*arguments, str(tmp_path / "all"), "--all-documents"]
    assert CliRunner().invoke(teach_command, every, catch_exceptions=False).exit_code == 0
    queries, documents = list(judged.queries), list(judged.documents)
    few, whole = (open_teacher(tmp_path / name, judged).scores(queries, documents) for name in ("few", "all"))
    assert np.isfinite(whole).all() and len(set(whole[0].tolist())) > 1
    np.testing.assert_allclose(few[:, [1, 3, 5, 6]], whole[:, [1, 3, 5, 6]], rtol=2e-3, atol=1e-5)
    assert np.isnan(few[:, [0, 2, 4, 7]]).all()
    assert open_teacher(tmp_path / "few", judged).hash != open_teacher(tmp_path / "all", judged).hash


def test_all_documents_are_candidates_of_a_query_without_hard_negatives(
    judged: TrainingData, data: TrainingData
) -> None:
    rows = candidate_rows(judged)
    assert rows is not None and rows.tolist() == [1, 3, 5, 6]
    assert candidate_rows(judged, 2) is None, "two queries have one hard negative"
    bare = judged.take(range(3), negatives=[[3], [1], []])
    assert candidate_rows(bare) is None
    positives = candidate_rows(bare, 0)
    assert positives is not None and positives.tolist() == [1, 3, 5]
    assert candidate_rows(data) is None, "its documents are all somebody's"


def test_negatives_beyond_the_depth_are_no_candidates(judged: TrainingData) -> None:
    deep = judged.take(range(3), negatives=[[3, 6], [1, 7], [3, 0]])
    for depth, expected in ((None, [0, 1, 3, 5, 6, 7]), (2, [0, 1, 3, 5, 6, 7]), (1, [1, 3, 5])):
        rows = candidate_rows(deep, depth=depth)
        assert rows is not None and rows.tolist() == expected


def test_the_command_encodes_no_negatives_beyond_its_depth(judged: TrainingData, tmp_path: Path) -> None:
    """q0 has two hard negatives, and training with candidates.depth 1 draws the first."""
    first = judged.take(range(3), negatives=[row[:1].tolist() for row in judged.negatives])
    encoded = {}
    for name, depth in (("all", []), ("first", ["--depth", "1"])):
        arguments = ["lexical", str(tmp_path / "judged"), "--output", str(tmp_path / name), *depth]
        assert CliRunner().invoke(teach_command, arguments, catch_exceptions=False).exit_code == 0
        encoded[name] = json.loads((tmp_path / name / "teacher.json").read_text())["candidates"]["rows"]
    assert encoded == {"all": 4, "first": 3}
    teacher = open_teacher(tmp_path / "first", judged)
    check_encoded(teacher, first, negatives=1, depth=1)
    with pytest.raises(InputError, match="its cache is for other negatives"):
        check_encoded(teacher, judged, negatives=1, depth=2)


def interrupting(monkeypatch: pytest.MonkeyPatch, at: int) -> list[list[str]]:
    """Makes dense encoders stop, once, at call `at` for documents; returns the texts of all calls that follow."""
    calls: list[list[str]] = []
    original = TorchDenseEncoder.encode_documents

    def encode(self: Any, texts: Any, **named: Any) -> Any:
        calls.append(list(texts))
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(self, texts, **named)

    monkeypatch.setattr(TorchDenseEncoder, "encode_documents", encode)
    return calls


def test_a_cache_of_candidates_goes_on_after_an_interruption(
    dense: Path, judged: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, folder = candidate_rows(judged), tmp_path / "t"
    undisturbed = teach(dense, judged, output=tmp_path / "whole", candidates=rows)
    monkeypatch.setattr("trainers.data.embedding_cache.CHUNK", 2)
    calls = interrupting(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        teach(dense, judged, output=folder, candidates=rows)
    with pytest.raises(ModelError, match=r"begun\.json is for another model or other data \(candidates: .*'rows': 4"):
        teach(dense, judged, output=folder)
    with pytest.raises(ModelError, match=r"candidates: .*'rows': 4.*there.*'rows': 3.*now"):
        teach(dense, judged, output=folder, candidates=candidate_rows(judged.take([0])))
    teach(dense, judged, output=folder, candidates=rows)
    assert calls == [TEXTS[:2], TEXTS[2:4], TEXTS[2:4]]
    for name in ("documents.npy", "encoded.npy", "teacher.json"):
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()
    teach(dense, judged, output=folder, candidates=rows)
    assert len(calls) == 3, "complete"


def test_a_cache_of_all_documents_is_kept_and_goes_on_as_one(
    dense: Path, judged: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions made them."""
    rows, folder = candidate_rows(judged), tmp_path / "t"
    monkeypatch.setattr("trainers.data.embedding_cache.CHUNK", 4)
    calls = interrupting(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        teach(dense, judged, output=folder)
    assert "candidates" not in json.loads((folder / "begun.json").read_text())
    teach(dense, judged, output=folder, candidates=rows)
    assert [len(texts) for texts in calls] == [4, 4, 4]
    written = (folder / "teacher.json").read_bytes()
    assert b"candidates" not in written and not (folder / "encoded.npy").exists()
    teach(dense, judged, output=folder, candidates=rows)
    assert len(calls) == 3 and (folder / "teacher.json").read_bytes() == written
    teacher = open_teacher(folder, judged)
    assert np.isfinite(teacher.scores(list(judged.queries), list(judged.documents))).all()
    check_encoded(teacher, judged, negatives=5, depth=100)


def test_training_is_told_which_documents_a_cache_of_candidates_lacks(
    dense: Path, judged: TrainingData, tmp_path: Path
) -> None:
    teacher = open_teacher(teach(dense, judged, output=tmp_path / "t", candidates=candidate_rows(judged)), judged)
    check_encoded(teacher, judged, negatives=1, depth=100)
    held = "encoded 4 of the 8 documents of judged"
    with pytest.raises(InputError, match=f"{held}, but 2 queries have fewer than 2 hard negatives") as caught:
        check_encoded(teacher, judged, negatives=2, depth=100)
    assert "--all-documents" in str(caught.value.remedy)
    mined = judged.take(range(3), negatives=[[3, 0], [1, 7], [3, 1]])
    with pytest.raises(
        InputError, match=f"{held}, and not 2 others that queries are compared with, such as 'c0'"
    ) as caught:
        check_encoded(teacher, mined, negatives=2, depth=100)
    assert "--negatives" in str(caught.value.remedy)
    check_encoded(teacher, mined, negatives=1, depth=1)
    check_encoded(teacher, mined, negatives=0, depth=100)


def test_a_cache_whose_list_of_documents_is_broken_is_refused(
    dense: Path, judged: TrainingData, tmp_path: Path
) -> None:
    folder = teach(dense, judged, output=tmp_path / "t", candidates=candidate_rows(judged))
    np.save(folder / "encoded.npy", np.array([0, 3, 5, 6]))
    with pytest.raises(ModelError, match=r"encoded\.npy names other documents than"):
        open_teacher(folder, judged)
    np.save(folder / "encoded.npy", np.array([1, 3, 5, 8]))
    with pytest.raises(ModelError, match=r"encoded\.npy cannot be read"):
        open_teacher(folder, judged)
