"""Load Hugging Face directories with care: safetensors only, from this machine, with short errors.

Their code does not run unless it is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import ModelError
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.tokenizer import refuse_more_tokens, tokens_of_texts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T5 = ("t5", "mt5", "umt5")
"""Model types of transformers whose folder may hold a decoder, and whose texts do not begin with CLS."""


def load_model(
    auto: Any, folder: Path, *, what: str | None = None, config: Any = None, trust_remote_code: bool = False
) -> tuple[Any, list[str]]:
    """(model, names of the missing weights), loaded by `auto`, one of transformers' AutoModel classes, in float32.

    what: the model's name in a message; None: taken from `auto`. config: replaces the directory's own.
    trust_remote_code: whether the model's own code may run, which may be in another repository of the hub.
    Raises ModelError if the directory is unsafe or does not load.
    """
    import torch

    refuse_unsafe(folder)
    with quiet(), code_refused(folder), loads_as(what or auto.__name__.removeprefix("AutoModelFor"), folder):
        model, report = auto.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=not trust_remote_code,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            dtype=torch.float32,
            **({} if config is None else {"config": config}),
        )
    for weight in model.parameters():
        # Weights that transformers cut out of one tensor, as nomic-bert's, share its memory: safetensors cannot save them.
        if weight.untyped_storage().nbytes() > weight.nbytes:
            weight.data = weight.data.clone()
    return model, sorted(report["missing_keys"])


def load_sequence_to_sequence(folder: Path) -> tuple[Any, PreTrainedTokenizerBase]:
    """(model, tokenizer) of a sequence-to-sequence directory (T5, BART, …).

    Raises ModelError for another kind of model, or if some of its weights are missing.
    """
    from transformers import AutoModelForSeq2SeqLM

    model, missing = load_model(AutoModelForSeq2SeqLM, folder)
    if missing:
        raise ModelError(f"{folder}: the weights lack {', '.join(missing[:3])}")
    return model, load_tokenizer(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a directory. Raises ModelError if there is none."""
    tokenizer = load_any_tokenizer(folder)
    if not tokenizer.is_fast:
        raise ModelError(f"{folder}: the tokenizer has no tokenizer.json", "save it as a fast tokenizer")
    return tokenizer


def load_any_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory, fast or not. Raises ModelError if there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{folder}: the tokenizer does not load: {first_line(error)}") from None
    refuse_without_words(tokenizer, folder)
    return tokenizer


def refuse_without_words(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Raises ModelError for a tokenizer that knows no words: transformers makes such a one for a folder without the files of
    a tokenizer, and every word is unknown to it."""
    words = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    if len(words) < 2:  # T5's has the mark of a word's beginning.
        raise ModelError(
            f"{folder}: the tokenizer knows no words", "give a folder that has the model's tokenizer.json, too"
        )


def check_tokenizers(model: torch.nn.Module, folder: Path) -> None:
    """Raises ModelError if a tokenizer of a sentence-transformers model knows no words, or more tokens than its network."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    for module in model.modules():
        tokenizer = getattr(module, "tokenizer", None)
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            refuse_without_words(tokenizer, folder)
            network = getattr(module, "auto_model", None)
            tokens = tokens_of_texts(tokenizer.backend_tokenizer) if tokenizer.is_fast else len(tokenizer)
            refuse_more_tokens(tokens, getattr(getattr(network, "config", None), "vocab_size", None), folder)
        elif isinstance(tokenizer, Tokenizer):  # of a table of tokens' vectors
            refuse_more_tokens(tokens_of_texts(tokenizer), getattr(module, "num_embeddings", None), folder)


def most_tokens(model: torch.nn.Module) -> int | None:
    """The most tokens that a model of transformers reads; None: not limited."""
    learned = most_positions(model)
    return getattr(model.config, "max_position_embeddings", None) if learned is None else learned


def most_positions(model: torch.nn.Module) -> int | None:
    """The most tokens for which a model has learned a position; None: it learned none. RoBERTa and similar models count
    positions from after the padding's id, so they read fewer tokens than they have positions."""
    import torch

    for module in model.modules():
        table, padding = getattr(module, "position_embeddings", None), getattr(module, "padding_idx", None)
        if isinstance(table, torch.nn.Embedding):
            return table.num_embeddings - (padding + 1 if isinstance(padding, int) else 0)
    return None


def cut_to_tokens(network: PreTrainedModel, tokens: int) -> None:
    """Leave out the rows of a network for ids that its tokenizer does not have, which fill up to a round number."""
    if network.config.vocab_size > tokens:
        network.resize_token_embeddings(tokens)


@contextmanager
def loads_as(what: str, folder: Path) -> Iterator[None]:
    """Raises ModelError, which calls the model `what`, if the block fails to load `folder`: files are missing or damaged, or
    hold another kind of model. A model that needs code of its own is left to `code_refused`."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        if asks_for_trust(error):
            raise
        whole = "give a folder that has the model's config.json, model.safetensors and tokenizer, each whole"
        remedy = whole if isinstance(error, (OSError, SafetensorError)) else None
        raise ModelError(f"{folder} does not load as {what}: {first_line(error)}", remedy) from None


def asks_for_trust(error: Exception) -> bool:
    """Whether transformers did not load a model because its own code is not trusted."""
    return isinstance(error, ValueError) and "trust_remote_code" in str(error)


@contextmanager
def code_refused(folder: Path) -> Iterator[None]:
    """Raises ModelError, with the option that runs it, if loading `folder` needs code of the model's own."""
    try:
        yield
    except ValueError as error:
        if not asks_for_trust(error):
            raise
        raise ModelError(
            f"{folder} has code of its own, which is not run",
            "read that code; if you trust it, give --trust-remote-code (of osn ingest, osn encode, osn documents, osn model "
            "idf, osn model export ml-commons, osn train sparse, osn data teach)",
        ) from None


def first_line(error: Exception) -> str:
    """The first line of transformers' error about a directory; its other lines list every existing model type."""
    return str(error).partition("\n")[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and reports: missing weights are reported by our own messages."""
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with quiet_loading():
            yield
    finally:
        transformers_logging.set_verbosity(before)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from showing a progress bar while it reads weights."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
