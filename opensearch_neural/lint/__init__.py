"""A linter for search bodies: it finds what OpenSearch rejects, or accepts but silently changes, and names a remedy.

    for finding in lint(body, capabilities, meta):
        print(finding)

A finding is one of three things:

    rejected   OpenSearch answers with an error
    bends      OpenSearch answers, but not what the body seems to ask for
    doubtful   rejected, bends, or no problem at all: the body alone does not tell which

The rules (`findings.RULES`), with a file for each family:

    members.py           the names of the body's members, and the kinds of their values
    limits.py            pages, clauses and terms within the limits of an index and a cluster
    weights.py           boosts, and the weights of tokens
    sparse.py            neural_sparse and rank_feature
    boolean.py           bool queries that match everything, or nothing
    text.py              match queries whose text has no term left after analysis
    fields.py            fields that the index does not have, in queries and beside them
    highlight.py         highlights that mark nothing
    one_field.py         queries that name one field, such as match and range
    neighbours.py        knn: k, vectors, filters
    nested_documents.py  fields within nested documents, and outside
    pruned_postings.py   scores of an index whose postings hold only each document's heaviest tokens
    quantized.py         the scripts that score codes
    rescoring.py         windows and weights, and what cannot be combined with rescoring
    two_phase.py         the two-phase processor
    hybrid.py            hybrid queries
    fusion.py            the processors that fuse the parts of a hybrid query

What they share:

    findings.py           findings, and the rules
    request.py            the request under check, with its findings so far
    index_description.py  limits, fields and pipelines of the index
    clause_count.py       how many clauses Lucene makes from a query
    values.py             the values of a body as OpenSearch reads them

Every rule that applies to OpenSearch 2.19.1 was tried on it: what is `rejected` here is rejected there, and a body that
`bends` gives other results than its remedy (tests/lint). Rules for other releases come from their documentation and sources,
and say so. `docs/queries.md` lists all rules. Aggregations are checked for their fields only, suggesters and scripts of
others not at all.

A new rule has a name in `findings.RULES`, a row at the same place in `docs/queries.md`, and a function in the file of its
family, which calls `request.report` and stands in OF_THE_REQUEST or OF_A_QUERY below. Its test is a `Case` in the family's
file of tests/lint: a body, and if it bends also the body of the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opensearch_neural.lint import (
    boolean,
    fields,
    fusion,
    highlight,
    hybrid,
    limits,
    members,
    neighbours,
    nested_documents,
    one_field,
    pruned_postings,
    quantized,
    rescoring,
    sparse,
    text,
    two_phase,
    values,
    weights,
)
from opensearch_neural.lint.clause_count import children
from opensearch_neural.lint.findings import RULES, Finding, Path
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.queries.body_parts import Body

if TYPE_CHECKING:
    from opensearch_neural.cluster.capabilities import Capabilities
    from opensearch_neural.index.record import IndexMeta

OF_THE_REQUEST: tuple[Callable[[LintedRequest], None], ...] = (
    limits.page,
    limits.clause_counts,
    fields.beside_query,
    highlight.highlight,
    weights.indices_boost,
    neighbours.post_filter,
    pruned_postings.pruned_postings,
    rescoring.rescoring,
    two_phase.two_phase,
    fusion.fusion,
    hybrid.hybrid_request,
)
"""Rules for the whole request."""

OF_A_QUERY: dict[str, Callable[[LintedRequest, Body, Path], None]] = {
    "neural_sparse": sparse.neural_sparse,
    "rank_feature": sparse.rank_feature,
    "bool": boolean.bool_,
    "knn": neighbours.knn,
    "nested": nested_documents.nested,
    "terms": limits.terms,
    "hybrid": hybrid.hybrid,
    "script_score": quantized.script_score,
}
"""{kind of query: its rule}"""


def lint(
    body: Any,
    capabilities: Capabilities | None = None,
    meta: IndexMeta | None = None,
    *,
    index: IndexDescription | None = None,
) -> list[Finding]:
    """The problems of a search body, the worst first; empty if there are none.

    capabilities: the cluster's release, plugins and clause limit; None: OpenSearch's default limits, and an unknown release.
    meta: the record of an index that `osn` wrote (its fields, the dense model's dimension, the analyzer). index: the
    description of the index, which may contain its record.
    """
    if not isinstance(body, dict):
        return [Finding("malformed", "rejected", "(body)", "the body is not a JSON object", 'write {"query": {…}}')]
    body = values.as_sent(body)
    index = index or IndexDescription()
    present = {name: value for name, value in body.items() if value is not None}
    request = LintedRequest(present, capabilities, meta or index.meta, index)
    members.members(request, body)  # the one rule that sees null, which no member takes
    for rule in OF_THE_REQUEST:
        rule(request)
    for path, query in request.queries:
        _visit(request, query, path, of_hits=path[0] != "highlight")
    order = {"rejected": 0, "bends": 1, "doubtful": 2}
    return sorted(request.findings, key=lambda finding: order[finding.outcome])


def _visit(request: LintedRequest, clause: Any, path: Path, *, of_hits: bool) -> None:
    """Apply every rule to a query and to the queries inside it. of_hits: also apply the rules about hits."""
    if not isinstance(clause, dict) or len(clause) != 1:
        request.report("malformed", "rejected", path, RULES["malformed"], 'write {"KIND": {…}}')
        return
    ((kind, inner),) = clause.items()
    path = (*path, kind)
    if not isinstance(inner, dict):
        if kind != "query_string":
            request.report("malformed", "rejected", path, f"{kind} takes an object", f'write {{"{kind}": {{…}}}}')
        return
    weights.boosts(request, kind, inner, path)
    if kind == "nested" and nested_documents.finds_nothing(request, inner):
        return  # OpenSearch does not check the query inside
    if kind in one_field.ONE_FIELD:
        one_field.one_field(request, kind, inner, path)
    if kind in OF_A_QUERY:
        OF_A_QUERY[kind](request, inner, path)
    fields.query(request, kind, inner, path)
    nested_documents.fields(request, kind, inner, path)
    if kind in ("match", "multi_match") and of_hits:
        text.match(request, kind, inner, path)
    filters = (*neighbours.filters(kind, inner), *hybrid.filters(request, kind, inner))
    for below, query in (*filters, *fields.function_filters(kind, inner)):
        _visit(request, query, (*path, *below), of_hits=of_hits)
    outer = request.within
    if kind == "nested":
        request.within = str(inner.get("path"))
    for below, query in children(clause):
        _visit(request, query, (*path[:-1], *below), of_hits=of_hits)
    request.within = outer
