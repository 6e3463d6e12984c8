"""`osn index`: inspect an index, plan a larger one, serve a build, roll back to an earlier one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ingest.commands.run_and_report import without_vectors
from ingest.versions.swap import Gate, gate_options
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.headings import HeadedGroup
from opensearch_neural.commands.option_groups import Renamed

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from ingest.versions.builds import Version


@click.group(cls=HeadedGroup)
def index() -> None:
    """Inspect an index that `osn ingest` wrote, plan a larger one, serve a build, roll back to an earlier one.

    \b
    osn index inspect docs
    osn index plan docs --docs 100000000
    osn index serve docs
    osn index rollback docs
    osn index abort docs
    osn index store-encoder docs
    """


@index.command()
@click.argument("name")
@click.option(
    "--sample",
    type=click.IntRange(0, 10_000),
    default=2000,
    show_default=True,
    help="Documents to sample, to see whether the IDF table still fits.",
)
@click.option("--lost", is_flag=True, help="Print only the ids of documents that have lost their vectors, one a line.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@connection_options
def inspect(connection: ConnectionSettings, name: str, sample: int, lost: bool, as_json: bool) -> None:
    """Show the models with their hashes, counts, sizes by part, and whether the IDF table still fits the documents."""
    from ingest.inspection import inspect_index, lost_ids
    from ingest.versions.builds import builds_of

    client = connect(settings=connection)
    if lost:
        ids = lost_ids(client, name)
        for line in [json.dumps(ids)] if as_json else ids:
            print(line)
        return
    inspection = inspect_index(client, name, sample=sample)
    builds = builds_of(client, inspection.alias)
    if as_json:
        report = asdict(inspection) | {"meta": inspection.meta.to_dict()}
        report["builds"] = [{"index": v.index, "serving": v.serving, "complete": v.complete} for v in builds]
        print(json.dumps(report, ensure_ascii=False, indent=2))
        return
    click.secho(inspection.index, bold=True)
    if inspection.meta.unfinished is not None:
        print(f"  NOT COMPLETE: {inspection.meta.unfinished} is being written, or its writing was interrupted")
        deletes = "" if inspection.meta.loading is None else ", `osn index abort` deletes it"
        takes = "" if inspection.meta.counting else ", `osn index finish` accepts it as it is"
        print(f"              `osn ingest` continues it{takes}{deletes}")
    for version in builds:
        state = "serves now" if version.serving else "complete" if version.complete else "not complete"
        print(f"  build       {version.index}: {state}, {_counted(client, version)}")
    of_parents = f" passages of {inspection.parents:,} documents" if inspection.parents else ""
    print(f"  documents   {inspection.documents:,}{of_parents}")
    if inspection.without_rows:
        print(f"  lost        {inspection.without_rows:,} of them {without_vectors(inspection.without_rows)}")
    if inspection.without_tokens:
        print(
            f"  no token    {inspection.without_tokens:,} of them have no word of the vocabulary; only BM25 finds them"
        )
    if inspection.deleted:
        print(f"  deleted     {inspection.deleted:,} (their bytes are freed by merges)")
    copies = f"{inspection.shards}, {inspection.replicas} replicas"
    print(f"  shards      {copies}, {inspection.segments} segments, {inspection.health or 'health unknown'}")
    if inspection.meta.passages:
        print(f"  passages    {inspection.meta.passages.tokens} tokens, one every {inspection.meta.passages.stride}")
    for model in inspection.models:
        here = "" if model.here else ", not on this machine"
        print(f"  {model.kind:<11} {model.name} ({model.hash}){', ' + model.details if model.details else ''}{here}")
    if inspection.meta.prune_postings is not None:
        print(f"  postings    pruned by {inspection.meta.prune_postings}; the forward index holds whole vectors")
    print(f"  size        {_bytes(inspection.bytes)} (primaries)")
    for part, size in inspection.sizes.items():
        print(f"    {part:<20} {_bytes(size):>10}  {_bytes(size / max(1, inspection.documents))} a document")
    if inspection.drift:
        drift = inspection.drift
        print(
            f"  idf drift   {drift.mean:.3f} on average ({drift.by_chance:.3f} by chance), {drift.documents:,} documents"
        )
        for token, table, now in drift.tokens:
            print(f"    {token:<20} {table:>7.3f} in the table, {now:.3f} in the documents")


@index.command()
@click.argument("name")
@click.option(
    "--docs", type=click.IntRange(min=1), required=True, help="Number of documents (or passages) to plan for."
)
@click.option("--replicas", type=click.IntRange(min=0), help="Replicas to plan for.  [default: as in the index]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@connection_options
def plan(connection: ConnectionSettings, name: str, docs: int, replicas: int | None, as_json: bool) -> None:
    """Estimate bytes, memory and shards for more documents, from the smaller index NAME.

    \b
    osn ingest docs.jsonl.gz --index sample --limit 10000 --merge
    osn index plan sample --docs 100000000
    """
    from ingest.inspection import inspect_index
    from ingest.inspection import plan as scaled

    made = scaled(inspect_index(connect(settings=connection), name, sample=0), docs, replicas=replicas)
    if as_json:
        print(json.dumps(asdict(made) | {"bytes": made.bytes}, indent=2))
        return
    print(f"{made.documents:,} documents, from {made.sampled:,} in {name}")
    if made.sampled < min(made.documents, 10_000):
        click.echo("a small sample overestimates: ingest 10,000 documents or more, with --merge", err=True)
    print(f"  one copy    {_bytes(made.bytes)}")
    for part, size in made.primaries.items():
        print(f"    {part:<20} {_bytes(size):>10}")
    print(f"  shards      {made.shards}, {made.replicas} replicas")
    print(f"  disk        {_bytes(made.disk)} for all copies, with room for merges")
    print(f"  memory      {_bytes(made.cache)} of page cache for searches that read no disk")
    if made.heap:
        print(f"  heap        {_bytes(made.heap)} while a vector graph is merged, in addition to the usual")


@index.command()
@click.argument("alias")
@click.option("--to", metavar="INDEX", help="The build to go back to.  [default: the previous one]")
@connection_options
def rollback(connection: ConnectionSettings, alias: str, to: str | None) -> None:
    """Move an alias back to the previous build, at once for all searches."""
    from ingest.versions.builds import rollback as back

    now, before = back(connect(settings=connection), alias, to)
    print(f"{alias} now names {now}, before {before}")


@index.command()
@click.argument("alias")
@click.argument("build", required=False)
@gate_options
@click.option("--dry-run", is_flag=True, help="Make the checks and show both counts, and do not move the alias.")
@connection_options
def serve(connection: ConnectionSettings, alias: str, build: str | None, gate: Gate, dry_run: bool) -> None:
    """Move an alias to a finished build, after the checks that `osn ingest --alias` makes before a swap.

    BUILD is an index that `osn ingest --alias ALIAS --no-swap` built; without it, the only one that never served among those
    that are newer than the serving index.
    """
    from ingest.versions.swap import serve_build

    swap = serve_build(connect(settings=connection), alias, build, gate, dry_run=dry_run)
    if dry_run:
        print(f"{swap.index} passes the checks; {alias} still names {swap.replaced or 'nothing'}")
    else:
        print(f"{alias} now names {swap.index}, before {swap.replaced or 'nothing'}")
    print(f"  {swap.counts}")


@index.command()
@click.argument("alias")
@click.option(
    "--keep-builds",
    "--keep",
    "keep",
    cls=Renamed,
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Builds to keep beside the serving build.",
)
@connection_options
def prune(connection: ConnectionSettings, alias: str, keep: int) -> None:
    """Delete old builds of an alias."""
    from ingest.versions.builds import prune as delete_old

    gone = delete_old(connect(settings=connection), alias, keep=keep)
    print("\n".join(f"{name} deleted" for name in gone) or "nothing to delete")


@index.command()
@click.argument("name")
@connection_options
def finish(connection: ConnectionSettings, name: str) -> None:
    """Finish an interrupted index as it is; it is then searched and refreshed like any other.

    A build of an alias does not serve yet: no ingest continues it any more, and `osn index serve` moves the alias to it.
    """
    from ingest.versions.unfinished import finish as take
    from opensearch_neural.index.record import existing_record

    client = connect(settings=connection)
    own_name = take(client, name)
    build = existing_record(client, own_name).build
    waits = build.get("waits") and not build.get("swapped")
    serves = f"; `osn index serve {build['alias']} {own_name}` moves the alias to it" if waits else ""
    print(f"{own_name} is complete{serves}")


@index.command()
@click.argument("name")
@connection_options
def abort(connection: ConnectionSettings, name: str) -> None:
    """Delete an interrupted index, or a build that never served. NAME: the index, or the alias of the build."""
    from ingest.versions.unfinished import abort as delete

    print(f"{delete(connect(settings=connection), name)} deleted")


@index.command("store-encoder")
@click.argument("name")
@click.option(
    "--sparse",
    metavar="MODEL",
    help="The sparse model that wrote the index, if this machine does not know it: a directory or hub id.",
)
@connection_options
def store_encoder(connection: ConnectionSettings, name: str, sparse: str | None) -> None:
    """Store the query encoder of an index on the cluster again, if it was lost there: searches need no model files then.

    It is read from the model that wrote the index, and another model is refused. Largest weights that are stored for the
    index are deleted, since they may be older than its documents; the next ingest asks for them.
    """
    from ingest.stored_query_data import store_encoder_again
    from opensearch_neural.index.hidden_index import INDEX

    stored = store_encoder_again(connect(settings=connection), name, sparse)
    print(f"the query encoder of {stored} is in {INDEX}")


def _counted(client: OpenSearch, version: Version) -> str:
    """The number of documents, or passages, of a build, in words."""
    from opensearchpy.exceptions import TransportError

    try:
        answer = client.count(index=version.index)
    except TransportError:
        return "its shards do not answer"
    missing = answer["_shards"]["total"] - answer["_shards"]["successful"]
    unit = "passages" if version.meta.passages else "documents"
    return f"{answer['count']:,} {unit}" + (f", and {missing} shards do not answer" if missing else "")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
