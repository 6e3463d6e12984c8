"""The settings of a generative model, and the files with them and its documents: `generative.json`, `learned.jsonl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import ModelError
from opensearch_neural.files import read_json_object, write_json, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KIND = "generative"
FILE = "generative.json"
LEARNED = "learned.jsonl"
FORMAT = 1
PASSAGE, URL = "passage", "url"

Identifiers = Literal["url", "random"]
_PROMPT_TOKENS = 16
"""Tokens for the prompts of a passage, enough in any vocabulary."""


@dataclass(frozen=True, slots=True)
class GenerativeSettings:
    """What both stages read and write; lengths in tokens, as in the paper (section 4.3)."""

    query_length: int = 32
    """most tokens of a query"""
    passage_length: int = 32
    """most tokens of a passage, which is cut"""
    title_length: int = 32
    """most tokens of the title before the passage; the paper names no length"""
    url_length: int = 80
    """most tokens of a URL"""
    prompts: bool = True
    """put "title:" and "passage:" before title and passage"""
    identifiers: Identifiers = "url"
    """what the model writes for a document; "random" is 12 digits of its URL's hash, as in DSI: an ablation"""
    number_urls: bool = False
    """put a number behind a URL that several documents share; false refuses such documents"""

    def __post_init__(self) -> None:
        for name in ("query_length", "passage_length", "url_length"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, not {getattr(self, name)}")
        if self.title_length < 0:
            raise ValueError(f"title_length must be at least 0, not {self.title_length}")

    @property
    def written_length(self) -> int:
        """Most tokens of a passage as stage 1 writes it: title, text and prompts."""
        return self.title_length + self.passage_length + _PROMPT_TOKENS

    def passage(self, tokenizer: PreTrainedTokenizerBase, title: str, text: str) -> str:
        """A document as stage 1 learns to write it and stage 2 reads it: "title: … passage: …", each cut at its length."""
        parts = (("title:", title, self.title_length), ("passage:", text, self.passage_length))
        words = []
        for prompt, part, length in parts:
            if beginning := _first_tokens(tokenizer, " ".join(encodable(part).split()), length):
                words += [prompt, beginning] if self.prompts else [beginning]
        return " ".join(words)

    def identifier(self, url: str) -> str:
        """The text that the model writes for a URL: the URL itself, or digits of its hash."""
        if self.identifiers == "url":
            return url
        return f"{int(hashlib.sha256(encodable(url).encode()).hexdigest(), 16) % 10**12:012d}"


def _first_tokens(tokenizer: PreTrainedTokenizerBase, text: str, count: int) -> str:
    """The beginning of `text` with its first `count` tokens."""
    if not count:
        return ""
    # Earlier calls may have left truncation and padding on; later calls set their own again.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    # Only the beginning of a long text matters, and tokenizing takes time in proportion to the length.
    encoding = backend.encode(text[: 40 * count], add_special_tokens=False)
    if len(encoding) <= count:
        return text[: 40 * count].rstrip()
    return text[: encoding.offsets[count - 1][1]].rstrip()


def write_settings(folder: Path, settings: GenerativeSettings, *, single_stage: bool) -> None:
    """Write `generative.json` into the model directory."""
    stages = [URL] if single_stage else [PASSAGE, URL]
    write_json(folder / FILE, {"format": FORMAT, "stages": stages, **asdict(settings)})


def write_learned(folder: Path, documents: Iterable[tuple[str, str]]) -> None:
    """Write `learned.jsonl` into the model directory, of (id, URL) pairs."""
    write_text(folder / LEARNED, "".join(json.dumps(pair) + "\n" for pair in documents))


def read_learned(folder: Path) -> dict[str, str]:
    """{id: URL} of the documents that the model was trained on; empty for older models, which do not record them.

    Raises ModelError if the file is damaged.
    """
    file = folder / LEARNED
    if not file.exists():
        return {}
    try:
        with file.open(encoding="utf-8") as lines:
            return {str(identifier): str(url) for identifier, url in map(json.loads, lines)}
    except (TypeError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None


def read_settings(folder: Path) -> tuple[list[str], GenerativeSettings]:
    """(stages, settings) of a model directory. Raises ModelError if the file is missing or damaged."""
    content = read_json_object(folder / FILE)
    try:
        if content["format"] != FORMAT or content["stages"] not in ([URL], [PASSAGE, URL]):
            raise ValueError(f"format {content['format']}, stages {content['stages']}")
        content.setdefault("number_urls", False)  # older models have no such setting
        settings = {field.name: content[field.name] for field in fields(GenerativeSettings)}
        return list(content["stages"]), GenerativeSettings(**settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / FILE} cannot be read: {error}") from None
