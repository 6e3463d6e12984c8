"""What the tests stand on: a real OpenSearch, and nothing in its place.

`cluster_url` is OSN_URL where that is set, else a container where a Docker engine answers, else the local node. Where
none of them can be had the tests that need one fail and say what is missing; they are never skipped.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drill
import hypothesis
import pytest

from opensearch_neural import node
from opensearch_neural.errors import OsnError
from opensearch_neural.home import home
from opensearch_neural.node import clusters, configuration

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

# As the `osn` command sets it, and before anything imports torch: see opensearch_neural/cli.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Beside other processes of tests, threads of one computation wait for each other: a training took twice as long with two.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# The nodes of tests live for minutes, so that Java's second compiler costs more than it gains: half of what a start takes.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")

# A shell starts what runs in its background with interrupts ignored, and so would the commands that are interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that a failure is a change's own; HYPOTHESIS_PROFILE=random looks for new ones.
# How fast examples are made is the machine's, which may be busy, and no failure.
BUSY = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "fixed", derandomize=True, database=None, deadline=None, suppress_health_check=BUSY
)
hypothesis.settings.register_profile("random", deadline=None, suppress_health_check=BUSY)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def _own_home() -> None:
    """What a test run remembers of its models goes with it; only the node's files, which take minutes to fetch, are those of
    whoever runs it. The processes of xdist have the home of the process that starts them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    kept = home().resolve() / "node"
    own = tempfile.mkdtemp(prefix="osn-tests-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    with suppress(OSError):  # `node.start` says what is wrong with the folder
        kept.mkdir(parents=True, exist_ok=True)
        Path(own, "node").symlink_to(kept, target_is_directory=True)
    os.environ["OSN_HOME"] = own


_own_home()

TESTS = Path(__file__).resolve().parent
COMPOSE = TESTS.parent / "docker-compose.yml"
BENCHMARKS = TESTS / "benchmarks"
ALWAYS_TESTED = ("demo", "test_docs_tables.py", "test_render.py")
"""What any change may break in benchmarks: the demo, and the pages with the recorded results."""
CLUSTER_FIXTURES = {"cluster_url", "client", "index_name", "three_nodes"}


@pytest.hookimpl(optionalhook=True)  # pytest without xdist knows no such hook
def pytest_xdist_auto_num_workers() -> int | None:
    """Two for each core, since most tests wait for a cluster longer than they compute, and as far as memory goes: a process
    and its node may take 3 GiB. PYTEST_XDIST_AUTO_NUM_WORKERS says otherwise, as ever."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # of a container that has a limit of its own
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(1, min(8, 2 * cores, memory // (3 << 30)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Each process begins to read at another file. pytest rewrites the assertions of a file that was changed or is new,
    and keeps the outcome: of processes that read the same file at the same time, each would rewrite it.

    Meanwhile Python looks for no garbage, which took a third of the time: what is imported stays."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if number and [Path(given).resolve() for given in session.config.args] == [TESTS]:
        ignored = session.config.hook.pytest_ignore_collect  # with --ignore, which pytest does not apply to named files
        files = [
            each
            for each in sorted(TESTS.rglob("test_*.py"))
            if not any(
                ignored(collection_path=at, config=session.config)
                for at in (each, *each.parents)
                if TESTS in at.parents
            )
        ]
        first = len(files) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        session.config.args = list(map(str, files[first:] + files[:first]))
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` does not read the files of which it would run no test: each of its processes would import them."""
    return True if config.option.markexpr == "not bench" and _of_benchmarks(collection_path) else None


def pytest_collection_finish() -> None:
    _keep_what_was_imported()


def pytest_runtest_logfinish() -> None:
    # transformers, sentence-transformers and others are imported by the first test that needs them.
    if len(sys.modules) > _kept_modules + 50:
        _keep_what_was_imported()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


_kept_modules = 0


def _keep_what_was_imported() -> None:
    """What was imported until now stays. Every training ends with `gc.collect()`, which would go through all of it.

    What fixtures hold meanwhile stays, too, if it refers to itself: until the session ends."""
    global _kept_modules
    _kept_modules = len(sys.modules)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`pytest -m "not cluster"` is then every test that runs without a cluster."""
    for item in items:
        if CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
        if drill.item_of(item.nodeid) is not None or item.path.name == "test_public_shapes.py":
            item.add_marker(pytest.mark.drill)
        if _of_benchmarks(item.path):
            item.add_marker(pytest.mark.bench)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Files that need a cluster or train take longest. The short ones come last, so that no process waits for another.
        of_cluster = {item.path for item in items if item.get_closest_marker("cluster")}
        items.sort(key=lambda item: (item.path not in of_cluster and "trainers" not in item.path.parts, item.path))


def _of_benchmarks(path: Path) -> bool:
    return (
        BENCHMARKS in path.parents
        and path.name != "conftest.py"
        and path.relative_to(BENCHMARKS).parts[0] not in ALWAYS_TESTED
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With `-m drill`, a line on each thing that docs/ingest.md counts."""
    if "drill" not in config.option.markexpr:
        return
    stats = terminalreporter.stats
    reports = [report for kind in ("passed", "failed", "error", "skipped") for report in stats.get(kind, [])]
    terminalreporter.section("drill")
    for line in drill.lines(reports):
        terminalreporter.write_line(line)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting and no netrc file of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("OSN_", "AWS_")) or name == "NETRC":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    """The URL of a cluster with at least one node. Tests share it, so each uses indexes of its own."""
    if url := os.environ.get("OSN_URL"):
        yield url
    elif _docker_answers():
        yield from _container()
    else:
        yield from (running.url for running in _local_cluster(f"osn-tests-{os.getpid()}", nodes=1, heap="1g"))


