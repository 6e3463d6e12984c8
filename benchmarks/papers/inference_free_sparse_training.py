"""What `osn paper inference-free-sparse` trains, and how the ablations' students are tested."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.experiment import compared
from benchmarks.papers.sparse_search import MEASURES, on_target, sparse_test, sparsity_rows, student_run, untrained
from opensearch_neural.evaluation.results import MeasuredEngine, Row

if TYPE_CHECKING:
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.models.sparse import SparseDocumentEncoder
    from trainers.sparse.settings import SparseConfig

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
TRAINED_ON = ("scifact", "wikiqa-doc", "tldr", "squad-mix")
SMALL = ("wikiqa-doc", "tldr")
"""What the ablations train on."""
TESTED = ("wikiqa-doc", "cranfield")
"""What the ablations are tested on, one that they train on and one unseen: to encode tldr takes longer than a training."""
WARM_UP_STEPS = 100
DENSE_TEACHER_STEPS = 70
"""Training steps of the second dense teacher, which see half of the questions once."""
HOLD_BACK = 100
"""Questions of each train set that select the state that is kept."""
OWN = "own IDF"


def configuration(data: Path, work: Path, name: str, *, steps: int, sets: Sequence[str] = ()) -> SparseConfig:
    """The student of part "quality", on `sets` or all of TRAINED_ON; settings were chosen on held-back parts of train."""
    from trainers.common.config import load_config, recipe
    from trainers.data.sets import QuestionSet
    from trainers.sparse.settings import SparseConfig

    base = load_config(SparseConfig, recipe("bm25-sparse"))
    names = sets or TRAINED_ON
    return replace(
        base,
        output=work / "models" / name,
        cache=work / "cache",
        start=START,
        train=[QuestionSet(data / name) for name in names],
        unseen=[QuestionSet(data / name, split="test", name=f"{name}-test") for name in names],
        selection=replace(base.selection, hold_back=HOLD_BACK, queries=HOLD_BACK),
        # Measured once, at the end.
        training=replace(base.training, steps=steps, set_weights=0.25, evaluate_every=steps),
    )


def ablation(data: Path, work: Path, name: str, *, steps: int) -> SparseConfig:
    """The paper's own student, trained without BM25, small: what parts "flops" and "distillation" vary."""
    from trainers.sparse.settings import SparseObjective

    config = configuration(data, work, name, steps=steps, sets=SMALL)
    return replace(
        config,
        student=replace(config.student, idf="train"),
        warm_up=replace(config.warm_up, impact_steps=WARM_UP_STEPS),
        objective=SparseObjective(
            info_nce=0.0, kl=1.0, teachers=[START, "lexical"], teacher_scale=10.0, all_pairs=True
        ),
    )


def trained(config: SparseConfig) -> SparseDocumentEncoder:
    """The model of `config`, trained if it is not there yet."""
    from opensearch_neural.models.sparse import load_sparse
    from trainers.common.precision import faster_in_bfloat16
    from trainers.sparse.train import train_sparse

    done = train_sparse(config)
    logger.info(
        "%s: %d steps, the state after %s kept: %s", config.output.name, done.steps, done.best_step, done.measures
    )
    dtype: Literal["fp32", "bf16"] = "bf16" if faster_in_bfloat16() else "fp32"
    return load_sparse(config.output, dtype=dtype)


def trained_dense(data: Path, work: Path) -> str:
    """MiniLM trained by `osn train dense` on the ablations' sets."""
    from trainers.common.settings import TrainingSettings
    from trainers.data.sets import SetSettings
    from trainers.dense import DenseConfig, train_dense
    from trainers.encoders.tower import EncoderSettings

    output = work / "models" / "dense"
    train_dense(
        DenseConfig(
            output=output,
            train=[SetSettings(data / name) for name in SMALL],
            start=START,
            unseen=[SetSettings(data / name, split="test", name=f"{name}-test") for name in SMALL],
            encoder=EncoderSettings(query_length=64, document_length=128),
            training=TrainingSettings(steps=DENSE_TEACHER_STEPS, batch_size=64, learning_rate=5e-5, precision="auto"),
        )
    )
    return str(output)


# ------------------------------------------------ what is tested


def rows_of(name: str, measured: Mapping[str, Measured], baseline: str) -> list[Row]:
    engines = {MeasuredEngine(engine): own for engine, own in measured.items()}
    return compared(name, engines, [(engine, baseline) for engine in measured if engine != baseline])


def tested(
    data: Path,
    work: Path,
    models: Mapping[str, Any],
    targeted: Mapping[str, Any],
    *,
    baseline: str,
    own_idf: Mapping[str, str] | None = None,
) -> list[Row]:
    """Rows of the students on the ablations' test sets, with what needs no learning; `targeted` ones use their IDF.

    own_idf: {engine: engine with the same model and its own IDF}, which are compared besides.
    """
    from opensearch_neural.evaluation.result_rows import only_differences, rows

    result: list[Row] = []
    pieces = next(iter({**models, **targeted}.values())).query.tokenizer
    for test in (sparse_test(data, name, work) for name in TESTED):
        lexicon = test.lexicon(pieces)
        measured = untrained(test, lexicon)
        adapted = {engine: on_target(model, lexicon) for engine, model in targeted.items()}
        for engine, model in {**models, **adapted}.items():
            run, sparsity = student_run(model, test)
            measured[engine] = test.measure(run, MEASURES)
            result += sparsity_rows(test, engine, sparsity)
        result += rows_of(test.name, measured, baseline)
        for engine, own in (own_idf or {}).items():
            both = {OWN: measured[own], engine: measured[engine]}
            result += only_differences(rows(test.name, both, baseline=OWN))
    return result
