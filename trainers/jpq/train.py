"""`osn train jpq`: trains a query encoder and the centroids of a product quantization together for ranking.

    osn train jpq --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/jpq
    osn train jpq --set 'train=[{path: docs.jsonl.gz, questions: first-sentence}]' --output models/jpq
    osn train jpq --config jpq --output models/jpq      the paper's settings

faiss makes OPQ's rotation, the codebooks and every document's code (section 4.3), which then stay fixed. The query encoder
and the scoring centroids learn from pairs that the quantized ranking gets wrong (3.2, 3.3), among the documents that it
ranks highest at the current step (3.4). The result is a directory of kind "quantized": see `models.quantized`.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from opensearch_neural.models.dense.quantized import KIND
from trainers.common.config import fingerprint
from trainers.common.loop import train
from trainers.common.processes import main_process_first
from trainers.common.run_folder import Trained, check_output, dev_hashes
from trainers.data import tokenized
from trainers.data.sets import rehearsed, small
from trainers.jpq.preparation import Preparation, dev_measures
from trainers.jpq.questions import JpqCollate, TrainingQuestions
from trainers.jpq.settings import RANKING_DEPTH, JpqConfig

PART_OVERHEAD = {**tokenized.PART_OVERHEAD, "cpu": 128}
"""The cost of one more part, in tokens; on a CPU with short questions, the gradient of all word vectors costs most."""
REHEARSED = 1024
"""Documents of each corpus that a dry run encodes."""


def train_jpq(config: JpqConfig, *, documents: int | None = None) -> Trained:
    """Vectors, codebooks, codes, then training. After an interruption, the same call continues.

    documents: how many to read of each corpus, for a dry run; None reads all.
    """
    check_output(config.output, KIND)
    ready = Preparation(config, documents)
    data, model = ready.data, ready.model
    teacher = ranking = None
    with main_process_first():
        dev = ready.dev_sets()
        if any(config.ranked) or config.alignment:
            teacher = ready.question_vectors(data)
        if any(config.ranked) and config.lambda_rank:
            ranking = ready.ranking(data, min(RANKING_DEPTH, len(data.documents)))
    # Without LambdaRank, nothing is drawn from a ranking.
    ranked = config.ranked if config.lambda_rank else [False] * len(data.sets)
    questions = TrainingQuestions(data, ranked, ranking)
    model.leave_out(questions.no_negatives(asked_only=config.negatives.asked_only))
    overhead = PART_OVERHEAD[config.training.device_type]
    return train(
        model,
        questions,
        JpqCollate(data, model.query, overhead, teacher=teacher, aligns=config.alignment > 0),
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=config,
        data_hash=fingerprint(data.hash, ready.start.info.hash),
        made_from=dev_hashes(ready.dev_data),
        start_field="start",
        evaluate=partial(dev_measures, model, dev) if dev else None,
    )


def rehearse(config: JpqConfig) -> Trained:
    """Run all of `config` on the first rows of its data, two steps; nothing is kept."""
    rows = max(32, 4 * config.training.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        output, quantizer = Path(folder) / config.output.name, replace(config.quantizer, rotation_iterations=2)
        selection = replace(config.selection, queries=8, hold_back=rehearsed(config.selection.hold_back, rows))
        tried = small(config, rows, output=output, cache=None, quantizer=quantizer, selection=selection)
        return train_jpq(tried, documents=REHEARSED)
