"""Engines with a generative model that writes URLs (TOME)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from opensearch_neural import queries
from opensearch_neural.engines.engine import (
    TOKENS,
    Engine,
    Missing,
    Option,
    Page,
    lost_documents,
    part_of,
    whole_number,
)
from opensearch_neural.engines.sparse import Sparse
from opensearch_neural.errors import ModelError
from opensearch_neural.index.models import IndexPart
from opensearch_neural.models import registry
from opensearch_neural.queries import Body

if TYPE_CHECKING:
    from opensearch_neural.retrievers.generative import GenerativeRetriever

STORED = "urls"
"""The name of the aggregation that counts which of the written URLs, or of their documents, the index holds."""


class Tome(Engine):
    name = "tome"
    finds = "documents whose URLs a generative model writes"
    options: ClassVar[tuple[Option, ...]] = (
        Option("urls", Path, "the folder that `osn model urls` wrote for the corpus.", loads=True),
        Option("tome", str, "generative model, if the record of --urls does not lead to it.", loads=True),
        Option(
            "beams",
            whole_number,
            "width of the beam search, and the most URLs that it finds; 1 is greedy.",
            "10",
            loads=True,
        ),
    )

    def serves(self) -> bool:
        return super().serves() and self.opened.settings.get("urls") is not None

    def load(self) -> None:
        super().load()
        self.load_retriever()

    def load_retriever(self) -> GenerativeRetriever:
        """The model that writes the URLs. Raises ModelError if no URLs are named or their model is not found."""
        settings = self.opened.settings
        key = ("tome", settings.get("urls"), settings.get("tome"), settings.get("beams"))
        return self.opened.once(key, self._load)

    def _load(self) -> GenerativeRetriever:
        from opensearch_neural.models.generative.generative_model import load_generative
        from opensearch_neural.models.generative.url_trie import CorpusUrls
        from opensearch_neural.retrievers.generative import BEAMS, GenerativeRetriever

        settings = self.opened.settings
        if settings.get("urls") is None:
            raise ModelError(
                "a generative model searches by the URLs of a corpus",
                "`osn model urls` writes them; name them: --urls DIR",
            )
        urls = CorpusUrls.load(settings["urls"])
        place = settings.get("tome") or registry.find(urls.model["hash"], urls.model["name"], "generative")
        return GenerativeRetriever(load_generative(place), urls, beams=settings.get("beams") or BEAMS)

    def body(self, text: str, page: Page) -> Body:
        # List all written URLs, however few are shown: documents may have been deleted since.
        retriever = self.load_retriever()
        written = retriever.find_urls(text, queries.MOST_LISTED)
        if retriever.urls.numbered:
            page.setdefault("track_total_hits", True)
            return queries.listed(written, field="parent" if self.opened.meta.passages else "_id", **page)
        return queries.listed(written, field="url", **page)

    def counted(self, body: Body) -> Body:
        urls = queries.listed_count(body)
        if not (urls and self.load_retriever().urls.numbered and self.opened.meta.passages):
            return body
        # The cluster counts passages as hits, and URLs belong to documents.
        return {**body, "aggs": {STORED: {"terms": {"field": "parent", "size": urls}}}}

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        retriever, from_ = self.load_retriever(), body.get("from", 0)
        beams, numbered = retriever.beams, retriever.urls.numbered
        deep = (f"at most {beams} URLs are written (--beams)",) if from_ + body["size"] > beams else ()
        lacks = Missing()
        if not filtered and numbered:
            counted = answer.get("aggregations", {}).get(STORED)  # None if the hits are documents
            stored = None if counted is None else len(counted["buckets"])
            lacks = lost_documents(body, answer, "documents whose URLs were written", self.opened.index, stored)
        elif not filtered and not from_ and queries.listed_urls(body):
            urls = [hit["_source"].get("url") for hit in answer["hits"]["hits"]]
            lacks = _unfound(body, answer, queries.unfound_urls(body, urls), self.opened.index)
        return Missing(deep + lacks.warnings, lacks.facts)


class TomeRrf(Tome):
    name = "tome-rrf"
    finds = "sparse and tome, ranks fused"
    options = (*Tome.options, TOKENS)
    needs_plugin = True
    fused = True

    def needs(self) -> tuple[IndexPart, ...]:
        return ("sparse",)

    def body(self, text: str, page: Page) -> Body:
        parts = (Sparse(self.opened).one_phase, Tome(self.opened).body)
        return queries.hybrid(*(body(text, part_of(page)) for body in parts), method="rrf", **page)

    def counted(self, body: Body) -> Body:
        # The hits also contain those of the other engine, so they do not show which URLs the index holds.
        if not (urls := queries.listed_urls(body)):
            return body
        return {**body, "aggs": {STORED: {"terms": {"field": "url", "include": urls, "size": len(urls)}}}}

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        if STORED not in answer.get("aggregations", {}):
            return Missing()
        stored = {bucket["key"] for bucket in answer["aggregations"][STORED]["buckets"]}
        unfound = [url for url in queries.listed_urls(body) if url not in stored]
        return _unfound(body, answer, unfound, self.opened.index)


def _unfound(body: Body, answer: Mapping[str, Any], unfound: list[str], index: str) -> Missing:
    if queries.partial_answer(answer):
        return Missing()  # the missing shards may hold them
    urls, facts = queries.listed_urls(body), {"unfound_urls": unfound}
    if not unfound:
        return Missing(facts=facts)
    warning = (
        f"{len(unfound)} of the URLs that were written are in no document of {index!r} any more: {unfound[0]}"
        if len(unfound) < len(urls)
        else f"no document of {index!r} has one of the {len(unfound)} URLs that were written: {unfound[0]}"
    )
    return Missing((warning + ", …" * (len(unfound) > 1),), facts)


ENGINES: tuple[type[Engine], ...] = (Tome, TomeRrf)
