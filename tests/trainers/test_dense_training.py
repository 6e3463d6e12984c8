"""The bi-encoder: batches without false negatives, a directory that others load, schedules in one command."""

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
from transformers import BertModel  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.dense import load_dense  # noqa: E402
from trainers import dense  # noqa: E402
from trainers.common import attention, precision  # noqa: E402
from trainers.common.batches import CachedBatch  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.objective import ObjectiveSettings  # noqa: E402
from trainers.common.precision import Precision  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.schedules import TwoStageSettings  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.candidates import CandidateSettings, Drawn, RetrievalData  # noqa: E402
from trainers.data.examples import TrainingData  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.data.retrieval_batches import RetrievalCollate  # noqa: E402
from trainers.data.sets import DevSettings, SetSettings  # noqa: E402
from trainers.dense import DenseConfig, build, rehearse, train_dense  # noqa: E402
from trainers.encoders import backbones, bi_encoder  # noqa: E402
from trainers.encoders.bi_encoder import BiEncoder  # noqa: E402
from trainers.encoders.tower import EncoderSettings, load_towers, read_start  # noqa: E402

TEXTS = ["bab dek", "fin gol kuz lab mek nin pol ruz", "sab", " ".join(WORDS[:50])]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny", layers=3)


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny")


def configuration(backbone: Path, beir: Path, output: Path, **changes: Any) -> DenseConfig:
    plain: dict[str, Any] = {
        "output": output,
        "start": str(backbone),
        "train": [SetSettings(beir)],
        "encoder": EncoderSettings(query_length=16, document_length=32),
        "training": TrainingSettings(steps=20, batch_size=8, learning_rate=3e-3, evaluate_every=10, log_every=5),
    }
    return DenseConfig(**(plain | changes))


def randomly_different(model: BiEncoder) -> BiEncoder:
    """`model` with every weight moved, so that a weight that export forgets shows."""
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


# ------------------------------------------------ the directory


@pytest.mark.parametrize(
    "settings",
    [
        EncoderSettings(pooling="mean", normalize=True),
        EncoderSettings(pooling="cls", normalize=False),
        EncoderSettings(pooling="cls", normalize=False, tied=False),
        EncoderSettings(pooling="mean", normalize=True, tied=False, query_prompt="query: ", document_prompt="bab dek "),
    ],
    ids=["mean normalized", "cls", "two towers", "two towers with prompts"],
)
def test_the_directory_loads_in_sentence_transformers_with_the_same_vectors(
    tmp_path: Path, backbone: Path, beir: Path, settings: EncoderSettings
) -> None:
    from sentence_transformers import SentenceTransformer

    settings = replace(settings, query_length=32, document_length=32)
    model = randomly_different(build(configuration(backbone, beir, tmp_path, encoder=settings)))
    model.export(tmp_path)
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    for role, encode in (("query", loaded.encode_query), ("document", loaded.encode_document)):
        ours = model.vectors(role, TEXTS)  # type: ignore[arg-type]
        np.testing.assert_allclose(ours, np.asarray(encode(TEXTS)), atol=2e-6)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
    ours, theirs = model.vectors("query", TEXTS), load_dense(tmp_path)
    np.testing.assert_allclose(ours, theirs.encode_queries(TEXTS), atol=2e-6)
    assert theirs.normalized == bool(settings.normalize)
    if not settings.tied:
        assert not np.allclose(model.vectors("document", TEXTS), ours, atol=1e-3)


def test_a_t5_encoder_is_pooled_over_its_tokens_and_loads_again(tmp_path: Path, beir: Path) -> None:
    from sentence_transformers import SentenceTransformer

    start = tiny_backbone(tmp_path / "t5", kind="t5")
    model = randomly_different(build(configuration(start, beir, tmp_path)))
    (tmp_path / "out").mkdir()
    model.export(tmp_path / "out")
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS[:3])
    np.testing.assert_allclose(model.vectors("document", TEXTS[:3]), theirs, atol=2e-6)


