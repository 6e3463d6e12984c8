"""The scripts of `queries`: they score codes, vectors, or rows of sparse weights."""

from __future__ import annotations

from opensearch_neural.lint.findings import Outcome, Path
from opensearch_neural.lint.neighbours import scored
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_object
from opensearch_neural.queries import forward_index
from opensearch_neural.queries.body_parts import Body
from opensearch_neural.queries.look_up_table import SCRIPT, WEIGHTED_SCRIPT, PackedTable


def forward(request: LintedRequest, params: Body, path: Path) -> None:
    """Check the parameters of the script that `queries.bm25_sparse(…, forward=True)` rescores with."""
    request.check_cluster("painless", path, "painless scripts", "forward=False rescores by clauses")
    where = (*path, "script", "params")
    request.check_field(str(params.get("field")), "binary", (*where, "field"))
    try:
        tokens = forward_index.tokens_of(params)
    except ValueError as error:
        remedy = "queries.bm25_sparse(…, forward=True) makes them from tokens"
        request.report("forward-index", "bends", where, str(error), remedy)
        return
    if any(weight < 0 for weight in tokens.values()):
        message = "a document whose sum is negative fails its shard"
        request.report("forward-index", "doubtful", (*where, "weights"), message, "leave out tokens of negative weight")


def script_score(request: LintedRequest, inner: Body, path: Path) -> None:
    """Check the scripts of `queries`; other scripts are not checked."""
    script = as_object(inner.get("script"))
    if (script.get("lang"), script.get("source")) == ("knn", "knn_score"):
        scored(request, as_object(script.get("params")), path)
        return
    if script.get("source") == forward_index.SCRIPT:
        forward(request, as_object(script.get("params")), path)
        return
    if script.get("source") not in (SCRIPT, WEIGHTED_SCRIPT):
        return
    request.check_cluster("painless", path, "painless scripts", "queries.knn needs none")
    params, where = as_object(script.get("params")), (*path, "script", "params")
    field_ = str(params.get("field"))
    if not request.check_field(field_, "binary", (*where, "field")):
        return
    remedy = "queries.quantized_rescore makes it from Quantizer.table"
    try:
        parts = PackedTable.from_params(params).parts
    except ValueError as error:
        certain = not isinstance(params.get("table"), str) or not isinstance(params.get("scale"), (int, float))
        request.report("quantized-table", "rejected" if certain else "doubtful", where, str(error), remedy)
        return
    if request.meta is None or field_ != "pq":
        return
    bytes_ = request.meta.quantized.subvectors if request.meta.quantized else 0
    if parts == bytes_:
        return
    message = f"the table is for codes of {parts} bytes, and the codes of the index have {bytes_}"
    if not bytes_:
        message, remedy = "the index holds no codes: every hit scores 0", "ingest again with --pq MODEL"
    outcome: Outcome = "bends" if parts > bytes_ else "rejected"
    request.report("quantized-table", outcome, (*where, "table"), message, remedy)
