"""What a student starts from is what it was: its head, its activation and its table are kept."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from own_code import give_own_code  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tiny import WORDS, tiny_backbone  # noqa: E402
from tiny_sparse import SMALL, batch_of, configuration  # noqa: E402

from opensearch_neural.cli import osn  # noqa: E402
from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.sparse.encoder import load_sparse  # noqa: E402
from opensearch_neural.models.sparse.idf import load_idf, save_idf  # noqa: E402
from opensearch_neural.models.sparse.pruning import Pruning  # noqa: E402
from trainers.common.config import to_yaml  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.sparse.settings import SparseCandidates, StageSettings, WarmUpSettings  # noqa: E402
from trainers.sparse.start import build, load_start, prompts_of_start, warn_of_what_is_left  # noqa: E402
from trainers.sparse.train import prepared_sets, train_sparse  # noqa: E402
from trainers.sparse.warm_up import warmed_up  # noqa: E402

OUTPUTS = ("model", "of-known")
TEXTS = ["bab dek fin", "gol kuz lab mek nin pol ruz", " ".join(WORDS[:20])]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, beir: Path) -> Path:
    """A sparse model whose activation and table are not the defaults."""
    folder = tmp_path_factory.mktemp("trained")
    save_idf(folder / "table.json", {word: 0.5 + at / 100 for at, word in enumerate(WORDS)})
    settings = replace(SMALL, activation="double-log", idf=str(folder / "table.json"))
    train_sparse(configuration(tiny_backbone(folder / "tiny"), beir, folder / "model", student=settings))
    return folder / "model"


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model with a head of its own, some of whose weights are above 0."""
    folder = tmp_path_factory.mktemp("masked-lm")
    model, tokenizer, _ = backbones.masked_language_model(tiny_backbone(folder / "tiny", seed=5))
    torch.nn.init.constant_(model.get_output_embeddings().bias, 0.2)
    backbones.save(model, tokenizer, folder / "model")
    return folder / "model"


