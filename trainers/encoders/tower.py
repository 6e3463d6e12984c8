"""One tower of a bi-encoder: a transformer, its pooling, and its files in the format of sentence-transformers."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object
from opensearch_neural.models.dense.onnx_encoder import export_onnx
from opensearch_neural.models.dense.pooling import Pooling, pooled, pooling_modes
from opensearch_neural.models.directory import Module, locate, prompt, refuse_several_vectors, routes
from opensearch_neural.models.pretrained import T5, load_any_tokenizer, load_model, quiet_loading
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.tokenizer import refuse_more_tokens
from trainers.common.settings import ROLES, EncoderSettings, Role
from trainers.encoders import backbones


@dataclass(frozen=True, slots=True)
class Start:
    """The towers that a training starts from."""

    folders: dict[Role, Path]
    """{role: folder of the tower's transformer}"""
    pooling: Pooling | None
    """the pooling of the directory; None if it has none"""
    normalize: bool
    """whether the directory normalizes vectors"""
    prompts: dict[Role, str]
    """the texts that the directory puts before queries and documents; empty where it has none"""

    @property
    def tied(self) -> bool:
        return self.folders["query"] == self.folders["document"]


def read_start(name_or_path: str | Path) -> Start:
    """The start in a transformers folder or a sentence-transformers directory (also a Router of two towers).

    Raises ModelError for modules that training cannot keep (a projection, another pooling), and as `locate` does.
    """
    path = locate(name_or_path)
    refuse_unsafe(path)
    by_route = routes(path)
    if not by_route:
        refuse_several_vectors(path, "start from {path}/document, its documents' transformer")
        return Start(dict.fromkeys(ROLES, path), None, False, dict.fromkeys(ROLES, ""))
    modules = by_route.get("") or by_route.get("document") or next(iter(by_route.values()))
    towers = {role: by_route.get("") or by_route.get(role) or modules for role in ROLES}
    for tower in towers.values():
        unknown = [module.type for module in tower if module.type not in ("Transformer", "Pooling", "Normalize")]
        if unknown or not tower or tower[0].type != "Transformer":
            raise ModelError(
                f"{path}: {', '.join(unknown) or 'no Transformer'}: a bi-encoder can only start from a Transformer, Pooling "
                "and Normalize",
                "start from the transformer's own folder, and name encoder.pooling",
            )
    poolings = {_pooling(module) for module in modules if module.type == "Pooling"}
    return Start(
        {role: tower[0].path for role, tower in towers.items()},
        poolings.pop() if poolings else None,
        modules[-1].type == "Normalize",
        {role: prompt(path, role) for role in ROLES},
    )


def _pooling(module: Module) -> Pooling:
    file = module.path / "config.json"
    match pooling_modes(read_json_object(file)):
        case ["cls"]:
            return "cls"
        case ["mean"]:
            return "mean"
        case modes:
            raise ModelError(
                f"{file}: the pooling {', '.join(modes) or 'null'} cannot be trained here",
                "name encoder.pooling: cls or mean",
            )


class Encoder(nn.Module):
    """Texts as token ids in, (rows, dimension) out: transformer, pooling, normalization."""

    def __init__(self, backbone: PreTrainedModel, *, pooling: Pooling, normalize: bool) -> None:
        super().__init__()
        self.backbone, self.pooling, self.normalize = backbone, pooling, normalize
        backbones.freeze_pooler(backbone)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask)
        return self.scaled(pooled(output.last_hidden_state, attention_mask, self.pooling))

    def scaled(self, vectors: Tensor) -> Tensor:
        """(…, dimension), of length 1 if this encoder normalizes."""
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    @property
    def dimension(self) -> int:
        return int(self.backbone.config.hidden_size)

    def sentence_transformers_modules(
        self,
        tokenizer: Tokenizer,
        folder: Path,
        *,
        max_length: int,
        layers: Mapping[int, float] | None = None,
        pooling: Pooling | None = None,
    ) -> list[Any]:
        """The sentence-transformers modules that give the same vectors; writes files to `folder` for that.

        layers: {layer: weight}, a mean over layers (from 1) instead of the last layer's vectors; pooling: replaces this
        encoder's pooling.
        """
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sentence_transformer.modules import Normalize, WeightedLayerPooling
        from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

        backbone = copy.copy(self.backbone.config)
        with quiet_loading():
            self.backbone.config.output_hidden_states = layers is not None
            self.backbone.save_pretrained(folder)
            self.backbone.config = backbone
            tokenizer.save_pretrained(folder)
            modules: list[Any] = [Transformer(str(folder), max_seq_length=max_length)]
        if layers is not None:
            first = min(layers)
            weights = [layers.get(layer, 0.0) for layer in range(first, backbone.num_hidden_layers + 1)]
            modules.append(
                WeightedLayerPooling(
                    self.dimension,
                    num_hidden_layers=backbone.num_hidden_layers,
                    layer_start=first,
                    layer_weights=nn.Parameter(torch.tensor(weights)),
                )
            )
        modules.append(PoolingModule(self.dimension, pooling or self.pooling))
        return [*modules, Normalize()] if self.normalize else modules


