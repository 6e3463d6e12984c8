"""`osn train tome`: two models retrieve by generating a passage for a query, then the URL of that passage.

    osn train tome --set corpus=tldr --set 'queries=[{path: queries.jsonl}]' --backbone models/t5 --output models/tome
    osn train tome --config tome.yaml --set stages=single --output models/single-stage

(`tome-model-based-retrieval`, section 3.) Stage 1 learns to write "title: … passage: …" of a document for a query, stage 2
the document's URL for that text, by cross-entropy. Stage 2 reads the corpus's own passages, so it does not wait for
stage 1 and may be trained elsewhere (`stages`). The single stage, query to URL, is the ablation.

The models retrieve from memory: a document without a training query cannot be found. So with `generation`, a model of
`osn train doc2query` writes queries for every document (section 3.3).
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from transformers import set_seed

from opensearch_neural.errors import InputError
from opensearch_neural.models.directory import hash_files, locate, read_osn_json, write_osn_json
from opensearch_neural.models.generative.generative_model import load_generative
from opensearch_neural.models.generative.settings import FILE, KIND, PASSAGE, URL, write_learned, write_settings
from opensearch_neural.models.pretrained import load_tokenizer
from trainers.common.config import fingerprint, save_config, to_dict
from trainers.common.loop import train
from trainers.common.processes import is_main_process, main_process_first
from trainers.common.run_folder import DEV, Trained, check_output, differing
from trainers.common.settings import TrainingSettings
from trainers.doc2query.generate import load_generator
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import Batched, SequenceToSequence, Some, log_likelihood, share_written
from trainers.tome.data import (
    Queries,
    TomeCorpus,
    corpus_documents,
    gather,
    generated_set,
    read_sets,
    split,
    tome_corpus,
)
from trainers.tome.settings import TomeConfig
from trainers.tome.stages import PassageToUrl, ToPassage, ToUrl

logger = logging.getLogger(__name__)


MEASURED = 200
"""Largest number of texts to generate when measuring a stage; also the number for stage 2's likelihood."""
REHEARSED = 50
"""Documents and queries in a dry run."""


def train_tome(config: TomeConfig, *, limit: int | None = None) -> dict[str, Trained]:
    """Train the stages of `config.stages`; returns {stage: result}. limit: documents and queries (for a dry run).

    After an interruption, the same call continues; a finished stage is not trained again. When all stages are done, the
    directory is a model (`load_generative`). Raises InputError for a corpus with unsuitable URLs, and if `output` holds
    another run.
    """
    _refuse_other_runs(config)
    _check_stages(config)
    settings, single = config.settings, config.single
    backbone = {PASSAGE: config.backbone, URL: config.backbone if single else config.url_backbone or config.backbone}
    tokenizers = {stage: load_tokenizer(locate(name)) for stage, name in backbone.items()}

    # A model that does not load is refused before the data are read, and before another stage is trained.
    for name in {backbone[stage] for stage in (PASSAGE, URL) if config.stages in (stage, "both", "single")}:
        backbones.sequence_to_sequence(name)
    if config.generation.model is not None and config.stages != "url":
        load_generator(config.generation)
    sets = [] if config.stages == "url" else read_sets(config, limit)
    documents = corpus_documents(config, sets, limit)
    # Stage 1's tokenizer cuts passages, because it has to write them; the last stage's tokenizer encodes URLs.
    of_passages = tokenizers[URL if single else PASSAGE]
    corpus = tome_corpus(documents, of_passages, settings, url_tokenizer=tokenizers[URL])
    _check_stages(config, corpus)

    trained: dict[str, Trained] = {}
    if config.stages != "url":
        first, kind = (URL, ToUrl) if single else (PASSAGE, ToPassage)
        if config.generation.model is not None:
            sets.append(generated_set(config, corpus))
        queries, dev = split(gather(sets, corpus.contents), config.dev_share, config.training.seed)
        data = kind(queries, corpus, tokenizers[first], settings, config.spans)
        _warn_of_unreached(data)
        held_back = kind(dev, corpus, tokenizers[first], settings) if len(dev.pairs) else None
        trained[first] = _train_stage(config, first, backbone[first], config.training, data, held_back)
    if config.stages in ("both", "url"):
        data = PassageToUrl(Queries.none(), corpus, tokenizers[URL], settings)
        learned = Some(data, MEASURED) if config.dev_share else None
        trained[URL] = _train_stage(config, URL, backbone[URL], config.url_training, data, learned)
    with main_process_first():
        if is_main_process() and all((config.output / stage / "osn.json").exists() for stage in _stages(config)):
            _complete(config, corpus)
    return trained