def test_what_was_exported_is_a_start_again_with_its_pooling_and_towers(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = EncoderSettings(pooling="cls", normalize=True, tied=False, query_length=32, document_length=32)
    model = randomly_different(build(configuration(backbone, beir, tmp_path, encoder=settings)))
    model.export(tmp_path)
    start = read_start(tmp_path)
    assert (start.pooling, start.normalize, start.tied) == ("cls", True, False)
    towers = EncoderSettings(tied=False, query_length=32, document_length=32)
    again = build(configuration(tmp_path, beir, tmp_path, encoder=towers))
    for role in ("query", "document"):
        np.testing.assert_allclose(again.eval().vectors(role, TEXTS[:3]), model.vectors(role, TEXTS[:3]), atol=1e-6)
    with pytest.raises(InputError, match="two towers"):
        build(configuration(tmp_path, beir, tmp_path))


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_the_query_tower_encodes_through_onnx_as_through_torch(tmp_path: Path, beir: Path, kind: str) -> None:
    pytest.importorskip("onnxscript")
    start, output = tiny_backbone(tmp_path / "start", kind=kind), tmp_path / "model"
    settings = EncoderSettings(pooling="mean", normalize=True, query_length=32, document_length=32)
    model = randomly_different(build(configuration(start, beir, output, encoder=settings, onnx=True)))
    output.mkdir()
    model.export(output)
    vectors = load_dense(output, backend="onnx").encode_queries(TEXTS)
    np.testing.assert_allclose(vectors, model.vectors("query", TEXTS), atol=1e-4)


def test_an_older_pooling_file_is_read_and_a_projection_refused(tmp_path: Path, backbone: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(backbone)), Pooling(32, "cls")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "cls"))
    old = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "cls/1_Pooling/config.json").write_text(json.dumps(old))
    assert read_start(tmp_path / "cls").pooling == "cls"
    SentenceTransformer(modules=[*modules, Dense(32, 8)], device="cpu").save_pretrained(str(tmp_path / "dense"))
    with pytest.raises(ModelError, match="Dense"):
        read_start(tmp_path / "dense")


# ------------------------------------------------ batches


def write_beir(folder: Path, documents: dict[str, str], queries: dict[str, str], judged: list[tuple[str, str]]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": one, "title": "", "text": text}) for one, text in documents.items()]
    (folder / "corpus.jsonl").write_text("\n".join(corpus) + "\n")
    lines = [json.dumps({"_id": one, "text": text}) for one, text in queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    table = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in judged)]
    (folder / "qrels/train.tsv").write_text("\n".join(table) + "\n")
    return folder


@pytest.fixture
def answers(tmp_path: Path) -> TrainingData:
    """q1 and q2 share the answer d1; d4 has d1's text; q3's answers are d2 and d3; d5 answers nobody."""
    documents = {"d1": "bab dek", "d2": "fin", "d3": "gol", "d4": "Bab, dek!", "d5": "kuz"}
    queries = {"q1": "lab", "q2": "mek", "q3": "nin"}
    judged = [("q1", "d1"), ("q2", "d1"), ("q3", "d2"), ("q3", "d3")]
    return load_training(write_beir(tmp_path / "answers", documents, queries, judged), name="answers")


def collate_of(data: TrainingData, backbone: Path, **objective: Any) -> RetrievalCollate:
    model = build(configuration(backbone, Path("unused"), Path("unused")))
    return RetrievalCollate([data], model, ObjectiveSettings(**objective), chunk_size=None, overhead=0)


def drawn(data: TrainingData, example: int, positive: str, *negatives: str) -> Drawn:
    row = data.documents.row
    return Drawn(0, example, int(data.query_rows[example]), row(positive), [row(one) for one in negatives])


def test_other_answers_and_second_copies_are_no_negatives(answers: TrainingData, backbone: Path) -> None:
    items = [
        drawn(answers, 0, "d1", "d5"),  # q1
        drawn(answers, 1, "d1", "d3"),  # q2, the same answer
        drawn(answers, 2, "d2", "d4"),  # q3
    ]
    batch = collate_of(answers, backbone)(items)
    # Columns: the positives d1, d2, then the negatives d5, d3, d4; d1 is encoded once for q1 and q2.
    assert [len(part.position) for part in batch.parts["document"]] == [5]
    assert batch.targets.candidates.tolist() == [[0, 2], [0, 3], [1, 4]]
    assert batch.targets.excluded.int().tolist() == [
        [0, 0, 0, 0, 1],  # q1: d4 says what its answer says
        [0, 0, 0, 0, 1],
        [0, 0, 0, 1, 1],  # q3: d3 answers it too; d4 is the second copy of d1, which counts as its negative once
    ]
    assert batch.ids == ["answers/q1", "answers/q2", "answers/q3"]


