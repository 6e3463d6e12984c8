"""TODO."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import backbone_option, config_options, fingerprint
from trainers.common.dev_measures import DevSet, corpus_measures, dev_measures, dev_set
from trainers.common.grad_cache import in_order
from trainers.common.loop import train
from trainers.common.processes import is_main_process
from trainers.common.run_folder import Trained, check_output
from trainers.common.sampling import Visit
from trainers.common.schedules import FIRST, FOLDER
from trainers.common.settings import TrainingSettings
from trainers.common.training_model import TrainingModel
from trainers.dense import rehearse as rehearse_dense
from trainers.dense import train_dense
from trainers.encoders import backbones
from trainers.encoders.bi_encoder import KIND as DENSE_KIND
from trainers.query_as_context.model import CoCondenser, ContextModel, build, masked_lm_head
from trainers.query_as_context.pairs import Pairs, usable_rows
from trainers.query_as_context.passages import Passages, generator_of, read_passages
from trainers.query_as_context.settings import QueryAsContextConfig

KIND = "masked-lm"

EVALUATION_PAIRS = 32


def held_back_loss(model: ContextModel, pairs: Pairs) -> dict[str, float]:
    """The terms of the loss over all of `pairs`, drawn and masked alike each time, in batches of EVALUATION_PAIRS. Without
    other processes, which do not measure."""
    device = next(model.parameters()).device
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    # As in training, a batch's passages are of many articles: those of one exclude each other.
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    for start in range(0, len(pairs), EVALUATION_PAIRS):
        visits = [Visit(index, 0, 0, 0) for index in order[start : start + EVALUATION_PAIRS]]
        batch = pairs.collate([pairs[visit] for visit in visits]).to(device)
        vectors: dict[str, Tensor] = {}
        for role, parts in batch.parts.items():
            encoded = [model.encode(role, part) for part in parts]
            vectors[role] = in_order([one.vectors for one in encoded], [part.position for part in parts])
            for one in encoded:
                for name, total in one.sums.items():
                    sums[name] = sums.get(name, 0.0) + float(total)
                    counts[name] = counts.get(name, 0.0) + float(one.counts[name])
        if isinstance(model, CoCondenser) and model.compares:
            rows, keys = torch.cat([vectors["passage"], vectors["context"]]), batch.targets.keys
            found = model.compared(rows, rows, keys, keys, first=0)
            sums["contrastive"] = sums.get("contrastive", 0.0) + len(visits) * float(found.terms["contrastive"])
            counts["contrastive"] = counts.get("contrastive", 0.0) + len(visits)
    return {name: total / max(counts[name], 1) for name, total in sums.items()}


def pretrain(config: QueryAsContextConfig, passages: Passages, dev: Sequence[DevSet]) -> Trained:
    """One pre-training of `config.backbone`, written to `config.output`. The state that is kept is the one whose loss on the
    passages held back is least (`training.select` names another measure)."""
    model = build(config)
    train_rows, dev_rows = usable_rows(passages, config)
    pairs, held = (Pairs(passages, model.tokenizer, config, rows) for rows in (train_rows, dev_rows))

    def measured(current: TrainingModel) -> dict[str, float]:
        assert isinstance(current, ContextModel)
        terms = held_back_loss(current, held) if len(held) else {}
        measures = {"objective": -sum(terms.values())} if terms else {}
        measures |= {name: -value for name, value in terms.items()}
        return measures | (dev_measures(dev, current.dense().retrieve) if dev else {})

    # What comes before and after makes another folder, and no other weights here.
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
        evaluate=measured if len(held) or dev else None,
    )


@dataclass(slots=True)
class Step:
    """A model that the schedule made: what it is called, its directory, and what it was measured to be on each test set."""

    name: str
    model: Path
    measures: dict[str, dict[str, float]] = field(default_factory=dict)


def run(config: QueryAsContextConfig) -> list[Step]:
    """Passages, queries, Condenser pre-training where asked for, pre-training, retrievers 1 and 2; measured after each step.

    Interrupted at any point, the same call goes on; what is done and current is not repeated.
    """
    _refuse_early(config)
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


def _refuse_early(config: QueryAsContextConfig) -> None:
    """Raises what later steps would raise after hours: for folders of something else, data sets that are not there, and a
    backbone that the variant cannot be made of."""
    check_output(config.output, KIND)
    sets = [*config.unseen, *config.dev, *config.test]
    if config.retriever is not None:
        check_output(config.retriever.output, DENSE_KIND)
        sets += [*config.retriever.train, *config.retriever.dev, *config.retriever.unseen]
    files = [corpus.queries for corpus in config.corpora if config.asks and corpus.queries is not None]
    for path in [corpus.path for corpus in config.corpora] + files + [one.path for one in sets]:
        if not path.exists():
            raise InputError(f"{path} does not exist")
    if config.asks:
        for generator in {generator_of(config, corpus) for corpus in config.corpora if corpus.queries is None}:
            if not backbones.is_sequence_to_sequence(generator):
                raise ModelError(
                    f"{generator} is no sequence-to-sequence model", "a generator is made by osn train doc2query"
                )
    model = build(config)
    if model.tokenizer.mask_token_id is None:
        raise InputError(f"the tokenizer of {config.backbone} has no mask token")
    if isinstance(model, CoCondenser):
        _ = model.middle
    masked_lm_head(model.model)
    try:
        with torch.no_grad():
            hidden = torch.zeros(1, 2, int(model.model.config.hidden_size))
            passed: Any = model.through(hidden, torch.ones(1, 2, dtype=torch.long))
        if not isinstance(passed, Tensor):
            raise TypeError(f"they return a {type(passed).__name__}")
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the layers of {type(model.model).__name__} are not called as BERT's ({error})",
            "start from a BERT-like backbone",
        ) from None


def _measured(name: str, model: Path, config: QueryAsContextConfig) -> Step:
    """The model on each test set; kept beside it, and measured again where the model or the set has changed."""
    step = Step(name, model)
    for settings in config.test:
        data = settings.load()
        folder = model / FOLDER / f"test-{data.name}-{fingerprint(hash_files(model), data.hash)[:8]}"
        file = folder / "measures.json"
        if is_main_process() and not file.exists():
            found = corpus_measures(f"dense:{model}", data, cache=folder)
            write_json(file, {"measures": found.mean})
            for vectors in folder.iterdir():  # Of a large corpus more than everything else together.
                if vectors != file:
                    shutil.rmtree(vectors) if vectors.is_dir() else vectors.unlink()
        if is_main_process():
            step.measures[data.name] = read_json_object(file)["measures"]
    return step


def rehearse(config: QueryAsContextConfig) -> list[Step]:
    """Everything that `config` asks, on the first rows of its data, two steps a training, nothing kept."""

    def two_steps(training: TrainingSettings) -> TrainingSettings:
        return replace(
            training, steps=2, batch_size=min(training.batch_size, 8), evaluate_every=1, save_every=1, log_every=1
        )

    for settings in config.unseen:
        settings.load()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / config.output.name
        small = replace(
            config,
            output=output,
            cache=None,
            # A file of queries is for all passages of its corpus.
            corpora=[
                one if one.queries is not None else replace(one, limit=min(one.limit or 64, 64))
                for one in config.corpora
            ],
            # All of the first documents may be tested on. Queries that are given are for what is left of the whole corpus.
            unseen=config.unseen if any(one.queries for one in config.corpora) else [],
            dev=[replace(one, limit=min(one.limit or 8, 8)) for one in config.dev],
            test=[replace(one, limit=min(one.limit or 8, 8)) for one in config.test],
            dev_share=max(config.dev_share, 0.1),
            selection=replace(config.selection, queries=8, documents=64),
            training=two_steps(config.training),
            condenser=None if config.condenser is None else two_steps(config.condenser),
            retriever=None,
        )
        steps = run(small)
        if config.retriever is not None:
            rehearse_dense(replace(config.retriever, start=str(output)))
            steps.append(Step("retrievers", config.retriever.output))
        return steps


@click.command("query-as-context")
@config_options(
    QueryAsContextConfig,
    shortcuts={
        **backbone_option("backbone"),
        "variant": ("variant", "cocondenser or cot-mae.  [default: cocondenser]"),
        "context": ("context", "query, random-passage, mixed or none.  [default: query]"),
    },
)
def query_as_context_command(config: QueryAsContextConfig, dry_run: bool) -> None:
    """Pre-train an encoder on passages and the queries written for them (coCondenser or CoT-MAE).

    \b
    osn train query-as-context --set 'corpora=[{path: squad-mix}]' --backbone models/mlm \\
        --set generation.model=models/doc2query --output models/pretrained
    osn train query-as-context --variant cot-mae --context random-passage --set 'corpora=[{path: squad-mix}]' \\
        --backbone models/mlm --output models/random
    osn train query-as-context --config query-as-context --output models/pretrained

    Then: osn train dense --set start=models/pretrained … (CLS and raw inner products are the default there). With
    `retriever` in the configuration fine-tuning follows at once. Stopped at any point, the same command goes on.
    """
    steps = rehearse(config) if dry_run else run(config)
    if not is_main_process():
        return
    for step in steps:
        place = "nothing kept (dry run)" if dry_run else str(step.model)
        click.echo(f"{step.name}: {place}")
        for name, measures in step.measures.items():
            click.echo(f"{name:>24}  " + "  ".join(f"{measure} {value:.4f}" for measure, value in measures.items()))
    if not dry_run and (rate := steps_per_second(config.output)) is not None:
        click.echo(f"pre-training: {rate:.3g} steps/s of {config.training.batch_size} pairs")


def steps_per_second(model: Path) -> float | None:
    """The median rate of a training, by its history; None where nothing was logged."""
    file = model / ".training" / "history.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    rates = [line["steps_per_second"] for line in lines if "steps_per_second" in line]
    return float(np.median(rates)) if rates else None
