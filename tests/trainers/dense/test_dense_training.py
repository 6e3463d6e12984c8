"""`osn train dense`: the flow from settings to a model directory."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from osn_train import osn_train  # noqa: E402
from tiny import WORDS, tiny_backbone  # noqa: E402
from tiny_dense import TEXTS, configuration  # noqa: E402
from transformers import BertModel  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.dense.torch_encoder import load_dense  # noqa: E402
from opensearch_neural.models.directory import prompt  # noqa: E402
from trainers.common import attention, precision  # noqa: E402
from trainers.common.precision import Precision  # noqa: E402
from trainers.common.run_folder import history  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import EncoderSettings, ObjectiveSettings, TrainingSettings  # noqa: E402
from trainers.data.candidates import RetrievalData, candidate_rows  # noqa: E402
from trainers.data.loading import load_training, with_negatives  # noqa: E402
from trainers.data.negatives import Mining, with_mined  # noqa: E402
from trainers.data.settings import CandidateSettings, DevSettings, SetSettings  # noqa: E402
from trainers.data.teach import Teaching, teach  # noqa: E402
from trainers.dense.settings import DenseConfig, TwoStageSettings  # noqa: E402
from trainers.dense.train import build, prepared_sets, rehearse, second_stage, train_dense  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.bi_encoder import BiEncoder  # noqa: E402
from trainers.encoders.tower import load_towers, read_start  # noqa: E402


def test_the_command_raises_dev_ndcg_and_leaves_a_model_directory(tmp_path: Path, backbone: Path, beir: Path) -> None:
    output = tmp_path / "model"
    settings = (
        f"start={backbone}",
        f"train=[{{path: {beir}}}]",
        f"dev=[{{path: {beir}, split: dev, name: dev}}]",
        "encoder={query_length: 16, document_length: 32, normalize: true}",
        "training={steps: 60, batch_size: 16, learning_rate: 5e-3, evaluate_every: 30}",
    )
    result = osn_train("dense", output, settings)
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


@pytest.mark.parametrize(("keep", "kept"), [(None, 4), (2, 2)])
def test_retriever_2_draws_from_all_of_both_lists_each_cut_at_its_own_depth(
    tmp_path: Path, backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch, keep: int | None, kept: int
) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        candidates=CandidateSettings(negatives=2, depth=4, mine="bm25"),
        two_stage=TwoStageSettings(depth=4, keep=keep),
        training=TrainingSettings(steps=1, batch_size=8, learning_rate=1e-3),
    )
    drawn_from: list[RetrievalData] = []
    of_sets = RetrievalData.__init__

    def noted(self: RetrievalData, *arguments: Any, **named: Any) -> None:
        of_sets(self, *arguments, **named)
        drawn_from.append(self)

    monkeypatch.setattr(RetrievalData, "__init__", noted)
    train_dense(config)
    second = drawn_from[-1]
    bm25, mined = (
        load_training(beir, negatives=tmp_path / "model/.stages" / name).negatives
        for name in ("tiny.bm25.jsonl", "tiny.retriever-1.jsonl")
    )
    pools = [set(rows[: second.depth].tolist()) for rows in second.parts[0].negatives]
    assert pools == [{*a[:kept].tolist(), *b[:kept].tolist()} for a, b in zip(bm25, mined, strict=True)]
    assert max(map(len, pools)) > kept, "the lists differ"


def test_the_settings_dropout_replaces_the_backbones_own_and_not_what_its_folder_says(tmp_path: Path) -> None:
    start = read_start(tiny_backbone(tmp_path / "start", dropout=0.2))
    short = EncoderSettings(query_length=16, document_length=32)
    (given, _, _), (own, _, _) = (load_towers(start, replace(short, dropout=share)) for share in (0.0, None))
    assert backbones.largest_dropout(given["query"]) == 0.0
    assert backbones.largest_dropout(own["query"]) == 0.2
    assert given["query"].backbone.config.hidden_dropout_prob == 0.2, "the next training starts with the backbone's own"


def test_a_model_keeps_the_prompts_of_its_start_unless_others_are_given(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    """Such as E5's "query: " and "passage: "."""
    small: dict[str, Any] = {"training": TrainingSettings(steps=1, batch_size=8, learning_rate=1e-9)}
    lengths: dict[str, Any] = {"query_length": 16, "document_length": 32}
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    prompts = EncoderSettings(**lengths, query_prompt="query: ", document_prompt="passage: ")
    train_dense(configuration(backbone, beir, first, encoder=prompts, **small))
    train_dense(configuration(first, beir, second, encoder=EncoderSettings(**lengths), **small))
    train_dense(configuration(first, beir, third, encoder=EncoderSettings(**lengths, query_prompt=""), **small))
    assert prompt(second, "query") == "query: " and prompt(second, "document") == "passage: "
    assert prompt(third, "query") == "" and prompt(third, "document") == "passage: "
    np.testing.assert_allclose(*(load_dense(model).encode_queries(TEXTS) for model in (first, second)), atol=1e-5)
    assert not np.allclose(*(load_dense(model).encode_queries(TEXTS) for model in (first, third)))


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
    train_dense(configuration(backbone, beir, tmp_path / "model", training=training, dev=dev))
    logged = [entry["info_nce"] for entry in history(tmp_path / "model") if "info_nce" in entry]
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
    train_dense(config)
    logged = [entry for entry in history(config.output) if "loss" in entry]
    assert terms <= logged[0].keys() and not ({"info_nce", "kl", "margin_mse"} - terms) & logged[0].keys()
    assert logged[-1]["loss"] < logged[0]["loss"]