def joined(batch: CachedBatch, model: BiEncoder, role: str) -> torch.Tensor:
    parts = batch.parts[role]
    vectors = torch.cat([model.encode(role, part).vectors for part in parts])
    return vectors[torch.argsort(torch.cat([part.position for part in parts]))]


def test_two_processes_see_the_loss_of_one(backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = RetrievalData([load_training(beir)], negatives=2, depth=5)
    # The same example in both halves: its documents are columns of both processes, and must count once.
    items = [data[Visit(index, 0, 0, 1)] for index in (0, 1, 2, 3, 1, 5)]
    config = configuration(backbone, beir, Path("unused"))
    model = build(config).eval()
    collate = RetrievalCollate(data.parts, model, config.objective, chunk_size=None, overhead=0)
    alone = model(collate(items, 0, 1)).total
    shares = [collate(items, rank, 2) for rank in (0, 1)]
    everyone = {role: torch.cat([joined(share, model, role) for share in shares]) for role in ("query", "document")}

    def gather(rows: torch.Tensor) -> torch.Tensor:
        # Which role's rows these are: the one that holds them.
        return next(of_role for of_role in everyone.values() if (of_role == rows[0]).all(dim=1).any())

    monkeypatch.setattr(bi_encoder, "gather", gather)
    each = [
        model.losses({role: joined(share, model, role) for role in ("query", "document")}, share.targets).total
        for share in shares
    ]
    assert ((each[0] + each[1]) / 2).item() == pytest.approx(alone.item(), rel=1e-5)


def test_chunks_have_the_gradient_of_the_whole_batch(backbone: Path, beir: Path) -> None:
    data = RetrievalData([load_training(beir)], negatives=1, depth=5)
    items = [data[Visit(index, 0, 0, 1)] for index in range(8)]
    config = configuration(backbone, beir, Path("unused"))
    gradients = []
    for chunk_size in (None, 3):
        model = build(config).eval()
        batch = RetrievalCollate(data.parts, model, config.objective, chunk_size=chunk_size, overhead=0)(items)
        if chunk_size is None:
            model(batch).total.backward()
        else:
            assert all(len(part.position) <= 3 for parts in batch.parts.values() for part in parts)
            cached_backward(model, batch)
        gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-6, rtol=1e-4)


def test_negatives_are_drawn_anew_at_each_visit_and_the_same_in_each_process(beir: Path) -> None:
    data = RetrievalData([load_training(beir)], negatives=3, depth=5)
    first, again = data[Visit(4, 0, 2, 1)], data[Visit(4, 0, 2, 1)]
    assert first == again
    assert any(data[Visit(4, epoch, 2, 1)].negatives != first.negatives for epoch in (1, 2, 3))
    assert first.positive not in first.negatives


# ------------------------------------------------ training