def _stages(config: TomeConfig) -> list[str]:
    return [URL] if config.single else [PASSAGE, URL]


def _refuse_other_runs(config: TomeConfig) -> None:
    """Raises InputError if `output` holds something else, or a model with another number of stages."""
    check_output(config.output, KIND, (PASSAGE, URL, FILE))
    done = (read_osn_json(config.output) or {}).get("training", {}).get("stages")
    if not config.single and done == "single":
        raise InputError(f"{config.output} holds a model of a single stage", "choose another --output for two stages")
    if config.single and (config.output / PASSAGE).exists():
        raise InputError(f"{config.output} holds a model of two stages", "choose another --output for the single stage")


def _warn_of_unreached(data: ToPassage) -> None:
    documents = len(data.corpus.contents)
    reached = len(np.unique(data.queries.pairs[:, 1]))
    if reached < documents and not data.spans:
        logger.warning(
            "%d of %d documents have no training query and cannot be found (see generation.model, spans)",
            documents - reached,
            documents,
        )


def _train_stage(
    config: TomeConfig, stage: str, backbone: str, training: TrainingSettings, data: ToPassage, dev: Batched | None
) -> Trained:
    set_seed(training.seed)
    model = SequenceToSequence(*backbones.sequence_to_sequence(backbone))

    def evaluate() -> dict[str, float]:
        assert dev is not None
        return {"written": share_written(model, Some(dev, MEASURED)), "log_likelihood": log_likelihood(model, dev)}

    # Only the stage's own inputs identify its run: training both stages at once or one by one gives the same.
    about = {
        "stage": "single" if config.single else stage,
        "backbone": backbone,
        "spans": data.spans,
        "corpus": data.corpus.hash,
    }
    return train(
        model,
        data,
        data.collate,
        settings=training,
        output=config.output / stage,
        kind="sequence-to-sequence",
        config={**about, "settings": config.settings, "training": training},
        data_hash=fingerprint(
            data.corpus.hash,
            data.queries.hash,
            hash_files(locate(backbone)),
            *([data.corpus.contents.hash] if data.spans else []),
        ),
        # Stage 2 is measured on passages that it is trained on.
        made_from={f"{DEV}held-back queries": dev.queries.hash} if isinstance(dev, ToPassage) else None,
        start_field="backbone",
        evaluate=evaluate if dev is not None else None,
    )


def _check_stages(config: TomeConfig, corpus: TomeCorpus | None = None) -> None:
    """Raises InputError if a finished stage was trained with other settings, on another corpus, or on passages cut
    differently: such stages do not fit together."""
    for stage in _stages(config):
        trained = (read_osn_json(config.output / stage) or {}).get("training", {})
        there = trained.get("settings", {})
        if there and (fields := differing(there, config.settings, "settings")):
            raise InputError(
                f"{config.output / stage} was trained with other settings ({'; '.join(fields)})",
                "both stages need the same: train one of them again, to another --output",
            )
        if corpus is not None and trained.get("corpus", corpus.hash) != corpus.hash:
            raise InputError(
                f"{config.output / stage} was trained on another corpus, or on passages that another tokenizer cut",
                "both stages need the same corpus and 'backbone': train one of them again, to another --output",
            )


def _complete(config: TomeConfig, corpus: TomeCorpus) -> None:
    """Write `generative.json`, and `osn.json` last: this makes the directory a model.

    Raises InputError if the stages were trained with different settings: they do not fit together.
    """
    _check_stages(config)
    write_settings(config.output, config.settings, single_stage=config.single)
    write_learned(config.output, corpus.urls.documents())
    save_config(config, config.output)
    measures = {
        f"{stage} {name}": value
        for stage in _stages(config)
        for name, value in (read_osn_json(config.output / stage) or {}).get("measures", {}).items()
    }
    write_osn_json(config.output, KIND, training=to_dict(config), data_hash=corpus.hash, measures=measures)


def rehearse(config: TomeConfig) -> dict[str, Trained]:
    """Run all of `config` on the first rows of its data, two steps per stage; nothing is kept. Returns {stage: result}."""
    with tempfile.TemporaryDirectory() as folder:
        tried = replace(
            config,
            output=Path(folder) / "model",
            generation=replace(config.generation, candidates=2, query_length=8),
            training=config.training.two_steps(4),
            url_training=config.url_training.two_steps(4),
        )
        trained = train_tome(tried, limit=REHEARSED)
        if config.stages in ("both", "single"):
            load_generative(tried.output)
        return trained
