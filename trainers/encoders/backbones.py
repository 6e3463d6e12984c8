"""Loads backbones, makes small ones, and changes their parts: layers, masked-LM heads, dropout.

    tokenizer = train_tokenizer(texts, "wordpiece", 16_000)        or "byte-level", which restores every text exactly
    model = new_backbone(NewBackbone("bert", layers=4, hidden=256), tokenizer)
    model, tokenizer, fresh = masked_language_model("sentence-transformers/all-MiniLM-L6-v2")

Nothing here trains weights; `osn train mlm` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    EncoderDecoderModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.pretrained import (
    first_line,
    load_model,
    load_sequence_to_sequence,
    load_tokenizer,
    most_tokens,
    quiet,
)
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.sparse.word_pieces import train_word_pieces
from opensearch_neural.models.tokenizer import refuse_more_tokens, vocabulary_of
from trainers.encoders.settings import NewBackbone, Pieces

logger = logging.getLogger(__name__)

HEAD_BIAS = -4.0
"""The initial output bias of a new head: with 0, about half of the vocabulary would be active in a sparse model."""
SENTINELS = 100
"""Number of T5's sentinel tokens."""


def new_backbone(new: NewBackbone, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A BERT with a masked-LM head or a T5, with random weights from torch's current seed."""
    if new.architecture == "bert":
        return BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=new.hidden,
                num_hidden_layers=new.layers,
                num_attention_heads=new.heads,
                intermediate_size=4 * new.hidden,
                max_position_embeddings=new.positions,
                hidden_dropout_prob=new.dropout,
                attention_probs_dropout_prob=new.dropout,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=new.hidden,
            d_kv=new.hidden // new.heads,
            d_ff=4 * new.hidden,
            num_layers=new.layers,
            num_heads=new.heads,
            dropout_rate=new.dropout,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,  # type: ignore[call-arg]
        )
    )


def train_tokenizer(texts: Iterable[str], pieces: Pieces, vocabulary: int, *, positions: int = 512) -> Any:
    """A fast tokenizer trained on `texts`: BERT's word pieces, or byte-level BPE with T5's special tokens.

    The byte-level tokenizer restores every text exactly, also URLs; a lower-casing tokenizer cannot
    (`tome-model-based-retrieval`: URLs are generated token by token). Its sentinels are <extra_id_0> and so on.
    Raises InputError if there is no text, or `vocabulary` is too small for the alphabet.
    """
    if pieces == "wordpiece":
        special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        tokenizer = train_word_pieces(texts, vocabulary, list(special.values()))
        learnt = tokenizer.get_vocab_size() - len(special)
    else:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        sentinels = [f"<extra_id_{number}>" for number in range(SENTINELS)]
        least = 3 + len(alphabet) + SENTINELS
        if vocabulary < least:
            raise InputError(f"a byte-level vocabulary needs at least {least} entries, not {vocabulary}")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
        tokenizer.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=vocabulary,
                min_frequency=2,
                special_tokens=[*special.values(), *sentinels],
                initial_alphabet=alphabet,
                show_progress=False,
            ),
        )
        eos = ("</s>", tokenizer.token_to_id("</s>"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[eos]
        )
        learnt = tokenizer.get_vocab_size() - least
    if not learnt:
        raise InputError("the corpus holds no text to train a tokenizer on")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": token for name, token in special.items()},
    )


