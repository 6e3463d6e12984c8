"""What the linter reports: findings, and the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Path = tuple["str | int", ...]
Outcome = Literal["rejected", "bends", "doubtful"]

RULES: dict[str, str] = {
    "malformed": "a query is an object with one member, its kind, and some kinds name exactly one field",
    "member": "the body has only members that OpenSearch knows, with values that it takes",
    "plugin": "the cluster lacks the plugin, or the release, that a query needs",
    "page": "from, size and search_after are within the limits of the index",
    "too-many-clauses": "no more clauses than indices.query.bool.max_clause_count",
    "too-many-terms": "no more values in a terms query than index.max_terms_count",
    "boost": "a boost is a finite number above 0",
    "weight": "a sparse query weight lies in (0, 64]",
    "empty-query": "a query without tokens, words or clauses finds nothing, or everything",
    "field": "the field exists and is of the type that the query needs",
    "highlight": "a highlight marks words of its fields only if the query, or highlight_query, searches them there",
    "dot-token": "rank_feature splits its field name at the last dot",
    "not-linear": "a rank_feature clause without a function saturates",
    "optional-tokens": "beside a filter, tokens in `should` need not match",
    "rescore-with-sort": "rescoring excludes sorting and search_after",
    "rescore-with-collapse": "rescoring excludes collapsing",
    "rescore-of-hybrid": "rescoring a hybrid query comes before its normalization",
    "rescore-window": "a window covers the page and stays within index.max_rescore_window",
    "rescore-min-score": "min_score is compared with the score before rescoring",
    "rescore-order": "no stage rescores more hits than the one before",
    "rescore-weight": "a negative rescore weight ranks rescored hits last",
    "two-phase-parameter": "the parameters of the two-phase processor have ranges",
    "two-phase-window": "the two-phase window covers the page and stays within its limits",
    "two-phase-not-split": "the two-phase processor splits only a neural_sparse at the top or in bool.should",
    "two-phase-empty": "phase one keeps at least one token",
    "two-phase-with-rescore": "the two-phase processor adds its rescoring to the body's own",
    "hybrid-nested": "hybrid must be the top-level query",
    "hybrid-queries": "hybrid takes one to five queries",
    "hybrid-option": "hybrid takes no boost, and a filter from 3.0 on",
    "hybrid-without-pipeline": "hybrid needs a processor that fuses its parts",
    "hybrid-pagination": "pagination_depth covers the page",
    "hybrid-with": "collapse, min_score, profile and mixed sorts do not go with hybrid",
    "fusion-without-hybrid": "a processor that fuses does nothing to other queries",
    "fusion-technique": "the release knows the techniques",
    "fusion-weights": "one weight for each query, decimals from 0.0 to 1.0 with the sum 1",
    "rank-constant": "rank_constant is where the release reads it, and from 1 to 10000",
    "knn-k": "k is from 1 to 10000 and covers the page",
    "nested-field": "only a nested query of their path can search fields of nested documents, and only these",
    "knn-vector": "the vector has the field's dimension and type",
    "knn-filter": "a filter on neighbours belongs in the knn query, as one object",
    "forward-index": "a script that reads rows of sparse weights gets tokens, their hashes in order, and weights",
    "pruned-postings": "with pruned postings, only rows give whole scores, clauses do not",
    "quantized-table": "a look-up table has 256 numbers for each byte of a code",
    "seismic-token": "tokens of a sparse_vector field are ids of vocabulary entries",
    "seismic-collision": "ids are folded modulo 32768",
}


@dataclass(frozen=True)
class Finding:
    """A problem of a body."""

    rule: str
    """The rule's name in RULES."""
    outcome: Outcome
    """What OpenSearch does with the body; the docstring of `opensearch_neural.lint` explains the three."""
    path: str
    """The place in the body, written as in a program: query.bool.should[2].rank_feature.boost"""
    message: str
    """What is wrong."""
    remedy: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.path}: {self.message} [{self.rule}]\n  {self.remedy}"


def path_text(path: Path) -> str:
    """("a", 2, "b c") as a[2]["b c"]."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("_", "").replace("-", "").isalnum() and step.isascii():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text
