"""How a backbone without a masked-LM head becomes a student."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiny import tiny_modern_bert  # noqa: E402
from tiny_sparse import TEXTS, configuration  # noqa: E402

from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.locks import locked  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.sparse.settings import (  # noqa: E402
    SparseCandidates,
    SparseObjective,
    StageSettings,
    WarmUpSettings,
)
from trainers.sparse.start import build  # noqa: E402
from trainers.sparse.train import prepared_sets  # noqa: E402
from trainers.sparse.warm_up import calibrate, warmed_up  # noqa: E402


def test_a_damaged_start_is_refused(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = build(config, [config.train[0].load().documents])
    with torch.no_grad():
        next(model.model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="outputs of the start are not numbers"):
        calibrate(model, TEXTS[:2], expansions=7, weight=None)


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


def test_a_head_whose_norm_has_no_bias_is_scaled(tmp_path: Path, beir: Path) -> None:
    config = configuration(tiny_modern_bert(tmp_path / "modern", headless=True), beir, tmp_path / "model")
    config = replace(config, warm_up=WarmUpSettings(expansions=7, weight=0.25))
    documents = config.train[0].load().documents
    model = build(replace(config, start=warmed_up(config, prepared_sets(config))), [documents]).eval()
    texts = list(documents.values())
    largest = [
        max((weight for token, weight in row.items() if token not in text.split()), default=0.0)
        for row, text in zip(model.vectors(texts).rows(), texts, strict=True)
    ]
    assert np.mean(largest) == pytest.approx(0.25, rel=0.3)


def test_a_fresh_head_is_calibrated_once_and_a_second_training_starts_from_the_same(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path / "model", warm_up=WarmUpSettings(expansions=7))
    texts = list(config.train[0].load().documents.values())

    def outside(start: str) -> float:
        model = build(replace(config, start=start), [config.train[0].load().documents]).eval()
        rows = zip(model.vectors(texts).rows(), texts, strict=True)
        return float(np.mean([len(set(row) - set(text.split())) for row, text in rows]))

    ready = warmed_up(config, prepared_sets(config))
    assert outside(config.start) < 1
    assert outside(ready) == pytest.approx(7, rel=0.2)
    weights = Path(ready) / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert warmed_up(config, prepared_sets(config)) == ready
    assert weights.stat().st_mtime_ns == before


def test_a_training_waits_while_another_one_warms_up_the_same_start_in_a_shared_cache(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path / "model", cache=tmp_path / "cache")
    prepared = prepared_sets(config)
    ready, made = Path(warmed_up(config, prepared)), tmp_path / "made"
    ready.rename(made)
    with ThreadPoolExecutor(1) as another:
        with locked(ready):
            waiting = another.submit(warmed_up, config, prepared)
            wait([waiting], timeout=2)
            made.rename(ready)
        assert waiting.result() == str(ready)


def test_consistency_needs_a_miner() -> None:
    with pytest.raises(ValueError, match=r"name it in candidates\.mine"):
        SparseCandidates(mine=None, consistency=5)


def test_what_finds_negatives_needs_negatives_to_be_drawn() -> None:
    plain, mined = [QuestionSet(Path("y"))], [QuestionSet(Path("y"), negatives=Path("n.jsonl"))]
    labels, none = SparseObjective(info_nce=1.0), SparseCandidates(negatives=0)
    for train, candidates in ((mined, none), (plain, replace(none, mine="student"))):
        with pytest.raises(ValueError, match=r"would have no effect: candidates\.negatives must be at least 1"):
            StageSettings(train, labels, candidates)
    # The consistency filter searches by the miner.
    StageSettings(plain, labels, replace(none, mine="student", consistency=5))
    StageSettings(plain, labels, none)
