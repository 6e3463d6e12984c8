"""`osn train query-as-context`: an encoder learns from passages and the queries generated for them.

    osn train query-as-context --variant cocondenser --context query --output models/pretrained \\
        --set 'corpora=[{path: squad-mix}]' --backbone models/mlm --set generation.model=models/doc2query
    osn train query-as-context --config query-as-context --output models/pretrained      the whole paper

"Query-as-context Pre-training for Dense Passage Retrieval". Documents are split into passages of whole sentences, and each
passage gets generated queries. Each visit draws one of them as the passage's context; or another passage of the same
article, as coCondenser and CoT-MAE do, with which the paper compares.

The result is an ordinary backbone (`osn train dense`, `sparse`, `mlr` start from it), and also a dense model: CLS, raw inner
products. Passages and queries are kept in `cache`; the same command again repeats no finished step.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models.dense.torch_encoder import KIND as DENSE_KIND
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import fingerprint
from trainers.common.grad_cache import in_order
from trainers.common.loop import train
from trainers.common.processes import is_main_process
from trainers.common.run_folder import Trained, check_output, dev_hashes, history
from trainers.common.sampling import Visit
from trainers.common.settings import FIRST, FOLDER
from trainers.data.dev_sets import DevSet, corpus_measures, dev_measures, dev_set
from trainers.data.sets import check_set_names, refuse_same_names, small
from trainers.dense.train import rehearse as rehearse_dense
from trainers.dense.train import train_dense
from trainers.doc2query.generate import load_generator
from trainers.encoders import backbones
from trainers.query_as_context.context_models import CoCondenser, ContextModel, build, masked_lm_head
from trainers.query_as_context.pairs import ContextPairs, usable_rows
from trainers.query_as_context.passages import Passages, generation_for, read_passages
from trainers.query_as_context.settings import QueryAsContextConfig

KIND = "masked-lm"
EVALUATION_PAIRS = 32
"""Pairs in a batch for measuring."""


@dataclass(slots=True)
class Step:
    """A model that the schedule made."""

    name: str
    """the name of the step, for messages"""
    model: Path
    """its model directory"""
    measures: dict[str, dict[str, float]] = field(default_factory=dict)
    """{test set: {measure: value}}"""


def train_query_as_context(config: QueryAsContextConfig) -> list[Step]:
    """Passages, queries, Condenser pre-training if asked, pre-training, retrievers 1 and 2; measures after each training.

    After an interruption, the same call continues; finished, current steps are not repeated.
    """
    refuse_early(config)
    passages = read_passages(config)
    dev = [
        dev_set(
            settings.load(),
            queries=config.selection.queries,
            documents=config.selection.documents,
            seed=config.training.seed,
        )
        for settings in config.dev
    ]
    steps: list[Step] = []
    current = config
    if config.condenser is not None:
        before = replace(config, output=config.output / FOLDER / "condenser", context="none", training=config.condenser)
        pretrain(before, passages, dev)
        current = replace(config, backbone=str(before.output))
        steps.append(_measured("Condenser", before.output, config))
    pretrain(current, passages, dev)
    steps.append(_measured("pre-trained", config.output, config))
    if config.retriever is not None:
        fine_tuning = replace(config.retriever, start=str(config.output))
        train_dense(fine_tuning)
        if fine_tuning.two_stage is not None:
            steps.append(_measured("retriever 1", fine_tuning.output / FOLDER / FIRST, config))
            steps.append(_measured("retriever 2", fine_tuning.output, config))
        else:
            steps.append(_measured("retriever", fine_tuning.output, config))
    return steps


def refuse_early(config: QueryAsContextConfig) -> None:
    """Raises early the errors that later steps would raise after hours.

    InputError for occupied folders, missing data and sets of the same name, ModelError for an unsuitable backbone or
    generator.
    """
    check_output(config.output, KIND)
    sets = [*config.unseen, *config.dev, *config.test]
    refuse_same_names("dev", config.dev)
    refuse_same_names("test", config.test)
    if config.retriever is not None:
        check_set_names(config.retriever.train, config.retriever.dev, config.retriever.selection)
        check_output(config.retriever.output, DENSE_KIND)
        sets += [*config.retriever.train, *config.retriever.dev, *config.retriever.unseen]
    files = [corpus.queries for corpus in config.corpora if config.uses_queries and corpus.queries is not None]
    for path in [corpus.path for corpus in config.corpora] + files + [settings.path for settings in sets]:
        if not path.exists():
            raise InputError(f"{path} does not exist")
    if config.uses_queries:
        generations = [generation_for(config, corpus) for corpus in config.corpora if corpus.queries is None]
        for generation in {generation.generator: generation for generation in generations}.values():
            if not backbones.is_sequence_to_sequence(generation.generator):
                raise ModelError(
                    f"{generation.generator} is not a sequence-to-sequence model",
                    "train a generator with osn train doc2query",
                )
            load_generator(generation)
    model = build(config)
    if model.tokenizer.mask_token_id is None:
        raise InputError(f"the tokenizer of {config.backbone} has no mask token")
    masked_lm_head(model.model)
    try:
        with torch.no_grad():
            hidden = torch.zeros(1, 2, int(model.model.config.hidden_size))
            passed: Any = model.through(hidden, torch.ones(1, 2, dtype=torch.long))
        if not isinstance(passed, Tensor):
            raise TypeError(f"they return a {type(passed).__name__}")
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the layers of {type(model.model).__name__} cannot be called like BERT's ({error})",
            "start from a BERT-like backbone",
        ) from None


def pretrain(config: QueryAsContextConfig, passages: Passages, dev: Sequence[DevSet]) -> Trained:
    """One pre-training of `config.backbone`, written to `config.output`.

    Keeps the state with the least loss on held-back passages; `training.select` can name another measure.
    """
    model = build(config)
    train_rows, dev_rows = usable_rows(passages, config)
    pairs, held_back = (ContextPairs(passages, model.tokenizer, config, rows) for rows in (train_rows, dev_rows))

    def measured() -> dict[str, float]:
        terms = held_back_loss(model, held_back) if len(held_back) else {}
        measures = {"objective": -sum(terms.values())} if terms else {}
        measures |= {name: -value for name, value in terms.items()}
        return measures | (dev_measures(dev, model.dense().retrieve) if dev else {})

    # Earlier and later steps write other folders and do not change the weights here.
    alone = replace(config, retriever=None, condenser=None, test=[], cache=None)
    return train(
        model,
        pairs,
        pairs.collate,
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=alone,
        data_hash=fingerprint(passages.hash, hash_files(locate(config.backbone))),
        made_from=dev_hashes(dev),
        start_field="backbone",
        evaluate=measured if len(held_back) or dev else None,
    )


def held_back_loss(model: ContextModel, pairs: ContextPairs) -> dict[str, float]:
    """The terms of the loss over all of `pairs`, in batches of EVALUATION_PAIRS; draws and masks are the same at each call.

    Only the main process measures: nothing is gathered from the others.
    """
    device = next(model.parameters()).device
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    # Shuffled, so that a batch has passages of many articles, as in training: those of one article exclude each other.
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    for start in range(0, len(pairs), EVALUATION_PAIRS):
        visits = [Visit(index, 0, 0, 0) for index in order[start : start + EVALUATION_PAIRS]]
        batch = pairs.collate([pairs[visit] for visit in visits]).to(device)
        vectors: dict[str, Tensor] = {}
        for role, parts in batch.parts.items():
            encoded = [model.encode(role, part) for part in parts]
            vectors[role] = in_order([rows.vectors for rows in encoded], [part.position for part in parts])
            for rows in encoded:
                for name, total in rows.sums.items():
                    sums[name] = sums.get(name, 0.0) + float(total)
                    counts[name] = counts.get(name, 0.0) + float(rows.counts[name])
        if isinstance(model, CoCondenser) and model.compares:
            both, keys = torch.cat([vectors["passage"], vectors["context"]]), batch.targets.keys
            contrastive = model.compared(both, both, keys, keys, first=0).terms["contrastive"]
            sums["contrastive"] = sums.get("contrastive", 0.0) + len(visits) * float(contrastive)
            counts["contrastive"] = counts.get("contrastive", 0.0) + len(visits)
    return {name: total / max(counts[name], 1) for name, total in sums.items()}


def _measured(name: str, model: Path, config: QueryAsContextConfig) -> Step:
    """Measures of the model on each test set; kept beside it, and taken again if the model or the set has changed."""
    step = Step(name, model)
    for settings in config.test:
        data = settings.load()
        folder = model / FOLDER / f"test-{data.name}-{fingerprint(hash_files(model), data.hash)[:8]}"
        file = folder / "measures.json"
        if is_main_process() and not file.exists():
            write_json(file, {"measures": corpus_measures(f"dense:{model}", data, cache=folder).mean})
            for vectors in folder.iterdir():  # Those of a large corpus need more room than everything else.
                if vectors != file:
                    shutil.rmtree(vectors) if vectors.is_dir() else vectors.unlink()
        if is_main_process():
            step.measures[data.name] = read_json_object(file)["measures"]
    return step


def rehearse(config: QueryAsContextConfig) -> list[Step]:
    """Run all of `config` on the first rows of its data, two steps per training; nothing is kept."""
    for settings in config.unseen:
        settings.load()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / config.output.name
        tried = small(
            config,
            8,
            output=output,
            cache=None,
            # A given file of queries is for all passages of its corpus.
            corpora=[
                corpus if corpus.queries is not None else replace(corpus, limit=min(corpus.limit or 64, 64))
                for corpus in config.corpora
            ],
            # `unseen` might leave none of the first documents; but given queries are for passages without `unseen`.
            unseen=config.unseen if any(corpus.queries for corpus in config.corpora) else [],
            dev_share=max(config.dev_share, 0.1),
            training=config.training.two_steps(8),
            condenser=None if config.condenser is None else config.condenser.two_steps(8),
            retriever=None,
        )
        steps = train_query_as_context(tried)
        if config.retriever is not None:
            rehearse_dense(replace(config.retriever, start=str(output)))
            steps.append(Step("retrievers", config.retriever.output))
        return steps


def steps_per_second(model: Path) -> float | None:
    """The median rate of a training, by its history; None if nothing was logged."""
    rates = [line["steps_per_second"] for line in history(model) if "steps_per_second" in line]
    return float(np.median(rates)) if rates else None
