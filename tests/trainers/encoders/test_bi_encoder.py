"""Bi-encoders: the directories that they start from and leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiny import tiny_backbone  # noqa: E402
from tiny_dense import TEXTS, configuration  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.dense.torch_encoder import load_dense  # noqa: E402
from trainers.common.objective import TeacherScores  # noqa: E402
from trainers.common.settings import EncoderSettings, ObjectiveSettings  # noqa: E402
from trainers.data.retrieval_batches import RetrievalTargets  # noqa: E402
from trainers.data.settings import CandidateSettings  # noqa: E402
from trainers.dense.train import build  # noqa: E402
from trainers.encoders.bi_encoder import BiEncoder  # noqa: E402
from trainers.encoders.tower import read_start  # noqa: E402

SOME = CandidateSettings(negatives=3)


def randomly_different(model: BiEncoder) -> BiEncoder:
    """`model` with every weight moved, so that a weight that export forgets shows."""
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


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


def test_the_query_tower_of_a_t5_encodes_through_onnx_as_through_torch(tmp_path: Path, beir: Path) -> None:
    """That of a BERT: tests/models/dense/test_torch_encoder.py, and in the tests of multi-layer representations."""
    pytest.importorskip("onnxscript")
    start, output = tiny_backbone(tmp_path / "start", kind="t5"), tmp_path / "model"
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


def test_temperature_follows_normalization_unless_given(backbone: Path, beir: Path) -> None:
    def temperature(**changes: Any) -> float:
        return build(configuration(backbone, beir, Path("unused"), **changes)).temperature

    normalized = EncoderSettings(normalize=True, query_length=16, document_length=32)
    assert (temperature(), temperature(encoder=normalized)) == (1.0, 0.05)
    assert temperature(encoder=normalized, objective=ObjectiveSettings(temperature=0.3)) == 0.3


@pytest.mark.parametrize("term", ["kl", "margin_mse"])
def test_cosines_reach_teachers_scores_that_are_scaled_to_ten(backbone: Path, beir: Path, term: str) -> None:
    """Their differences are at most 2; undivided, all candidates below the best two would be pushed to the antipode."""
    taught = torch.tensor([[10.0, 6.0, 2.0, 0.0]])
    known = torch.ones(1, 4, dtype=torch.bool)
    teacher = TeacherScores(taught, known)
    targets = RetrievalTargets(torch.arange(4)[None], torch.ones(4, dtype=torch.long), ~known, teacher)

    def loss(normalize: bool, cosines: Any, temperature: float | None = None) -> float:
        encoder = EncoderSettings(normalize=normalize, query_length=16, document_length=32)
        objective = ObjectiveSettings(**{"info_nce": 0.0, term: 1.0}, temperature=temperature)
        model = build(
            configuration(backbone, beir, Path("unused"), encoder=encoder, objective=objective, candidates=SOME)
        )
        documents = torch.stack([cosines, (1 - cosines**2).sqrt()], dim=1)
        return model.loss_terms({"query": torch.tensor([[1.0, 0.0]]), "document": documents}, targets).total.item()

    reached = torch.tensor([0.5, 0.3, 0.1, 0.0])  # the teachers' scores, times the temperature of 0.05
    assert loss(True, reached) == pytest.approx(0.0, abs=1e-6)
    assert loss(True, torch.tensor([0.5, 0.1, 0.3, 0.0])) > 0.05
    # As before, with the temperature at 1, and wherever vectors are not normalized.
    undivided = loss(True, reached, temperature=1.0)
    assert undivided > 0.5
    assert loss(False, reached) == loss(False, reached, temperature=0.1) == pytest.approx(undivided)
