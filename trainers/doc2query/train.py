"""Queries for passages: train a generator on pairs, generate, keep what is consistent.

    osn train doc2query --backbone models/t5 --set data=[squad-mix] --output models/doc2query
    osn generate-queries scifact --model models/doc2query --candidates 5 --output queries.jsonl
    osn generate-queries scifact --model models/doc2query --consistency 10 --retriever bm25 --output queries.jsonl

docT5query (Nogueira & Lin, 2019): a sequence-to-sequence model reads a passage and writes a query. Sampled with top-k 25
and nucleus 0.95, several candidates a passage (`query-as-context-pretraining`, section 3.1; `tome-model-based-retrieval`,
section 3.3). The generator need not have seen the corpus: one trained on pairs of another serves.

What a small generator writes is often fluent and about nothing: `copying.py` makes the words of the passage likelier, by a
weight that training fits on the pairs it holds back, and records in osn.json.

A line of the output is {"_id": document, "queries": [{"text", "log_probability", "tokens"}, …]}: the natural logarithm of
the query's probability under the model, copying and its end included, before top-k and nucleus cut anything off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models import directory
from opensearch_neural.retrievers import Retriever
from trainers.common.config import backbone_option, config_options
from trainers.common.loop import TrainingSettings, Visit, train
from trainers.common.precision import PRECISIONS, Precision, computed_in
from trainers.common.resumable_chunks import Chunk, summary, write_in_chunks
from trainers.common.training_model import Batch, TrainingModel
from trainers.data.examples import GENERATED, TrainingData, hold_back, load_training, merge, read_documents
from trainers.data.formats import read_header, read_json_lines
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.negatives import RETRIEVERS, open_retriever
from trainers.data.texts import TextStore, normalised
from trainers.doc2query.copying import Copying, CopyingScores, fitted
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import (
    IGNORED,
    Row,
    SequenceToSequence,
    collate_rows,
    log_likelihood,
    pad_rows,
)

KIND = "doc2query"
COPYING = "copying"
CHUNK = 256
"""Passages generated for between two writes."""
COUNTED = 20_000
"""Documents in which a token's rarity is counted, at most."""

# ---------------------------------------------------------------- training


@dataclass(slots=True)
class Doc2QueryConfig:
    """`osn train doc2query`.

    data: training data as `load_training` reads it, of `split`. unseen: sets whose questions, of `unseen_split`, are left
    out of it: a generator that has read test questions writes them. backbone: a T5 or another sequence-to-sequence model,
    by directory or hub id; a BERT-like encoder is taken twice, to read and to write. prefix: what is put before every
    passage (and by `osn generate-queries` again). passage_length, query_length: in tokens, special ones included.
    dev_share: the part of the pairs, split by document, that measures and does not train. copying: fit the weight of the
    passage's words on it; not in docT5query.
    """

    output: Path
    data: list[Path]
    backbone: str
    split: str = "train"
    unseen: list[Path] = field(default_factory=list)
    unseen_split: str = "test"
    prefix: str = ""
    passage_length: int = 384
    query_length: int = 64
    dev_share: float = 0.02
    copying: bool = True
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(epochs=4, learning_rate=3e-4, batch_size=32, bucket=16)
    )

    def __post_init__(self) -> None:
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")


@dataclass
class Pairs:
    """Passage to query: one positive of the example, drawn at each visit."""

    data: TrainingData
    tokenizer: PreTrainedTokenizerBase
    prefix: str
    passage_length: int
    query_length: int

    @property
    def sets(self) -> Any:
        return self.data.sets

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each example's first passage: enough to put like with like."""
        first = self.data.positives.values[self.data.positives.offsets[:-1]]
        return self.data.documents.sizes()[first]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Row:
        example = self.data.example(visit.index)
        passage = self.data.documents[visit.random().choice(example.positives)]
        inputs = self.tokenizer(self.prefix + passage, truncation=True, max_length=self.passage_length)["input_ids"]
        target = self.tokenizer(text_target=example.query, truncation=True, max_length=self.query_length)["input_ids"]
        return example.query_id, inputs, target

    def collate(self, items: Sequence[Row]) -> Batch:
        return collate_rows(items, self.tokenizer.pad_token_id)