def masked_language_model(
    name_or_path: str | Path, *, trust_remote_code: bool = False, needs_head: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, bool]:
    """(model, tokenizer, whether its head is new) of any BERT-like directory or hub id.

    An encoder without a masked-LM head (all-MiniLM-L6-v2) gets a new head: output layer tied to the word embeddings, random
    transform, output bias `HEAD_BIAS`. trust_remote_code: whether the model's own code may run. needs_head: whether a model
    without a head is refused. Raises ModelError if the directory holds another kind of model, if the tokenizer has more
    tokens than the model, if a head is needed and missing, or if the model needs code of its own that may not run.
    """
    folder = directory.locate(name_or_path, code=trust_remote_code)
    model, missing = load_model(AutoModelForMaskedLM, folder, trust_remote_code=trust_remote_code)
    base = f"{model.base_model_prefix}."
    # A masked language model has no pooler; other missing weights of the body would be untrained.
    body = [key for key in missing if key.startswith(base) and ".pooler." not in key]
    if body:
        raise ModelError(f"{folder}: the weights lack {', '.join(sorted(body)[:3])}")
    output = model.get_output_embeddings()
    tokenizer = load_tokenizer(folder)
    if output is not None:
        refuse_more_tokens(len(vocabulary_of(tokenizer.backend_tokenizer)), len(output.weight), folder)
    fresh = _lacks_head(model, missing, folder)
    if fresh and needs_head:
        raise ModelError(
            f"{folder}: the weights of the masked-LM head are missing",
            "a sparse model has a trained head: fetch it again",
        )
    if fresh:
        model.tie_weights()
        if output.weight is not model.get_input_embeddings().weight:
            raise ModelError(f"{folder}: {type(model).__name__} does not tie its head to the word embeddings")
        logger.info(
            "%s has no masked-LM head: it gets one, tied to its word embeddings, bias %g", folder.name, HEAD_BIAS
        )
        if output.bias is not None:
            nn.init.constant_(output.bias, HEAD_BIAS)
    return model, tokenizer, fresh


def _lacks_head(model: PreTrainedModel, missing: Sequence[str], folder: Path) -> bool:
    """Whether a directory has no masked-LM head. Raises ModelError if it has a part of a head: a new head would discard
    trained weights."""
    base = f"{model.base_model_prefix}."
    weights = {key: weight.data_ptr() for key, weight in model.state_dict().items()}
    body = {pointer for key, pointer in weights.items() if key.startswith(base)}
    # A weight with two names is in the file under one of them.
    loaded = {pointer for key, pointer in weights.items() if key not in missing}
    head = {key for key, pointer in weights.items() if not key.startswith(base) and pointer not in body}
    lacking = sorted(key for key in head & set(missing) if weights[key] not in loaded)
    if lacking and any(key not in missing for key in head):
        raise ModelError(f"{folder}: the weights of the masked-LM head lack {', '.join(lacking[:3])}")
    return bool(lacking)


def keep_layers(model: PreTrainedModel, count: int) -> None:
    """Keep only `count` of a transformer's layers, spaced evenly from first to last; if 1, the last.

    Raises InputError if it has fewer layers, or fewer layers would not form a model of the same kind: the layers are not one
    list, or a layer's structure depends on its position.
    """
    depth = int(getattr(model.config, "num_hidden_layers", 0))
    if count > depth:
        raise InputError(
            f"{count} layers are asked for, but the model has {depth}", "ask for fewer, or set null to keep all"
        )
    lists = [
        (parent, name, layers)
        for parent in model.modules()
        for name, layers in parent.named_children()
        if isinstance(layers, nn.ModuleList) and len(layers) == depth
    ]
    if len(lists) != 1:
        raise InputError(f"{model.config.model_type}: its layers are not one list", "keep all of them")
    ((parent, name, layers),) = lists
    numbers = spread(depth, count)
    setattr(parent, name, nn.ModuleList([layers[at] for at in numbers]))
    model.config.num_hidden_layers = count
    if getattr(model.config, "layer_types", None) is not None:
        model.config.layer_types = [model.config.layer_types[at] for at in numbers]
    with torch.device("meta"):
        expected = type(model)(model.config).state_dict().keys()
    if model.state_dict().keys() != expected:
        raise InputError(
            f"{model.config.model_type}: {count} of its {depth} layers do not form a model of {count} layers: the structure "
            "of a layer depends on its position",
            "ask for more layers, or keep all",
        )


def spread(depth: int, count: int) -> list[int]:
    """`count` of the numbers below `depth`, spaced evenly from first to last; if 1, the last."""
    return [round(depth - 1 - at * (depth - 1) / max(1, count - 1)) for at in reversed(range(count))]


