"""Model-based retrieval: a query becomes a passage, the passage a URL (TOME: `tome-model-based-retrieval`, section 3).

    model = load_generative("models/tome")
    model.write_passages(["what causes a rainbow"])          stage 1, greedy
    model.find_urls(texts)                                   stage 2 as in the paper: free, greedy
    model.find_documents(texts, urls, beams=10)              stage 2 that can write the corpus's URLs only

A directory of kind "generative" (`osn train tome`):

    osn.json
    generative.json      lengths, prompts, and what stands for a document
    learned.jsonl        [id, URL] of each document it was trained on; older models have none
    passage/             a sequence-to-sequence model: query → passage; single-stage models have none
    url/                 another one: passage (or query) → URL
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from opensearch_neural.errors import InputError, MissingExtra, ModelError
from opensearch_neural.files import read_json_object, write_json, write_text
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.url_trie import OUTSIDE, CorpusUrls, Trie
from opensearch_neural.query_encoder import encodable

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

KIND = "generative"
FILE = "generative.json"
LEARNED = "learned.jsonl"
FORMAT = 1
PASSAGE, URL = "passage", "url"

Identifiers = Literal["url", "random"]
_PROMPT_TOKENS = 16
"""What the prompts of a passage may take of its tokens, in any vocabulary."""


@dataclass(frozen=True, slots=True)
class GenerativeSettings:
    """What both stages read and write; lengths in tokens.

    query_length, passage_length, url_length: 32, 32 and 80 in the paper (section 4.3). title_length: the title comes
    before the shortened passage; the paper gives it no length. prompts: "title:" and "passage:" stand before them.
    identifiers: "random" writes 12 digits of the URL's hash in its place, which say nothing, as DSI's: an ablation.
    number_urls: documents that share a URL are told apart by a number behind it, instead of being refused.
    """

    query_length: int = 32
    passage_length: int = 32
    title_length: int = 32
    url_length: int = 80
    prompts: bool = True
    identifiers: Identifiers = "url"
    number_urls: bool = False

    def __post_init__(self) -> None:
        for name in ("query_length", "passage_length", "url_length"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, not {getattr(self, name)}")
        if self.title_length < 0:
            raise ValueError(f"title_length must not be below 0, not {self.title_length}")

    @property
    def written_length(self) -> int:
        """Tokens of a passage as stage 1 writes it at most: title, text and prompts."""
        return self.title_length + self.passage_length + _PROMPT_TOKENS

    def passage(self, tokenizer: PreTrainedTokenizerBase, title: str, text: str) -> str:
        """A document as stage 1 is to write it and stage 2 reads it: "title: … passage: …", both cut at their length."""
        parts = (("title:", title, self.title_length), ("passage:", text, self.passage_length))
        words = []
        for prompt, part, length in parts:
            if kept := _first_tokens(tokenizer, " ".join(encodable(part).split()), length):
                words += [prompt, kept] if self.prompts else [kept]
        return " ".join(words)

    def identifier(self, url: str) -> str:
        """What is written for a URL: itself, or digits that only its hash decides."""
        if self.identifiers == "url":
            return url
        return f"{int(hashlib.sha256(encodable(url).encode()).hexdigest(), 16) % 10**12:012d}"


def _first_tokens(tokenizer: PreTrainedTokenizerBase, text: str, count: int) -> str:
    """The beginning of `text` that is its first `count` tokens."""
    if not count:
        return ""
    # A call that cut or padded leaves the tokenizer doing so; the next one says again what it wants.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    # Of a long text only the beginning can matter, and a tokenizer's time goes with the length.
    encoding = backend.encode(text[: 40 * count], add_special_tokens=False)
    if len(encoding) <= count:
        return text[: 40 * count].rstrip()
    return text[: encoding.offsets[count - 1][1]].rstrip()


class UrlTokenizer:
    """URLs as a tokenizer's ids and back; what reads like a special token in a URL is text there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from tokenizers import Tokenizer

        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path} has no end of sequence, which a URL needs",
                "take a sequence-to-sequence model, such as a T5",
            )
        self.end = int(tokenizer.eos_token_id)
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()

    def encode(self, url: str) -> list[int]:
        """The URL's ids, the end's last."""
        return [*self._backend.encode(encodable(url), add_special_tokens=False).ids, self.end]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` up to the first end."""
        before: list[int] = []
        for token in ids:
            if token == self.end:
                break
            before.append(int(token))
        return str(self._backend.decode(before, skip_special_tokens=False))


def search_trie(
    model: Any, batch: dict[str, Tensor], trie: Trie, *, end: int, beams: int
) -> list[list[tuple[int, float]]]:
    """Beam search that can only write the sequences of `trie`: (a sequence's number, score) for each row, best first.

    At every step the `beams` likeliest continuations that the trie has: those that end a sequence are found, the others go
    on, until what is found cannot be bettered. One beam is greedy decoding. The score is the sum of the tokens'
    log-probabilities under the whole vocabulary. batch: input_ids and attention_mask, both (rows, length); end: the token
    that ends every sequence, and stands nowhere else in one.
    """
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    encoded, mask = model.get_encoder()(**batch).last_hidden_state, batch["attention_mask"]
    ended: list[dict[int, float]] = [{} for _ in range(len(mask))]
    rows = np.arange(len(mask))  # Those that are not at their end.
    width = 1  # Beams of a row: one that reads the opening, which then spreads.
    opening = trie.opening(end)
    tokens = torch.tensor([model.generation_config.decoder_start_token_id, *opening], device=mask.device)
    tokens = tokens.expand(len(rows), -1)
    nodes = np.full(len(rows), trie.child_by(opening))
    totals = np.zeros(len(rows))
    cache, named = None, _name_of_cache(model)
    for step in range(trie.depth - len(opening)):
        output = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
            attention_mask=mask,
            decoder_input_ids=tokens,
            use_cache=True,
            **{named: cache},
        )
        cache = output[named]
        logs = output.logits.float().log_softmax(dim=-1)  # (rows · width, 1 + opening at first and then 1, vocabulary)
        if step == 0 and opening:
            totals += logs[:, :-1].gather(-1, tokens[:, 1:, None]).sum(dim=(1, 2)).cpu().numpy()
        of, continuations = trie.children(nodes)
        scores = totals[of] + logs[:, -1][torch.from_numpy(of), torch.from_numpy(continuations)].cpu().numpy()
        # Which beam, and with what token, each beam goes on from.
        taken = np.repeat(np.arange(len(rows)) * width, beams)
        written = np.zeros(len(rows) * beams, dtype=np.int64)
        going = np.full(len(rows) * beams, -np.inf)
        bounds = np.searchsorted(of, np.arange(0, len(nodes) + 1, width))
        for at_row, row in enumerate(rows.tolist()):
            first, last = bounds[at_row : at_row + 2]
            order = first + np.lexsort((continuations[first:last], -scores[first:last]))[: 2 * beams]
            for at in order[:beams][continuations[order[:beams]] == end]:
                (leaf,) = trie.child(nodes[of[at : at + 1]], continuations[at : at + 1])
                ended[row][int(trie.ends[leaf])] = float(scores[at])
            # No beam has two ends, so twice as many as there are beams leave enough that go on.
            order = order[continuations[order] != end][:beams]
            worst = sorted(ended[row].values(), reverse=True)[beams - 1 : beams]
            if len(order) and not (worst and scores[order[0]] <= worst[0]):
                here = slice(at_row * beams, at_row * beams + len(order))
                taken[here], written[here], going[here] = of[order], continuations[order], scores[order]
        alive = np.isfinite(going)
        left = np.flatnonzero(alive.reshape(-1, beams).any(axis=1))
        if not len(left):
            break
        kept = (left[:, None] * beams + np.arange(beams)).ravel()
        nodes = np.where(alive, trie.child(nodes[taken], written), OUTSIDE)[kept]
        totals = going[kept]
        tokens = torch.from_numpy(written[kept])[:, None].to(mask.device)
        chosen = torch.from_numpy(taken[kept]).to(mask.device)
        if width != beams or len(left) < len(rows):
            cache.reorder_cache(chosen)
            encoded, mask = encoded[chosen], mask[chosen]
        elif beams > 1:
            # A row's beams read the same text: what they have read of it stays where it is.
            cache.self_attention_cache.reorder_cache(chosen)
        rows, width = rows[left], beams
    return [sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))[:beams] for hits in ended]


def _name_of_cache(model: Any) -> str:
    """What a decoder's keys and values are called, as an argument and in the output: transformers has renamed them."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@dataclass(frozen=True)
class GenerativeModel:
    """The stages of a model that writes URLs, each with its tokenizer."""

    info: ModelInfo
    settings: GenerativeSettings
    url: tuple[Any, PreTrainedTokenizerBase]
    """Passage → URL; of a single-stage model query → URL."""
    passage: tuple[Any, PreTrainedTokenizerBase] | None = None
    """Query → passage. None: a single-stage model."""
    learned: Mapping[str, str] = field(default_factory=dict, repr=False)
    """{id: URL} of the documents it was trained on, with the numbers of shared URLs. Empty: not known."""

    def stage_two_inputs(self, queries: Sequence[str], *, batch_size: int = 32) -> list[str]:
        """What the second stage reads for each query: the passage that stage 1 writes, the query itself where that one
        is empty or there is no stage 1."""
        if self.passage is None:
            return list(queries)
        passages = self.write_passages(queries, batch_size=batch_size)
        return [passage or query for passage, query in zip(passages, queries, strict=True)]

    def write_passages(self, queries: Sequence[str], *, batch_size: int = 32) -> list[str]:
        """Stage 1, greedy as in the paper: a passage for each query, without being held to the corpus.

        Raises ModelError for a single-stage model.
        """
        if self.passage is None:
            raise ModelError(f"{self.info.name} is a single-stage model: it writes no passages")
        return write_passages(*self.passage, queries, self.settings, batch_size=batch_size)

    def find_urls(self, texts: Sequence[str], *, length: int | None = None, batch_size: int = 32) -> list[str]:
        """Stage 2, free and greedy as in the paper: whatever the model writes for each text, be it a URL or not. length:
        tokens at most, `url_length` if None; of some corpora longer ones are learned (`CorpusUrls.sequences`)."""
        model, tokenizer = self.url
        most = length or self.settings.url_length
        written: list[str] = []
        for batch in _batches(texts, tokenizer, self._read_length, batch_size, model):
            ids = model.generate(**batch, do_sample=False, num_beams=1, max_new_tokens=most)
            # The first token starts every decoding; padding follows the end only.
            written += [self.codec.decode(row[1:]) for row in ids.tolist()]
        return written

    def find_documents(
        self, texts: Sequence[str], urls: CorpusUrls, *, beams: int = 1, batch_size: int = 32
    ) -> list[list[tuple[int, float]]]:
        """Stage 2 held to the URLs of the corpus: (document's number, score) for each text, best first, at most `beams`.

        The score is the natural logarithm of the URL's probability under the model, its end included: no length penalty,
        and not renormalized to the trie. One beam is greedy decoding. Raises ModelError for URLs made for another model.
        """
        import torch

        self.check_urls(urls)
        if beams < 1:
            raise InputError(f"beams must be at least 1, not {beams}")
        model, tokenizer = self.url
        end, width = int(tokenizer.eos_token_id), min(beams, len(urls))
        decoded: list[list[tuple[int, float]]] = []
        with torch.inference_mode():
            for batch in _batches(texts, tokenizer, self._read_length, batch_size, model):
                decoded += search_trie(model, batch, urls.trie, end=end, beams=width)
        return decoded

    def index_urls(self, documents: Iterable[tuple[str, str | None]]) -> CorpusUrls:
        """The URLs of a corpus, (id, URL) of each document, as this model writes them: of documents that it has learned,
        numbered as then (`number_urls`). Raises as `CorpusUrls.build`."""
        model = {"name": self.info.name, "hash": self.info.hash}
        return CorpusUrls.build(
            documents,
            self.encode,
            model=model,
            length=self.settings.url_length,
            numbered=self.settings.number_urls,
            learned=self.learned,
        )

    def unlearned(self, urls: CorpusUrls) -> int:
        """How many of these documents the model was not trained on, by their ids; 0 where that is not known."""
        return sum(id not in self.learned for id in urls.ids) if self.learned else 0

    @cached_property
    def codec(self) -> UrlTokenizer:
        return UrlTokenizer(self.url[1])

    def written(self, urls: CorpusUrls) -> list[str]:
        """What the model writes when it writes each document's URL: the URL, or its beginning where that stands for it."""
        identifiers = [self.settings.identifier(url) for url in urls.urls]
        return [
            identifier if tokens == tuple(self.codec.encode(identifier)) else self.codec.decode(tokens)
            for identifier, tokens in zip(identifiers, urls.sequences(self.encode), strict=True)
        ]

    @property
    def encode(self) -> Callable[[str], list[int]]:
        """A URL to the tokens that stand for it."""
        return lambda url: self.codec.encode(self.settings.identifier(url))

    def check_urls(self, urls: CorpusUrls) -> None:
        """Raise ModelError unless `urls` were made for this model."""
        if urls.model["hash"] != self.info.hash:
            raise ModelError(
                f"these URLs were made for the model {urls.model['name']} ({urls.model['hash']}), "
                f"and this is {self.info.name} ({self.info.hash})",
                "`osn urls` makes them for this one",
            )

    @property
    def _read_length(self) -> int:
        return self.settings.query_length if self.passage is None else self.settings.written_length


def write_passages(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    settings: GenerativeSettings,
    *,
    batch_size: int = 32,
) -> list[str]:
    """What a model of stage 1 writes for each query, greedily and freely, its white space made single blanks."""
    written: list[str] = []
    for batch in _batches(queries, tokenizer, settings.query_length, batch_size, model):
        ids = model.generate(**batch, do_sample=False, num_beams=1, max_new_tokens=settings.written_length)
        written += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [" ".join(text.split()) for text in written]


def _batches(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, batch_size: int, model: Any
) -> Iterator[dict[str, Tensor]]:
    for start in range(0, len(texts), batch_size):
        batch = [encodable(text) for text in texts[start : start + batch_size]]
        encoded = tokenizer(batch, truncation=True, max_length=length, padding=True, return_tensors="pt")
        yield {name: encoded[name].to(model.device) for name in ("input_ids", "attention_mask")}


def load_generative(name_or_path: str | Path, *, device: str | None = None) -> GenerativeModel:
    """The generative model of a directory that `osn train tome` wrote. device: cpu, cuda, …; None: a GPU if there is one.

    Raises ModelError where the directory holds another kind of model, or a stage is missing or damaged.
    """
    try:
        import torch

        from opensearch_neural.models.pretrained import load_sequence_to_sequence
    except ModuleNotFoundError:
        raise MissingExtra("a generative model", "encode") from None
    folder = directory.locate(name_or_path)
    content = directory.read_osn_json(folder)
    if content is None or content["kind"] != KIND:
        if content is None and any((folder / stage / "osn.json").is_file() for stage in (PASSAGE, URL)):
            raise ModelError(
                f"{folder} is not complete: a stage is missing", "train it: osn train tome --set stages=both"
            )
        kind = "no osn.json" if content is None else f"a {content['kind']} model"
        raise ModelError(f"{folder} is no generative model ({kind})", "`osn train tome` makes one")
    stages, settings = read_settings(folder)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded: dict[str, tuple[Any, Any]] = {}
    for stage in stages:
        if not (folder / stage).is_dir():
            raise ModelError(f"{folder / stage} does not exist", "the model is not complete: train that stage")
        model, tokenizer = load_sequence_to_sequence(folder / stage)
        if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
            raise ModelError(f"{folder / stage}: the tokenizer has no end or no padding")
        loaded[stage] = (model.to(place).eval(), tokenizer)
    info = directory.model_info(folder, name=name_or_path, kind=KIND)
    return GenerativeModel(info, settings, loaded[URL], loaded.get(PASSAGE), read_learned(folder))


def write_settings(folder: Path, settings: GenerativeSettings, *, single_stage: bool) -> None:
    """Write `generative.json` into the model directory."""
    stages = [URL] if single_stage else [PASSAGE, URL]
    write_json(folder / FILE, {"format": FORMAT, "stages": stages, **asdict(settings)})


def write_learned(folder: Path, documents: Iterable[tuple[str, str]]) -> None:
    """Write `learned.jsonl` into the model directory, of (id, URL) pairs."""
    write_text(folder / LEARNED, "".join(json.dumps(pair) + "\n" for pair in documents))


def read_learned(folder: Path) -> dict[str, str]:
    """{id: URL} of the documents that the model was trained on; empty for a model from before this was kept. Raises
    ModelError where the file is damaged."""
    file = folder / LEARNED
    if not file.exists():
        return {}
    try:
        with file.open(encoding="utf-8") as lines:
            return {str(identifier): str(url) for identifier, url in map(json.loads, lines)}
    except (TypeError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None


def read_settings(folder: Path) -> tuple[list[str], GenerativeSettings]:
    """(stages, settings) of a model directory. Raises ModelError where the file is missing or damaged."""
    content = read_json_object(folder / FILE)
    try:
        if content["format"] != FORMAT or content["stages"] not in ([URL], [PASSAGE, URL]):
            raise ValueError(f"format {content['format']}, stages {content['stages']}")
        content.setdefault("number_urls", False)  # Of models from before there was a choice.
        values = {field.name: content[field.name] for field in fields(GenerativeSettings)}
        return list(content["stages"]), GenerativeSettings(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / FILE} cannot be read: {error}") from None
