"""One search by an engine, prepared for display: `osn search` prints it, `osn ui` shows several side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.errors import allowed, translate_errors
from opensearch_neural.corpus.documents import BETWEEN, FieldNames, text_of
from opensearch_neural.engines import Engines
from opensearch_neural.engines.engine import Engine, Page
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.explanation import Share, doubts, shares, told_apart
from opensearch_neural.lint import lint
from opensearch_neural.lint.findings import Finding
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import Body, Clause, best_passages, explained, partial_answer, preference
from opensearch_neural.queries.clauses import HIGHLIGHTED_CHARACTERS
from opensearch_neural.sentences import Span, around, heaviest_sentence, marked_words, with_marks

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.index.record import IndexMeta
    from opensearch_neural.models.sparse.table_encoder import TableEncoder


@dataclass(frozen=True)
class Request:
    """A query's text, an engine, and the request body that the engine made."""

    engines: Engines
    engine: Engine
    text: str
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
        page = engines.page(
            filter=list(clauses) or None,
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


def find(client: OpenSearch, asked: Request, *, explain: bool = False) -> SearchResult:
    """Search. explain: each hit lists the shares of its score.

    Raises ClusterError, with the linter's findings, if the search is refused; other requests raise opensearch-py's errors.
    """
    engines, engine, body, clauses = asked.engines, asked.engine, asked.body, asked.clauses
    index = engines.index
    findings = findings_of(client, index, body, engines.meta)
    warnings = []
    if not asked.text.strip() and not findings:
        warnings.append("the query is empty: a model's vector or URLs for it mean nothing")
    if explain and not engine.fused:
        body = with_sentences(explained(body))
    body = body if clauses else engine.counted(body)
    with refusals_explained(findings):
        answer = engine.search(client, body, asked.text)
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
        best = best_passages(body, hits, size=asked.page["size"], from_=asked.page["from_"])
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
    adding, doubtful = read_explanations(body, [(_id_of(hit), hit) for hit in hits])
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


def read_explanations(
    body: Body, hits: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[list[list[Share] | None], list[str]]:
    """(the shares of each hit's score, None without an explanation; warnings about shares that may be wrong).

    hits: (the name for warnings, the hit)
    """
    adding = [shares(hit["_explanation"]) if "_explanation" in hit else None for _, hit in hits]
    scored = [  # a hit that is sorted by a field has no score
        (name, each, hit["_score"])
        for (name, hit), each in zip(hits, adding, strict=True)
        if each is not None and hit["_score"] is not None
    ]
    told = doubts(body, [(each, score) for _, each, score in scored])
    return adding, [f"{name}: {doubt}" for (name, *_), doubt in zip(scored, told, strict=True) if doubt]


def parse_filter(text: str) -> dict[str, Any]:
    """A filter clause from FIELD=VALUE or from JSON. Raises InputError for anything else."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the filter {text[:200]!r} is not valid JSON: {error}") from None
    field, equals, value = text.partition("=")
    if not (field and equals):
        raise InputError(f"the filter {text!r}: expected FIELD=VALUE, or an OpenSearch clause as JSON")
    return {"term": {field: value}}


def unmatched_filters(client: OpenSearch, index: str, clauses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why {"term": {FIELD: VALUE}} clauses match nothing, or may match nothing, whatever documents there are.

    Empty if the user may not read the mapping.
    """
    fields = sorted({field for clause in clauses for field in clause.get("term", {})})
    mappings = allowed(lambda: client.indices.get_mapping(index=index)) if fields else None
    of_indexes = [each["mappings"].get("properties", {}) for each in (mappings or {}).values()]
    told = []
    for field in fields if of_indexes else ():
        reasons = [_unmatched(field, properties) for properties in of_indexes]
        if all(reasons):
            here = f"{index!r} has no field {field!r} to filter by"
            told.append(here if NO_FIELD in reasons else f"{field!r} {reasons[0]}")
    return told


NO_FIELD = "is not there"


def _unmatched(field: str, properties: Mapping[str, Any]) -> str | None:
    """Why a filter by a field's value matches nothing in an index with these properties, as words that follow the field's
    name; None if it may match."""
    parts = field.split(".")
    inside = properties
    for at, part in enumerate(parts, 1):
        if part not in inside:
            return NO_FIELD
        mapping = inside[part]
        name, kind = ".".join(parts[:at]), mapping.get("type", "object")
        if kind == "alias":
            return _unmatched(".".join([mapping["path"], *parts[at:]]), properties)
        if kind == "flat_object":
            return None  # whose fields have no mapping
        if kind == "nested":
            clause = {"nested": {"path": name, "query": {"term": {field: "VALUE"}}}}
            return f"is in nested documents: filter by {json.dumps(clause, ensure_ascii=False)}"
        if kind == "text" and at == len(parts):
            whole = [sub for sub, each in mapping.get("fields", {}).items() if each.get("type") == "keyword"]
            told = "is a text, in which a filter finds single words, as the analyzer writes them"
            return f"{told}; {field}.{whole[0]} has the whole value" if whole else told
        inside = mapping.get("properties") or mapping.get("fields", {})
    return None


def hit_of(
    hit: Mapping[str, Any],
    *,
    document: str | None = None,
    encoder: TableEncoder | None = None,
    adding: Sequence[Share] | None = None,
) -> dict[str, Any]:
    """A hit as `osn search` shows it: id, score, title, url, an excerpt, and, if explained, the shares of its score.

    An explained hit also has the sentence of its text that contributes most to the score, if any; the excerpt includes it.

    document: the id of the document, if the hit is one of its passages; the passage is then shown too
    encoder: tells which tokens of a sparse model occur in the text
    adding: the shares of its score; None: read from the hit's explanation, if it has one
    """
    source = hit.get("_source", {})
    marked = hit.get("highlight", {})
    names = FieldNames()  # an index that `osn` did not write may have other names
    text_name = next((name for name in names.text if name in marked and name in source), names.find(source, "text"))
    title_value, text_value = (source.get(name) for name in (names.find(source, "title"), text_name))
    title, text = text_of(title_value, BETWEEN["title"]), text_of(text_value, BETWEEN["text"])
    fragments = [fragment for name, of_field in marked.items() if name != "title" for fragment in of_field]
    excerpt = " … ".join(fragments) or " ".join((text or "").split())[:200]
    shown: dict[str, Any] = {"id": document or _id_of(hit), "score": hit["_score"]}
    shown["title"] = _marked_title(marked.get("title", []), title_value) or title
    if document and "passage" in source:
        shown["passage"] = source["passage"]
    if source.get("url"):
        shown["url"] = source["url"]
    shown["excerpt"] = " ".join(excerpt.split())
    if adding is None and "_explanation" in hit:
        adding = shares(hit["_explanation"])
    if adding is not None:
        if encoder is not None:
            adding = told_apart(adding, encoder.tokens_in(f"{title or ''} {text or ''}"))
        of_text = marked.get(text_name, [])
        words = marked_words(of_text, text_of(text_value, "\0") or "")
        if text and words is not None and (of_text or not fragments):  # else the user's own body asks for fragments
            shown |= sentence_of(text, words, adding, encoder)
        shown["tokens"] = [share.to_json() for share in adding]
        shown["sum"] = sum(share.score for share in adding)
    return shown


def sentence_of(
    text: str, words: Sequence[Span], adding: Sequence[Share], encoder: TableEncoder | None
) -> dict[str, str]:
    """An excerpt of the text with its marked words, and its sentence that contributes most to the score, if any."""
    sentence = heaviest_sentence(text, words, adding, *([encoder.tokens_in] if encoder else []))
    start, end = around(text, sentence or (words or [(0, 0)])[0])
    left, right = ("… " if text[:start].strip() else ""), (" …" if text[end:].strip() else "")
    shown = {"excerpt": f"{left}{with_marks(text, words, (start, end))}{right}"}
    return shown if sentence is None else {**shown, "sentence": with_marks(text, words, sentence)}


def _id_of(hit: Mapping[str, Any]) -> str:
    return str(hit.get("_id", ""))  # the user's own body may ask for no stored field, not even the id


def _marked_title(highlighted: Sequence[str], title: Any) -> str:
    """The title with its marked words; "" without any. Of a list the highlighter leaves out strings without marks."""
    if not isinstance(title, list):
        return "".join(highlighted)
    words = marked_words(highlighted, text_of(title, "\0") or "")
    whole = text_of(title, BETWEEN["title"]) or ""
    return with_marks(whole, words, (0, len(whole))) if words else ""


GROUPS = {
    ("bm25", None): "BM25",
    ("sparse", None): "sparse",
    ("sparse", True): "sparse, in the text",
    ("sparse", False): "sparse, added by the model",
    ("codes", None): "codes",
    ("dense", None): "dense",
    ("other", None): "other",
}
"""{(source of a share, whether its token is in the text): the name shown}"""


@dataclass(frozen=True)
class ScorePart:
    """The part of a hit's score from one kind of share."""

    name: str
    score: float
    """The sum of its shares."""
    shares: list[Mapping[str, Any]]
    """As `hit_of` gives them, the largest first."""


def parts_of(hit: Mapping[str, Any]) -> list[ScorePart]:
    """The parts of an explained hit's score, in the order of `GROUPS`; empty if it is not explained."""
    parts = []
    for key, name in GROUPS.items():
        shares = [each for each in hit.get("tokens", ()) if (each["source"], each.get("literal")) == key]
        if shares:
            parts.append(ScorePart(name, sum(each["score"] for each in shares), shares))
    return parts