def test_the_command_raises_dev_ndcg_and_leaves_a_model_directory(tmp_path: Path, backbone: Path, beir: Path) -> None:
    from opensearch_neural.cli import osn

    output = tmp_path / "model"
    arguments = ["train", "dense", "--output", str(output), "--set", f"start={backbone}"]
    for override in (
        f"train=[{{path: {beir}}}]",
        f"dev=[{{path: {beir}, split: dev, name: dev}}]",
        "encoder={query_length: 16, document_length: 32, normalize: true}",
        "training={steps: 60, batch_size: 16, learning_rate: 5e-3, evaluate_every: 30}",
    ):
        arguments += ["--set", override]
    result = CliRunner().invoke(osn, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    osn_json = json.loads((output / "osn.json").read_text())
    measures = osn_json["measures"]
    assert measures["nDCG@10"] > measures["start nDCG@10"] + 0.1, measures
    assert f"{measures['nDCG@10']:.4f}" in result.stdout
    assert osn_json["kind"] == "dense"
    assert osn_json["training"]["training"]["steps"] == 60
    assert load_dense(output).normalized


def test_retriever_1_then_its_negatives_then_retriever_2_from_the_same_start(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        candidates=CandidateSettings(negatives=2, depth=10, mine="bm25"),
        two_stage=TwoStageSettings(depth=10, keep=4),
        training=TrainingSettings(steps=4, batch_size=8, learning_rate=1e-3),
    )
    train_dense(config)
    stages = tmp_path / "model/.stages"
    assert (tmp_path / "model/osn.json").exists() and (stages / "retriever-1/osn.json").exists()
    bm25, mined = (
        load_training(beir, negatives=stages / name) for name in ("tiny.bm25.jsonl", "tiny.retriever-1.jsonl")
    )
    assert len(bm25.negatives.values) and max(len(one.negatives) for one in mined.examples) == 4
    vectors = [load_dense(folder).encode_queries(TEXTS) for folder in (stages / "retriever-1", tmp_path / "model")]
    assert not np.allclose(*vectors), "the second stage trained on the first one's batches"
    # Done: again, it does nothing and says the same.
    before = (tmp_path / "model/model.safetensors").stat().st_mtime_ns
    train_dense(config)
    assert (tmp_path / "model/model.safetensors").stat().st_mtime_ns == before


def test_the_settings_dropout_replaces_the_backbones_own_and_not_what_its_folder_says(tmp_path: Path) -> None:
    start = read_start(tiny_backbone(tmp_path / "start", dropout=0.2))
    short = EncoderSettings(query_length=16, document_length=32)
    (given, _), (own, _) = (load_towers(start, replace(short, dropout=share)) for share in (0.0, None))
    assert backbones.largest_dropout(given["query"]) == 0.0
    assert backbones.largest_dropout(own["query"]) == 0.2
    assert given["query"].backbone.config.hidden_dropout_prob == 0.2, "the next training starts with the backbone's own"


def test_a_killed_run_with_dropout_and_gradient_caching_resumes_to_the_same_weights(
    tmp_path: Path, beir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    class Killed(BaseException):
        pass

    start = tiny_backbone(tmp_path / "start", dropout=0.2)
    plain = configuration(
        start,
        beir,
        tmp_path / "undisturbed",
        candidates=CandidateSettings(negatives=1),
        training=TrainingSettings(steps=9, batch_size=8, chunk_size=3, learning_rate=1e-3, save_every=2),
    )
    train_dense(plain)
    calls = 0

    def dies(self: BiEncoder, role: str, part: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 120:
            raise Killed
        return encode(self, role, part)

    encode = BiEncoder.encode
    monkeypatch.setattr(BiEncoder, "encode", dies)
    with pytest.raises(Killed):
        train_dense(replace(plain, output=tmp_path / "resumed"))
    monkeypatch.undo()
    assert list((tmp_path / "resumed/.training/checkpoints").glob("*/complete")), "killed before any checkpoint"
    train_dense(replace(plain, output=tmp_path / "resumed"))
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("undisturbed", "resumed"))
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize(("asked", "fast"), [("bfloat16", False), ("auto", True), ("auto", False)])
def test_bfloat16_trains_and_keeps_float32_weights(
    asked: Precision, fast: bool, tmp_path: Path, backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "faster_in_bfloat16", lambda device: fast)
    used: set[str] = set()
    rounded: set[str] = set()
    forward = BertModel.forward

    def noted(self: BertModel, *args: Any, **kwargs: Any) -> Any:
        phase = "training" if self.training else "evaluation"
        used.add(f"{self.config._attn_implementation} {phase}")
        if torch.is_autocast_enabled("cpu"):
            rounded.add(phase)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(BertModel, "forward", noted)
    training = TrainingSettings(steps=10, batch_size=16, learning_rate=3e-3, precision=asked, log_every=5, device="cpu")
    dev = [SetSettings(beir, split="dev", name="dev")]
    history = train_dense(configuration(backbone, beir, tmp_path / "model", training=training, dev=dev)).history
    logged = [entry["info_nce"] for entry in history if "info_nce" in entry]
    assert logged[-1] < logged[0]
    in_training = {name for name in used if name.endswith("training")}
    assert (in_training == {f"{attention.NAME} training"}) == (asked == "bfloat16" or fast)
    assert rounded == ({"training", "evaluation"} if asked == "bfloat16" or fast else set())
    assert attention.NAME not in (tmp_path / "model" / "config.json").read_text()
    assert load_dense(tmp_path / "model").encode_queries(TEXTS).dtype == np.float32


@pytest.mark.parametrize(
    ("objective", "terms"),
    [
        ({"info_nce": 0.0, "kl": 1.0}, {"kl"}),
        ({"info_nce": 0.5, "margin_mse": 0.1}, {"info_nce", "margin_mse"}),
    ],
    ids=["kl", "contrastive and margin-MSE"],
)
def test_distillation_from_scores_in_the_data(
    tmp_path: Path, backbone: Path, objective: dict[str, Any], terms: set[str]
) -> None:
    lines = [
        {"query": WORDS[at], "documents": [f"{WORDS[at]} bab", f"{WORDS[at + 20]} dek"], "scores": [9.0, 1.0 + at % 2]}
        for at in range(16)
    ]
    rows = [
        {
            "query": one["query"],
            "positive": one["documents"][0],
            "negative": one["documents"][1],
            "scores": one["scores"],
        }  # type: ignore[index]
        for one in lines
    ]
    (tmp_path / "scored.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    config = configuration(
        backbone,
        tmp_path / "scored.jsonl",
        tmp_path / "model",
        objective=ObjectiveSettings(**objective),
        candidates=CandidateSettings(negatives=1),
        training=TrainingSettings(steps=6, batch_size=8, learning_rate=3e-3, log_every=1),
    )
    history = [entry for entry in train_dense(config).history if "loss" in entry]
    assert terms <= history[0].keys() and not ({"info_nce", "kl", "margin_mse"} - terms) & history[0].keys()
    assert history[-1]["loss"] < history[0]["loss"]


def test_distillation_without_any_score_names_the_set(tmp_path: Path, backbone: Path, beir: Path) -> None:
    objective = ObjectiveSettings(info_nce=0.0, kl=1.0)
    config = configuration(
        backbone, beir, tmp_path / "model", objective=objective, candidates=CandidateSettings(negatives=1)
    )
    with pytest.raises(InputError, match="tiny: there is no teacher score"):
        train_dense(config)


def test_held_back_questions_and_unseen_ones_are_not_trained_on(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path,
        unseen=[SetSettings(beir, limit=5, name="unseen")],
        selection=DevSettings(hold_back=0.25, documents=30),
    )
    prepared = dense.prepared_sets(config)
    trained = set(prepared.train[0].query_texts())
    assert len(trained) == 30
    assert not trained & {"q1", "q2", "q3", "q5", "q6"}
    assert not trained & prepared.dev[0].queries.keys()
    assert len(prepared.dev[0].documents) == 30
    assert all(answer in prepared.dev[0].documents for of in prepared.dev[0].qrels.values() for answer in of)


def test_a_dry_run_goes_through_all_stages_and_keeps_nothing(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        candidates=CandidateSettings(negatives=1, depth=10, mine="bm25"),
        two_stage=TwoStageSettings(depth=10),
        selection=DevSettings(hold_back=0.2),
    )
    assert rehearse(config).steps == 2
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": EncoderSettings(query_length=16, document_length=512)}, "document_length is 512"),
        ({"start": "no/such/model"}, "no/such/model"),
    ],
)
def test_a_start_that_does_not_fit_is_named(
    tmp_path: Path, backbone: Path, beir: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((InputError, ModelError), match=message):
        build(configuration(backbone, beir, tmp_path, **changes))


def test_a_start_that_lacks_weights_is_refused_and_one_without_a_pooler_is_not(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    for name, lost in (("no-pooler", "pooler."), ("broken", "layer.1.output.dense.weight")):
        folder = tmp_path / name
        shutil.copytree(backbone, folder)
        weights = load_file(folder / "model.safetensors")
        kept = {key: value for key, value in weights.items() if lost not in key}
        assert len(kept) < len(weights)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    build(configuration(tmp_path / "no-pooler", beir, tmp_path))
    with pytest.raises(ModelError, match=r"lack .*layer\.1\.output\.dense\.weight"):
        build(configuration(tmp_path / "broken", beir, tmp_path))


def test_distillation_needs_candidates() -> None:
    with pytest.raises(ValueError, match=r"candidates\.negatives"):
        DenseConfig(Path("x"), [SetSettings(Path("y"))], objective=ObjectiveSettings(kl=1.0))


def test_temperature_follows_normalization_unless_given(backbone: Path, beir: Path) -> None:
    def temperature(**changes: Any) -> float:
        return build(configuration(backbone, beir, Path("unused"), **changes)).temperature

    normalized = EncoderSettings(normalize=True, query_length=16, document_length=32)
    assert (temperature(), temperature(encoder=normalized)) == (1.0, 0.05)
    assert temperature(encoder=normalized, objective=ObjectiveSettings(temperature=0.3)) == 0.3