def run(config: Doc2QueryConfig, *, limit: int | None = None) -> Path:
    """Train as `config` says; the model directory. limit: examples of each data set (for a dry run)."""
    torch.manual_seed(config.training.seed)
    if backbones.is_sequence_to_sequence(config.backbone):
        model, tokenizer = backbones.sequence_to_sequence(config.backbone)
    else:
        model, tokenizer = backbones.encoder_decoder(config.backbone)
    sets = [load_training(path, split=config.split, limit=limit) for path in config.data]
    for path in config.unseen:
        other = load_training(path, split=config.unseen_split)
        sets = [without_leaks(one, find_leaks(one, other)) for one in sets]
    data = merge(sets) if len(sets) > 1 else sets[0]
    dev: TrainingData | None = None
    if config.dev_share:
        share = max(config.dev_share, 1 / len(data))
        data, dev = hold_back(data, share, seed=config.training.seed)

    def pairs(part: TrainingData) -> Pairs:
        return Pairs(part, tokenizer, config.prefix, config.passage_length, config.query_length)

    copying: Copying | None = None
    if config.copying and dev is not None:
        copying = copying_of(data.documents, tokenizer, config.passage_length)

    def evaluate(training_model: TrainingModel) -> dict[str, float]:
        assert dev is not None
        if copying is None:
            return {"log_likelihood": log_likelihood(training_model, pairs(dev))}
        weight, likelihood = fitted(training_model.model, pairs(dev), copying)
        return {"log_likelihood": likelihood, COPYING: weight}

    train(
        SequenceToSequence(model, tokenizer),
        pairs(data),
        pairs(data).collate,
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=config,
        data_hash=data.hash,
        evaluate=evaluate if dev is not None else None,
    )
    return config.output


@click.command("doc2query")
@config_options(Doc2QueryConfig, shortcuts=backbone_option("backbone"))
def doc2query_command(config: Doc2QueryConfig, dry_run: bool) -> None:
    """Train a model that writes queries for passages, on pairs of both.

    Interrupted, the same command goes on.

    \b
    osn train doc2query --backbone models/t5 --set "data=[squad-mix]" --output models/doc2query
    """
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            settings = replace(config.training, steps=2, batch_size=min(config.training.batch_size, 4), workers=0)
            run(replace(config, output=Path(folder), training=settings), limit=50)
        click.echo("dry run: two steps taken, nothing kept")
        return
    click.echo(run(config))


# ---------------------------------------------------------------- generating


@dataclass(frozen=True, slots=True)
class Sampling:
    """How queries are drawn. Lengths in tokens; copying: the weight of the passage's words (see copying.py). The same
    settings, seed included, give the same queries."""

    candidates: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    copying: float = 0.0
    query_length: int = 64
    passage_length: int = 384
    prefix: str = ""
    batch_size: int = 32
    seed: int = 42

    def __post_init__(self) -> None:
        if min(self.candidates, self.top_k, self.query_length, self.passage_length, self.batch_size) < 1:
            raise InputError("candidates, top_k, query_length, passage_length and batch_size must be at least 1")
        if self.copying < 0:
            raise InputError(f"copying must be 0 or more, not {self.copying}")
        if not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise InputError(f"top_p must be in (0, 1] and temperature above 0: {self.top_p}, {self.temperature}")


@dataclass(slots=True)
class SamplingSettings:
    """`Sampling` as a configuration gives it: what is None is as the generator was trained, else the default."""

    candidates: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    copying: float | None = None
    query_length: int | None = None
    passage_length: int | None = None
    prefix: str | None = None
    batch_size: int | None = None
    seed: int | None = None


