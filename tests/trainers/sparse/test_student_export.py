"""The directory of a sparse model: what other libraries read of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from tiny import tiny_modern_bert  # noqa: E402
from tiny_sparse import SMALL, TEXTS, batch_of, configuration, student  # noqa: E402

from opensearch_neural.commands.idf import idf  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.models.sparse.encoder import load_sparse  # noqa: E402
from opensearch_neural.models.sparse.lexical import build_lexical  # noqa: E402
from trainers.sparse.settings import StudentSettings  # noqa: E402
from trainers.sparse.start import build  # noqa: E402
from trainers.sparse.train import train_sparse  # noqa: E402
from trainers.sparse.warm_up import calibrate  # noqa: E402


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


def test_a_head_without_a_bias_is_written_as_it_was_trained(
    tmp_path: Path, beir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(tiny_modern_bert(tmp_path / "modern", decoder_bias=False), beir, tmp_path / "model")
    train_sparse(config)
    model = build(config, [config.train[0].load().documents]).eval()
    assert not model.head.bias.requires_grad
    assert "has no output bias, which would silence special tokens" in caplog.text
    (tmp_path / "written").mkdir()
    model.export(tmp_path / "written")
    assert model.head.bias is not None
    ours, theirs = model.vectors(TEXTS[:4]), load_sparse(tmp_path / "written").encode_documents(TEXTS[:4])
    assert len(ours.weights) > 20
    np.testing.assert_allclose(theirs.to_scipy().toarray(), ours.to_scipy().toarray(), atol=2e-6)
    names = load_file(tmp_path / "written" / "document_0_Transformer" / "model.safetensors").keys()
    assert "decoder.bias" not in names
    with pytest.raises(InputError, match="has no bias"):
        calibrate(model, TEXTS[:2], expansions=7, weight=None)


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_a_document_keeps_its_heaviest_terms_in_training_on_dev_and_wherever_the_model_is_used(
    tmp_path: Path, backbone: Path, beir: Path, head: Any
) -> None:
    from sentence_transformers import SparseEncoder

    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, max_active=4, head=head))
    model = student(config)
    kept = model.vectors(TEXTS)
    # Some texts have more than four terms, of which these are the heaviest.
    whole = replace(config, student=replace(config.student, max_active=None))
    every = student(whole).vectors(TEXTS)
    for row in range(len(TEXTS)):
        heaviest = sorted(every.row(row).items(), key=lambda term: -term[1])[:4]
        assert kept.row(row) == pytest.approx(dict(heaviest))
    assert max(len(every.row(row)) for row in range(len(TEXTS))) > 4
    part = batch_of(config, model).parts["document"][0]
    active = (model.encode("document", part).vectors > 0).sum(dim=1).max().item()
    assert (active <= 4) == (head == "full")
    (tmp_path / "model").mkdir()
    model.export(tmp_path / "model")
    assert load_sparse(tmp_path / "model").encode_documents(TEXTS).row(1) == pytest.approx(kept.row(1), rel=1e-4)
    theirs = SparseEncoder(str(tmp_path / "model"), device="cpu")
    assert theirs.encode_document(TEXTS[1:2]).coalesce().values().numel() == len(kept.row(1))


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_a_document_is_pruned_in_training_on_dev_and_wherever_the_model_is_used(
    tmp_path: Path, backbone: Path, beir: Path, head: Any
) -> None:
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, prune="max_ratio:0.9", head=head))
    model = student(config)
    kept, every = model.vectors(TEXTS), student(replace(config, student=replace(SMALL, head=head))).vectors(TEXTS)
    for row in range(len(TEXTS)):
        whole = every.row(row)
        heavy = {token: weight for token, weight in whole.items() if weight >= 0.9 * max(whole.values())}
        assert kept.row(row) == pytest.approx(heavy)
    assert 0 < len(kept.weights) < len(every.weights)
    assert model.vectors(TEXTS, role="query").row(1) == pytest.approx(every.row(1)), "queries are not pruned"
    weights = model.encode("document", batch_of(config, model).parts["document"][0]).vectors
    least = torch.where(weights > 0, weights, torch.inf).amin(dim=1) / weights.amax(dim=1)
    assert bool((least >= 0.9).all()) == (head == "full")
    (tmp_path / "model").mkdir()
    model.export(tmp_path / "model")
    encoder = load_sparse(tmp_path / "model")
    assert encoder.encode_documents(TEXTS).row(1) == pytest.approx(kept.row(1), rel=1e-4)
    (tmp_path / "model" / "pruning.json").unlink()
    other = load_sparse(tmp_path / "model")
    assert other.info.hash != encoder.info.hash and len(other.encode_documents(TEXTS).row(1)) > len(kept.row(1))
    with pytest.raises(ValueError, match="max_ratio takes a share above 0"):
        replace(SMALL, prune="max_ratio:2")


def test_a_model_gets_the_statistics_of_another_corpus_and_keeps_what_it_learned(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    from sentence_transformers import SparseEncoder

    model = student(configuration(backbone, beir, tmp_path / "x"))
    source, out = tmp_path / "source", tmp_path / "adapted"
    source.mkdir()
    model.export(source)
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "d", "text": "bab bab dek"}) + "\n")
    arguments = ["--corpus", str(tmp_path / "c.jsonl"), "--model", str(source), "--out", str(out)]
    done = CliRunner().invoke(idf, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    adapted = load_sparse(out)
    lexical = build_lexical(["bab bab dek"], tokenizer=model.lexicon.encoder.query.tokenizer)
    query = adapted.query.encode("bab fin")
    assert query == pytest.approx(lexical.query.encode("bab fin"), rel=1e-6)
    assert query != pytest.approx(load_sparse(source).query.encode("bab fin"), rel=1e-2)
    expected = model.vectors(TEXTS[:2]).to_scipy().toarray()
    (vector,) = SparseEncoder(str(out), device="cpu").encode_query(["bab fin"]).to_dense().tolist()
    assert {adapted.vocabulary[at]: weight for at, weight in enumerate(vector) if weight} == pytest.approx(query)
    np.testing.assert_allclose(adapted.encode_documents(TEXTS[:2]).to_scipy().toarray(), expected, atol=2e-6)
    with pytest.raises(InputError, match="exists already"):
        CliRunner().invoke(idf, arguments, catch_exceptions=False, standalone_mode=False)