@pytest.fixture(scope="session")
def client(cluster_url: str) -> Iterator[OpenSearch]:
    """An opensearch-py client of the test cluster, with the credentials of the environment where OSN_URL needs any."""
    from opensearch_neural.cluster.connect import connect

    connected = connect(cluster_url)
    yield connected
    connected.close()


@pytest.fixture
def index_name(client: OpenSearch) -> Iterator[str]:
    """A name that no index has. It, and every index whose name begins with it, is deleted afterwards."""
    name = f"osn-test-{uuid.uuid4().hex[:12]}"
    yield name
    # By their names, since a cluster may refuse to delete by pattern.
    for left in client.indices.get(index=f"{name}*", expand_wildcards="all"):
        client.indices.delete(index=left)


@pytest.fixture(scope="module")  # three nodes that nobody uses any more would take time and memory
def _three_nodes() -> Iterator[node.ClusterState]:
    # Its nodes are killed and started again on their ports: away from those that other tests' clusters take meanwhile.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    (port,) = clusters.free_ports(1, 9600 + 20 * worker, set())
    yield from _local_cluster(f"osn-tests-three-{os.getpid()}", nodes=3, heap="512m", port=port)


@pytest.fixture
def three_nodes(_three_nodes: node.ClusterState) -> node.ClusterState:
    """Three local nodes in one cluster, all of them up: what an earlier test killed is started again.

    `kill_node(2, three_nodes.name)` kills one, `node.start(name=three_nodes.name, attached=True)` restarts it.
    Always the local node, whatever OSN_URL says: nobody's own cluster is killed by a test.
    """
    return node.start(name=_three_nodes.name, attached=True)


def _local_cluster(name: str, **options: Any) -> Iterator[node.ClusterState]:
    # Attached: should pytest be killed, the nodes and their data go with it.
    try:
        running = node.start(name=name, attached=True, **{"port": 0, **options})
    except OsnError as failed:
        error = failed
    else:
        yield running
        node.stop(name, purge=True)
        return
    pytest.fail(f"the tests need an OpenSearch (set OSN_URL to use your own): {error}", pytrace=False)


def _docker_answers() -> bool:
    import docker
    import docker.errors

    try:
        engine = docker.from_env(timeout=10)
        try:
            return bool(engine.ping())
        finally:
            engine.close()
    except docker.errors.DockerException:
        return False


def _container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    # The image stands in one place.
    (image,) = re.findall(r"^\s*image: (\S+)$", COMPOSE.read_text(), re.MULTILINE)
    container = DockerContainer(image).with_exposed_ports(9200)
    for name, value in {
        "discovery.type": "single-node",
        **configuration.DISK_WATERMARKS,
        "DISABLE_SECURITY_PLUGIN": "true",
        "DISABLE_INSTALL_DEMO_CONFIG": "true",
        "OPENSEARCH_JAVA_OPTS": "-Xms1g -Xmx1g",
    }.items():
        container = container.with_env(name, value)
    with container:
        url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(9200)}"
        _wait_until_healthy(url, seconds=180)
        yield url


def _wait_until_healthy(url: str, seconds: float) -> None:
    from opensearchpy import OpenSearch
    from opensearchpy.exceptions import OpenSearchException

    asked = OpenSearch(url, timeout=10)
    deadline = time.monotonic() + seconds
    while True:
        try:
            asked.cluster.health(params={"wait_for_status": "yellow"})
            return
        except OpenSearchException as error:
            if time.monotonic() > deadline:
                pytest.fail(f"the container at {url} is not healthy after {seconds:.0f} s: {error}", pytrace=False)
            time.sleep(1.0)