def sampling_for(model: str | Path, **given: Any) -> Sampling:
    """Settings for a model of queries: what is not given, or None, is as it was trained, else the default."""
    info = directory.read_osn_json(directory.locate(model)) or {}
    trained, measured = info.get("training", {}), info.get("measures", {})
    told = {name: trained[name] for name in ("query_length", "passage_length", "prefix") if name in trained}
    # Among the settings, `copying` says whether a weight was to be fitted.
    told |= {COPYING: measured[COPYING]} if COPYING in measured else {}
    return Sampling(**told | {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generated query; `log_probability` (natural logarithm, the end included) is of `tokens` tokens together."""

    text: str
    log_probability: float
    tokens: int


class TopKThenNucleus(LogitsProcessor):
    """The k likeliest tokens, and of these the fewest whose probabilities sum to at least p (Holtzman et al., 2020).

    The same distribution as transformers' two warpers one after the other, which sort the whole vocabulary for it.
    """

    def __init__(self, top_k: int, top_p: float, temperature: float = 1.0) -> None:
        self.top_k, self.top_p, self.temperature = top_k, top_p, temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary), before the softmax; −∞ in the result where a token is not drawn."""
        kept, tokens = self.kept(scores)
        return torch.full_like(scores, float("-inf")).scatter(-1, tokens, kept)

    def kept(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, k): scores of the k likeliest tokens, −∞ for those that are not drawn, and the tokens."""
        values, tokens = (scores / self.temperature).topk(min(self.top_k, scores.shape[-1]), dim=-1)
        probabilities = values.softmax(dim=-1)
        likelier = probabilities.cumsum(dim=-1) - probabilities
        return values.masked_fill(likelier >= self.top_p, float("-inf")), tokens


class Draw(LogitsProcessor):
    """Draws a token from what `cut` keeps; it alone has a score that is not −∞, so that decoding greedily takes it."""

    def __init__(self, cut: TopKThenNucleus) -> None:
        self.cut = cut

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary), before the softmax."""
        values, tokens = self.cut.kept(scores)
        drawn = tokens.gather(-1, torch.multinomial(values.float().softmax(dim=-1), 1))
        return torch.full_like(scores, float("-inf")).scatter(-1, drawn, 0.0)


class Likelihoods(LogitsProcessor):
    """Changes nothing, and keeps the natural logarithm of the probability of each token that is drawn. It comes first,
    before anything is cut off."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None
        self._logs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary); input_ids: (rows, length), of which the last was drawn by the scores before."""
        self._take(input_ids)
        self._scores = scores
        return scores

    def of(self, drawn: Tensor) -> Tensor:
        """(rows, tokens) of all that was drawn, (rows, 1 + tokens): a start token first."""
        self._take(drawn)
        self._scores = None
        return torch.stack(self._logs, dim=1)

    def _take(self, ids: Tensor) -> None:
        if self._scores is not None:
            scores = self._scores.float()
            self._logs.append(scores.gather(-1, ids[:, -1:]).squeeze(-1) - scores.logsumexp(dim=-1))


def sample_queries(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Sequence[str],
    sampling: Sampling,
    *,
    seed: int,
    copying: Copying | None = None,
) -> list[list[Candidate]]:
    """`sampling.candidates` queries for each passage. Passages of like length share a batch; the order is kept. copying:
    what sampling.copying is the weight of; by default, of these passages."""
    ids = [
        tokenizer(sampling.prefix + passage, truncation=True, max_length=sampling.passage_length)["input_ids"]
        for passage in passages
    ]
    if sampling.copying and copying is None:
        copying = Copying.of(ids, tokenizer)
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    found: list[list[Candidate]] = [[] for _ in ids]
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.inference_mode():
        torch.manual_seed(seed)
        for start in range(0, len(order), sampling.batch_size):
            batch = order[start : start + sampling.batch_size]
            for at, candidates in zip(
                batch, _sample(model, tokenizer, [ids[at] for at in batch], sampling, copying), strict=True
            ):
                found[at] = candidates
    return found


def _sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[list[int]],
    sampling: Sampling,
    copying: Copying | None,
) -> list[list[Candidate]]:
    inputs = pad_rows(ids, int(tokenizer.pad_token_id or 0)).to(model.device)
    mask = pad_rows([[1] * len(row) for row in ids], 0).to(model.device)
    likelihoods = Likelihoods()
    draw = Draw(TopKThenNucleus(sampling.top_k, sampling.top_p, sampling.temperature))
    processors = LogitsProcessorList([likelihoods, draw])
    if sampling.copying and copying is not None:
        read = inputs.repeat_interleave(sampling.candidates, dim=0)
        processors.insert(0, CopyingScores(copying, sampling.copying, read))
    states = model.get_encoder()(input_ids=inputs, attention_mask=mask).last_hidden_state
    drawn = model.generate(
        encoder_outputs=BaseModelOutput(states.repeat_interleave(sampling.candidates, dim=0)),
        attention_mask=mask.repeat_interleave(sampling.candidates, dim=0),
        do_sample=False,  # It would draw from the whole vocabulary, which costs about as much as a small model.
        logits_processor=processors,
        max_new_tokens=sampling.query_length,
        num_beams=1,
    )
    tokens = _until_end(drawn[:, 1:], int(model.generation_config.eos_token_id or tokenizer.eos_token_id))
    inside = tokens != IGNORED
    totals = likelihoods.of(drawn).masked_fill(~inside, 0.0).sum(dim=1).tolist()
    texts = tokenizer.batch_decode(drawn, skip_special_tokens=True)
    found = [
        Candidate(" ".join(text.split()), round(total, 4), count)
        for text, total, count in zip(texts, totals, inside.sum(dim=1).tolist(), strict=True)
    ]
    return [found[at : at + sampling.candidates] for at in range(0, len(found), sampling.candidates)]


def _until_end(tokens: Tensor, end: int) -> Tensor:
    """`tokens` with −100 behind the first end token, so that padding has no likelihood."""
    ended = (tokens == end).int().cumsum(dim=-1) - (tokens == end).int() > 0
    return tokens.masked_fill(ended, IGNORED)


def copying_of(documents: TextStore, tokenizer: PreTrainedTokenizerBase, passage_length: int) -> Copying:
    """Of a corpus, or of COUNTED documents evenly taken where it has more. passage_length: tokens read of each."""
    rows = range(0, len(documents), max(1, -(-len(documents) // COUNTED)))
    read = (tokenizer(documents.text_at(row), truncation=True, max_length=passage_length)["input_ids"] for row in rows)
    return Copying.of(read, tokenizer)


def generate_queries(
    model: str | Path,
    documents: TextStore,
    *,
    output: Path,
    sampling: Sampling,
    shard: tuple[int, int] = (1, 1),
    device: str | None = None,
    precision: Precision = "float32",
    chunk: int = CHUNK,
) -> bool:
    """Write generated queries for every document to `output`; False where other shards have still to do their part.

    Interrupted, the same call goes on and ends in the same file: each chunk of passages is seeded by its number.
    Raises InputError where `output` was made by another model, of other documents or with other settings, ModelError for
    a model of `osn train` that is no generator.
    """
    if not 1 <= shard[0] <= shard[1]:
        raise InputError(f"there is no shard {shard[0]}/{shard[1]}", "expected i/n with i from 1 to n")
    folder = directory.locate(model)
    if (content := directory.read_osn_json(folder)) is not None and content["kind"] != KIND:
        raise ModelError(
            f"{folder} is a {content['kind']} model, which writes no queries",
            "`osn train doc2query` makes one that does",
        )
    info = directory.model_info(folder, name=model, kind=KIND)
    computed = computed_in(precision, device)
    made_by = {
        "model": {"name": info.name, "hash": info.hash},
        "documents": documents.hash,
        **asdict(sampling),
        "precision": computed,
        "chunk": chunk,
    }
    loaded: list[tuple[Any, PreTrainedTokenizerBase, Copying | None]] = []

    def work(number: int) -> Chunk:
        if not loaded:
            read: Any
            read, words = backbones.sequence_to_sequence(model)
            place = device or ("cuda" if torch.cuda.is_available() else "cpu")
            copies = copying_of(documents, words, sampling.passage_length) if sampling.copying else None
            loaded.append((read.to(place, dtype=getattr(torch, computed)).eval(), words, copies))
        generator, tokenizer, copying = loaded[0]
        rows = range(number * chunk, min((number + 1) * chunk, len(documents)))
        passages = [documents.text_at(row) for row in rows]
        seed = sampling.seed * 1_000_003 + number
        queries = sample_queries(generator, tokenizer, passages, sampling, seed=seed, copying=copying)
        lines = [
            {"_id": documents.ids[row], "queries": [asdict(candidate) for candidate in candidates]}
            for row, candidates in zip(rows, queries, strict=True)
        ]
        empty = sum(not candidate.text for candidates in queries for candidate in candidates)
        return lines, {"passages": len(lines), "queries": len(lines) * sampling.candidates, "empty": empty}

    chunks = -(-len(documents) // chunk)
    unit = f"× {chunk} passages"
    return write_in_chunks(output, GENERATED, made_by, chunks, work, unit=unit, shard=shard) is not None


# ---------------------------------------------------------------- filtering


def filter_generated(
    path: Path, documents: TextStore, retriever: Retriever, *, top: int, output: Path, chunk: int = CHUNK
) -> dict[str, int]:
    """Keep the queries in `path` for which `retriever` finds their own passage among its first `top`.

    A passage of the same normalised text counts too; queries that say the same are kept once. Passages left without a
    query stay in the file with none. Returns the counts. Interrupted, the same call goes on.
    Raises InputError where `path` was made for other documents.
    """
    if top < 1:
        raise InputError(f"the passage must be in the top 1 at least, not {top}")
    header = read_header(path, GENERATED)
    if header.get("documents") != documents.hash:
        raise InputError(
            f"{path} holds queries for other documents (hash {header.get('documents')}) than these ({documents.hash})"
        )
    lines = [value for number, value in read_json_lines(path) if number > 1]
    canonical = documents.canonical()
    made_by = {key: value for key, value in header.items() if key not in ("osn", "format", "counts")}
    made_by |= {"consistency": top, "retriever": retriever.name}

    def work(number: int) -> Chunk:
        part = lines[number * chunk : (number + 1) * chunk]
        texts = {
            f"{line['_id']}#{at}": query["text"]
            for line in part
            for at, query in enumerate(line["queries"])
            if query["text"].strip()
        }
        run = retriever.retrieve(texts, top)
        found = {
            query: {int(canonical[documents.row(hit)]) for hit in hits if hit in documents}
            for query, hits in run.items()
        }
        kept: list[dict[str, Any]] = []
        for line in part:
            own = int(canonical[documents.row(line["_id"])])
            seen: set[str] = set()
            queries = []
            for at, query in enumerate(line["queries"]):
                key = normalised(query["text"])
                if own in found.get(f"{line['_id']}#{at}", ()) and key not in seen:
                    seen.add(key)
                    queries.append(query)
            kept.append({"_id": line["_id"], "queries": queries})
        counts = {
            "passages": len(kept),
            "queries": sum(len(line["queries"]) for line in kept),
            "left_out": sum(len(line["queries"]) for line in part) - sum(len(line["queries"]) for line in kept),
            "without": sum(not line["queries"] for line in kept),
        }
        return kept, counts

    counts = write_in_chunks(output, GENERATED, made_by, -(-len(lines) // chunk), work, unit=f"× {chunk} passages")
    assert counts is not None
    return counts


@click.command("generate-queries")
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="A sequence-to-sequence model: directory or hub id.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The file of queries (jsonl).")
@click.option("--candidates", default=5, show_default=True, help="Queries for each passage.")
@click.option("--top-k", default=25, show_default=True, help="Only the k likeliest tokens are drawn from.")
@click.option("--top-p", default=0.95, show_default=True, help="Of these, the likeliest that have this mass.")
@click.option("--temperature", default=1.0, show_default=True)
@click.option("--copying", type=float, help="Weight of the passage's own words.  [default: as fitted, or 0]")
@click.option("--query-length", type=int, help="Tokens of a query at most.  [default: as trained, or 64]")
@click.option("--passage-length", type=int, help="Tokens read of a passage.  [default: as trained, or 384]")
@click.option("--prefix", help="What is put before a passage.  [default: as trained, or nothing]")
@click.option("--consistency", type=int, metavar="N", help="Keep a query only if its passage is in the top N for it.")
@click.option("--retriever", default="bm25", show_default=True, metavar="NAME", help=f"For this: {RETRIEVERS}.")
@click.option("--shard", default="1/1", show_default=True, metavar="I/N", help="Do the I-th of N parts.")
@click.option("--limit", type=int, help="The first so many documents.")
@click.option("--batch-size", default=32, show_default=True, help="Passages sampled for at once.")
@click.option("--seed", default=42, show_default=True)
@click.option("--device", help="cpu, cuda, …  [default: a GPU where there is one]")
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True)
def generate_queries_command(
    corpus: Path,
    model: str,
    output: Path,
    candidates: int,
    top_k: int,
    top_p: float,
    temperature: float,
    copying: float | None,
    query_length: int | None,
    passage_length: int | None,
    prefix: str | None,
    consistency: int | None,
    retriever: str,
    shard: str,
    limit: int | None,
    batch_size: int,
    seed: int,
    device: str | None,
    precision: Precision,
) -> None:
    """Generate queries for every document of a corpus.

    Interrupted, the same command goes on. Shards that write to the same folder work side by side; the last one to end
    puts the file together. (Without a common folder: copy the parts, `.OUTPUT.parts/`, to one place and run the command
    once more there, without --shard.)

    \b
    osn generate-queries scifact --model models/doc2query --output queries.jsonl
    osn generate-queries scifact --model models/doc2query --consistency 10 --output queries.jsonl
    osn generate-queries big --model models/doc2query --shard 1/4 --output queries.jsonl
    """
    sampling = sampling_for(
        model,
        candidates=candidates,
        top_k=top_k,
        top_p=top_p,
        temperature=temperature,
        copying=copying,
        query_length=query_length,
        passage_length=passage_length,
        prefix=prefix,
        batch_size=batch_size,
        seed=seed,
    )
    documents = TextStore((document.id, document.contents) for document in read_documents(corpus, limit=limit))
    if not len(documents):
        raise InputError(f"{corpus} holds no document with text")
    part, separator, parts = shard.partition("/")
    if not (separator and part.isdigit() and parts.isdigit()):
        raise InputError(f"--shard {shard}: expected I/N, such as 1/4")
    generated = output if consistency is None else output.with_name(f"{output.stem}.unfiltered{output.suffix}")
    complete = generate_queries(
        model,
        documents,
        output=generated,
        sampling=sampling,
        shard=(int(part), int(parts)),
        device=device,
        precision=precision,
    )
    if not complete:
        return
    if consistency is not None:
        engine = open_retriever(retriever, documents, device=device)
        filter_generated(generated, documents, engine, top=consistency, output=output)
    click.echo(summary(output, GENERATED), err=True)
    click.echo(output)
