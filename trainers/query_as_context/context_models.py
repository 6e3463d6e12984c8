"""coCondenser and CoT-MAE: a backbone with its masked-LM head, and layers used only in pre-training."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.masking_utils import create_bidirectional_mask

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import locate
from opensearch_neural.models.pretrained import quiet
from trainers.common import losses
from trainers.common.batches import IGNORED
from trainers.common.grad_cache import CachedModel, Encoded, gather, processes
from trainers.common.settings import ROLES, EncoderSettings, ObjectiveSettings
from trainers.common.training_model import Losses
from trainers.encoders import backbones
from trainers.encoders.bi_encoder import BiEncoder
from trainers.encoders.tower import Encoder
from trainers.query_as_context.pairs import MaskedPart, PairTargets
from trainers.query_as_context.settings import QueryAsContextConfig

HEAD_FILE = "condenser_head.safetensors"
"""The file of the Condenser head beside the backbone: only further pre-training reads it."""


def masked_lm_head(model: PreTrainedModel) -> nn.Module:
    """The head of a BERT- or RoBERTa-like masked language model, which computes the logits of each position.

    Raises ModelError for other kinds of models.
    """
    for name in ("cls", "lm_head"):
        if isinstance(head := getattr(model, name, None), nn.Module):
            return head
    raise ModelError(f"{type(model).__name__} has no masked-LM head like BERT's", "start from a BERT-like backbone")


def _body(model: PreTrainedModel) -> Any:
    """The encoder without its head."""
    return model.base_model


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer layers of a BERT-like model, in order. Raises ModelError for other kinds of models."""
    layers = getattr(getattr(model.base_model, "encoder", None), "layer", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(
            f"{type(model).__name__} does not keep its layers as BERT does", "start from a BERT-like backbone"
        )
    return layers


class ContextModel(CachedModel):
    """The base of both variants: a backbone with its masked-LM head, and layers used only in pre-training."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        layers: nn.ModuleList,
        config: QueryAsContextConfig,
    ) -> None:
        super().__init__()
        # Not named `config`: the Trainer would take it for a transformer's configuration.
        self.model, self.tokenizer, self.layers, self.settings = model, tokenizer, layers, config

    def predicted(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`losses.masked_lm` of hidden states (rows, length, dimension); the head runs only at labelled positions."""
        positions = labels != IGNORED
        return losses.masked_lm(masked_lm_head(self.model)(hidden[positions]), labels[positions])

    def through(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """(rows, length, dimension) after the layers of pre-training."""
        mask = create_bidirectional_mask(self.model.config, hidden, attention_mask)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask)
        return hidden

    def dense(self) -> BiEncoder:
        """The model in its present state as a retriever: CLS, raw inner products. It shares the weights."""
        settings = EncoderSettings(
            pooling="cls",
            normalize=False,
            query_length=self.settings.query_length,
            document_length=self.settings.passage_length,
        )
        encoder = Encoder(_body(self.model), pooling="cls", normalize=False)
        return BiEncoder(
            dict.fromkeys(ROLES, encoder), dict.fromkeys(ROLES, self.tokenizer), settings, ObjectiveSettings()
        )

    def export(self, folder: Path) -> None:
        with quiet():  # Silences a warning about a missing pooler, which is not used.
            self.dense().export(folder)
        # Overwrites the encoder's files with the same weights plus the masked-LM head, which encoder loaders skip.
        backbones.save(self.model, self.tokenizer, folder)


class CoCondenser(ContextModel):
    """L = L_mlm + L_aux-mlm + L_co (section 2.1), the first two for passages and contexts. Without contexts: Condenser."""

    @property
    def middle(self) -> int:
        """The layer whose tokens the head reads; 0 is the embeddings."""
        return int(self.model.config.num_hidden_layers) // 2

    @property
    def compares(self) -> bool:
        return self.settings.context != "none"

    def counts(self, part: MaskedPart) -> dict[str, Tensor]:
        masked = (part.labels != IGNORED).sum()
        return {"masked_lm": masked, "late_masked_lm": masked}

    def encode(self, role: str, part: MaskedPart) -> Encoded:
        mask, labels = part.attention_mask, part.labels
        output = _body(self.model)(part.input_ids, attention_mask=mask, output_hidden_states=True)
        late = output.last_hidden_state  # (rows, length, dimension)
        read = torch.cat([late[:, :1], output.hidden_states[self.middle][:, 1:]], dim=1)
        total, _ = self.predicted(late, labels)
        late_total, _ = self.predicted(self.through(read, mask), labels)
        return Encoded(late[:, 0], {"masked_lm": total, "late_masked_lm": late_total}, self.counts(part))

    def loss_terms(self, vectors: dict[str, Tensor], targets: PairTargets) -> Losses:
        """vectors: "passage" and "context", both (pairs, dimension); equal rows are partners."""
        if not self.compares:
            return Losses({})
        passages, contexts, keys = vectors["passage"], vectors["context"], targets.keys
        rows, columns = torch.cat([passages, contexts]), torch.cat([gather(passages), gather(contexts)])
        # All processes have the same number of pairs.
        first = dist.get_rank() * len(keys) if processes() > 1 else 0
        return self.compared(rows, columns, keys, gather(keys), first=first)

    def compared(self, rows: Tensor, columns: Tensor, keys: Tensor, everyone: Tensor, *, first: int) -> Losses:
        """L_co of `rows`, (2 · pairs, dimension), among `columns`, (2 · all pairs, dimension); see `losses.pair_targets`."""
        positives, excluded = losses.pair_targets(keys, everyone, first)
        scores = rows @ columns.T
        contrastive = losses.info_nce(scores, positives, temperature=self.settings.temperature, excluded=excluded)
        best = scores.masked_fill(excluded, -torch.inf).argmax(dim=1)
        return Losses({"contrastive": contrastive}, {"in_batch_accuracy": (best == positives).float().mean()})

    def export(self, folder: Path) -> None:
        super().export(folder)
        save_file({name: weight.contiguous() for name, weight in self.layers.state_dict().items()}, folder / HEAD_FILE)


class CotMae(ContextModel):
    """L = L_mlm + L_ctx-mlm (section 2.2); without contexts only masked LM."""

    @property
    def compares(self) -> bool:
        return False

    def counts(self, part: MaskedPart) -> dict[str, Tensor]:
        counts = {"masked_lm": (part.labels != IGNORED).sum()}
        if part.context_labels is not None:
            counts["context_masked_lm"] = (part.context_labels != IGNORED).sum()
        return counts

    def encode(self, role: str, part: MaskedPart) -> Encoded:
        late = _body(self.model)(part.input_ids, attention_mask=part.attention_mask).last_hidden_state
        sums = {"masked_lm": self.predicted(late, part.labels)[0]}
        if part.context_labels is not None:
            # The passage's CLS replaces the context's first token; the decoder sees nothing else of the passage.
            context = _body(self.model).embeddings(input_ids=part.context_input_ids)
            read = torch.cat([late[:, :1], context[:, 1:]], dim=1)
            assert part.context_attention_mask is not None
            decoded = self.through(read, part.context_attention_mask)
            sums["context_masked_lm"] = self.predicted(decoded, part.context_labels)[0]
        return Encoded(late[:, 0], sums, self.counts(part))

    def loss_terms(self, vectors: dict[str, Tensor], targets: PairTargets) -> Losses:
        return Losses({})


def build(config: QueryAsContextConfig) -> ContextModel:
    """The model before training.

    A Condenser head is read from the backbone's directory, else copied from the backbone's last layers. A decoder starts
    from scratch (section 4.1). Raises ModelError for a backbone without BERT's layers, InputError for a head with another
    number of layers.
    """
    set_seed(config.training.seed)
    model, tokenizer, _ = backbones.masked_language_model(config.backbone)
    backbones.check_length(model, "passage_length", config.passage_length)
    backbones.check_length(model, "query_length", config.query_length)
    own = layers_of(model)
    if config.layers > len(own):
        raise InputError(f"layers is {config.layers}, more than the {len(own)} of the backbone")
    layers = nn.ModuleList(copy.deepcopy(layer) for layer in list(own)[-config.layers :])
    if config.variant == "cot-mae":
        for module in layers.modules():
            model._init_weights(module)
        return CotMae(model, tokenizer, layers if config.context != "none" else nn.ModuleList(), config)
    saved = locate(config.backbone) / HEAD_FILE
    if saved.exists():
        try:
            layers.load_state_dict(load_file(saved))
        except RuntimeError:
            raise InputError(
                f"{saved} is not a Condenser head of {config.layers} layers", "set layers to its number"
            ) from None
    return CoCondenser(model, tokenizer, layers, config)