def siamese(masked_lm: Path, folder: Path, *, activation: Any = "relu", **settings: Any) -> Any:
    """A siamese SPLADE of sentence-transformers, saved in `folder`."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    modules = [MLMTransformer(str(masked_lm)), SpladePooling("max", activation_function=activation)]
    model = SparseEncoder(modules=modules, device="cpu", **settings)
    model.save_pretrained(str(folder), create_model_card=False)
    return model


def weights(vectors: Any) -> list[dict[str, float]]:
    return [vectors.row(at) for at in range(len(TEXTS))]


def assert_weighs_alike(ours: Any, theirs: Any) -> None:
    assert any(theirs), "the data shows nothing"
    for mine, expected in zip(weights(ours), theirs, strict=True):
        assert mine == pytest.approx(expected, abs=1e-5)


def test_a_sparse_model_that_is_continued_weighs_as_before(trained: Path, beir: Path, tmp_path: Path) -> None:
    student = build(configuration(trained, beir, tmp_path), [QuestionSet(beir).load().documents]).eval()
    assert student.settings.activation == "double-log"
    assert_weighs_alike(student.vectors(TEXTS), weights(load_sparse(trained).encode_documents(TEXTS)))


def test_a_start_that_cannot_be_trained_is_refused_before_the_data_are_read(
    trained: Path, masked_lm: Path, beir: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(beir, tmp_path / "data")
    (data / "corpus.jsonl").write_text("this line would be refused\n")
    for start in (trained, masked_lm):
        damaged = shutil.copytree(start, tmp_path / f"damaged-{start.name}-{start.parent.name}")
        for file in damaged.rglob("model.safetensors"):
            file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ModelError, match="does not load as MaskedLM"):
            train_sparse(configuration(damaged, data, tmp_path / "out"))
    few = configuration(masked_lm, data, tmp_path / "out", student=replace(SMALL, frozen_layers=99))
    with pytest.raises(InputError, match="layers"):
        train_sparse(few)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="holds no document with text"):
        train_sparse(configuration(masked_lm, data, tmp_path / "out"))


@pytest.mark.parametrize("kind", ["router", "siamese", "masked language model with a table"])
def test_a_sparse_model_that_lost_its_head_is_refused_and_gets_no_new_one(
    trained: Path, masked_lm: Path, beir: Path, tmp_path: Path, kind: str
) -> None:
    damaged = tmp_path / "damaged"
    if kind == "siamese":
        siamese(masked_lm, damaged)
    else:
        shutil.copytree(trained if kind == "router" else masked_lm, damaged)
    if kind == "masked language model with a table":
        save_idf(damaged / "idf.json", dict.fromkeys(WORDS, 1.0))
    load_start(damaged, SMALL)
    removed = 0
    for file in damaged.rglob("model.safetensors"):
        tensors = load_file(file)
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
        removed += len(tensors) - len(kept)
        save_file(kept, file, metadata={"format": "pt"})
    assert removed
    with pytest.raises(ModelError, match="the weights of the masked-LM head are missing"):
        train_sparse(configuration(damaged, beir, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_activation_that_is_asked_for_is_used_with_one_warning(
    trained: Path, beir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(trained, beir, tmp_path, student=replace(SMALL, activation="log"))
    assert train_sparse(config).steps > 0
    assert '"relu"' in (tmp_path / "document_1_SpladePooling/config.json").read_text()
    assert sum("log changes all its weights" in record.getMessage() for record in caplog.records) == 1


def test_the_table_of_the_start_is_kept_where_it_is_asked_for(trained: Path, beir: Path, tmp_path: Path) -> None:
    config = configuration(trained, beir, tmp_path / "again", student=replace(SMALL, idf="start"))
    train_sparse(config)
    assert load_idf(tmp_path / "again" / "idf.json") == pytest.approx(load_idf(trained / "idf.json"))
    counted = configuration(trained, beir, tmp_path / "counted")
    own = build(counted, [QuestionSet(beir).load().documents]).lexicon.encoder.query.weights
    assert own != pytest.approx(load_idf(trained / "idf.json"))


def with_settings(start: Path, folder: Path, **settings: Any) -> Path:
    """A copy of a model with other settings of sentence-transformers."""
    shutil.copytree(start, folder)
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def settings_of(model: Path) -> dict[str, Any]:
    config = json.loads((model / "config_sentence_transformers.json").read_text())
    return {"prompts": config["prompts"], "max_active_dims": config.get("max_active_dims")}


def test_what_of_a_start_the_student_does_not_have_is_told(
    trained: Path, masked_lm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = {"query": "find ", "document": "about "}
    start = with_settings(trained, tmp_path / "start", prompts=prompts, max_active_dims=6)
    warn_of_what_is_left(start, replace(SMALL, max_active=9))
    network = replace(SMALL, queries="network", head="full")
    assert prompts_of_start(start, network)["query"] == "", "the start's queries were a table's"
    told = [record.getMessage() for record in caplog.records]
    assert any("each query after the prompt 'find '" in line for line in told)
    assert any("the 6 heaviest terms of a text, the student 9" in line for line in told)
    assert any("has a table of its own" in line for line in told)
    assert not any("each document" in line for line in told)
    caplog.clear()
    for settings in (SMALL, replace(SMALL, max_active=6)):
        warn_of_what_is_left(start, settings)
    assert not any("heaviest" in record.getMessage() for record in caplog.records)
    caplog.clear()
    warn_of_what_is_left(trained, replace(SMALL, idf="start"))
    assert not caplog.records
    # What a backbone was taught to read before a text is not what a new head learns with.
    backbone = Path(shutil.copytree(masked_lm, tmp_path / "backbone"))
    (backbone / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    warn_of_what_is_left(backbone, SMALL)
    assert [record.getMessage().split(" encodes ")[1].split(" after ")[0] for record in caplog.records] == [
        "each query",
        "each document",
    ]


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_a_start_goes_on_with_its_document_prompt_and_its_limit_of_terms(
    trained: Path, beir: Path, tmp_path: Path, head: Any
) -> None:
    prompts = {"query": "gol ", "document": "ruz pol "}
    start = with_settings(trained, tmp_path / "start", prompts=prompts, max_active_dims=6)
    config = configuration(start, beir, tmp_path / "model", student=replace(SMALL, head=head))
    student = build(config, [QuestionSet(beir).load().documents]).eval()
    expected = weights(load_sparse(start).encode_documents(TEXTS))
    assert_weighs_alike(student.vectors(TEXTS), expected)
    assert expected != weights(load_sparse(trained).encode_documents(TEXTS)), "the data shows nothing"
    assert max(map(len, expected)) == 6

    first = torch.tensor([student.vocabulary.index(word) for word in ("[CLS]", "ruz", "pol")])
    part = batch_of(config, student).parts["document"][0]
    assert (part.input_ids[:, :3] == first).all()
    active = (student.encode("document", part).vectors > 0).sum(dim=1)
    assert (int(active.max()) <= 6) == (head == "full"), "as with student.max_active"
    assert student.encoder_settings.query_prompt == "", "a table would look up its words"

    train_sparse(config)
    assert settings_of(tmp_path / "model") == {"prompts": {"query": "", "document": "ruz pol "}, "max_active_dims": 6}
    # Another stage goes on with them, and so does a search.
    again = build(replace(config, start=str(tmp_path / "model")), [QuestionSet(beir).load().documents]).eval()
    assert_weighs_alike(again.vectors(TEXTS), weights(load_sparse(tmp_path / "model").encode_documents(TEXTS)))


def test_a_limit_of_terms_that_is_asked_for_is_used(trained: Path, beir: Path, tmp_path: Path) -> None:
    start = with_settings(trained, tmp_path / "start", max_active_dims=6)
    config = configuration(start, beir, tmp_path / "model", student=replace(SMALL, max_active=4))
    student = build(config, [QuestionSet(beir).load().documents])
    assert student.settings.max_active == 4
    assert max(map(len, student.eval().vectors(TEXTS).rows())) == 4


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_a_start_goes_on_with_its_pruning(
    trained: Path, beir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, head: Any
) -> None:
    start = Path(shutil.copytree(trained, tmp_path / "start"))
    Pruning("max_ratio", 0.9).save(start)
    config = configuration(start, beir, tmp_path / "model", student=replace(SMALL, head=head, idf="start"))
    student = build(config, [QuestionSet(beir).load().documents]).eval()
    expected = weights(load_sparse(start).encode_documents(TEXTS))
    assert_weighs_alike(student.vectors(TEXTS), expected)
    assert expected != weights(load_sparse(trained).encode_documents(TEXTS)), "the data shows nothing"
    train_sparse(config)
    assert Pruning.of_model(tmp_path / "model") == Pruning("max_ratio", 0.9)
    assert not any("prunes" in record.getMessage() for record in caplog.records)
    # Another rule that is asked for is used, and told; one that keeps all terms is a rule too.
    for at, rule in enumerate(("top_k:3", "alpha_mass:1")):
        asked = replace(config, output=tmp_path / f"asked-{at}", student=replace(config.student, prune=rule))
        caplog.clear()
        train_sparse(asked)
        assert Pruning.of_model(asked.output) == Pruning.parse(rule)
        (told,) = [line for record in caplog.records if "prunes" in (line := record.getMessage())]
        assert told.endswith(f"prunes documents by max_ratio:0.9, the student by {rule} (student.prune)")


def test_a_siamese_start_goes_on_with_both_prompts_where_the_network_encodes_queries(
    masked_lm: Path, beir: Path, tmp_path: Path
) -> None:
    prompts = {"query": "gol ", "document": "ruz pol "}
    theirs = siamese(masked_lm, tmp_path / "splade", prompts=prompts)
    network = replace(SMALL, queries="network", head="full")
    config = configuration(tmp_path / "splade", beir, tmp_path / "model", student=network)
    stores = [QuestionSet(beir).load().documents]
    student = build(config, stores).eval()
    for role, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        ours = student.vectors(TEXTS, role=role).to_scipy().toarray()
        ordinary = student.ordinary_entries
        np.testing.assert_allclose(ours[:, ordinary], encode(TEXTS).to_dense().numpy()[:, ordinary], atol=1e-5)
    part = batch_of(config, student).parts["query"][0]
    assert (part.input_ids[:, 1] == student.vocabulary.index("gol")).all()
    train_sparse(config)
    assert settings_of(tmp_path / "model") == {"prompts": prompts, "max_active_dims": None}

    assert prompts_of_start(tmp_path / "splade", SMALL) == {"query": "", "document": "ruz pol "}
    by_table = build(replace(config, student=SMALL), stores)
    (tmp_path / "by-table").mkdir()
    by_table.export(tmp_path / "by-table")
    assert settings_of(tmp_path / "by-table")["prompts"] == {"query": "", "document": "ruz pol "}


def test_a_start_without_a_table_is_refused_before_anything_is_computed(
    masked_lm: Path, beir: Path, tmp_path: Path
) -> None:
    config = configuration(masked_lm, beir, tmp_path / "out", student=replace(SMALL, idf="start"))
    with pytest.raises(InputError, match="has no table"):
        train_sparse(config)
    assert not (tmp_path / "out").exists()


def test_a_trained_head_is_neither_warmed_up_nor_calibrated(trained: Path, beir: Path, tmp_path: Path) -> None:
    asked = WarmUpSettings(expansions=3, weight=2.0)
    config = configuration(trained, beir, tmp_path / "out", warm_up=asked)
    assert warmed_up(config, prepared_sets(config)) == str(trained)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_siamese_splade_model_is_a_start(masked_lm: Path, beir: Path, tmp_path: Path, activation: Any) -> None:
    theirs = siamese(masked_lm, tmp_path / "splade", activation=activation)
    student = build(configuration(tmp_path / "splade", beir, tmp_path / "out"), [QuestionSet(beir).load().documents])
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    expected = [
        {token: weight for token, weight in theirs.decode(vector) if token not in special}
        for vector in theirs.encode_document(TEXTS)
    ]
    assert_weighs_alike(student.eval().vectors(TEXTS), expected)


def test_a_bare_masked_language_model_keeps_its_head(masked_lm: Path, beir: Path, tmp_path: Path) -> None:
    model, _, fresh = load_start(masked_lm, SMALL)
    again, _, _ = backbones.masked_language_model(masked_lm)
    assert not fresh
    for (name, mine), (_, theirs) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach(), theirs.detach(), err_msg=name)


@pytest.mark.parametrize("start", ["with a head", "without a head", "SPLADE"])
def test_a_starts_own_code_runs_only_where_it_is_trusted_and_goes_with_the_model(
    start: str, masked_lm: Path, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    known = masked_lm if start != "without a head" else tiny_backbone(tmp_path / "known", seed=5)
    odd = give_own_code(Path(shutil.copytree(known, tmp_path / "odd")))
    student = replace(SMALL, queries="network", head="full") if start == "SPLADE" else SMALL
    config = configuration(odd, beir, tmp_path / "model", student=student)
    (tmp_path / "sparse.yaml").write_text(to_yaml(config))
    arguments = ["train", "sparse", "--config", str(tmp_path / "sparse.yaml")]
    refused = CliRunner().invoke(osn, arguments)
    assert isinstance(refused.exception, ModelError) and "has code of its own" in refused.exception.message
    assert refused.exception.remedy is not None and "--trust-remote-code" in refused.exception.remedy
    assert "train sparse" in refused.exception.remedy
    assert not (odd / ".ran").exists()
    # A configuration that others wrote cannot switch it on.
    switched = CliRunner().invoke(osn, [*arguments, "--set", "trust_remote_code=true"])
    assert isinstance(switched.exception, InputError) and not (odd / ".ran").exists()

    for more in (["--dry-run"], []):
        trained = CliRunner().invoke(osn, [*arguments, *more, "--trust-remote-code"], catch_exceptions=False)
        assert trained.exit_code == 0, trained.output
    assert (odd / ".ran").exists()
    train_sparse(replace(config, start=str(known), output=tmp_path / "of-known"))
    if start == "SPLADE":
        ours, theirs = (load_start(tmp_path / name, student, trust_remote_code=name == "model")[0] for name in OUTPUTS)
        pairs = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
        assert all(torch.allclose(mine, expected, atol=1e-6) for mine, expected in pairs)
        return
    with pytest.raises(ModelError, match="has code of its own"):
        load_sparse(tmp_path / "model", device="cpu")
    ours, theirs = (
        load_sparse(tmp_path / name, device="cpu", trust_remote_code=name == "model").encode_documents(TEXTS)
        for name in OUTPUTS
    )
    assert_weighs_alike(ours, weights(theirs))


def test_models_of_own_code_that_mine_are_refused_before_anything_is_trained(
    masked_lm: Path, beir: Path, tmp_path: Path
) -> None:
    odd = give_own_code(Path(shutil.copytree(masked_lm, tmp_path / "odd")))
    plain = configuration(odd, beir, tmp_path / "model", candidates=SparseCandidates(negatives=1, mine="student"))
    config = replace(plain, pretraining=StageSettings(train=plain.train, training=plain.training))
    with pytest.raises(InputError, match="has code of its own"):
        train_sparse(config, trust_remote_code=True)
    assert not (tmp_path / "model").exists()
