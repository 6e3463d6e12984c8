"""Loads a fast tokenizer as transformers does, and tells facts about its vocabulary and splitting.

Needs `tokenizers` alone; nothing here imports torch or transformers.
"""

from __future__ import annotations

import copy
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from opensearch_neural.errors import ModelError
from opensearch_neural.files import read_json_object
from opensearch_neural.models import directory

_OF_BERT = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_OF_ROBERTA: dict[str, bool | None] = {"add_prefix_space": False}
_DEFAULTS = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"), _OF_BERT),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "GPT2Tokenizer"), _OF_ROBERTA),
}
"""{tokenizer's class in transformers: settings that hold if its configuration does not name them}."""


def load_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """A fast tokenizer from a `tokenizer.json`, a folder that holds one, or a hub id; no truncation, no padding.

    Settings in tokenizer_config.json for lower case, accents, Chinese characters and a space before the text take
    precedence, as in transformers, also if they are the defaults of the tokenizer's class there.
    """
    path = Path(name_or_path)
    if not path.is_file():
        path = directory.locate(name_or_path, files=("tokenizer.json", "tokenizer_config.json")) / "tokenizer.json"
    if not path.exists():
        raise ModelError(
            f"{path.parent}: no tokenizer.json",
            "save the fast tokenizer: AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises plain Exception
        raise ModelError(f"{path}: not a tokenizer ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _normalize_as_configured(tokenizer, path.with_name("tokenizer_config.json"))
    return tokenizer


def network_tokenizer(network: Path, folder: Path) -> Tokenizer:
    """The tokenizer of the network in the folder `network`, else that of the whole model in `folder`.

    It lower-cases texts if sentence-transformers' file of the network says so. Raises ModelError if there is no tokenizer,
    or as `directory.configured_length` does.
    """
    tokenizer = load_tokenizer(network if (network / "tokenizer.json").exists() else folder)
    if directory.lower_cases(network) and not lower_cases(tokenizer):
        first = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *first])
    return tokenizer


def lower_cases(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer's own files say that it reads texts in lower case."""
    return tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("A").endswith("a")


def cut_as_configured(
    tokenizer: Tokenizer, network: Path, positions: int | None, route: str, at_most: int | None
) -> None:
    """Let `tokenizer` cut texts as sentence-transformers does for this network.

    positions: the most tokens that the network reads; None: not limited. route: "query" or "document". at_most: tokens;
    None: the network's own limit.
    """
    limit = directory.max_length(network, positions, route)
    side = "left" if directory.reads_the_end(network) else "right"
    tokenizer.enable_truncation(min(at_most, limit) if at_most else limit, direction=side)


def _normalize_as_configured(tokenizer: Tokenizer, file: Path) -> None:
    """In transformers, the configuration of a BERT or RoBERTa tokenizer takes precedence over tokenizer.json; so here."""
    if not file.exists():
        return
    written = read_json_object(file)
    kind = str(written.get("tokenizer_class"))
    if kind in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return
    config = {**_DEFAULTS.get(kind.removesuffix("Fast"), {}), **written}
    normalizer, split = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(split, pre_tokenizers.ByteLevel) and "add_prefix_space" in config:
        split.add_prefix_space = bool(config["add_prefix_space"])
        tokenizer.pre_tokenizer = split
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return
    options = {
        "lowercase": "do_lower_case",
        "strip_accents": "strip_accents",
        "handle_chinese_chars": "tokenize_chinese_chars",
    }
    configured = {name: config[key] for name, key in options.items() if key in config}
    if any(getattr(normalizer, name) != value for name, value in configured.items()):
        current = {name: getattr(normalizer, name) for name in ("clean_text", *options)}
        tokenizer.normalizer = normalizers.BertNormalizer(**{**current, **configured})


def unlimited(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither truncates nor pads. Copying is slow: make one copy for many texts."""
    whole = copy.deepcopy(tokenizer)
    whole.no_truncation()
    whole.no_padding()
    return whole


def word_by_word(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a word, split at spaces, do not depend on its neighbours.

    This holds for BERT's word pieces, but not for SentencePiece, which puts the space before a word into its token.
    """
    return (
        isinstance(tokenizer.model, models.WordPiece)
        and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(tokenizer.normalizer, normalizers.BertNormalizer | None)
        and not any(" " in token.content for token in tokenizer.get_added_tokens_decoder().values())
    )


def special_tokens(tokenizer: Tokenizer) -> set[str]:
    """The tokens that represent no text: classifier, separator, padding, mask and the unknown token."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    unknown = getattr(tokenizer.model, "unk_token", None)
    return special | {unknown} if isinstance(unknown, str) else special


def vocabulary_of(tokenizer: Tokenizer) -> list[str]:
    """All tokens by id; an unused id gets the name "[id N]"."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    vocabulary = [f"[id {i}]" for i in range(max(ids.values(), default=-1) + 1)]
    for token, id_ in ids.items():
        vocabulary[id_] = token
    return vocabulary


def tokens_of_texts(tokenizer: Tokenizer) -> int:
    """How many ids the tokens of texts have: up to the highest of a token that is not special. A model may lack vectors for
    special tokens that were added to its tokenizer, such as one for images."""
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    return 1 + max((id_ for id_ in ids if id_ not in special), default=-1)


def refuse_more_tokens(tokens: int, known: int | None, folder: Path) -> None:
    """Raises ModelError if a tokenizer has more `tokens` than the model in `folder` knows: it has no vectors for the others.
    known: None if the model does not say"""
    if known is not None and known < tokens:
        raise ModelError(
            f"{folder}: the tokenizer has {tokens} tokens, and the model has vectors for {known} of them",
            "resize the model's embeddings, or give the tokenizer that it was trained with",
        )
