"""`osn doctor`: which features a cluster has, and what osn does without the missing ones."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import click

from opensearch_neural.cluster.capabilities import Capabilities, NodeResources, quick_capabilities
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.probe import probe
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.cluster.watermarks import Watermarks, in_words, is_reached, read_watermarks
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.headings import Headed
from opensearch_neural.errors import OsnError

DEFAULT_WATERMARKS = Watermarks()
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Feature:
    name: str
    """Its name in `Capabilities`."""
    gives: str
    """What osn can do with it."""
    otherwise: str
    """What osn does without it."""


FEATURES = (
    Feature("bm25", "full-text search, the baseline", "nothing works without it"),
    Feature("rank_features", "sparse document vectors, with queries in plain clauses", "no sparse retrieval"),
    Feature("neural_sparse", "a sparse query in one clause", "rank_feature clauses, with the same scores"),
    Feature("two_phase", "OpenSearch's own two-phase sparse search", "high-idf-first, which needs no plugin"),
    Feature("rescore", "high-idf-first: rare tokens first, all tokens for the best", "all tokens in one phase"),
    Feature("painless", "rescoring by the forward index and by codes", "rescoring by clauses, dense by k-NN only"),
    Feature("knn_lucene", "dense vectors: float, byte, scalar-quantized", "sparse and BM25 retrieval only"),
    Feature("knn_faiss", "dense vectors in faiss indexes", "the Lucene engine"),
    Feature("hybrid", "BM25 and vectors in one query, scores normalized", "fusion on the client"),
    Feature("rrf", "hybrid queries by reciprocal rank", "fusion on the client"),
    Feature("sparse_vector", "approximate sparse search for very large corpora", "exact search on rank_features"),
)


@click.command(cls=Headed)
@connection_options
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
@click.option(
    "--no-write", is_flag=True, help="Do not create a test index; report only what version and plugins suggest."
)
@click.option(
    "--try-faiss",
    is_flag=True,
    help="Also write a vector to a faiss field. This can CRASH a node without the native libraries.",
)
def doctor(connection: ConnectionSettings, as_json: bool, no_write: bool, try_faiss: bool) -> None:
    """Show which features a cluster has, by trying them on a temporary index.

    Exit status 0 if BM25 and sparse retrieval work, 1 otherwise.

    \b
    osn doctor
    osn doctor --url https://search.example.org:9200 --ca ca.pem --json
    """
    if no_write and try_faiss:
        raise click.UsageError("--no-write and --try-faiss exclude each other")
    try:
        with connect(settings=connection) as client:
            cluster = quick_capabilities(client) if no_write else probe(client, try_faiss=try_faiss)
            watermarks = read_watermarks(client)
    except OsnError as error:
        if not as_json:
            raise
        answer = {"urls": connection.urls, "usable": False, "error": error.message, "remedy": error.remedy}
        click.echo(json.dumps(answer, indent=2))
        sys.exit(1)
    if as_json:
        facts = {"urls": connection.urls, "tried": not no_write, **cluster.as_dict(), "watermarks": asdict(watermarks)}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(report(cluster, connection.urls, tried=not no_write, watermarks=watermarks))
    if not cluster.usable:
        sys.exit(1)


def report(
    cluster: Capabilities, urls: tuple[str, ...], *, tried: bool = True, watermarks: Watermarks = DEFAULT_WATERMARKS
) -> str:
    """The findings as lines for a terminal."""
    lines = [
        f"{', '.join(urls)}: OpenSearch {cluster.version or '(version unknown)'}"
        + (f", cluster {cluster.cluster_name!r}" if cluster.cluster_name else "")
        + (f", health {cluster.health}" if cluster.health else "")
        + (f", {_count(cluster.data_nodes, 'data node')}" if cluster.data_nodes is not None else ""),
        f"plugins  {_plugins(cluster)}",
        f"clauses  {cluster.max_clause_count or 'unknown'} a query (indices.query.bool.max_clause_count)",
        *(f"node     {_node(node, watermarks)}" for node in cluster.nodes or ()),
        "",
        *_table(cluster),
        "",
    ]
    lines += [f"{name}: {note}" for name, note in cluster.notes.items()]
    if cluster.notes:
        lines.append("")
    return "\n".join([*lines, _verdict(cluster, tried)])


def _table(cluster: Capabilities) -> list[str]:
    rows = [("CAPABILITY", "HERE", "")]
    for feature in FEATURES:
        here = getattr(cluster, feature.name)
        text = feature.gives if here else f"{feature.gives}; without: {feature.otherwise}"
        rows.append((feature.name, {True: "yes", False: "no", None: "unknown"}[here], text))
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:<{width}}  {here:<7}  {text}".rstrip() for name, here, text in rows]


def _plugins(cluster: Capabilities) -> str:
    if cluster.plugins is None:
        return "unknown" if "plugins" in cluster.notes else "may not be listed by this user"
    # A node that was not installed from a distribution lists the modules of OpenSearch too, by class name.
    plugins = [
        f"{name} {version}" for name, version in cluster.plugins.items() if not name.startswith("org.opensearch.")
    ]
    return ", ".join(plugins) or "none"


def _node(node: NodeResources, watermarks: Watermarks) -> str:
    text = (
        f"{node.name}: heap {node.heap_used / GIBIBYTE:.1f} of {node.heap_max / GIBIBYTE:.1f} GiB, "
        f"disk {node.disk_available / GIBIBYTE:.0f} of {node.disk_total / GIBIBYTE:.0f} GiB free"
    )
    if watermarks.enabled and is_reached(watermarks.flood_stage, node):
        return f"{text}: FULL, this cluster stops writes {in_words(watermarks.flood_stage)}"
    if watermarks.enabled and is_reached(watermarks.high, node):
        return f"{text}: nearly full, this cluster puts no new shards here {in_words(watermarks.high)}"
    return text


def _verdict(cluster: Capabilities, tried: bool) -> str:
    if not tried:
        evidence = "by version and plugins alone; nothing was tried"
        return f"{'usable' if cluster.usable else 'not known to be usable'}, {evidence}"
    if cluster.usable:
        plugin_free = "" if cluster.neural_sparse else ", without the neural-search plugin"
        return f"usable: BM25 and sparse retrieval work here{plugin_free}"
    if any("no answer in time" in note for note in cluster.notes.values()):
        return "not known to be usable: it left requests without an answer; is a node hung, or the cluster manager missing?"
    if cluster.bm25 is None or cluster.rank_features is None:
        return "not known to be usable: run it as a user who may create osn-probe-* indices"
    return "not usable: osn needs BM25 and rank_features"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
