"""The masked language model in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainers.common import losses
from trainers.common.batches import IGNORED
from trainers.common.training_model import Losses, TrainingModel
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import LabelledBatch


class MaskedLmTraining(TrainingModel):
    """Cross-entropy at the masked positions; the head's large product is computed only for them."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self._positions: Tensor | None = None
        output: Any = model.get_output_embeddings()
        output.register_forward_pre_hook(self._at_masked_positions)

    def _at_masked_positions(self, module: Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # Only the masked positions (15%) need logits, which are most of the work of a small model.
        return None if self._positions is None else (arguments[0][self._positions],)

    def forward(self, batch: LabelledBatch) -> Losses:
        labels = batch.labels
        self._positions = labels != IGNORED
        try:
            logits = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        finally:
            positions, self._positions = self._positions, None
        wanted = labels[positions]  # (masked,), as logits are (masked, vocabulary)
        total, count = losses.masked_lm(logits, wanted)
        correct = (logits.argmax(dim=-1) == wanted).float().sum()
        count = count.clamp(min=1)
        return Losses({"masked_lm": total / count}, {"accuracy": correct / count})

    def export(self, folder: Path) -> None:
        backbones.save(self.model, self.tokenizer, folder)
