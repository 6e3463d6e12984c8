"""Engines that fuse two searches in one request. They need the neural-search plugin."""

from __future__ import annotations

from typing import ClassVar, Literal

from opensearch_neural import queries
from opensearch_neural.engines.dense import Dense
from opensearch_neural.engines.engine import Engine, Page, part_of
from opensearch_neural.engines.options import TOKENS
from opensearch_neural.engines.sparse import Bm25, Sparse
from opensearch_neural.index.models import IndexPart
from opensearch_neural.queries import Body


class Hybrid(Engine):
    name = "hybrid"
    finds = "bm25 and dense (sparse if the index has no dense vectors), scores normalized and averaged"
    options = (TOKENS,)
    needs_plugin = True
    fused = True
    method: ClassVar[Literal["min_max", "rrf"]] = "min_max"

    def needs(self) -> tuple[IndexPart, ...]:
        return ("dense",) if self.opened.meta.dense else ("sparse",)

    def body(self, text: str, page: Page) -> Body:
        second = Dense(self.opened).body if self.opened.meta.dense else Sparse(self.opened).one_phase
        bodies = [body(text, part_of(page)) for body in (Bm25(self.opened).body, second)]
        return queries.hybrid(*bodies, method=self.method, weights=self.opened.settings.get("weights"), **page)


class HybridRrf(Hybrid):
    name = "hybrid-rrf"
    finds = "bm25 and dense (sparse if the index has no dense vectors), ranks fused"
    compared = False
    method = "rrf"


ENGINES: tuple[type[Engine], ...] = (Hybrid, HybridRrf)
