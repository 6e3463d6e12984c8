"""Model-based retrieval: a query becomes a passage, the passage a URL (TOME: `tome-model-based-retrieval`, section 3).

    model = load_generative("models/tome")
    model.write_passages(["what causes a rainbow"])          stage 1, greedy
    model.find_urls(texts)                                   stage 2 as in the paper: free, greedy
    model.find_documents(texts, urls, beams=10)              stage 2, limited to the corpus's URLs

A directory of kind "generative" (`osn train tome`):

    osn.json
    generative.json      lengths, prompts, and the kind of identifier
    learned.jsonl        [id, URL] of each document it was trained on; older models have none
    passage/             a sequence-to-sequence model: query → passage; single-stage models have none
    url/                 another one: passage (or query) → URL
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import InputError, MissingExtra, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.generative.settings import (
    KIND,
    PASSAGE,
    URL,
    GenerativeSettings,
    read_learned,
    read_settings,
)
from opensearch_neural.models.generative.trie_decoding import search_trie
from opensearch_neural.models.generative.url_trie import CorpusUrls

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


class UrlTokenizer:
    """Turns URLs into token ids and back; a URL's text that looks like a special token is encoded as text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from tokenizers import Tokenizer

        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path} has no end-of-sequence token, which a URL needs",
                "take a sequence-to-sequence model, such as a T5",
            )
        self.end = int(tokenizer.eos_token_id)
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()

    def encode(self, url: str) -> list[int]:
        """The URL's ids, with the end token's id last."""
        return [*self._backend.encode(encodable(url), add_special_tokens=False).ids, self.end]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` before the first end token."""
        before: list[int] = []
        for token in ids:
            if token == self.end:
                break
            before.append(int(token))
        return str(self._backend.decode(before, skip_special_tokens=False))


@dataclass(frozen=True)
class GenerativeModel:
    """The stages, each a sequence-to-sequence model with its tokenizer."""

    info: ModelInfo
    """Name and hash, which the URLs of a corpus record."""
    settings: GenerativeSettings
    """lengths, prompts, and the kind of identifier"""
    url: tuple[Any, PreTrainedTokenizerBase]
    """stage 2; it reads the query if there is no stage 1"""
    passage: tuple[Any, PreTrainedTokenizerBase] | None = None
    """stage 1; None in a single-stage model"""
    learned: Mapping[str, str] = field(default_factory=dict, repr=False)
    """{id: URL} of the documents it was trained on, shared URLs with their numbers; empty if unknown"""

    def stage_two_inputs(self, queries: Sequence[str], *, batch_size: int = 32) -> list[str]:
        """The input of stage 2 for each query: the passage that stage 1 writes, or the query if that is empty or there is
        no stage 1."""
        if self.passage is None:
            return list(queries)
        passages = self.write_passages(queries, batch_size=batch_size)
        return [passage or query for passage, query in zip(passages, queries, strict=True)]

    def write_passages(self, queries: Sequence[str], *, batch_size: int = 32) -> list[str]:
        """Stage 1, greedy as in the paper: a passage for each query, not limited to the corpus; white space becomes single
        blanks.

        Raises ModelError for a single-stage model.
        """
        if self.passage is None:
            raise ModelError(f"{self.info.name} is a single-stage model: it writes no passages")
        model, tokenizer = self.passage
        written: list[str] = []
        for batch in _batches(queries, tokenizer, self.settings.query_length, batch_size, model):
            ids = model.generate(**batch, do_sample=False, num_beams=1, max_new_tokens=self.settings.written_length)
            written += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [" ".join(passage.split()) for passage in written]

    def find_urls(self, texts: Sequence[str], *, length: int | None = None, batch_size: int = 32) -> list[str]:
        """Stage 2, free and greedy as in the paper: the text that the model writes for each text, even if it is no URL.

        length: most tokens; None: `url_length`. For some corpora the model learns longer URLs (`CorpusUrls.sequences`).
        """
        model, tokenizer = self.url
        most = length or self.settings.url_length
        written: list[str] = []
        for batch in _batches(texts, tokenizer, self._read_length, batch_size, model):
            ids = model.generate(**batch, do_sample=False, num_beams=1, max_new_tokens=most)
            # The first token is the decoder's start token; padding only follows the end.
            written += [self.codec.decode(row[1:]) for row in ids.tolist()]
        return written

    def find_documents(
        self, texts: Sequence[str], urls: CorpusUrls, *, beams: int = 1, batch_size: int = 32
    ) -> list[list[tuple[int, float]]]:
        """Stage 2 limited to the corpus's URLs: at most `beams` of (document's number, score) for each text, best first.

        The score is the natural logarithm of the URL's probability under the model, with its end token, without length
        penalty, and not renormalized to the trie. One beam is greedy decoding. Raises ModelError for URLs made for another
        model.
        """
        import torch

        self.check_urls(urls)
        if beams < 1:
            raise InputError(f"beams must be at least 1, not {beams}")
        model, tokenizer = self.url
        end, width = int(tokenizer.eos_token_id), min(beams, len(urls))
        hits: list[list[tuple[int, float]]] = []
        with torch.inference_mode():
            for batch in _batches(texts, tokenizer, self._read_length, batch_size, model):
                hits += search_trie(model, batch, urls.trie, end=end, beams=width)
        return hits

    def index_urls(self, documents: Iterable[tuple[str, str | None]]) -> CorpusUrls:
        """The URLs of a corpus as this model writes them. documents: (id, URL) of each.

        A document that the model has learned keeps its number (`number_urls`). Raises InputError as `CorpusUrls.build` does.
        """
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
        """How many of these documents, by id, the model was not trained on; 0 if unknown."""
        return sum(identifier not in self.learned for identifier in urls.ids) if self.learned else 0

    @cached_property
    def codec(self) -> UrlTokenizer:
        return UrlTokenizer(self.url[1])

    def written(self, urls: CorpusUrls) -> list[str]:
        """The text that the model writes for each document: its URL, or the URL's beginning if it was cut."""
        identifiers = [self.settings.identifier(url) for url in urls.urls]
        return [
            identifier if tokens == tuple(self.codec.encode(identifier)) else self.codec.decode(tokens)
            for identifier, tokens in zip(identifiers, urls.sequences(self.encode), strict=True)
        ]

    @property
    def encode(self) -> Callable[[str], list[int]]:
        """A function from a URL to the tokens that the model writes for it."""
        return lambda url: self.codec.encode(self.settings.identifier(url))

    def check_urls(self, urls: CorpusUrls) -> None:
        """Raise ModelError unless `urls` were made for this model."""
        if urls.model["hash"] != self.info.hash:
            raise ModelError(
                f"these URLs were made for the model {urls.model['name']} ({urls.model['hash']}), "
                f"but this is {self.info.name} ({self.info.hash})",
                "make URLs for this model with `osn model urls`",
            )

    @property
    def _read_length(self) -> int:
        return self.settings.query_length if self.passage is None else self.settings.written_length


def _batches(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, batch_size: int, model: Any
) -> Iterator[dict[str, Tensor]]:
    for start in range(0, len(texts), batch_size):
        batch = [encodable(text) for text in texts[start : start + batch_size]]
        encoded = tokenizer(batch, truncation=True, max_length=length, padding=True, return_tensors="pt")
        yield {name: encoded[name].to(model.device) for name in ("input_ids", "attention_mask")}


def load_generative(name_or_path: str | Path, *, device: str | None = None) -> GenerativeModel:
    """The generative model of a directory that `osn train tome` wrote. device: cpu, cuda, …; None: a GPU if there is one.

    Raises ModelError if the directory holds another kind of model, or a stage is missing or damaged.
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
            raise ModelError(f"{folder / stage}: the tokenizer has no end token or no padding token")
        loaded[stage] = (model.to(place).eval(), tokenizer)
    info = directory.model_info(folder, name=name_or_path, kind=KIND)
    return GenerativeModel(info, settings, loaded[URL], loaded.get(PASSAGE), read_learned(folder))
