"""The trainable query encoder: the start's own, some of its layers, or a table of token vectors."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from torch import Tensor, nn

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models import directory
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, stages_of
from opensearch_neural.models.sparse.idf import DocumentFrequencies
from opensearch_neural.models.tokenizer import vocabulary_of
from trainers.common.batches import Part
from trainers.encoders import backbones
from trainers.jpq.settings import JpqConfig

logger = logging.getLogger(__name__)

TOKENS_AT_ONCE, TEXTS_AT_ONCE = 512, 4096
HALF_WEIGHT_SHARE = 0.01
"""a in `TokenTable.weigh`: a token in 1% of the texts has half the weight of a token in no text."""


class QueryTower(nn.Module):
    """The modules of a sentence-transformers route, trainable: token ids in, (rows, D) out."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        max_length: int | None,
        prompt: str,
        dropout: float | None,
        layers: int | None = None,
    ):
        super().__init__()
        self.stages = nn.ModuleList(copy.deepcopy(list(modules)))
        transformer: Any = self.stages[0]
        if layers is not None:
            backbones.keep_layers(transformer.auto_model, layers)
        self.tokenizer, self.prompt = transformer.tokenizer, prompt
        own = transformer.max_seq_length
        if max_length is not None and own is not None and max_length > own:
            raise InputError(f"query_length is {max_length}, but the start reads {own} tokens at most")
        self.max_length: int = max_length or own or 512
        transformer.max_seq_length = self.max_length
        backbones.freeze_pooler(self)
        if dropout is not None:
            backbones.set_dropout(self, dropout)
        self.noisy = backbones.largest_dropout(self) > 0

    def features(self, part: Part) -> dict[str, Tensor]:
        """The inputs of the first module."""
        return {"input_ids": part.input_ids, "attention_mask": part.attention_mask}

    def forward(self, part: Part) -> Tensor:
        features: dict[str, Any] = self.features(part)
        for stage in self.stages:
            features = stage(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors as used in searches, (texts, D)."""
        encoder = SentenceTransformer(modules=list(self.stages), device=str(next(self.parameters()).device))
        vectors = encoder.encode(
            [encodable(self.prompt + text) for text in texts], convert_to_tensor=True, show_progress_bar=False
        )
        return vectors.float()

    @torch.no_grad()
    def without_dropout(self, vectors: Tensor, parts: Sequence[Part]) -> Tensor:
        """The vectors of `parts` without dropout, as in searches; `vectors` themselves if they have none: (queries, D)."""
        if not (self.noisy and self.training):
            return vectors.detach()
        self.eval()
        try:
            return self.in_order(parts)
        finally:
            self.train()

    def in_order(self, parts: Sequence[Part]) -> Tensor:
        """The vectors of all parts, in the order of the queries: (queries, D)."""
        vectors = torch.cat([self(part) for part in parts]).float()
        return vectors[torch.argsort(torch.cat([part.position for part in parts]))]


class TokenTable(QueryTower):
    """A query as the mean of its tokens' vectors, which start as the whole encoder's vectors of the single tokens.

    It is saved as sentence-transformers' StaticEmbedding. Tokens in no training question keep their first vector, except
    for weight decay.
    """

    special: Tensor
    """(special tokens,) int64, ids of the tokens to skip"""

    def __init__(self, whole: QueryTower) -> None:
        nn.Module.__init__(self)
        self.tokenizer, self.prompt, self.max_length = whole.tokenizer, whole.prompt, whole.max_length
        self.noisy = False
        special = {*self.tokenizer.all_special_ids} - {self.tokenizer.unk_token_id}
        self.register_buffer("special", torch.tensor(sorted(special), dtype=torch.long), persistent=False)
        own = copy.deepcopy(self.tokenizer.backend_tokenizer)
        longest = max(1, self.max_length - self.tokenizer.num_special_tokens_to_add())
        own.enable_truncation(longest, direction=self.tokenizer.truncation_side)
        normalize = [stage for stage in whole.stages if isinstance(stage, Normalize)]
        self.stages = nn.ModuleList([StaticEmbedding(own, token_vectors(whole)), *normalize])

    def features(self, part: Part) -> dict[str, Tensor]:
        """The tokens of all rows in one sequence, without special tokens, and the offset of each row."""
        read = part.attention_mask.bool() & ~torch.isin(part.input_ids, self.special)
        lengths = read.sum(dim=1)
        return {"input_ids": part.input_ids[read], "offsets": lengths.cumsum(0) - lengths}

    @torch.no_grad()
    def weigh(self, texts: Iterable[str]) -> None:
        """Multiply each token's vector by a / (a + p), where p is the share of texts that hold it: common words say little
        (Arora, Liang and Ma, 2017, section 3). Call it once, before training."""
        table: Any = self.stages[0]
        frequencies = DocumentFrequencies(table.num_embeddings)
        read = (encodable(self.prompt + text) for text in texts)
        while some := list(islice(read, TEXTS_AT_ONCE)):
            for encoding in table.tokenizer.encode_batch_fast(some, add_special_tokens=False):
                frequencies.add(encoding.ids)
        shares = torch.from_numpy(frequencies.counts / max(1, frequencies.n))[:, None].to(table.embedding.weight)
        table.embedding.weight *= HALF_WEIGHT_SHARE / (HALF_WEIGHT_SHARE + shares)


@torch.no_grad()
def token_vectors(tower: QueryTower) -> Tensor:
    """The encoder's vector of each vocabulary token, alone between the special tokens of a text: (tokens, D)."""
    device = next(tower.parameters()).device
    any_text = tower.tokenizer("a", return_special_tokens_mask=True)
    own = [at for at, special in enumerate(any_text["special_tokens_mask"]) if not special]
    before, after = any_text["input_ids"][: own[0]], any_text["input_ids"][own[-1] + 1 :]
    tokens = len(vocabulary_of(tower.tokenizer.backend_tokenizer))
    logger.info("encoding each of %d tokens", tokens)
    tower.eval()
    rows: list[Tensor] = []
    for some in torch.arange(tokens).split(TOKENS_AT_ONCE):
        ids = torch.tensor([[*before, token, *after] for token in some.tolist()], device=device)
        rows.append(tower(Part(ids, torch.ones_like(ids), some)).float())
    return torch.cat(rows)


def query_tower(start: TorchDenseEncoder, config: JpqConfig, layers: int | None) -> QueryTower:
    """The start's query encoder with `layers` of its layers; None keeps all, 0 makes a TokenTable. Raises InputError if the
    start has fewer layers or positions, ModelError if it is not a transformer."""
    query = stages_of(start.model, "query")
    if not isinstance(query[0], Transformer):
        raise ModelError(f"the start's first module is a {type(query[0]).__name__}; expected a Transformer")
    tower = QueryTower(
        query,
        max_length=config.query_length,
        prompt=directory.prompt(start.info.path, "query"),
        dropout=config.dropout,
        layers=layers or None,
    )
    return TokenTable(tower) if layers == 0 else tower