def test_distillation_without_any_score_names_the_set(tmp_path: Path, backbone: Path, beir: Path) -> None:
    objective = ObjectiveSettings(info_nce=0.0, kl=1.0)
    config = configuration(
        backbone, beir, tmp_path / "model", objective=objective, candidates=CandidateSettings(negatives=1)
    )
    with pytest.raises(InputError, match="tiny: there is no teacher score"):
        train_dense(config)


def distilling(backbone: Path, data: Path, output: Path, cache: Path) -> DenseConfig:
    """One step that learns from a teacher's cache alone."""
    return configuration(
        backbone,
        data,
        output,
        train=[SetSettings(data, teachers=[cache])],
        objective=ObjectiveSettings(info_nce=0.0, kl=1.0),
        candidates=CandidateSettings(negatives=1),
        training=TrainingSettings(steps=1, batch_size=8),
    )


def test_other_teachers_make_another_run(tmp_path: Path, backbone: Path, beir: Path) -> None:
    cache = tmp_path / "teacher"
    teach("lexical", load_training(beir), output=cache)
    config = distilling(backbone, beir, tmp_path / "model", cache)
    train_dense(config)
    moved = cache.rename(tmp_path / "moved")
    shutil.copytree(moved, cache)
    assert train_dense(config).steps == 1
    shutil.rmtree(cache)
    teach(backbone, load_training(beir), teaching=Teaching(kind="dense"), output=cache)
    with pytest.raises(InputError, match="with other teachers"):
        train_dense(config)


