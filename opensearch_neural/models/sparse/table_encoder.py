"""Queries as token weights: a tokenizer call and a table look-up, no model.

s(q, d) = Σ_t idf(t) · q_t · d_t with q binary, so a query is {token: idf} over its distinct tokens. Needs `tokenizers`
alone; nothing here imports torch or transformers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokenizers import Tokenizer

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import ModelError
from opensearch_neural.files import packed_json, read_json_object, unpacked_json, write_json, write_text
from opensearch_neural.models import directory
from opensearch_neural.models.sparse.idf import UNLISTED, check_idf, load_idf, save_idf
from opensearch_neural.models.tokenizer import (
    load_tokenizer,
    special_tokens,
    unlimited,
    vocabulary_of,
    word_by_word,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Value = TypeVar("Value")

MAX_LENGTH = 512
WORDS_KEPT = 50_000
"""Words whose tokens, and whose weights, an encoder remembers, some 10 MB each; at more, it forgets them all."""
LONGEST_WORD_KEPT = 64
"""Longer words, in characters, are not remembered."""
QUERY_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "router_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "idf.json",
    "query*/config.json",
    "query*/tokenizer.json",
    "query*/tokenizer_config.json",
    "query*/model.safetensors",
    "query*/idf.json",
)
"""The files of a hub model that queries need: some 2 MB, never the encoder's weights."""

# If two encoders with the same weights split these texts alike, they are taken to encode every query alike.
_PROBE = (
    "Keep-alive TIMEOUT of 3.14s; naïve café, Zürich's straße",
    "unbelievablyantidisestablishmentarian https://example.org/a_b?q=1&r=2#x",
    "東京タワー and 서울 or ภาษาไทย, Привет мир",
    "[SEP] <s> [MASK] \t two  spaces\u00a0and\u200bnone 🙂👩‍💻",
)


