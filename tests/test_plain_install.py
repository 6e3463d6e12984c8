"""The plain package, alone in a virtual environment of its own, builds and sends a sparse query.

`make release-check` installs the sdist and the wheel that would be published instead, each in an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opensearch_neural.models.sparse.lexical import build_lexical

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

pytestmark = pytest.mark.cluster

TEXTS = ["A rainbow is caused by light in drops of rain.", "A file is opened for reading.", "Whales swim in the ocean."]

APPLICATION = """
import importlib.util, os, sys
from opensearch_neural import QueryEncoder, connect, queries

extras = "torch transformers sentence_transformers scipy faiss bm25s ir_measures datasets boto3 aiohttp onnxruntime"
present = [name for name in extras.split() if importlib.util.find_spec(name)]
assert not present, present
encoder = QueryEncoder.load(sys.argv[1])
tokens = encoder.encode("what causes a rainbow")
client = connect(os.environ["OSN_URL"])
for body in (queries.neural_sparse(tokens, plugin=False), queries.high_idf_first(tokens, plugin=False)):
    print(*(hit["_id"] for hit in client.search(index=sys.argv[2], body=body)["hits"]["hits"]))
"""


def runs(python: str | None) -> bool:
    """Whether there is this interpreter. A shim may be on the PATH without one behind it."""
    return python is not None and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


PYTHONS = [
    python for name in os.environ.get("OSN_PYTHONS", sys.executable).split() if runs(python := shutil.which(name))
]
"""`make test-pythons` names several."""


ROOT = Path(__file__).parent.parent
PACKAGES = ("opensearch_neural", "trainers", "ingest", "benchmarks")
ARCHIVES = os.environ.get("OSN_ARCHIVES", "").split() or ["source"]
"""What is installed: the source as it stands, or with `make release-check` "sdist" and "wheel"."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, since building in the tree would leave build/ and *.egg-info in it."""
    source = tmp_path_factory.mktemp("source") / "project"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    return source


@pytest.fixture(scope="module", params=ARCHIVES)
def installable(source: Path, request: pytest.FixtureRequest) -> Path:
    """What pip is given: the folder, or the archive that `build` makes of it, the wheel out of the sdist."""
    if request.param == "source":
        return source
    dist = source.parent / "dist"
    if not dist.exists():
        done = subprocess.run([sys.executable, "-m", "build", "--outdir", dist, source], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = dist.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[request.param])
    return archive


@pytest.fixture(scope="module", params=PYTHONS)
def plain_python(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, source: Path, installable: Path
) -> Path:
    """The interpreter of a new virtual environment that holds the package with its own requirements and no extra."""
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([request.param, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    done = subprocess.run([*pip, "-c", ROOT / "constraints.txt", installable], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if not Path(request.param).samefile(sys.executable):  # whose compiler the tests have shown every module
        packages = [source / name for name in PACKAGES]
        done = subprocess.run([python, "-m", "compileall", "-q", *packages], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    return python


def test_the_plain_package_builds_and_sends_a_sparse_query(
    plain_python: Path, client: OpenSearch, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    encoder = build_lexical(TEXTS)
    encoder.save(tmp_path / "model")
    query_side = tmp_path / "query"
    query_side.mkdir()
    for name in ("tokenizer.json", "idf.json"):
        shutil.copy(tmp_path / "model" / name, query_side)

    client.indices.create(index=index_name, body={"mappings": {"properties": {"sparse": {"type": "rank_features"}}}})
    for i, row in enumerate(encoder.encode_documents(TEXTS).rows()):
        # A field name with a dot is split there; the plain `.` token is ingest's business, not this test's.
        features = {token: weight for token, weight in row.items() if "." not in token}
        client.index(index=index_name, id=str(i), body={"sparse": features})
    client.indices.refresh(index=index_name)

    done = subprocess.run(
        [plain_python, "-c", APPLICATION, query_side, index_name],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OSN_URL": cluster_url, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    neural_sparse, high_idf_first = (line.split() for line in done.stdout.splitlines())
    assert neural_sparse == ["0", "1"]
    assert high_idf_first[0] == "0"


def test_the_plain_package_ingests_with_the_lexical_model_and_searches(
    plain_python: Path, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)))

    def osn(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [plain_python.with_name("osn"), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OSN_URL": cluster_url, "OSN_HOME": str(tmp_path / "home"), "PYTHONPATH": ""},
        )

    done = osn("ingest", "--corpus", corpus, "--index", index_name, "--sparse", "lexical", "--replicas", "0")
    assert done.returncode == 0, done.stderr
    done = osn("search", "--index", index_name, "--json", "what causes a rainbow")
    assert json.loads(done.stdout)["hits"][0]["id"] == "d0", done.stderr
    # What the package has no libraries for is listed, and names what to install.
    done = osn("train", "--help")
    assert done.returncode == 0, done.stderr
    assert "(not installed: needs " in done.stdout
    dense = tmp_path / "dense"
    dense.mkdir()
    train = ["train", "dense", "--set", f"train=[{{path: {corpus}}}]", "--output", tmp_path / "model"]
    for command in (train, ["ingest", "--corpus", corpus, "--index", f"{index_name}-2", "--dense", dense]):
        done = osn(*command)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert 'pip install "opensearch-neural[' in done.stderr


def test_the_readmes_application_runs_on_the_plain_package(
    plain_python: Path, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    (application,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    corpus = tmp_path / "docs.jsonl"
    rows = [{"_id": f"d{at}", "title": f"Title {at}", "text": text} for at, text in enumerate(TEXTS)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    here = {**os.environ, "OSN_URL": cluster_url, "OSN_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    for shown, meant in (
        ("http://localhost:9200", cluster_url),
        ('"docs"', f'"{index_name}"'),
        ("medications to treat obesity have unwanted side effects", "what causes a rainbow"),
    ):
        assert shown in application
        application = application.replace(shown, meant)
    osn = plain_python.with_name("osn")
    for command in (
        [osn, "--version"],
        [osn, "ingest", corpus, "--index", index_name, "--sparse", "lexical", "--replicas", "0"],
        [osn, "search", "--index", index_name, "--explain", "what causes a rainbow"],
        [plain_python, "-c", application],
    ):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=here)
        assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(r"\d+\.\d  Title 0", first), done.stdout


def test_the_plain_package_names_the_extra_that_documents_need(plain_python: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    shutil.copy(_any_tokenizer(tmp_path), tmp_path / "tokenizer.json")
    (tmp_path / "idf.json").write_text('{"rainbow": 2.0}')
    script = "import sys; from opensearch_neural.models.sparse.encoder import load_sparse; load_sparse(sys.argv[1])"
    done = subprocess.run([plain_python, "-c", script, tmp_path], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert 'pip install "opensearch-neural[encode]"' in done.stderr


def _any_tokenizer(folder: Path) -> Path:
    build_lexical(["a rainbow in the sky, a rainbow"]).save(folder / "lexical")
    return folder / "lexical" / "tokenizer.json"