def test_teachers_that_encoded_candidates_alone_are_refused_before_a_stage_that_mines(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    judgements = beir / "qrels" / "train.tsv"
    folder = Path(shutil.copytree(beir, tmp_path / "beir"))
    asked = [line.split("\t")[0] for line in judgements.read_text().splitlines()[1:]]
    more = "".join(f"{query}\td0\t0\n" for query in asked)
    (folder / "qrels" / "train.tsv").write_text(judgements.read_text() + more)
    data = load_training(folder)
    cache = teach("lexical", data, output=tmp_path / "teacher", candidates=candidate_rows(data))
    config = distilling(backbone, folder, tmp_path / "model", cache)
    two_stages = replace(config, two_stage=TwoStageSettings(depth=5), output=tmp_path / "two")
    with pytest.raises(InputError, match=r"lexical encoded 46 of the 60 documents of .*two_stage mines"):
        train_dense(two_stages)
    assert not (tmp_path / "two").exists()
    assert train_dense(config).steps == 1


def test_held_back_questions_and_unseen_ones_are_not_trained_on(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path,
        unseen=[SetSettings(beir, limit=5, name="unseen")],
        selection=DevSettings(hold_back=0.25, documents=30),
    )
    prepared = prepared_sets(config)
    trained = set(prepared.train[0].query_texts())
    assert len(trained) == 30
    assert not trained & {"q1", "q2", "q3", "q5", "q6"}
    assert not trained & prepared.dev[0].queries.keys()
    assert len(prepared.dev[0].documents) == 30
    assert all(answer in prepared.dev[0].documents for of in prepared.dev[0].qrels.values() for answer in of)


def test_held_back_documents_are_negatives_of_no_stage_also_beside_files_of_an_earlier_version(
    tmp_path: Path, backbone: Path, beir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(
        backbone,
        beir,
        tmp_path / "model",
        candidates=CandidateSettings(negatives=2, depth=10, mine="bm25"),
        two_stage=TwoStageSettings(depth=10),
        selection=DevSettings(hold_back=0.2),
        training=TrainingSettings(steps=2, batch_size=8, learning_rate=1e-3),
    )
    prepared = prepared_sets(config)
    (train,), (held,) = prepared.train, prepared.measured
    everything = replace(train, withheld=train.withheld[:0])
    before = with_mined(everything, "bm25", tmp_path / "model/.stages/tiny.bm25.jsonl", Mining(depth=10))
    answers = set(held.positives.values.tolist())
    assert answers & set(before.negatives.values.tolist()), "BM25 finds some of them"

    drawn: list[Any] = []
    sample = RetrievalData.__getitem__

    def noted(self: RetrievalData, visit: Visit) -> Any:
        drawn.append(sample(self, visit))
        return drawn[-1]

    monkeypatch.setattr(RetrievalData, "__getitem__", noted)
    train_dense(config)
    stages = tmp_path / "model/.stages"
    files = [*stages.glob("tiny.bm25-*.jsonl"), *stages.glob("tiny.retriever-1-*.jsonl")]
    assert len(files) == 2
    for file in files:
        assert not answers & set(with_negatives(train, file).negatives.values.tolist())
    assert len(drawn) >= 2 * 2 * 8 and not answers & {row for one in drawn for row in one.negatives}


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


def test_a_dry_run_holds_back_passages_with_several_questions(tmp_path: Path, backbone: Path) -> None:
    rows = [{"query": f"{WORDS[at % 40]} {at}", "positive": f"{WORDS[at // 8]} bab"} for at in range(240)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    selection = DevSettings(hold_back=0.05)
    config = configuration(backbone, tmp_path / "pairs.jsonl", tmp_path / "model", selection=selection)
    assert rehearse(config).steps == 2


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


def test_what_is_refused_is_refused_before_negatives_are_mined(tmp_path: Path, backbone: Path, beir: Path) -> None:
    mined = CandidateSettings(negatives=1, mine="bm25")
    config = configuration(backbone, beir, tmp_path / "model", candidates=mined)
    config.output.mkdir()
    (config.output / "notes.txt").write_text("mine")
    for refused, message in (
        (config, "holds something else"),
        (replace(config, start="no/such/model"), "no/such/model"),
    ):
        with pytest.raises((InputError, ModelError), match=message):
            train_dense(refused)
        assert [path.name for path in config.output.iterdir()] == ["notes.txt"]


def test_a_model_is_not_measured_on_two_contents_of_a_dev_set(tmp_path: Path, backbone: Path, beir: Path) -> None:
    data = shutil.copytree(beir, tmp_path / "data")
    dev, training = [SetSettings(data, split="dev", name="dev")], TrainingSettings(steps=1, batch_size=8)
    config = configuration(backbone, data, tmp_path / "model", dev=dev, training=training)
    assert train_dense(config).steps == 1 == train_dense(config).steps
    judged = (data / "qrels/dev.tsv").read_text().splitlines(keepends=True)
    (data / "qrels/dev.tsv").write_text("".join(judged[:-1]))
    with pytest.raises(InputError, match="another content of the dev set dev"):
        train_dense(config)


def test_distillation_needs_candidates() -> None:
    with pytest.raises(ValueError, match=r"candidates\.negatives"):
        DenseConfig(Path("x"), [SetSettings(Path("y"))], objective=ObjectiveSettings(kl=1.0))


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"two_stage": TwoStageSettings()}, "two_stage"),
        ({"candidates": CandidateSettings(mine="bm25")}, r"candidates\.mine"),
        ({"train": [SetSettings(Path("y"), negatives=Path("n.jsonl"))]}, r"train\[\]\.negatives"),
    ],
)
def test_what_finds_negatives_needs_negatives_to_be_drawn(changes: dict[str, Any], setting: str) -> None:
    plain: dict[str, Any] = {"output": Path("x"), "train": [SetSettings(Path("y"))]}
    with pytest.raises(ValueError, match=rf"{setting} would have no effect: candidates\.negatives must be at least 1"):
        DenseConfig(**(plain | changes))
    candidates = replace(changes.get("candidates", CandidateSettings()), negatives=1)
    DenseConfig(**(plain | changes | {"candidates": candidates}))


def test_the_second_stage_changes_what_it_names_alone() -> None:
    first = TrainingSettings(steps=100, learning_rate=1e-5, batch_size=8)
    second = second_stage(first, TwoStageSettings(learning_rate=5e-6))
    assert (second.steps, second.learning_rate, second.batch_size) == (100, 5e-6, 8)
    second = second_stage(first, TwoStageSettings(epochs=4))
    assert (second.steps, second.epochs) == (None, 4)
