"""How many postings a query's tokens have: the work that an engine begins with, before it skips any of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.load.variants import TWO_PHASE, Variant, body_builder, tokens_of
from benchmarks.load.workload import Workload
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.queries import DOT_ALIAS, Rare

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

BATCH = 200


@dataclass(frozen=True)
class Postings:
    """Means over queries: tokens searched in phase one, and the documents that hold each of them, added up."""

    tokens: float
    postings: float
    queries: int


def postings(client: OpenSearch, workload: Workload, queries: Mapping[str, str]) -> dict[str, Postings]:
    """{variant: Postings} of the engines that search tokens. Raises ClusterError where the cluster refuses."""
    found = {}
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for variant in workload.variants:
        index = workload.index_of(variant)
        searched = _searched(client, workload, variant, queries)
        if searched is None:
            continue
        field, tokens = searched
        known = counts.setdefault((index, field), {})
        missing = {token for each in tokens for token in each if token not in known}
        if field == "sparse":
            known.update(feature_counts(client, index, sorted(missing)))
        else:
            known.update({token: count for each in tokens for token, count in each.items()})
        found[variant.name] = Postings(
            tokens=sum(map(len, tokens)) / len(tokens),
            postings=sum(known.get(token, 0) for each in tokens for token in each) / len(tokens),
            queries=len(tokens),
        )
    return found


def _searched(
    client: OpenSearch, workload: Workload, variant: Variant, queries: Mapping[str, str]
) -> tuple[str, list[dict[str, int]]] | None:
    """(field, for each query its distinct tokens; for a text field with their counts)."""
    if variant.engine.startswith(("dense", "hybrid")):
        return None
    build = body_builder(variant, workload.engines_of(variant))
    index = workload.index_of(variant)
    # The processor of neural-search splits the query on the cluster: the body holds all tokens.
    rare = Rare("ratio", variant.prune) if variant.engine == TWO_PHASE else None
    tokens: list[dict[str, int]] = []
    field = ""
    for text in queries.values():
        of_field, of_query = tokens_of(build(text), rare)
        field = of_field or field
        if not of_field:
            tokens.append({})  # a query without any known token
        elif field == "sparse":
            tokens.append(dict.fromkeys(of_query, 0))
        else:
            tokens.append(term_counts(client, index, field, text))
    return (field, tokens) if field else None


def feature_counts(client: OpenSearch, index: str, tokens: Iterable[str]) -> dict[str, int]:
    """{token: documents that have it in `sparse`}."""
    found: dict[str, int] = {}
    batch = list(tokens)
    for start in range(0, len(batch), BATCH):
        part = batch[start : start + BATCH]
        lines = []
        for token in part:
            clause = {"rank_feature": {"field": f"sparse.{token.replace('.', DOT_ALIAS)}", "linear": {}}}
            lines += ["{}", json.dumps({"size": 0, "track_total_hits": True, "query": clause})]
        with translate_errors():
            answer: Any = client.msearch(index=index, body="\n".join(lines) + "\n")
        for token, response in zip(part, answer["responses"], strict=True):
            found[token] = int(response.get("hits", {}).get("total", {}).get("value", 0))
    return found


def term_counts(client: OpenSearch, index: str, field: str, text: str) -> dict[str, int]:
    """{term of the analyzed text: documents that have it}, as one shard counts them."""
    body = {
        "doc": {field: text},
        "fields": [field],
        "positions": False,
        "offsets": False,
        "term_statistics": True,
        "field_statistics": False,
    }
    with translate_errors():
        answer = client.termvectors(index=index, body=body)
    terms = answer.get("term_vectors", {}).get(field, {}).get("terms", {})
    return {term: int(statistics.get("doc_freq", 0)) for term, statistics in terms.items()}
