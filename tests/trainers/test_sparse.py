"""The sparse student: a directory that others load, IDF in the match, columns sampled, stages in one configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import WORDS, tiny_backbone, tiny_beir  # noqa: E402

from opensearch_neural.commands.idf import idf  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.models.lexical import build_lexical  # noqa: E402
from opensearch_neural.models.sparse import load_sparse  # noqa: E402
from trainers.bi_encoder import DevSettings, RetrievalData  # noqa: E402
from trainers.config import load_config, to_yaml  # noqa: E402
from trainers.grad_cache import cached_backward  # noqa: E402
from trainers.loop import TrainingSettings, Visit  # noqa: E402
from trainers.model import Progress  # noqa: E402
from trainers.sparse import (  # noqa: E402
    KIND,
    RegularizationSettings,
    SparseCandidates,
    SparseConfig,
    SparseObjective,
    SparseSet,
    SparseStudent,
    StageSettings,
    StudentSettings,
    WarmUpSettings,
    build,
    calibrate,
    collate,
    measured_flops,
    teachers,
    train_sparse,
)
from trainers.unlabelled import unlabelled  # noqa: E402

TEXTS = ["bab dek fin", "gol kuz lab mek nin pol ruz", "sab sab sab", " ".join(WORDS[:50]), ""]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny")


def configuration(backbone: Path, beir: Path, output: Path, **changes: Any) -> SparseConfig:
    plain: dict[str, Any] = {
        "output": output,
        "start": str(backbone),
        "train": [SparseSet(beir)],
        "student": StudentSettings(document_length=32, query_length=16, columns=16),
        "warm_up": WarmUpSettings(expansions=5),
        "objective": SparseObjective(info_nce=1.0, kl=0.0),
        "candidates": SparseCandidates(negatives=1),
        "regularization": RegularizationSettings(weight=1e-3),
        "document_length": 32,
        "training": TrainingSettings(steps=4, batch_size=8, learning_rate=3e-3, evaluate_every=4, log_every=2),
    }
    return SparseConfig(**(plain | changes))


def student(config: SparseConfig, *, moved: bool = True) -> SparseStudent:
    """The untrained student, every weight moved so that one that export forgets shows, some hundred terms active."""
    model = build(config, [config.train[0].load().documents]).eval()
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if moved:
                parameter += 0.05 * torch.randn_like(parameter)
    calibrate(model, TEXTS[:2], expansions=10, weight=0.5)
    return model


def batch_of(config: SparseConfig, model: SparseStudent, size: int = 6) -> dict[str, Any]:
    sets = [config.train[0].load()]
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=10)
    made = collate(config, sets, model, teachers=teachers(config, sets))
    return made([data[Visit(index, 0, 0, 1)] for index in range(size)])


# ------------------------------------------------ the directory


@pytest.mark.parametrize("activation", ["log", "double-log"])
def test_the_directory_loads_in_sentence_transformers_with_the_same_vectors(
    tmp_path: Path, backbone: Path, beir: Path, activation: Any
) -> None:
    from sentence_transformers import SparseEncoder

    settings = StudentSettings(document_length=32, query_length=16, activation=activation)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    model.export(tmp_path)
    ours = model.vectors(TEXTS[:4]).to_scipy().toarray()
    loaded = SparseEncoder(str(tmp_path), device="cpu")
    theirs = loaded.encode_document(TEXTS[:4]).to_dense().numpy()
    assert (ours > 0).sum() > 20
    np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], atol=2e-6)
    special = loaded.tokenizer.all_special_ids
    assert not theirs[:, special].any()
    encoder = load_sparse(tmp_path)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS[:4]).to_scipy().toarray(), ours, atol=2e-6)
    for query, vector in zip(
        ("bab bab sab", "unknown dek"), loaded.encode_query(["bab bab sab", "unknown dek"]).to_dense(), strict=True
    ):
        found = {encoder.vocabulary[at]: float(vector[at]) for at in vector.nonzero().flatten().tolist()}
        assert encoder.query.encode(query) == pytest.approx(found)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_a_residual_student_is_encoded_as_bm25_of_the_whole_text_plus_what_is_learned(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = StudentSettings(document_length=8, query_length=16, residual=True, k1=0.9, b=0.4)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    model.export(tmp_path)
    documents = configuration(backbone, beir, tmp_path).train[0].load().documents
    lexical = build_lexical(documents.values(), tokenizer=model.lexicon.encoder.query.tokenizer, k1=0.9, b=0.4)
    expected = lexical.encode_documents(TEXTS).to_scipy() + model.vectors(TEXTS).to_scipy()
    found = load_sparse(tmp_path)
    np.testing.assert_allclose(found.encode_documents(TEXTS).to_scipy().toarray(), expected.toarray(), atol=2e-6)
    # The text is longer than the head reads: its impacts count all the same.
    assert len(found.encode_documents([TEXTS[3]]).row(0).keys() & set(WORDS[:50])) == 50
    assert found.query.encode("bab sab") == lexical.query.encode("bab sab")


@pytest.mark.parametrize("residual", [False, True])
def test_a_model_gets_the_statistics_of_another_corpus_and_keeps_what_it_learned(
    tmp_path: Path, backbone: Path, beir: Path, residual: bool
) -> None:
    from sentence_transformers import SparseEncoder

    settings = StudentSettings(document_length=32, query_length=16, residual=residual)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    source, out = tmp_path / "source", tmp_path / "adapted"
    source.mkdir()
    model.export(source)
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "d", "text": "bab bab dek"}) + "\n")
    arguments = ["--corpus", str(tmp_path / "c.jsonl"), "--model", str(source), "--out", str(out)]
    done = CliRunner().invoke(idf, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    adapted = load_sparse(out)
    lexical = build_lexical(["bab bab dek"], tokenizer=model.lexicon.encoder.query.tokenizer)
    found = adapted.query.encode("bab fin")
    assert found == pytest.approx(lexical.query.encode("bab fin"), rel=1e-6)
    assert found != pytest.approx(load_sparse(source).query.encode("bab fin"), rel=1e-2)
    expected = model.vectors(TEXTS[:2]).to_scipy().toarray()
    if residual:
        expected = expected + lexical.encode_documents(TEXTS[:2]).to_scipy().toarray()
    else:
        (vector,) = SparseEncoder(str(out), device="cpu").encode_query(["bab fin"]).to_dense().tolist()
        assert {adapted.vocabulary[at]: weight for at, weight in enumerate(vector) if weight} == pytest.approx(found)
    np.testing.assert_allclose(adapted.encode_documents(TEXTS[:2]).to_scipy().toarray(), expected, atol=2e-6)
    with pytest.raises(InputError, match="there already"):
        CliRunner().invoke(idf, arguments, catch_exceptions=False, standalone_mode=False)


# ------------------------------------------------ batches and losses


def test_a_querys_score_is_the_sum_of_idf_times_weight_over_its_distinct_tokens(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config)
    batch = batch_of(config, model)
    part = batch["parts"]["document"][0]
    vectors = model.encode("document", part).vectors
    scores = batch["targets"]["query"] @ vectors.T
    data = config.train[0].load()
    idf = model.lexicon.encoder.query
    example = data.example(0)
    whole = model.vectors([data.documents[example.positives[0]]]).row(0)
    expected = sum(weight * whole.get(token, 0.0) for token, weight in idf.encode(example.query).items())
    row = int((part["position"] == batch["targets"]["candidates"][0, 0]).nonzero())
    assert scores[0, row].item() == pytest.approx(expected, rel=1e-4)


def test_sampled_and_full_heads_agree_on_scores_and_a_sample_of_everything_on_flops(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    found = {}
    for head, columns in (("full", 1), ("sampled", 10_000)):
        settings = StudentSettings(document_length=32, query_length=16, head=head, columns=columns)  # type: ignore[arg-type]
        config = configuration(backbone, beir, tmp_path, student=settings)
        model = student(config)
        model.progress = Progress(4, 4)
        losses = model(batch_of(config, model))
        found[head] = {name: value.item() for name, value in {**losses.terms, **losses.measures}.items()}
    assert found["full"] == pytest.approx(found["sampled"], rel=1e-4)
    assert found["full"]["flops"] > 0
    assert 0 < found["full"]["expansions"] < found["full"]["active"]


def test_frozen_layers_and_embeddings_get_no_gradient_and_the_rest_does(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = StudentSettings(document_length=32, query_length=16, frozen_layers=1)
    config = configuration(backbone, beir, tmp_path, student=settings)
    model = student(config).train()
    model(batch_of(config, model)).total.backward()
    touched = {name for name, one in model.named_parameters() if one.grad is not None and one.grad.abs().sum() > 0}
    assert "head.bias" in touched
    assert any(".layer.1." in name for name in touched)
    assert not any("embeddings" in name or ".layer.0." in name or name == "head.weight" for name in touched)
    with pytest.raises(InputError, match="has 2 layers"):
        build(replace(config, student=replace(settings, frozen_layers=3)), [config.train[0].load().documents])


def test_gradient_caching_has_the_gradient_of_the_whole_batch(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config).train()
    batch = batch_of(config, model)
    model(batch).total.backward()
    whole = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    halves = replace(config, training=replace(config.training, chunk_size=3))
    cached_backward(model, batch_of(halves, model))
    for name, one in model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(one.grad, whole[name], atol=1e-5, rtol=1e-3)


def test_the_regularizer_waits_then_grows_quadratically() -> None:
    settings = RegularizationSettings(weight=0.8, delay=0.5, ramp=0.25)
    assert [settings.at(step, 40) for step in (0, 19, 20, 25, 30, 40)] == pytest.approx([0, 0, 0, 0.2, 0.8, 0.8])


def test_flops_a_slot_are_the_papers_and_larger_than_over_all_documents(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    values = {}
    for definition in ("batch", "slot"):
        config = configuration(
            backbone, beir, tmp_path,
            student=StudentSettings(document_length=32, query_length=16, head="full"),
            regularization=RegularizationSettings(flops=definition),  # type: ignore[arg-type]
        )  # fmt: skip
        model = student(config)
        values[definition] = float(model(batch_of(config, model)).measures["flops_unweighted"])
    assert values["batch"] < values["slot"]


def test_flops_count_the_chance_that_query_and_document_share_a_token() -> None:
    from scipy.sparse import csr_matrix

    # Of two queries both ask a and one asks b; of four documents one holds a and two hold b: 1 · 1/4 + 1/2 · 2/4.
    documents = csr_matrix(np.array([[1.0, 0.5], [0, 3], [0, 0], [0, 0]]))
    assert measured_flops([{"a": 1.0}, {"a": 2.0, "b": 1.0, "c": 1.0}], documents, ["a", "b"]) == pytest.approx(0.5)


# ------------------------------------------------ the start


def test_expansions_are_alive_after_calibration(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = build(config, [config.train[0].load().documents]).eval()
    calibrate(model, TEXTS[:2], expansions=7, weight=0.25)
    vectors = model.vectors(TEXTS[:2])
    outside = [
        {token: w for token, w in row.items() if token not in text.split()}
        for row, text in zip(vectors.rows(), TEXTS, strict=False)
    ]
    assert sum(map(len, outside)) / 2 == pytest.approx(7, abs=1)
    assert np.mean([max(row.values()) for row in outside]) == pytest.approx(0.25, rel=0.3)


# ------------------------------------------------ training


def test_training_learns_names_that_documents_do_not_hold_and_logs_what_it_costs(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    """A question of the tiny set shares one word of four with its document: BM25 cannot see the other three."""
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        student=StudentSettings(document_length=32, query_length=16, residual=True),
        dev=[SparseSet(beir, split="dev", name="dev")],
        training=TrainingSettings(
            steps=60, batch_size=15, learning_rate=1e-2, warmup=0.1, evaluate_every=20, log_every=20
        ),
    )
    trained = train_sparse(config)
    measures = trained.measures
    assert measures["nDCG@10"] > measures["word-piece BM25 nDCG@10"]
    assert measures["start nDCG@10"] == pytest.approx(measures["word-piece BM25 nDCG@10"], abs=0.2)
    assert measures["expansion terms"] > 0
    assert measures["active terms"] > measures["expansion terms"]
    assert measures["FLOPS"] > 0
    logged = [entry for entry in trained.history if "expansions" in entry]
    assert {"active", "flops", "lambda", "info_nce"} <= logged[-1].keys()
    assert load_sparse(tmp_path / "model").info.kind == KIND


def test_warm_up_pre_training_and_fine_tuning_run_from_one_file_and_run_again_do_nothing(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    stage = StageSettings(
        train=[SparseSet(beir, name="pairs"), SparseSet(beir, questions="first-sentence", name="corpus")],
        objective=SparseObjective(teachers=["lexical"]),
        candidates=SparseCandidates(negatives=2, mine="student", consistency=50),
        document_length=16,
        training=TrainingSettings(steps=2, batch_size=4),
    )
    # Documents of six words give no first sentence: a corpus of its own.
    corpus = tmp_path / "corpus.jsonl"
    sentences = [f"{' '.join(WORDS[at : at + 4])}. {' '.join(WORDS[20 + at : 40 + at])}" for at in range(12)]
    corpus.write_text("".join(json.dumps({"_id": f"c{at}", "text": text}) + "\n" for at, text in enumerate(sentences)))
    stage.train[1].path = corpus
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        # BM25 is in it: the miner finds positives after two steps, so the filter leaves queries.
        student=StudentSettings(document_length=32, query_length=16, columns=16, residual=True),
        pretraining=stage,
        warm_up=WarmUpSettings(masked_lm_steps=2, impact_steps=2, batch_size=4, length=16, expansions=5),
        candidates=SparseCandidates(negatives=1, mine="bm25"),
        selection=DevSettings(hold_back=8, queries=8, documents=30),
    )
    path = tmp_path / "both.yaml"
    path.write_text(to_yaml(config))
    loaded = load_config(SparseConfig, path)
    assert loaded == config
    first = train_sparse(loaded)
    files = sorted(one.relative_to(tmp_path) for one in tmp_path.rglob("model.safetensors"))
    changed = {one: (tmp_path / one).stat().st_mtime_ns for one in files}
    assert len(files) >= 4
    assert train_sparse(loaded).steps == first.steps
    assert {one: (tmp_path / one).stat().st_mtime_ns for one in files} == changed


def test_all_pairs_of_the_batch_can_teach(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(
        backbone, beir, tmp_path, objective=SparseObjective(teachers=["lexical"], all_pairs=True),
        candidates=SparseCandidates(negatives=0),
    )  # fmt: skip
    model = student(config)
    batch = batch_of(config, model)
    targets = batch["targets"]
    assert targets["teacher"].shape == targets["known"].shape == targets["excluded"].shape
    assert bool(model(batch).total.isfinite())


# ------------------------------------------------ questions of unlabelled corpora


@pytest.fixture
def titled(tmp_path: Path) -> Path:
    path = tmp_path / "titled.jsonl"
    rest = "and then " * 10
    records = [
        {"_id": "a", "title": "How apples grow", "text": f"Apples grow on trees of some size. {rest}"},
        {"_id": "b", "title": "", "text": f"Short. {rest}"},
        {"_id": "c", "title": "Wine", "text": f"Wine is made of grapes in most places. {rest}"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_title_asks_for_its_text_and_a_first_sentence_for_the_rest(tmp_path: Path, titled: Path) -> None:
    titles = unlabelled(titled, "title", name="titles", cache=tmp_path)
    assert [example.query for example in titles.examples] == ["How apples grow", "Wine"]
    assert titles.documents["a"].startswith("Apples grow")
    assert len(titles.documents) == 3  # the others are searched, too
    sentences = unlabelled(titled, "first-sentence", name="sentences", cache=tmp_path)
    assert [example.query for example in sentences.examples] == [
        "Apples grow on trees of some size.",
        "Wine is made of grapes in most places.",
    ]
    assert "Apples grow" not in sentences.documents["a"]
    assert sentences.examples[0].positives == ("a",)


def test_a_corpus_that_gives_no_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"_id": "a", "text": "too short"}) + "\n")
    with pytest.raises(InputError, match="no document gives a question"):
        unlabelled(path, "first-sentence", name="short", cache=tmp_path)


def test_the_command_says_what_it_reached(tmp_path: Path, backbone: Path, beir: Path) -> None:
    from opensearch_neural.cli import osn

    config = configuration(backbone, beir, tmp_path / "model", dev=[SparseSet(beir, split="dev", name="dev")])
    path = tmp_path / "sparse.yaml"
    path.write_text(to_yaml(config))
    result = CliRunner().invoke(osn, ["train", "sparse", "--config", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for name in ("nDCG@10", "presence × idf nDCG@10", "word-piece BM25 nDCG@10", "expansion terms", "FLOPS"):
        assert name in result.stdout
