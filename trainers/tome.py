"""TOME: a query becomes a passage, the passage becomes a URL, by two models trained apart.

    osn train tome --set corpus=tldr --set 'queries=[{path: queries.jsonl}]' --backbone models/t5 --output models/tome
    osn train tome --config tome.yaml --set stages=single --output models/single-stage

(`tome-model-based-retrieval`, section 3.) Stage 1 learns to write "title: … passage: …" of a document for a query of it,
stage 2 the document's URL for that text, by cross-entropy. Stage 2 reads the corpus's own passages, so it does not wait
for stage 1 and may be trained elsewhere (`stages`). The single stage, query to URL, is the ablation.

Retrieval is memory here: a document that no query leads to cannot be found. `generator` has a model of `osn train
doc2query` write queries for every document (section 3.3).
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models.directory import hash_files, locate, read_osn_json, write_osn_json
from opensearch_neural.models.generative import (
    FILE,
    KIND,
    PASSAGE,
    URL,
    GenerativeSettings,
    UrlTokenizer,
    load_generative,
    write_learned,
    write_passages,
    write_settings,
)
from opensearch_neural.models.url_trie import CorpusUrls
from trainers.common.config import backbone_option, config_options, fingerprint, save_config, to_dict
from trainers.common.loop import (
    LAST,
    Trained,
    TrainingSettings,
    Visit,
    check_output,
    differing,
    is_main_process,
    main_process_first,
    train,
)
from trainers.common.training_model import Batch, TrainingModel
from trainers.data.examples import TrainingData, format_of, read_documents
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.texts import TextStore
from trainers.data.tokenized import TokenCache
from trainers.dense import SetSettings
from trainers.doc2query.train import SamplingSettings, generate_queries, sampling_for
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import (
    Batched,
    Row,
    SequenceToSequence,
    Some,
    collate_rows,
    log_likelihood,
    share_written,
)

logger = logging.getLogger(__name__)

FOLDER = ".stages"
"""Beside the model: what was generated on the way, queries and passages."""
SPAN_WORDS = (4, 24)
MEASURED = 200
"""Texts that are written to measure a stage, at most; of stage 2 its likelihood is of as many."""


@dataclass(slots=True)
class TomeConfig:
    """`osn train tome`.

    corpus: documents with a URL each. queries: data sets whose positives are documents of the corpus: BEIR folders, or
    files of `osn generate-queries` (their corpus is this one). unseen: sets whose questions are left out of those.
    generator: a model of `osn train doc2query`, which writes queries for every document, as `sampling` says. candidates:
    at most so many queries a document of each generated file. spans: of each document so many random spans of 4 to 24
    words are queries too, drawn anew at every visit; not in the paper (NCI has documents' parts as queries).
    stages: "both", or one of the two, the other then being trained by another call with the same output; "single": query to
    URL. backbone: the sequence-to-sequence model of both stages; url_backbone: of the second, where it is another (the
    paper's is smaller). written: stage 2 also reads the passages that stage 1 writes for so many of the queries; not in
    the paper. training, url_training: of stage 1 (or the single one) and stage 2; by default as many epochs as lead to
    about a hundred visits of each document with 20 queries each, and to fifty of each passage.
    dev_share: the part of `queries` that measures stage 1 (or the single stage) and does not train it; their documents train
    all the same. What is measured, of 200 at most: "written", the share for which the right text is written, freely, and
    the log-likelihood of its tokens; of stage 2, which learns by heart, on passages that it learns. The last state is kept
    unless `select` names one of these: what is likeliest is not what finds most. 0 measures nothing.
    """

    output: Path
    corpus: Path
    backbone: str
    queries: list[SetSettings] = field(default_factory=list)
    unseen: list[SetSettings] = field(default_factory=list)
    generator: str | None = None
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(candidates=20))
    candidates: int | None = None
    spans: int = 0
    stages: Literal["both", "passage", "url", "single"] = "both"
    url_backbone: str | None = None
    written: int = 0
    settings: GenerativeSettings = field(default_factory=GenerativeSettings)
    dev_share: float = 0.02
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=5, learning_rate=5e-5, batch_size=128, select=LAST)
    )
    url_training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=50, learning_rate=5e-5, batch_size=128, select=LAST)
    )

    def __post_init__(self) -> None:
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        if self.spans < 0 or self.written < 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError("spans and written must not be below 0, candidates not below 1")
        if self.written and self.stages != "both":
            raise ValueError("written needs both stages in one run: stage 2 then waits for stage 1")


# ---------------------------------------------------------------- data


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as the stages see them, by rows: the texts, as a passage stage 1 writes, and the URLs."""

    contents: TextStore
    passages: TextStore
    urls: CorpusUrls

    @property
    def hash(self) -> str:
        return fingerprint(self.passages.hash, self.urls.corpus)


def tome_corpus(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    settings: GenerativeSettings,
    *,
    url_tokenizer: PreTrainedTokenizerBase | None = None,
) -> Corpus:
    """The corpus for a tokenizer, its URLs for another one if given. Raises InputError as `CorpusUrls.build` does, and
    warns of URLs that do not come back."""
    contents, passages = TextStore(), TextStore()
    urls: list[tuple[str, str | None]] = []
    of_urls = url_tokenizer or tokenizer
    codec = UrlTokenizer(of_urls)
    changed: list[str] = []
    for document in documents:
        contents.add(document.id, document.contents)
        passages.add(document.id, settings.passage(tokenizer, document.title, document.text))
        urls.append((document.id, document.url))
        if document.url and codec.decode(codec.encode(document.url)) != document.url:
            changed.append(document.url)
    if changed:
        logger.warning(
            "%d of %d URLs do not come back from their tokens (%r first): free decoding can never write them; "
            "a byte-level tokenizer gives back all",
            len(changed),
            len(urls),
            changed[0],
        )

    def encode(url: str) -> list[int]:
        return codec.encode(settings.identifier(url))

    model = {"name": of_urls.name_or_path, "hash": ""}
    made = CorpusUrls.build(urls, encode, model=model, length=settings.url_length, numbered=settings.number_urls)
    return Corpus(contents, passages, made)


@dataclass(frozen=True, eq=False)
class Queries:
    """What leads to a document: `texts` by row, and pairs (pairs, 2) of a row of these and a document's row."""

    texts: TextStore
    pairs: npt.NDArray[np.int64]

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.texts.hash.encode() + self.pairs.tobytes()).hexdigest()[:16]

    def take(self, chosen: Sequence[int] | npt.NDArray[np.int64]) -> Queries:
        return Queries(self.texts, self.pairs[np.asarray(chosen, dtype=np.int64)])


def gather(sets: Sequence[TrainingData], documents: TextStore) -> Queries:
    """The (query, positive) pairs of several sets.

    Raises InputError for a positive that is not among the documents.
    """
    texts = TextStore(what="query")
    pairs: list[tuple[int, int]] = []
    for data in sets:
        for example in data.examples:
            for positive in example.positives:
                if positive not in documents:
                    raise InputError(
                        f"{data.name}: the document {positive!r} of query {example.query_id!r} is not in the corpus",
                        "queries and corpus must belong together",
                    )
                row = texts.add(f"{data.name}/{example.query_id}", example.query)
                pairs.append((row, documents.row(positive)))
    return Queries(texts, np.array(pairs, dtype=np.int64).reshape(-1, 2))


def fewer(data: TrainingData, candidates: int | None) -> TrainingData:
    """Of generated queries the first `candidates` of each document, or all."""
    if candidates is None:
        return data
    taken: dict[int, int] = {}
    kept = []
    for index, positives in enumerate(data.positives):
        document = int(positives[0])
        taken[document] = taken.get(document, 0) + 1
        if taken[document] <= candidates:
            kept.append(index)
    return data.take(kept)


@dataclass
class ToPassage:
    """Stage 1: a query (or a span of the document) to the document's passage."""

    queries: Queries
    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase
    settings: GenerativeSettings
    spans: int = 0

    def __post_init__(self) -> None:
        self.query_tokens = self.tokens(self.queries.texts, self.settings.query_length)
        self.passage_tokens = self.tokens(self.corpus.passages, self.settings.written_length)

    def tokens(self, texts: TextStore, length: int) -> TokenCache:
        return TokenCache(self.tokenizer, texts.text_at, max_length=length)

    def __len__(self) -> int:
        return len(self.queries.pairs) + self.spans * len(self.corpus.contents)

    def __getitem__(self, visit: Visit) -> Row:
        at = visit.index
        if at < len(self.queries.pairs):
            query, document = self.queries.pairs[at].tolist()
            return self.queries.texts.ids[query], self.query_tokens.rows([query])[0], self.target(document)
        document = (at - len(self.queries.pairs)) % len(self.corpus.contents)
        text = span(self.corpus.contents.text_at(document), visit)
        inputs = self.tokenizer(text, truncation=True, max_length=self.settings.query_length)["input_ids"]
        return f"span of {self.corpus.contents.ids[document]}", inputs, self.target(document)

    def target(self, document: int) -> Sequence[int]:
        ids: list[int] = self.passage_tokens.rows([document])[0].tolist()
        return ids

    def collate(self, items: Sequence[Row]) -> Batch:
        return collate_rows(items, self.tokenizer.pad_token_id)


def span(text: str, visit: Visit) -> str:
    """Some words of a text that follow each other, drawn by the visit."""
    words, drawn = text.split(), visit.random()
    count = drawn.randint(*SPAN_WORDS)
    start = drawn.randint(0, max(0, len(words) - count))
    return " ".join(words[start : start + count])


@dataclass
class ToUrl(ToPassage):
    """The single stage: a query (or a span) to the document's URL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        codec = UrlTokenizer(self.tokenizer)
        # What decoding is held to, token by token.
        self.targets = self.corpus.urls.sequences(lambda url: codec.encode(self.settings.identifier(url)))

    def target(self, document: int) -> Sequence[int]:
        return self.targets[document]


@dataclass
class PassageToUrl(ToUrl):
    """Stage 2: each passage of the corpus to its URL; `queries` holds what stage 1 wrote, as further passages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.query_tokens = self.tokens(self.queries.texts, self.settings.written_length)

    def __len__(self) -> int:
        return len(self.corpus.passages) + len(self.queries.pairs)

    def __getitem__(self, visit: Visit) -> Row:
        document = visit.index
        if document < len(self.corpus.passages):
            return self.corpus.passages.ids[document], self.passage_tokens.rows([document])[0], self.target(document)
        query, document = self.queries.pairs[document - len(self.corpus.passages)].tolist()
        name = f"written for {self.queries.texts.ids[query]}"
        return name, self.query_tokens.rows([query])[0], self.target(document)


# ---------------------------------------------------------------- training


def train_tome(config: TomeConfig, *, limit: int | None = None) -> dict[str, Trained]:
    """Train what `config.stages` says; {stage: what its training came to}. limit: documents and queries (a dry run).

    Interrupted at any point, the same call goes on; a stage that is trained is not trained again. The directory is a
    model (`load_generative`) once its stages are there. Raises InputError for a corpus whose URLs will not do, and where
    `output` holds another run.
    """
    check_output(config.output, KIND, (PASSAGE, URL, FILE))
    single = config.stages == "single"
    settings = config.settings
    done = (read_osn_json(config.output) or {}).get("training", {}).get("stages")
    if not single and done == "single":
        raise InputError(f"{config.output} holds a model of a single stage", "choose another --output for two stages")
    _check_stages(config)
    backbone = {PASSAGE: config.backbone, URL: config.backbone if single else config.url_backbone or config.backbone}
    if single and (config.output / PASSAGE).exists():
        raise InputError(f"{config.output} holds a model of two stages", "choose another --output for the single stage")
    tokenizers = {stage: backbones.load_tokenizer(locate(name)) for stage, name in backbone.items()}
    sets = [] if config.stages == "url" else read_sets(config, limit)
    # A passage is text that both stages read; the first one, which has to write it, counts its tokens. URLs are the last's.
    corpus = tome_corpus(
        _documents(config, sets, limit), tokenizers[URL if single else PASSAGE], settings, url_tokenizer=tokenizers[URL]
    )
    _check_stages(config, corpus)
    outcome: dict[str, Trained] = {}
    none = queries = Queries(TextStore(what="query"), np.empty((0, 2), dtype=np.int64))
    if config.stages != "url":
        first = URL if single else PASSAGE
        if config.generator is not None:
            sets.append(fewer(_unseen(config, [_generated(config, corpus)])[0], config.candidates))
        every = gather(sets, corpus.contents)
        queries, dev = split(every, config.dev_share, config.training.seed)
        kind = ToUrl if single else ToPassage
        data = kind(queries, corpus, tokenizers[first], settings, config.spans)
        _warn_of_unreached(data)
        held = kind(dev, corpus, tokenizers[first], settings) if len(dev.pairs) else None
        outcome[first] = _train_stage(config, first, backbone[first], config.training, data, held)
    if config.stages in ("both", "url"):
        written = _written(config, queries, corpus, tokenizers[PASSAGE]) if config.written else none
        data = PassageToUrl(written, corpus, tokenizers[URL], settings)
        learned = Some(data, MEASURED) if config.dev_share else None
        outcome[URL] = _train_stage(config, URL, backbone[URL], config.url_training, data, learned)
    with main_process_first():
        if is_main_process() and all((config.output / one / "osn.json").exists() for one in _stages(single)):
            _complete(config, corpus)
    return outcome


def _stages(single: bool) -> list[str]:
    return [URL] if single else [PASSAGE, URL]


def read_sets(config: TomeConfig, limit: int | None = None) -> list[TrainingData]:
    """The data sets of `queries`, without the questions of `unseen`, of generated ones not more than `candidates`."""
    sets: list[TrainingData] = []
    for one in config.queries:
        given = one if one.corpus is not None or one.path.is_dir() else replace(one, corpus=config.corpus)
        sets.append((replace(given, limit=limit) if limit is not None else given).load())
    sets = _unseen(config, sets)
    return [
        fewer(data, config.candidates) if (one.format or format_of(one.path)) == "generated" else data
        for one, data in zip(config.queries, sets, strict=True)
    ]


def _unseen(config: TomeConfig, sets: list[TrainingData]) -> list[TrainingData]:
    """`sets` without the questions of the sets that `unseen` names."""
    for one in config.unseen:
        other = one.load()
        sets = [without_leaks(data, find_leaks(data, other)) for data in sets]
    return sets


def _documents(config: TomeConfig, sets: Sequence[TrainingData], limit: int | None) -> Iterator[Document]:
    """The corpus; of a dry run the first documents and those that its queries lead to."""
    documents = read_documents(config.corpus)
    if limit is None:
        return documents
    wanted = {data.documents.ids[row] for data in sets for row in data.positives.values.tolist()}
    return (one for at, one in enumerate(documents) if at < limit or one.id in wanted)


def _generated(config: TomeConfig, corpus: Corpus) -> TrainingData:
    """Queries that the generator writes for every document; kept beside the model."""
    path = config.output / FOLDER / "queries.jsonl"
    assert config.generator is not None
    with main_process_first():
        sampling = sampling_for(config.generator, **asdict(config.sampling))
        generate_queries(config.generator, corpus.contents, output=path, sampling=sampling)
    return SetSettings(path, corpus=config.corpus, name="generated").load()


def split(queries: Queries, share: float, seed: int) -> tuple[Queries, Queries]:
    """(train, dev) by query; dev gets that share of them, drawn at random. Their documents stay in training."""
    rows = np.unique(queries.pairs[:, 0])
    count = round(share * len(rows))
    drawn = np.random.default_rng([seed, 11]).permutation(rows)[:count]
    inside = np.isin(queries.pairs[:, 0], drawn)
    return queries.take(np.flatnonzero(~inside)), queries.take(np.flatnonzero(inside))


def _warn_of_unreached(data: ToPassage) -> None:
    documents = len(data.corpus.contents)
    reached = len(np.unique(data.queries.pairs[:, 1]))
    if reached < documents and not data.spans:
        logger.warning(
            "no query leads to %d of %d documents: what was never written cannot be found (generator, spans)",
            documents - reached,
            documents,
        )


def _train_stage(
    config: TomeConfig,
    stage: str,
    backbone: str,
    training: TrainingSettings,
    data: ToPassage,
    dev: Batched | None,
) -> Trained:
    set_seed(training.seed)
    model, tokenizer = backbones.sequence_to_sequence(backbone)

    def evaluate(current: TrainingModel) -> dict[str, float]:
        assert dev is not None and isinstance(current, SequenceToSequence)
        return {"written": share_written(current, Some(dev, MEASURED)), "log_likelihood": log_likelihood(current, dev)}

    # A stage is known by what it is trained on, so that both together and one after the other come to the same.
    about = {
        "stage": "single" if config.stages == "single" else stage,
        "backbone": backbone,
        "spans": data.spans,
        "corpus": data.corpus.hash,
    }
    return train(
        SequenceToSequence(model, tokenizer),
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
        evaluate=evaluate if dev is not None else None,
    )


def _written(config: TomeConfig, queries: Queries, corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> Queries:
    """Passages that the trained stage 1 writes for `config.written` of the training queries, each with its document, as far
    as they are not a document's own."""
    order = np.random.default_rng([config.training.seed, 12]).permutation(len(queries.pairs))[: config.written]
    chosen = queries.pairs[np.sort(order)]
    path = config.output / FOLDER / "written.json"
    made_by = {"stage": hash_files(config.output / PASSAGE), "queries": queries.take(np.sort(order)).hash}
    with main_process_first():
        if not path.exists() or read_json_object(path)["made_by"] != made_by:
            model: Any = backbones.sequence_to_sequence(config.output / PASSAGE)[0]
            place = "cuda" if torch.cuda.is_available() and config.training.device == "auto" else "cpu"
            texts = [queries.texts.text_at(row) for row in chosen[:, 0].tolist()]
            passages = write_passages(model.to(place).eval(), tokenizer, texts, config.settings)
            write_json(path, {"made_by": made_by, "passages": passages}, indent=None)
    written = TextStore(what="passage")
    pairs: list[tuple[int, int]] = []
    own = {corpus.passages.text_at(row): row for row in range(len(corpus.passages))}
    for at, passage in enumerate(read_json_object(path)["passages"]):
        # A document's own passage has that document's URL, whatever was asked; right ones are read anyway.
        if passage and passage not in own:
            name = f"{queries.texts.ids[chosen[at, 0]]}/{at}"
            pairs.append((written.add(name, passage), int(chosen[at, 1])))
    return Queries(written, np.array(pairs, dtype=np.int64).reshape(-1, 2))


def _check_stages(config: TomeConfig, corpus: Corpus | None = None) -> None:
    """Raises InputError where a stage that is there was trained with other settings, or on another corpus, or on its
    passages cut otherwise: stages then do not read each other."""
    for stage in _stages(config.stages == "single"):
        trained = (read_osn_json(config.output / stage) or {}).get("training", {})
        there = trained.get("settings", {})
        if there and (fields := differing(there, to_dict(config.settings), "settings")):
            raise InputError(
                f"{config.output / stage} was trained with other settings ({'; '.join(fields)})",
                "both stages need the same: train one of them again, to another --output",
            )
        if corpus is not None and trained.get("corpus", corpus.hash) != corpus.hash:
            raise InputError(
                f"{config.output / stage} was trained on another corpus, or on passages that another tokenizer cut",
                "both stages need the same corpus and 'backbone': train one of them again, to another --output",
            )


def _complete(config: TomeConfig, corpus: Corpus) -> None:
    """`generative.json`, and last `osn.json`: the directory is a model then.

    Raises InputError where the stages were trained with different settings, and so do not read each other.
    """
    single = config.stages == "single"
    _check_stages(config)
    write_settings(config.output, config.settings, single_stage=single)
    write_learned(config.output, corpus.urls.documents())
    save_config(config, config.output)
    measures = {
        f"{stage} {name}": value
        for stage in _stages(single)
        for name, value in (read_osn_json(config.output / stage) or {}).get("measures", {}).items()
    }
    write_osn_json(config.output, KIND, training=to_dict(config), data_hash=corpus.hash, measures=measures)


@click.command("tome")
@config_options(TomeConfig, shortcuts=backbone_option("backbone"))
def tome_command(config: TomeConfig, dry_run: bool) -> None:
    """Train two models that find by writing: a passage for a query, then the URL of that passage.

    Interrupted, the same command goes on. `osn urls` then makes the corpus's URLs into what decoding is held to, and
    `osn search --engine tome` searches.

    \b
    osn train mlm --set new.architecture=t5 --set "corpus=[tldr]" --output models/t5
    osn train tome --set corpus=tldr --set "queries=[{path: tldr}]" --set spans=5 --backbone models/t5 \\
        --output models/tome
    osn train tome --config tome --set stages=url --output models/tome          a stage of its own
    """
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            tried = replace(
                config,
                output=Path(folder) / "model",
                sampling=replace(config.sampling, candidates=2, query_length=8),
                written=min(config.written, 4),
                training=_two_steps(config.training),
                url_training=_two_steps(config.url_training),
            )
            for stage, trained in train_tome(tried, limit=50).items():
                click.echo(f"{stage}: {trained.steps} steps {trained.measures}")
            if config.stages in ("both", "single"):
                load_generative(tried.output)
        click.echo("dry run: two steps a stage taken, nothing kept")
        return
    train_tome(config)
    click.echo(config.output)


def _two_steps(training: TrainingSettings) -> TrainingSettings:
    return replace(training, steps=2, batch_size=min(training.batch_size, 4), workers=0)
