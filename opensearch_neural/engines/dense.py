"""Engines that search dense vectors, as floats or bytes, or as the codes of a quantized model (JPQ): alone, after another
search, or fused with one, which needs the neural-search plugin."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from opensearch_neural import queries
from opensearch_neural.engines.engine import (
    CLAUSES,
    RARE,
    TOKENS,
    Engine,
    Missing,
    Option,
    Page,
    lost_documents,
    part_of,
    positive,
    whole_number,
)
from opensearch_neural.engines.settings import Bm25SparseSetting, CascadeSetting, HighIdfFirstSetting, parse_first
from opensearch_neural.engines.sparse import Bm25, Bm25Sparse, HighIdfFirst, Sparse
from opensearch_neural.errors import ClusterError, InputError, ModelError, ZeroVector
from opensearch_neural.index.mapping import to_bytes
from opensearch_neural.index.models import IndexPart
from opensearch_neural.queries import Body, multi_vector
from opensearch_neural.queries.look_up_table import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.index.models import IndexModels
    from opensearch_neural.retrievers.faiss import QuantizedRetriever

JPQ_WINDOW = 100
"""Hits of each shard that jpq-rescore reranks."""


class Dense(Engine):
    name = "dense"
    finds = "nearest neighbours of the dense model's vector"

    def needs(self) -> tuple[IndexPart, ...]:
        return ("dense",)

    def body(self, text: str, page: Page) -> Body:
        vector, stored = dense_vector(self.opened.models, text), self.opened.models.dense_meta
        return multi_vector.nearest(vector, **page) if stored.vectors > 1 else queries.knn(vector, **page)


class JpqHnsw(Dense):
    name = "jpq-hnsw"
    finds = "nearest neighbours among reconstructed vectors"

    def needs(self) -> tuple[IndexPart, ...]:
        return ("reconstructed",)


class JpqRescore(Engine):
    name = "jpq-rescore"
    finds = "the best of bm25, ranked by their codes alone"
    options = (Option("dense_window", whole_number, "hits of each shard rescored with their codes.", "100"),)

    def needs(self) -> tuple[IndexPart, ...]:
        return ("quantized",)

    def body(self, text: str, page: Page) -> Body:
        window = self.opened.settings.get("dense_window") or JPQ_WINDOW
        return queries.quantized_rescore(
            queries.bm25(text, **page), look_up_table(self.opened.models, text), window=window
        )


class Faiss(Engine):
    name = "faiss"
    finds = "every code compared, in this process"
    compared = False
    most_hits = queries.MOST_LISTED
    options = (Option("faiss", Path, "a file of codes by `osn encode --faiss`.", "the codes of the index", loads=True),)

    def needs(self) -> tuple[IndexPart, ...]:
        return ("quantized",)

    def load_retriever(self) -> QuantizedRetriever:
        """The codes in this process's memory. Raises ClusterError or InputError if they cannot be read."""
        return self.opened.once(("faiss", self.opened.settings.get("faiss")), self._read)

    def _read(self) -> QuantizedRetriever:
        from opensearch_neural.retrievers.faiss import QuantizedRetriever
        from opensearch_neural.retrievers.opensearch import read_codes

        model = self.opened.models.quantized
        if (file := self.opened.settings.get("faiss")) is not None:
            return QuantizedRetriever.read(file, model.quantizer, model.encode_queries)
        if self.opened.connect is None:
            raise ClusterError(f"reading the codes of the index {self.opened.index!r} needs a connection")
        ids, codes = read_codes(self.opened.connect(), self.opened.index, model.quantizer.subvectors)
        return QuantizedRetriever(ids, codes, model.quantizer, model.encode_queries, name="faiss")

    def body(self, text: str, page: Page) -> Body:
        hits = page.get("from_", 0) + page.get("size", 10)
        if hits > self.most_hits:
            raise InputError(
                f"the engine faiss fetches at most {self.most_hits:,} hits by their ids, not {hits:,}",
                "ask for a less deep page, or use jpq-hnsw",
            )
        # More than the page shows: a document may have been deleted since the codes were read, may not pass the filter, or
        # may be another passage of a document that is already listed.
        spare = queries.MOST_LISTED if page.get("filter") else hits * queries.COLLAPSED_PASSAGES
        # Count all hits, so that `missing` sees how many are gone.
        page.setdefault("track_total_hits", True)
        run = self.load_retriever().retrieve({"": text}, min(spare, queries.MOST_LISTED))
        return queries.listed(run[""], **page)

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        return Missing() if filtered else lost_documents(body, answer, "nearest documents", self.opened.index)