def set_dropout(model: nn.Module, share: float) -> None:
    """Set every dropout of a model, of dropout modules and of attention."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
        for name in _told_dropouts(module):
            setattr(module, name, share)


def largest_dropout(model: nn.Module) -> float:
    shares = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    shares += [getattr(module, name) for module in model.modules() for name in _told_dropouts(module)]
    return max(shares, default=0.0)


def _told_dropouts(module: nn.Module) -> list[str]:
    return [name for name, value in vars(module).items() if "dropout" in name and isinstance(value, float)]


def freeze_pooler(model: nn.Module) -> None:
    """A pooler is not used and has no gradient. It stays, because loaders expect its weights."""
    for name, parameter in model.named_parameters():
        if "pooler." in name:
            parameter.requires_grad_(False)


def identity_head(model: PreTrainedModel) -> None:
    """Set the square layers of a new masked-LM head to the identity.

    In a backbone distilled from a masked language model, a position then scores its own token and similar tokens highest;
    with a random layer it would score arbitrary tokens.
    """
    base = f"{model.base_model_prefix}."
    for name, module in model.named_modules():
        square = isinstance(module, nn.Linear) and module.in_features == module.out_features
        if square and not name.startswith(base):
            nn.init.eye_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def last_normalization(model: PreTrainedModel) -> nn.LayerNorm:
    """The normalization before a masked-LM head's output layer. Raises InputError if there is none."""
    base = f"{model.base_model_prefix}."
    norms = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm) and not name.startswith(base)
    ]
    if not norms:
        raise InputError(f"{type(model).__name__} has no normalization in its head, so its scale cannot be set")
    return norms[-1]


def check_length(model: PreTrainedModel, name: str, length: int | None) -> None:
    """Raises InputError if a model has fewer positions than `length`, the setting `name`."""
    most = most_tokens(model)
    if most is not None and length is not None and length > most:
        raise InputError(f"{name} is {length}, but the backbone has {most} positions")


def check_lengths(model: PreTrainedModel, *, read: int, written: int) -> None:
    """Raises InputError if the encoder of a sequence-to-sequence model has fewer positions than `read`, the setting
    passage_length, or its decoder fewer than `written`, query_length."""
    whole: Any = model
    check_length(whole.get_encoder(), "passage_length", read)
    check_length(whole.get_decoder(), "query_length", written)


def encoder_decoder(
    name_or_path: str | Path, *, layers: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence-to-sequence model whose encoder and decoder both start from a BERT-like encoder, or its first `layers`.

    The attention between them starts at random (Rothe et al. 2020, "Leveraging Pre-trained Checkpoints for Sequence
    Generation Tasks"). `osn train doc2query` starts from it if the backbone has no decoder.
    """
    folder = directory.locate(name_or_path)
    refuse_unsafe(folder)
    tokenizer = load_tokenizer(folder)
    options: dict[str, Any] = {"use_safetensors": True, "local_files_only": True}
    if layers is not None:
        options["num_hidden_layers"] = layers
    decoder = {**options, "is_decoder": True, "add_cross_attention": True}
    with quiet():
        model: Any = EncoderDecoderModel.from_encoder_decoder_pretrained(
            str(folder),
            str(folder),
            **{f"encoder_{name}": value for name, value in options.items()},
            **{f"decoder_{name}": value for name, value in decoder.items()},
        )
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = tokenizer.cls_token_id
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = tokenizer.sep_token_id
    return model, tokenizer


def sequence_to_sequence(name_or_path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(model, tokenizer) of any sequence-to-sequence directory or hub id (T5, BART, …).

    Raises ModelError if it is another kind of model, or some of its weights are missing.
    """
    return load_sequence_to_sequence(directory.locate(name_or_path))


def is_sequence_to_sequence(name_or_path: str | Path) -> bool:
    """Whether a model directory or hub id is an encoder-decoder."""
    return bool(read_config(directory.locate(name_or_path)).is_encoder_decoder)


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration of a transformer's folder. Raises ModelError if there is none."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} does not load as a transformer: {first_line(error)}") from None
    return config


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write an ordinary Hugging Face directory: safetensors, configuration, tokenizer."""
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