class TableEncoder:
    """Text to {token: weight}, the input of `queries.neural_sparse` and `queries.high_idf_first`.

    Safe to share between threads. A query of ten words takes tens of microseconds, and only a few if its words are known
    from earlier queries.

    tokenizer: any fast tokenizer; its own truncation and padding are not used
    idf: {token: weight}; a token that is not listed weighs 1.0, a token with weight 0 is ignored
    max_length: how many tokens of a query are read; None: all
    prompt: text that is put before every query, from the model's directory
    max_active: how many of the heaviest tokens of a query are kept; None: all
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        idf: Mapping[str, float],
        max_length: int | None = MAX_LENGTH,
        *,
        name: str = "",
        prompt: str = "",
        max_active: int | None = None,
    ) -> None:
        if tokenizer.truncation is not None or tokenizer.padding is not None:
            # Both are the tokenizer's state, on which the caller may rely.
            tokenizer = unlimited(tokenizer)
        table = check_idf(idf, source=name or "idf")
        vocabulary = vocabulary_of(tokenizer)
        if table.keys().isdisjoint(vocabulary):
            raise ModelError(
                f"{name or 'idf'}: no token of the table is in the tokenizer's vocabulary",
                "tokenizer.json and idf.json must come from one model",
            )
        special = special_tokens(tokenizer)
        self.name = name
        self.max_length = max_length
        self.prompt = prompt
        self.max_active = max_active
        self.tokenizer = tokenizer
        self._tokens = vocabulary
        self._word_by_word = word_by_word(tokenizer)
        self._ids_of_word: dict[str, list[int]] = {}
        self._heaviest_of_word: dict[str, float] = {}
        # Special tokens weigh nothing, even if the text contains their names.
        self._weights = [0.0 if token in special else table.get(token, UNLISTED) for token in vocabulary]

    @classmethod
    def load(cls, path_or_id: str | Path) -> Self:
        """The query side of a sparse model, from its directory, a copy of its tokenizer.json and idf.json, or a hub id.

        A Router directory is read as sentence-transformers reads it (the query route's SparseStaticEmbedding). Raises
        ModelError if the folder lacks a file, or if its query side is a neural network.
        """
        folder = directory.locate(path_or_id, files=QUERY_FILES)
        name = directory.display_name(path_or_id)
        routes = directory.routes(folder)
        how: dict[str, Any] = {
            "name": name,
            "prompt": directory.prompt(folder, "query"),
            "max_active": directory.max_active(folder),
        }
        for module in routes.get("query", routes.get("", [])):
            if module.type == "SparseStaticEmbedding":
                source = module.path if (module.path / "tokenizer.json").exists() else folder
                tokenizer = load_tokenizer(source)
                table = _static_weights(module.path, folder, tokenizer)
                return cls(tokenizer, table, _max_length(source), **how)
        if not (folder / "idf.json").exists():
            directory.refuse_other_kinds(folder)
            what = "the query side of this model is a neural network" if routes else "no idf.json"
            raise ModelError(
                f"{folder}: {what}, and queries need a table of weights",
                "leave --sparse out to search an index that this model wrote: its query encoder is stored with it. "
                f"`osn model idf --corpus CORPUS --model {path_or_id} --output FOLDER` writes the model with your corpus's "
                "table",
            )
        return cls(load_tokenizer(folder), load_idf(folder / "idf.json"), _max_length(folder), **how)

    def save(self, path: str | Path) -> None:
        """Write the files that `load` needs into the folder `path`: `tokenizer.json`, `idf.json` and settings."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", self.tokenizer.to_str())
        limit = 10**30 if self.max_length is None else self.max_length
        write_json(folder / "tokenizer_config.json", {"model_max_length": limit})
        save_idf(folder / "idf.json", self.weights)
        if self.prompt or self.max_active is not None:
            config = {"prompts": {"query": self.prompt}, "max_active_dims": self.max_active}
            write_json(folder / "config_sentence_transformers.json", config)

    def to_bytes(self) -> bytes:
        """All that `from_bytes` needs to encode every text alike: the tokenizer, the weights by id, prompt and limits."""
        tokenizer = json.loads(self.tokenizer.to_str())
        return packed_json(
            {
                "format": 1,
                "tokenizer": tokenizer,
                "weights": self._weights,
                "max_length": self.max_length,
                "prompt": self.prompt,
                "max_active": self.max_active,
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes, *, name: str = "") -> Self:
        """The encoder from the bytes of `to_bytes`. Raises ModelError, with `name`, for other bytes."""
        try:
            entries = unpacked_json(content)
            if entries["format"] != 1:
                raise ValueError(f"format {entries['format']!r} is newer than this version reads (1)")
            tokenizer = Tokenizer.from_str(json.dumps(entries["tokenizer"]))
            weights = dict(zip(vocabulary_of(tokenizer), map(float, entries["weights"]), strict=True))
            limits = [None if entries[key] is None else int(entries[key]) for key in ("max_length", "max_active")]
            return cls(tokenizer, weights, limits[0], name=name, prompt=str(entries["prompt"]), max_active=limits[1])
        except ModelError:
            raise
        except Exception as error:  # `tokenizers` raises plain Exception
            raise ModelError(
                f"the query encoder of {name} that the cluster stores cannot be read: {error}",
                "`osn index store-encoder INDEX` stores it again, from a machine that has the model",
            ) from None

    def encode(self, text: str) -> dict[str, float]:
        """{token: weight} in the order of first appearance: distinct tokens, weights above 0, no special tokens."""
        return self._weigh(self._ids_word_by_word(encodable(self.prompt + text)))

    def heaviest(self, word: str) -> float:
        """The weight of a word's heaviest token; 0 for a word without tokens. The prompt plays no part."""
        known = self._heaviest_of_word.get(word)
        if known is not None:
            return known
        weights = [self._weights[id_] for id_ in self._ids(encodable(word))]
        return _remember(self._heaviest_of_word, word, max(weights, default=0.0))

    def tokens_in(self, text: str) -> set[str]:
        """All tokens of a document's text, of any weight; the text is not cut off."""
        return {self._tokens[id_] for id_ in self._ids_word_by_word(encodable(text))}

    def encode_batch(self, texts: Iterable[str]) -> list[dict[str, float]]:
        """`encode` of every text, on all cores."""
        prompted = [encodable(self.prompt + text) for text in texts]
        encodings = self.tokenizer.encode_batch_fast(prompted, add_special_tokens=False)
        return [self._weigh(encoding.ids) for encoding in encodings]

    def _ids_word_by_word(self, text: str) -> list[int]:
        if not self._word_by_word:
            return self._ids(text)
        ids: list[int] = []
        for word in text.split(" "):
            known = self._ids_of_word.get(word)
            if known is None:
                known = _remember(self._ids_of_word, word, self._ids(word))
            ids += known
        return ids

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _weigh(self, ids: list[int]) -> dict[str, float]:
        weights, tokens = self._weights, self._tokens
        distinct = dict.fromkeys(ids if self.max_length is None else ids[: self.max_length])
        encoded = {tokens[id_]: weight for id_ in distinct if (weight := weights[id_])}
        if self.max_active is None or len(encoded) <= self.max_active:
            return encoded
        heaviest = set(sorted(encoded, key=lambda token: -encoded[token])[: self.max_active])
        return {token: weight for token, weight in encoded.items() if token in heaviest}

    @property
    def vocabulary(self) -> list[str]:
        """All tokens, by id."""
        return self._tokens

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each token of the vocabulary in a query; 0 for tokens that a query ignores."""
        return dict(zip(self._tokens, self._weights, strict=True))

    @cached_property
    def hash(self) -> str:
        """16 hex digits that change if queries are encoded differently.

        It covers what encoding does (the weights, how probe texts are split), not the files' bytes: a copy saved by another
        version of `tokenizers`, or with the table in another form, keeps its hash. `max_active` is left out: few queries are
        so long, and indexes were written before it was read.
        """
        digest = hashlib.sha256(f"{self.max_length}\n".encode())
        for token, weight in sorted(self.weights.items()):
            digest.update(f"{token}\t{weight:.6g}\n".encode("utf-8", "surrogatepass"))
        if self.prompt:
            digest.update(f"prompt\t{self.prompt}\n".encode("utf-8", "surrogatepass"))
        for text in _PROBE:
            digest.update(json.dumps(self.tokenizer.encode(text, add_special_tokens=False).tokens).encode())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self._tokens)} tokens)"


def _remember(memory: dict[str, Value], word: str, value: Value) -> Value:
    """`value`, which `memory` holds afterwards, unless the word is long; a full memory forgets all words first."""
    if len(word) <= LONGEST_WORD_KEPT:
        if len(memory) >= WORDS_KEPT:
            memory.clear()
        memory[word] = value
    return value


def _static_weights(module: Path, folder: Path, tokenizer: Tokenizer) -> dict[str, float]:
    """The table of a saved SparseStaticEmbedding: from a JSON file that its config names, or from its tensor of weights."""
    config = read_json_object(module / "config.json", missing_ok=True)
    if isinstance(table_file := config.get("path"), str) and table_file.endswith(".json"):
        # sentence-transformers saves the path on the machine that built the model: only the file's name is usable.
        for candidate in (module / Path(table_file).name, folder / Path(table_file).name, folder / "idf.json"):
            if candidate.exists():
                return load_idf(candidate)
        raise ModelError(f"{module / 'config.json'}: the table {table_file!r} is not in the model directory")
    file = module / "model.safetensors"
    if not file.exists():
        raise ModelError(f"{module}: no model.safetensors", "the directory is incomplete; pickled weights are not read")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            weights = tensors.get_tensor("weight").tolist()
    except SafetensorError as error:
        raise ModelError(f"{file}: expected a tensor 'weight' ({error})") from None
    except TypeError as error:  # numpy has no bfloat16
        raise ModelError(
            f"{file}: numpy cannot read its weights ({error})",
            f"save the model in float32: SparseEncoder({str(folder)!r}).float().save_pretrained(NEW)",
        ) from None
    vocabulary = vocabulary_of(tokenizer)
    if len(weights) < len(vocabulary):
        raise ModelError(f"{file}: {len(weights)} weights for a vocabulary of {len(vocabulary)} tokens")
    return check_idf(dict(zip(vocabulary, weights, strict=False)), source=str(file))


def _max_length(folder: Path) -> int | None:
    """How many tokens sentence-transformers reads of a query: the tokenizer's `model_max_length`; None: all."""
    file = folder / "tokenizer_config.json"
    if not file.exists():
        return MAX_LENGTH
    length = read_json_object(file).get("model_max_length", MAX_LENGTH)
    # transformers writes 10³⁰ for "no limit".
    return int(length) if isinstance(length, (int, float)) and math.isfinite(length) and 0 < length < 10**9 else None