def load_towers(
    start: Start, settings: EncoderSettings
) -> tuple[dict[Role, Encoder], dict[Role, Tokenizer], EncoderSettings]:
    """The encoder and tokenizer of each role, and `settings` with pooling, normalization and prompts filled in from the
    start. With tied settings both roles have the same encoder.

    Raises InputError if tied settings meet two towers, or a length exceeds the backbone's positions; ModelError for a
    folder that does not load, or whose tokenizer has more tokens than the model.
    """
    if settings.tied and not start.tied:
        raise InputError("the start has two towers, which cannot become one", "set encoder.tied to false")
    pooling = settings.pooling or start.pooling or "mean"
    normalize = start.normalize if settings.normalize is None else settings.normalize
    encoders: dict[Role, Encoder] = {}
    tokenizers: dict[Role, Tokenizer] = {}
    for role in ROLES:
        if settings.tied and encoders:
            encoders[role], tokenizers[role] = encoders["query"], tokenizers["query"]
        else:
            backbone = _load_backbone(start.folders[role], settings.dropout)
            encoders[role] = Encoder(backbone, pooling=pooling, normalize=normalize)
            tokenizers[role] = load_any_tokenizer(start.folders[role])
            # Models of characters have none, and those of several modalities have it elsewhere.
            known = getattr(backbone.config, "vocab_size", None)
            refuse_more_tokens(len(tokenizers[role]), known, start.folders[role])
        if pooling == "cls" and encoders[role].backbone.config.model_type in T5:
            raise InputError(f"{start.folders[role]} is a T5, which has no CLS", "set encoder.pooling to mean")
        backbones.check_length(encoders[role].backbone, f"encoder.{role}_length", settings.length(role))
    query_prompt, document_prompt = (
        start.prompts[role] if given is None else given
        for role, given in zip(ROLES, (settings.query_prompt, settings.document_prompt), strict=True)
    )
    filled = replace(
        settings, pooling=pooling, normalize=normalize, query_prompt=query_prompt, document_prompt=document_prompt
    )
    return encoders, tokenizers, filled


def write_sentence_transformer(
    encoders: Mapping[Role, Encoder],
    tokenizers: Mapping[Role, Tokenizer],
    settings: EncoderSettings,
    folder: Path,
    *,
    onnx: bool = False,
) -> None:
    """Write the towers into `folder` for `SentenceTransformer(folder)`: one list of modules, or a Router with the routes
    query and document. A tied model reads document_length tokens of queries, too. onnx: also write ONNX files."""
    from sentence_transformers.base.modules import Router

    temporary = folder / ".towers"
    modules = {
        role: encoders[role].sentence_transformers_modules(
            tokenizers[role], temporary / role, max_length=settings.length(role)
        )
        for role in (("document",) if settings.tied else ROLES)
    }
    together = modules["document"]
    if not settings.tied:
        together = [Router.for_query_document(modules["query"], together)]
    prompts: dict[str, str] = {role: prompt for role in ROLES if (prompt := settings.prompt(role))}
    normalized = encoders["document"].normalize
    save_modules(together, folder, prompts=prompts, similarity="cosine" if normalized else "dot")
    shutil.rmtree(temporary)
    if onnx:
        export_onnx(folder)


def save_modules(modules: Sequence[Any], folder: Path, *, prompts: Mapping[str, str], similarity: Any) -> None:
    """Write a SentenceTransformer of `modules` into `folder`; similarity: its name there."""
    from sentence_transformers import SentenceTransformer

    with quiet_loading():
        model = SentenceTransformer(
            modules=list(modules), prompts=dict(prompts) or None, similarity_fn_name=similarity, device="cpu"
        )
        model.save_pretrained(str(folder), create_model_card=False)


def _load_backbone(folder: Path, dropout: float | None) -> PreTrainedModel:
    config = backbones.read_config(folder)
    # For a T5, load only the encoder: its configuration does not tell whether the folder holds a decoder.
    loader = AutoModelForTextEncoding if config.model_type in T5 else AutoModel
    backbone: PreTrainedModel
    backbone, lacking = load_model(loader, folder, what="a transformer", config=config)
    # A pooler is not used; any other missing weight would silently be random.
    if missing := [key for key in lacking if "pooler." not in key]:
        raise ModelError(f"{folder}: the weights lack {', '.join(missing[:3])}")
    if dropout is not None:
        backbones.set_dropout(backbone, dropout)
    return backbone