class CascadeEngine(Sparse):
    name = "cascade"
    finds = "bm25-sparse or high-idf-first, the best hits rescored with their codes, else their vectors"
    options = (
        Option("first", parse_first, "bm25-sparse or high-idf-first.", "as tuned, else bm25-sparse"),
        RARE,
        Option("window", whole_number, "hits of each shard in the second stage.", "as tuned, else 100 or more"),
        Option("dense_window", whole_number, "hits of each shard rescored with codes or vectors.", "as tuned, else 50"),
        Option(
            "weight",
            positive,
            "weight of the codes or vectors, as a share of the tokens' weights.",
            "as tuned, else 0.1, after high-idf-first 0.025",
        ),
        TOKENS,
        CLAUSES,
    )

    def needs(self) -> tuple[IndexPart, ...]:
        meta = self.opened.meta
        return ("sparse", "dense" if meta.dense and not meta.quantized else "quantized")

    def load(self) -> None:
        meta = self.opened.meta
        if meta.sparse and not (meta.quantized or meta.dense):
            raise ModelError(
                f"the index {self.opened.index!r} holds no quantized vectors, and no dense ones that the cascade could take",
                "ingest with --pq MODEL or with --dense MODEL",
            )
        super().load()
        # The setting of bm25-sparse, too, may need a request to the cluster.
        if self.how().first == "bm25-sparse":
            Bm25Sparse(self.opened).load_scale()

    def how(self) -> CascadeSetting:
        return CascadeSetting.of(self.opened)

    def body(self, text: str, page: Page) -> Body:
        how = self.how()
        window, unit = max(how.window, how.dense_window), sum(self.tokens(text).values()) or 1.0
        if how.first == "bm25-sparse":
            bm25_sparse = Bm25Sparse(self.opened)
            first = bm25_sparse.within(text, page, window, Bm25SparseSetting.for_cascade(self.opened))
            unit /= bm25_sparse.load_scale()  # in the scale of BM25's scores
        else:
            first = HighIdfFirst(self.opened).within(text, page, window, HighIdfFirstSetting(how.rare))
        weight, window, models = how.weight * unit, how.dense_window, self.opened.models
        encoder = models.quantized if self.opened.meta.quantized else models.dense
        (vector,) = encoder.encode_queries([text])
        if not vector.any():  # A token-table model returns zeros for a text without known tokens.
            return first
        if self.opened.meta.quantized:
            table = models.quantized.quantizer.table(vector)
            weight /= spread(table) or 1.0
            return queries.quantized_rescore(first, table, window=window, weight=weight, first_weight=1.0)
        vector, stored = as_stored(models, vector), models.dense_meta
        # The standard deviation of cosines to vectors of random directions. `knn_score` halves the cosines of floats.
        deviation = 1 / sqrt(stored.dimension) * (1.0 if stored.type == "byte" else 0.5)
        return queries.dense_rescore(
            first,
            vector,
            window=window,
            weight=weight / deviation,
            first_weight=1.0,
            field=stored.field_name,
            nested=multi_vector.PATH if stored.vectors > 1 else None,
        )


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


def dense_vector(models: IndexModels, text: str) -> NDArray[Any]:
    """The query's vector as the index's `dense` field compares it: bytes for a byte field, else floats.

    Raises ZeroVector if the model returns a vector of zeros.
    """
    (vector,) = models.dense.encode_queries([text])
    if not vector.any():
        raise ZeroVector
    return as_stored(models, vector)


def as_stored(models: IndexModels, vector: NDArray[Any]) -> NDArray[Any]:
    """A query's vector as the index's `dense` field compares it."""
    stored = models.dense_meta
    if stored.type != "byte":
        return vector
    if stored.reconstructed and (largest := float(abs(vector).max())) > 0:
        # The scale fits the documents. A longer query would saturate; its length does not change the ranking.
        return to_bytes(vector, min(stored.scale, 127 / largest))
    return to_bytes(vector, stored.scale)


def look_up_table(models: IndexModels, text: str) -> NDArray[Any]:
    """The query's look-up table (M, 256). Raises ZeroVector if the model returns a vector of zeros."""
    (vector,) = models.quantized.encode_queries([text])
    return models.quantized.quantizer.table(vector)


ENGINES: tuple[type[Engine], ...] = (Dense, JpqHnsw, JpqRescore, Faiss, CascadeEngine, Hybrid, HybridRrf)
