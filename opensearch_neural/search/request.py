"""One search by an engine, prepared for display: `osn search` prints it, `osn ui` shows several side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.errors import allowed, translate_errors
from opensearch_neural.corpus.documents import FieldNames
from opensearch_neural.engines import Engines
from opensearch_neural.engines.engine import Engine, Page
from opensearch_neural.errors import ClusterError
from opensearch_neural.lint import lint
from opensearch_neural.lint.findings import Finding
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import Body, Clause, best_passages, explained, partial_answer, preference
from opensearch_neural.queries.body_parts import HIGHLIGHTED_CHARACTERS, filter_clauses
from opensearch_neural.search.filters import unmatched_filters
from opensearch_neural.search.hits import hit_of, id_of, read_explanations

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.index.record import IndexMeta


@dataclass(frozen=True)
class Request:
    """A query's text, an engine, and the request body that the engine made."""

    engines: Engines
    """All engines of the index, with its record and models."""
    engine: Engine
    """The engine that made the body."""
    text: str
    """The query as the user typed it."""
    clauses: Sequence[Clause]
    """Filters."""
    page: Page
    """Size, offset, source and other options of the page."""
    body: Body
    """The request body."""

    @classmethod
    def make(
        cls,
        engines: Engines,
        name: str,
        text: str,
        *,
        clauses: Sequence[Clause] = (),
        size: int = 10,
        from_: int = 0,
        highlight: bool = True,
    ) -> Request:
        """clauses: filters. Raises as `Engines.load` does."""
        engines.load(name)
        engine = engines.engine(name)
        clauses = filter_clauses(clauses)
        page = engines.page(
            filter=clauses,
            size=size,
            from_=from_,
            highlight=text if highlight else None,
            source=["title", "text", "url", "passage"] if engines.meta.passages else ["title", "text", "url"],
        )
        return cls(engines, engine, text, clauses, page, engine.body(text, page))


@dataclass(frozen=True)
class SearchResult:
    """The answer to a request."""

    body: Body
    """The request body that was sent."""
    took: int
    """Milliseconds on the cluster."""
    hits: list[dict[str, Any]]
    """As `hit_of` makes them."""
    facts: dict[str, Any]
    """Facts about the engine, missing documents and a partial answer, as JSON fields."""
    findings: list[Finding]
    """The linter's findings."""
    warnings: list[str]
    """Why hits or scores may be wrong or missing, for people."""


def find(client: OpenSearch, request: Request, *, explain: bool = False) -> SearchResult:
    """Search. explain: each hit lists the shares of its score.

    Raises ClusterError, with the linter's findings, if the search is refused; other requests raise opensearch-py's errors.
    """
    engines, engine, body, clauses = request.engines, request.engine, request.body, request.clauses
    index = engines.index
    findings = findings_of(client, index, body, engines.meta)
    warnings = []
    if not request.text.strip() and not findings:
        warnings.append("the query is empty: a model's vector or URLs for it mean nothing")
    if explain and not engine.fused:
        body = with_sentences(explained(body))
    body = body if clauses else engine.counted(body)
    with refusals_explained(findings):
        answer = engine.search(client, body, request.text)
    missing, partial = engine.missing(body, answer, filtered=bool(clauses)), partial_answer(answer)
    warnings += missing.warnings
    if engines.meta.unfinished is not None:
        warnings.append(
            f"{index!r} is not complete: {engines.meta.unfinished} is being written, or its writing was interrupted"
        )
    warnings += partial.values()
    hits = answer["hits"]["hits"]
    if not hits:
        warnings += unmatched_filters(client, index, clauses)
    encoder = engines.models.query_encoder if explain and "sparse" in engine.needs() else None
    if engines.meta.passages:
        best = best_passages(body, hits, size=request.page["size"], from_=request.page["from_"])
    else:
        best = [(hit["_id"], hit) for hit in hits]
    adding, doubtful = read_explanations(body, best)
    warnings += doubtful
    shown = [
        hit_of(hit, document=id if engines.meta.passages else None, encoder=encoder, adding=each)
        for (id, hit), each in zip(best, adding, strict=True)
    ]
    return SearchResult(body, answer["took"], shown, {**missing.facts, **partial}, findings, warnings)


def findings_of(client: OpenSearch, index: str, body: Body, meta: IndexMeta | None = None) -> list[Finding]:
    """The linter's findings.

    If the body breaks OpenSearch's default limits, it is checked again with the index's own limits, fields and pipelines, if
    these can be read. A pattern's are not read: it may match hundreds of indexes. Raises opensearch-py's errors."""
    capabilities = quick_capabilities(client)
    findings = lint(body, capabilities, meta)
    described = None
    if findings and not set(index) & set("*,"):
        with suppress(ClusterError), translate_errors():  # the search shall not end for want of a diagnosis
            described = allowed(lambda: IndexDescription.of(client, index))
    return findings if described is None else lint(body, capabilities, meta, index=described)


@contextmanager
def refusals_explained(findings: Sequence[Finding]) -> Iterator[None]:
    """Turn opensearch-py's errors into ClusterError, with the findings before the remedy."""
    try:
        with translate_errors():
            yield
    except ClusterError as error:
        remedies = [*map(str, findings), *([error.remedy] if error.remedy else [])]
        raise ClusterError(error.message, "\n  ".join(remedies) or None) from error


def find_by_body(client: OpenSearch, index: str, body: Body, *, explain: bool = False) -> SearchResult:
    """Search any index, alias or pattern with the user's own body.

    explain: as in `find`; OpenSearch explains no hybrid query, and a warning says so. Raises as `find` does.
    """
    findings = findings_of(client, index, body)
    query = body.get("query")
    hybrid = isinstance(query, dict) and "hybrid" in query
    if explain and not hybrid:
        names = FieldNames()
        marks = {
            "fields": {name: {} for name in (*names.title, *names.text)},
            "require_field_match": False,
            "max_analyzer_offset": HIGHLIGHTED_CHARACTERS,
        }
        body = explained(body if "highlight" in body else with_sentences({**body, "highlight": marks}))
    params = {"preference": preference(json.dumps(query))}
    with refusals_explained(findings):
        answer = client.search(index=index, body=body, params=params)
    partial = partial_answer(answer)
    hits = answer["hits"]["hits"]
    adding, doubtful = read_explanations(body, [(id_of(hit), hit) for hit in hits])
    shown = [hit_of(hit, adding=each) for hit, each in zip(hits, adding, strict=True)]
    warnings = [*partial.values(), *doubtful]
    if explain and hybrid:
        warnings.append("the cluster does not explain scores of a hybrid query, which are computed after the search")
    return SearchResult(body, answer["took"], shown, {**partial}, findings, warnings)


def with_sentences(body: Body) -> Body:
    """The body, highlighting whole texts instead of fragments, so that the sentence with the most score can be found."""
    if "highlight" not in body:
        return body
    marks = body["highlight"]
    fields = {name: {**how, "number_of_fragments": 0} for name, how in marks["fields"].items()}
    return {**body, "highlight": {**marks, "fields": fields}}
