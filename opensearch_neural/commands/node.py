"""`osn node`: a local OpenSearch for trying things."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from opensearch_neural import node as local_node
from opensearch_neural.commands.option_groups import Renamed
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.node.clusters import DEFAULT_NAME, ClusterState, read_state
from opensearch_neural.node.java_and_jars import PROFILES

NAME = click.option(
    "--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster; several can run at once."
)


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group()
def node() -> None:
    """A local OpenSearch without Docker, on loopback only.

    \b
    osn node start                     one node at http://127.0.0.1:9200
    osn node start --nodes 3 --name three --port 9250
    osn node status
    osn node stop
    """
    if sys.platform == "win32":
        raise ClusterError("the local node runs on Linux and macOS only", "use docker compose up, or WSL")


@node.command()
@click.option("--profile", type=click.Choice(list(PROFILES)), help="full: 2.19.1 with k-NN and neural-search, Java 17 "
              "or later. core: 3.5.0 without plugins, Java 21 or later.  [default: full]")  # fmt: skip
@click.option("--nodes", type=int, help="Nodes, each a process of its own, in one cluster.  [default: 1]")
@click.option("--port", type=int, help="HTTP port of the first node; 0 takes any free port.  [default: 9200]")
@click.option(
    "--store",
    "--data",
    "data",
    cls=Renamed,
    type=click.Path(file_okay=False),
    help="Folder of the nodes' data.  [default: under $OSN_HOME]",
)
@click.option("--heap", help="Java heap of each node.  [default: 1g]")
@click.option(
    "--setting", "settings", multiple=True, metavar="KEY=VALUE", help="A line for opensearch.yml; repeatable."
)
@click.option(
    "--wait",
    "--timeout",
    "timeout",
    cls=Renamed,
    type=float,
    default=180.0,
    show_default=True,
    help="Seconds to wait for health.",
)
@NAME
def start(
    profile: str | None,
    nodes: int | None,
    port: int | None,
    data: str | None,
    heap: str | None,
    settings: tuple[str, ...],
    timeout: float,
    name: str,
) -> None:
    """Start a cluster, wait until it is healthy, and print its URL.

    The first start fetches the parts with Maven. A cluster that is running already is used as it is; nodes that died
    are started again with their data. A stopped cluster starts with its data and its earlier options, unless you give
    others. The defaults below are for new clusters.

    \b
    export OSN_URL=$(osn node start --heap 2g)
    """
    running = local_node.start(
        profile, nodes, port, data, heap, name=name, settings=_settings(settings) or None, timeout=timeout, report=_say
    )
    click.echo(running.url)


@node.command()
@click.option("--purge", is_flag=True, help="Also delete its data.")
@NAME
def stop(purge: bool, name: str) -> None:
    """Stop a cluster. Its data stays, unless --purge is given.

    \b
    osn node stop --purge
    """
    if read_state(name) is None:
        _say(f"there is no local cluster {name!r}")
        return
    ran = local_node.stop(name, purge=purge, report=_say)
    _say(f"{name!r} {'stopped' if ran else 'did not run'}{', its data removed' if purge else ''}")


@node.command()
@click.option("--name", help="This cluster only.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list, one object a cluster.")
def status(name: str | None, as_json: bool) -> None:
    """List the local clusters, with address and health.

    \b
    osn node status --json
    """
    clusters = local_node.status(name)
    if as_json:
        click.echo(json.dumps([_described(cluster, health) for cluster, health in clusters], indent=2))
        return
    if not clusters:
        click.echo("no local cluster" if name is None else f"no local cluster {name!r}")
    for cluster, health in clusters:
        running = cluster.running
        state = health or ("no answer" if running else "stopped")
        click.echo(
            f"{cluster.name}  {cluster.url}  {state}  {cluster.profile} {cluster.version}  heap {cluster.heap}  "
            f"{len(running)} of {len(cluster.nodes)} running  data {cluster.data}"
        )
        for member in cluster.nodes:
            click.echo(f"  node {member.index}  {member.url}  {f'pid {member.pid}' if member in running else 'down'}")


def _described(cluster: ClusterState, health: str | None) -> dict[str, Any]:
    members = [
        {
            "index": member.index,
            "url": member.url,
            "pid": member.pid,
            "running": cluster.is_up(member),
            "log": str(cluster.log(member)),
        }
        for member in cluster.nodes
    ]
    known = {key: getattr(cluster, key) for key in ("name", "url", "profile", "version", "heap", "data")}
    return {**known, "health": health, "nodes": members}


@node.command()
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@click.option("--node", "index", type=int, default=1, show_default=True, help="Number of the node, from 1.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="Existing lines to print first."
)
@NAME
def logs(follow: bool, index: int, lines: int, name: str) -> None:
    """Print the log of a node.

    \b
    osn node logs -f --node 2
    """
    for line in local_node.logs(name, node=index, lines=lines, follow=follow):
        click.echo(line)


def _settings(options: tuple[str, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for setting in options:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InputError(
                f"--setting {setting!r} is not KEY=VALUE",
                "for example --setting indices.query.bool.max_clause_count=2048",
            )
        settings[key] = value
    return settings
