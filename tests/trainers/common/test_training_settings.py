"""Settings that would have no effect, or would fail hours later, are refused at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural.errors import InputError
from trainers.common.config import load_config
from trainers.dense.settings import DenseConfig
from trainers.doc2query.settings import Doc2QueryConfig
from trainers.jpq.settings import JpqConfig
from trainers.masked_lm.settings import MaskedLmConfig
from trainers.multi_layer.settings import MlrConfig
from trainers.query_as_context.settings import QueryAsContextConfig
from trainers.sparse.settings import SparseConfig
from trainers.tome.settings import TomeConfig

TRAIN = ["output=out", "train=[{path: a}]"]
TAUGHT = ["objective.kl=1", "candidates.negatives=1"]
PRETRAINING = "pretraining={train: [{path: b}], training: {patience: 2}}"
NEEDED: dict[Any, list[str]] = {
    DenseConfig: TRAIN,
    MlrConfig: TRAIN,
    SparseConfig: TRAIN,
    JpqConfig: TRAIN,
    Doc2QueryConfig: ["output=out", "data=[a]", "backbone=b"],
    MaskedLmConfig: ["output=out", "corpus=[a]", "backbone=b"],
    TomeConfig: ["output=out", "corpus=a", "backbone=b"],
    QueryAsContextConfig: ["output=out", "corpora=[{path: a}]", "backbone=b"],
}


@pytest.mark.parametrize("setting", ["patience=2", "select=nDCG@10"])
@pytest.mark.parametrize(
    ("kind", "unmeasured", "measured"),
    [
        (DenseConfig, [], ["dev=[{path: d}]"]),
        (MlrConfig, [], ["selection.hold_back=0.1"]),
        (SparseConfig, [], ["selection.hold_back=0.1"]),
        (JpqConfig, [], ["dev=[{path: d}]"]),
        (Doc2QueryConfig, ["dev_share=0"], []),
        (MaskedLmConfig, ["dev_share=0"], []),
        (QueryAsContextConfig, ["dev_share=0"], ["dev_share=0", "dev=[{path: d}]"]),
    ],
)
def test_what_goes_by_dev_measures_needs_some(
    kind: Any, unmeasured: list[str], measured: list[str], setting: str
) -> None:
    given = [*NEEDED[kind], f"training.{setting}"]
    with pytest.raises(InputError, match="there is nothing to measure on"):
        load_config(kind, None, [*given, *unmeasured])
    assert load_config(kind, None, [*given, *measured])


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (SparseConfig, [PRETRAINING], "nothing to measure on"),
        (TomeConfig, ["dev_share=0", "url_training.select=written"], "nothing to measure on"),
        (TomeConfig, ["training.patience=2"], "select is last"),
        (QueryAsContextConfig, ["dev_share=0", "condenser={patience: 2}"], "nothing to measure on"),
        (DenseConfig, ["train=[{path: a, teachers: [t]}]"], "a: teachers are named, but objective.kl"),
        (SparseConfig, ["train=[{path: a, teachers: [t]}]"], "a: teachers are named, but objective.kl"),
        (SparseConfig, ["pretraining={train: [{path: b, teachers: [t]}]}"], "b: teachers are named"),
        (DenseConfig, ["two_stage.depth=0"], "depth 0 and keep None must be at least 1"),
        (DenseConfig, ["two_stage.keep=0"], "depth 200 and keep 0 must be at least 1"),
        (DenseConfig, ["two_stage.learning_rate=-1e-5"], "learning_rate must be above 0"),
        (DenseConfig, ["two_stage.learning_rate=0"], "learning_rate must be above 0"),
        (DenseConfig, ["two_stage.epochs=0"], "epochs must be above 0"),
        (DenseConfig, ["two_stage.steps=0"], "steps must be above 0"),
        (DenseConfig, ["encoder.dropout=10"], "dropout must be from 0 to below 1"),
        (SparseConfig, ["student.dropout=10"], "dropout must be from 0 to below 1"),
        (JpqConfig, ["dropout=-0.1"], "dropout must be from 0 to below 1"),
        (MaskedLmConfig, ["backbone=null", "new.dropout=1"], "dropout must be from 0 to below 1"),
        (SparseConfig, ["student.frozen_layers=-1"], "frozen_layers must not be below 0"),
        (DenseConfig, ["training.weight_decay=-1"], "weight_decay -1.0 and workers 0 must not be below 0"),
        (DenseConfig, ["training.workers=-1"], "workers -1 must not be below 0"),
        (DenseConfig, ["training.max_gradient_norm=0"], "max_gradient_norm must be above 0"),
        (DenseConfig, ["selection.queries=0"], "queries 0 must be at least 1"),
        (JpqConfig, ["selection.queries=-1"], "queries must be at least 1, not -1"),
        (DenseConfig, ["train=[{path: a, limit: 0}]"], "limit must be at least 1, not 0"),
        (SparseConfig, ["train=[{path: a, questions: title, limit: -1}]"], "limit must be at least 1, not -1"),
        (QueryAsContextConfig, ["corpora=[{path: a, limit: -1}]"], "limit must be at least 1, not -1"),
        (
            MlrConfig,
            [*TAUGHT, "objective.teacher_scale=30"],
            r"objective\.teacher_scale would have no effect: no train set",
        ),
        (
            DenseConfig,
            [*TAUGHT, "objective.normalize_teachers=false"],
            r"normalize_teachers would have no effect: no train",
        ),
        (SparseConfig, [*TAUGHT, "objective.teacher_weights=[1]"], r"teacher_weights would have no effect: no train"),
        (
            SparseConfig,
            [*TAUGHT, "train=[{path: a, teachers: [t]}]", "objective.teachers=[lexical]"],
            r"objective\.teachers would have no effect: each train set names teachers of its own",
        ),
        (
            SparseConfig,
            ["pretraining={train: [{path: b}], objective: {kl: 1, teacher_scale: 30}}"],
            "teacher_scale would have no effect",
        ),
        (
            JpqConfig,
            ["negatives.asked_only=true", "objective.lambda_rank=0", "query_layers=0"],
            "asked_only would have no",
        ),
        (
            JpqConfig,
            ["negatives.depth=50", "objective.lambda_rank=0", "query_layers=0"],
            "negatives.depth would have no",
        ),
        (
            JpqConfig,
            ["quantizer.learning_rate=1e-4", "objective.lambda_rank=0", "query_layers=0"],
            "quantizer.learning_rate would have no effect: objective.lambda_rank is 0",
        ),
        (
            JpqConfig,
            ["quantizer.learning_rate=1e-4", "objective.documents=uncompressed"],
            "quantizer.learning_rate would have no effect: it is that of the centroids",
        ),
        (QueryAsContextConfig, ["variant=cot-mae", "temperature=0.5"], "temperature would have no effect: CoT-MAE"),
        (QueryAsContextConfig, ["context=random-passage", "candidates=2"], "candidates would have no effect"),
        (MlrConfig, ["representation.count=4"], "count 4 would have no effect"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(kind: Any, settings: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_config(kind, None, [*NEEDED[kind], *settings])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DenseConfig, ["train=[{path: a}, {path: b, teachers: [t]}]", "objective.teacher_scale=30"]),
        (SparseConfig, ["train=[{path: a}, {path: b, teachers: [t]}]", "objective.teacher_scale=30"]),
        (SparseConfig, ["train=[{path: a}, {path: b, teachers: [t]}]", "objective.teachers=[lexical]"]),
        (SparseConfig, ["objective.teachers=[lexical]", "objective.normalize_teachers=false"]),
    ],
)
def test_settings_of_teachers_that_one_set_reads_are_taken(kind: Any, settings: list[str]) -> None:
    assert load_config(kind, None, [*NEEDED[kind], *TAUGHT, *settings])


def test_the_settings_of_a_second_stage_may_be_left_out_or_named() -> None:
    given = [
        *TRAIN,
        "candidates.negatives=1",
        "two_stage={depth: 1, keep: 1, learning_rate: 1e-5, epochs: 0.5, steps: 1}",
    ]
    config = load_config(DenseConfig, None, given)
    assert config.output == Path("out") and config.two_stage is not None and config.two_stage.epochs == 0.5


UNREAD: list[tuple[Any, str, str]] = [
    (JpqConfig, "train=[{path: a, negatives: n.jsonl}]", "train[].negatives (a)"),
    (JpqConfig, "train=[{path: a, teachers: [t]}, {path: b, teachers: [t]}]", "train[].teachers (a, b)"),
    (JpqConfig, "dev=[{path: d, teachers: [t]}]", "dev[].teachers (d)"),
    (JpqConfig, "quantizer={train_centroids: false, learning_rate: 1e-3}", "learning_rate"),
    (TomeConfig, "queries=[{path: a, negatives: n.jsonl}]", "queries[].negatives (a)"),
    (TomeConfig, "queries=[{path: a, teachers: [t]}]", "queries[].teachers (a)"),
    (TomeConfig, "unseen=[{path: u, teachers: [t]}]", "unseen[].teachers (u)"),
    *(
        (kind, "dev=[{path: d, teachers: [t]}]", "dev[].teachers (d)")
        for kind in (DenseConfig, MlrConfig, SparseConfig)
    ),
    *((kind, "unseen=[{path: u, teachers: [t]}]", "unseen[].teachers (u)") for kind in (DenseConfig, SparseConfig)),
    *((kind, "objective.teacher_weights=[1.0]", "teacher_weights") for kind in (DenseConfig, MlrConfig, SparseConfig)),
    (QueryAsContextConfig, "test=[{path: t, teachers: [t]}]", "test[].teachers (t)"),
    (QueryAsContextConfig, "selection.hold_back=0.1", "selection.hold_back"),
]


@pytest.mark.parametrize(("kind", "setting", "named"), UNREAD)
def test_a_setting_that_a_training_does_not_read_is_refused(kind: Any, setting: str, named: str) -> None:
    with pytest.raises(InputError, match=rf"{re.escape(named)} would have no effect: "):
        load_config(kind, None, [*NEEDED[kind], setting])
