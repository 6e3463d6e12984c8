"""Credentials stay where they belong, nothing of others runs, and no path leads out.

Secrets are looked for in everything that the commands leave behind: output, files, the process list, what the cluster
was sent and what it stores. That the local node listens on loopback only is held in tests/node/test_start_and_stop.py.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import pickle
import shutil
import ssl
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import trustme
from cluster_servers import Answer, Request, closed_port, forbidding_proxy, http_server

from opensearch_neural import QueryEncoder
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, ModelError
from opensearch_neural.models import registry
from opensearch_neural.models.sparse.word_pieces import train_word_pieces

ROOT = Path(__file__).parents[2]
USER, SECRET, TOKEN = "reader", "s3cret/pa:ss@wörd", "t0ken-8f14e45fceea167a"

TEXTS = ["A rainbow is caused by refraction of light.", "Trout live in rivers.", "The sun shines when it rains."]


def forms(secret: str) -> set[str]:
    """A secret as it could turn up: plain, in a URL, in a header, in JSON, in a repr."""
    pair = f"{USER}:{secret}".encode()
    encoded = {base64.b64encode(pair).decode(), base64.b64encode(secret.encode()).decode()}
    latin = base64.b64encode(f"{USER}:{secret}".encode("latin-1")).decode()
    written = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    return {*encoded, latin, *written, repr(secret)[1:-1], ascii(secret)[1:-1]}


FORMS = forms(SECRET) | forms(TOKEN)


def leaks(text: str | bytes) -> set[str]:
    found = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return {form for form in FORMS if form in found}


def environment(home: Path, **given: str) -> dict[str, str]:
    """A user's environment with a home of its own, and nobody's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OSN_", "AWS_"))}
    return {**kept, "HOME": str(home), "OSN_HOME": str(home / "osn"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", **given}


# ---------------------------------------------------------------------------------------------------------- credentials


@dataclass
class Watched:
    """What a run of commands showed: outputs by command, every command line of the machine, what the cluster was sent."""

    folder: Path
    index: str
    outputs: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    command_lines: set[bytes] = field(default_factory=set)
    requests: list[Request] = field(default_factory=list)
    admitted: int = 0


def _watch_processes(seen: set[bytes], stop: threading.Event) -> None:
    while not stop.wait(0.05):
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.add(place.read_bytes())
            except OSError:
                continue


@pytest.fixture(scope="module")
def watched(client, cluster_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The commands of a working day, against the real cluster behind a proxy that wants the password or the token."""
    folder = tmp_path_factory.mktemp("secrets")
    watched = Watched(folder, f"osn-test-security-{uuid.uuid4().hex[:12]}")
    allowed = {
        f"Basic {base64.b64encode(f'{USER}:{SECRET}'.encode()).decode()}",
        f"Bearer {TOKEN}",
    }

    def guard(request: Request) -> Answer | None:
        # The cluster behind has no security plugin; what gets through is counted, and its header goes no further.
        if request.headers.pop("authorization", None) in allowed:
            watched.admitted += 1
            return None
        return Answer.of_json({"error": "Unauthorized"}, 401)

    data = _beir(folder / "data")
    stop = threading.Event()
    watcher = threading.Thread(target=_watch_processes, args=(watched.command_lines, stop))
    with forbidding_proxy(cluster_url, guard, watched.requests) as url:
        by_password = {"OSN_URL": url, "OSN_USER": USER, "OSN_PASSWORD": SECRET}
        in_url = url.replace("http://", f"http://{USER}:{quote(SECRET, safe='')}@")
        index, osn = ["--index", watched.index], str(Path(sys.executable).with_name("osn"))
        evaluated = ["eval", *index, "--data", str(data), "--engines", "bm25,sparse", "--timed", "0"]
        commands: dict[str, tuple[list[str], dict[str, str]]] = {
            "doctor": (["doctor"], by_password),
            "ingest": (
                ["ingest", "--corpus", str(data / "corpus.jsonl"), *index, "--sparse", "lexical", "--replicas", "0"],
                by_password,
            ),
            "stopped": (
                ["ingest", "--corpus", str(data / "bad.jsonl"), *index, "--max-errors", "0", "--restart"],
                by_password,
            ),
            "search": (["search", *index, "--explain", "rainbow"], by_password),
            "token": (["search", *index, "--json", "rainbow"], {"OSN_URL": url, "OSN_TOKEN": TOKEN}),
            "eval": ([*evaluated, "--record", "results/by-password"], by_password),
            "eval in url": ([*evaluated, "--url", in_url, "--record", "results/in-url"], {}),
            "wrong password": (["search", *index, "rainbow"], {**by_password, "OSN_USER": "another"}),
            "unreachable": (["search", *index, "rainbow"], {**by_password, "OSN_URL": closed_port()}),
            "bad url": (["doctor", "--url", f"htp://{USER}:{SECRET}@nowhere:1"], {}),
            "node": (["node", "status"], by_password),
        }
        watcher.start()
        try:
            for name, (arguments, given) in commands.items():
                if name in ("eval in url", "bad url"):
                    # These show the secret on their own command line, which is what their warning is about.
                    stop.set()
                    watcher.join()
                watched.outputs[name] = subprocess.run(
                    [osn, *arguments],
                    env=environment(folder, **given),
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=180,
                    check=False,
                )
                if stop.is_set():
                    stop.clear()
                    watcher = threading.Thread(target=_watch_processes, args=(watched.command_lines, stop))
                    watcher.start()
        finally:
            stop.set()
            watcher.join()
    yield watched
    client.indices.delete(index=watched.index, ignore=[404])


def _beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{number}", "title": "", "text": text} for number, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "bad.jsonl").write_text("no json\n" * 3)
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q0", "text": "rainbow light"}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")
    return folder


@pytest.mark.cluster
def test_the_commands_did_their_work_with_the_credentials(watched: Watched) -> None:
    """Without this, that no secret is found would say nothing."""
    done = {name: output.returncode for name, output in watched.outputs.items()}
    worked = ("ingest", "search", "token", "eval", "eval in url")
    assert [name for name in worked if done[name] != 0] == [], watched.outputs["eval in url"].stderr
    assert [name for name in ("stopped", "wrong password", "unreachable", "bad url") if done[name] == 0] == []
    assert watched.admitted > 20
    assert "401" in watched.outputs["wrong password"].stderr
    assert list(watched.folder.glob("*dead-letters*"))
    assert list((watched.folder / "results").rglob("summary.json"))


@pytest.mark.cluster
def test_no_output_shows_a_secret(watched: Watched) -> None:
    shown = {
        name: leaks(output.stdout) | leaks(output.stderr)
        for name, output in watched.outputs.items()
        if leaks(output.stdout) | leaks(output.stderr)
    }
    assert shown == {}
    assert not [name for name, output in watched.outputs.items() if "Traceback" in output.stderr]


@pytest.mark.cluster
def test_no_file_holds_a_secret(watched: Watched) -> None:
    """Journals, dead letters, result files, models, node state, logs, caches: whatever the commands left anywhere."""
    files = [file for file in watched.folder.rglob("*") if file.is_file()]
    assert {".jsonl", ".json"} <= {file.suffix for file in files}
    assert [str(file) for file in files if leaks(file.read_bytes())] == []
    assert [str(file) for file in files if leaks(str(file))] == []


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the process list is read from /proc")
def test_no_process_shows_a_secret_on_its_command_line(watched: Watched) -> None:
    assert any(b"osn\0search" in line for line in watched.command_lines)
    assert [line for line in watched.command_lines if leaks(line)] == []


@pytest.mark.cluster
def test_the_cluster_gets_a_secret_in_one_header_and_stores_none(client, watched: Watched) -> None:
    for request in watched.requests:
        # The guard took the header that they belong into.
        assert leaks(request.path) | leaks(request.body) | leaks(json.dumps(request.headers)) == set()
    index = client.indices.get(index=watched.index)
    assert index[watched.index]["mappings"]["_meta"]["osn"]
    hits = client.search(index=watched.index, body={"size": 1000})["hits"]
    state = client.cluster.state(metric="metadata")  # settings, templates, pipelines, stored scripts
    assert leaks(json.dumps([index, hits, state], ensure_ascii=False)) == set()


@pytest.mark.cluster
def test_no_log_line_of_any_level_holds_a_secret(cluster_url: str, tmp_path: Path) -> None:
    """With every logger of every library at DEBUG, on requests that work and on one that is refused, with reprs."""
    script = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
client = connect()
print(repr(ConnectionSettings.from_env()), ConnectionSettings.from_env(), client, client.transport)
print(client.transport.connection_pool.connections)
client.cluster.health()
try:
    client.search(index="osn-test-absent", body={"query": {"nope": {}}})
except Exception as error:
    logging.exception("refused: %r", error)
"""
    for given in ({"OSN_USER": USER, "OSN_PASSWORD": SECRET}, {"OSN_TOKEN": TOKEN}):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment(tmp_path, OSN_URL=cluster_url, **given),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "DEBUG" in done.stdout
        assert leaks(done.stdout) | leaks(done.stderr) == set()


def test_a_node_is_started_without_the_credentials_of_its_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from opensearch_neural.node import processes

    for name in ("OSN_PASSWORD", "OSN_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    passed_on = processes.environment()
    assert "PATH" in passed_on
    assert leaks(json.dumps(passed_on, ensure_ascii=False)) == set()


# ------------------------------------------------------------------------------------------------------------------ TLS


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """A function from the host name of a certificate to a server that has it; and the file of its authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    opened: list[Any] = []

    def start(host: str) -> Any:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(host).configure_cert(context)
        info = {"version": {"distribution": "opensearch", "number": "2.19.1"}, "cluster_name": "c"}
        server = http_server(lambda _: Answer.of_json(info), context)
        opened.append(server)
        return server.__enter__()

    yield start
    for server in opened:
        server.__exit__(None, None, None)


def osn(home: Path, *arguments: str, stdin: str = "", **given: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("osn")), *arguments]
    return subprocess.run(
        command,
        env=environment(home, **given),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        input=stdin,
    )


def test_certificates_are_verified_unless_the_user_says_otherwise(tls_server, tmp_path: Path) -> None:
    """Before a certificate is found good no request is sent, and so no password."""
    assert ConnectionSettings().verify is True
    given = {"OSN_USER": USER, "OSN_PASSWORD": SECRET}
    unknown, elsewhere = tls_server("127.0.0.1"), tls_server("elsewhere.example")
    for server, trusted in ((unknown, {}), (elsewhere, {"OSN_CA": str(tmp_path / "ca.pem")})):
        done = osn(tmp_path, "doctor", OSN_URL=server.url, **given, **trusted)
        assert done.returncode != 0
        assert "certificate" in done.stderr + done.stdout
        assert server.requests == []
    trusted_done = osn(tmp_path, "search", "--index", "x", "y", OSN_URL=unknown.url, OSN_CA=str(tmp_path / "ca.pem"))
    assert unknown.requests, trusted_done.stderr
    assert "certificate" not in trusted_done.stderr
    elsewhere.requests.clear()
    insecure = osn(tmp_path, "search", "--index", "x", "--insecure", "y", OSN_URL=elsewhere.url)
    assert elsewhere.requests
    assert "certificate" in insecure.stderr.lower()  # the warning


# ------------------------------------------------------------------------------------------------- nothing of others runs


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that shows that something ran. First it is seen to be left by the bomb, then removed."""
    marker = tmp_path / "it-ran"
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()
    marker.unlink()
    return marker


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small masked language model with its table, as a directory that loads."""
    pytest.importorskip("torch", reason="needs the extra [encode]")
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "harmless"
    tokenizer = BertTokenizerFast(tokenizer_object=train_word_pieces(TEXTS * 3, 300), model_max_length=64)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    (folder / "idf.json").write_text('{"rainbow": 3.0}')
    return folder


@pytest.fixture
def model(harmless: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(harmless, tmp_path / "model"))


def _loaders() -> dict[str, Callable[[Path], Any]]:
    from opensearch_neural.models.dense.onnx_encoder import export_onnx
    from opensearch_neural.models.dense.torch_encoder import load_dense
    from opensearch_neural.models.sparse.encoder import load_sparse

    return {"sparse": load_sparse, "dense": load_dense, "onnx": export_onnx}


LOADERS = ("sparse", "dense", "onnx")


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "model.pt", "weights.ckpt"])
def test_a_directory_of_pickled_weights_is_refused_and_nothing_is_unpickled(
    model: Path, marker: Path, loader: str, name: str
) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps({"weight": Bomb(marker)}))
    with pytest.raises(ModelError, match="pickled weights are not read"):
        _loaders()[loader](model)
    assert not marker.exists()


@pytest.mark.parametrize("loader", LOADERS)
def test_safetensors_of_something_else_do_not_let_a_pickle_through(model: Path, marker: Path, loader: str) -> None:
    (model / "model.safetensors").rename(model / "adapter.safetensors")
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb(marker)}))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickled weights are not read"):
        _loaders()[loader](model)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "heads.pt"])
def test_a_pickle_beside_the_safetensors_is_left_alone(model: Path, marker: Path, name: str) -> None:
    (model / name).write_bytes(pickle.dumps({"weight": Bomb(marker)}))
    encoder = _loaders()["sparse"](model)
    assert encoder.encode_documents(["rainbow"]).row(0)
    assert not marker.exists()


def test_a_pickled_adapter_is_refused_beside_the_safetensors_of_its_network(model: Path, marker: Path) -> None:
    (model / "adapter_model.bin").write_bytes(pickle.dumps({"weight": Bomb(marker)}))
    with pytest.raises(ModelError, match="pickled weights are not read"):
        _loaders()["sparse"](model)
    assert not marker.exists()


def test_the_query_side_of_a_model_reads_no_pickle(model: Path, marker: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    assert QueryEncoder.load(model).encode("rainbow") == {"rainbow": 3.0}
    route = model / "query"
    route.mkdir()
    (route / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    shutil.copy(model / "tokenizer.json", route)
    (route / "config.json").write_text("{}")
    types = "sentence_transformers.sparse_encoder.modules.SparseStaticEmbedding"
    (model / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "query", "type": types}]))
    with pytest.raises(ModelError, match="pickled weights are not read"):
        QueryEncoder.load(model)
    assert not marker.exists()


@pytest.mark.parametrize("loader", LOADERS)
def test_code_that_a_model_brings_along_is_not_run_even_if_standard_input_says_yes(
    model: Path, marker: Path, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not told otherwise, transformers asks on standard input whether to run it; a pipe into `osn` may well say "y"."""
    config = json.loads((model / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model", "AutoModel": "own.Model"}
    (model / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
    (model / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 50))
    with pytest.raises(ModelError, match=r"code of its own|custom code"):
        _loaders()[loader](model)
    assert not marker.exists()
    assert sys.stdin.read() == "y\n" * 50


def test_a_refused_model_ends_a_command_with_a_message(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    (tmp_path / "docs.jsonl").write_text('{"_id": "1", "text": "rainbow"}\n')
    done = osn(tmp_path, "encode", "--corpus", "docs.jsonl", "--out", "out", "--sparse", str(model))
    assert done.returncode == 1
    assert "pytorch_model.bin: pickled weights are not read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_of_a_models_own_is_refused(model: Path, marker: Path) -> None:
    (model / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass Module: pass\n")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "own.Module"}]
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"'own\.Module' is code of the model"):
        _loaders()["dense"](model)
    (model / "modules.json").write_text(json.dumps([{**modules[0], "type": "sentence_transformers.models.Router"}]))
    router = {"types": {"a": "own.Module"}, "structure": {"document": ["a"]}, "parameters": {}}
    (model / "router_config.json").write_text(json.dumps(router))
    with pytest.raises(ModelError, match="is code of the model"):
        _loaders()["dense"](model)
    assert not marker.exists()


FORBIDDEN_CALLS = {
    "pickle.load",
    "pickle.loads",
    "torch.load",
    "joblib.load",
    "yaml.load",
    "yaml.unsafe_load",
    "os.system",
    "os.popen",
    "eval",
    "exec",
    "extractall",
}


def _where_trust_is_asked_for(tree: ast.AST) -> set[ast.Call]:
    """Calls that pass on `trust_remote_code` of a function whose own default is False."""
    asked: set[ast.Call] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        defaults = {argument.arg: ast.unparse(default) for argument, default in named if default is not None}
        if defaults.get("trust_remote_code") == "False":
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            passed_on = "trust_remote_code=trust_remote_code"
            asked |= {call for call in calls if passed_on in [ast.unparse(keyword) for keyword in call.keywords]}
    return asked


def test_no_source_file_unpickles_runs_a_shell_or_switches_a_check_off() -> None:
    found = []
    packages = ("opensearch_neural", "ingest", "trainers", "benchmarks")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    assert len(files) > 50
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        asked = _where_trust_is_asked_for(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            wrong = {
                called: called in FORBIDDEN_CALLS or called.endswith(".extractall"),
                "shell=True": given.get("shell") == "True",
                "allow_pickle=True": given.get("allow_pickle") == "True",
                "trust_remote_code=True": given.get("trust_remote_code") == "True",
                "verify=False": given.get("verify") == "False" or given.get("verify_certs") == "False",
                "numpy.load without allow_pickle=False": called in ("np.load", "numpy.load")
                and given.get("allow_pickle") != "False",
                # A benchmark loads the one model that it is about.
                "from_pretrained without trust_remote_code=False": called.endswith(".from_pretrained")
                and given.get("trust_remote_code") != "False"
                and node not in asked
                and file.relative_to(ROOT).parts[0] != "benchmarks",
            }
            found += [f"{file.relative_to(ROOT)}:{node.lineno}: {what}" for what, is_wrong in wrong.items() if is_wrong]
    assert found == []


# ---------------------------------------------------------------------------------------------------- no path leads out


def test_an_index_of_weights_names_files_beside_it_only(model: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    outside = tmp_path / "outside"
    outside.mkdir()
    with safe_open(model / "model.safetensors", framework="numpy") as tensors:
        names = list(tensors.keys())
    (model / "model.safetensors").rename(outside / "model.safetensors")
    for place in ("../outside/model.safetensors", str(outside / "model.safetensors"), "..", ""):
        content = {"metadata": {}, "weight_map": dict.fromkeys(names, place)}
        (model / "model.safetensors.index.json").write_text(json.dumps(content))
        with pytest.raises(ModelError, match="lie outside this folder"):
            _loaders()["sparse"](model)


@pytest.mark.parametrize("place", ["../outside", "/outside", "a/../../outside"])
def test_a_module_path_that_leaves_the_directory_is_refused(model: Path, tmp_path: Path, place: str) -> None:
    outside = Path(shutil.copytree(model, tmp_path / "outside"))
    place = place.replace("/outside", str(outside)) if place == "/outside" else place
    kind = "sentence_transformers.base.modules.Transformer"
    (model / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": place, "type": kind}]))
    for load in (_loaders()["dense"], _loaders()["sparse"], QueryEncoder.load):
        with pytest.raises(ModelError, match="leaves the model directory"):
            load(model)


@pytest.mark.parametrize("hash", ["../../evil", "/etc", "..", ".", "", "a/b", "a\\b", ".hidden", "a" * 65, "a\0b"])
def test_a_hash_of_an_indexs_record_is_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hash: str) -> None:
    monkeypatch.setenv("OSN_HOME", str(tmp_path / "home"))
    (tmp_path / "evil").mkdir()
    with pytest.raises(ModelError, match="is no hash of a model"):
        registry.find(hash, "lexical-x", "sparse")
    with pytest.raises(ModelError, match="is no hash of a model"):
        registry.remember(hash, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


@pytest.mark.cluster
def test_an_index_cannot_make_a_search_load_a_directory_of_its_choice(
    client, cluster_url: str, index_name: str, model: Path, tmp_path: Path
) -> None:
    record = {"name": "lexical-x", "hash": str(model), "query_hash": QueryEncoder.load(model).hash}
    mapping = {
        "_meta": {"osn": {"format": 1, "analyzer": "english", "version": "", "sparse": record}},
        "properties": {"sparse": {"type": "rank_features"}, "contents": {"type": "text"}},
    }
    client.indices.create(index=index_name, body={"settings": {"number_of_replicas": 0}, "mappings": mapping})
    done = osn(tmp_path, "search", "--url", cluster_url, "--index", index_name, "rainbow")
    assert done.returncode == 1
    assert "is no hash of a model" in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("named", ["a folder", "a hub id"])
def test_an_index_cannot_make_a_search_fetch_or_read_a_model_by_its_name(
    client, cluster_url: str, index_name: str, model: Path, tmp_path: Path, named: str
) -> None:
    """Before: a folder was read, and a repository fetched, before any hash was compared."""
    loaded = QueryEncoder.load(model)
    name = str(model) if named == "a folder" else "somebody/a-model"
    record = {"name": name, "hash": "0123456789abcdef", "query_hash": loaded.hash}
    mapping = {
        "_meta": {"osn": {"format": 1, "analyzer": "english", "version": "", "sparse": record}},
        "properties": {"sparse": {"type": "rank_features"}, "contents": {"type": "text"}},
    }
    client.indices.create(index=index_name, body={"settings": {"number_of_replicas": 0}, "mappings": mapping})
    with http_server(lambda _: Answer(404)) as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
        done = osn(tmp_path, "search", "--url", cluster_url, "--index", index_name, "rainbow", **variables)
    assert hub.requests == []
    assert done.returncode == 1
    assert f"{name} (0123456789abcdef), is not on this machine" in done.stderr
    assert "--sparse DIR" in done.stderr


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..", "", "a\\b", "a\0b", "a" * 256])
def test_no_path_is_made_of_an_index_name_that_leads_elsewhere(name: str) -> None:
    from ingest.writing.journal import Identity, journal_path
    from ingest.writing.target import Target
    from opensearch_neural.index.record import IndexMeta

    identity = Identity("uuid", "corpus", None, None)
    fine = journal_path(Target("docs-2", "X_y-z", IndexMeta(), None), identity)
    assert fine.name == f"docs-2-X_y-z-{identity.hash}.journal"
    for index, its_uuid in ((name, "X_y-z"), ("docs", name)):
        with pytest.raises(ClusterError, match="which is not a possible name"):
            journal_path(Target(index, its_uuid, IndexMeta(), None), identity)


def test_a_plugin_archive_writes_into_its_own_folder_only(tmp_path: Path) -> None:
    from opensearch_neural.node import java_and_jars

    lib = tmp_path / "a" / "lib"
    lib.mkdir(parents=True)
    with zipfile.ZipFile(lib / "plugin.zip", "w") as archive:
        for name in (
            "../../escaped.jar",
            "/escaped-absolutely.jar",
            "inner/../../../deep.jar",
            "fine.jar",
            "readme.txt",
        ):
            archive.writestr(name, b"content")
    java_and_jars._unpack_plugins(lib)
    names = {"escaped.jar", "escaped-absolutely.jar", "deep.jar", "fine.jar"}
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == names
    assert {file.name for file in lib.iterdir()} == names
    assert not Path("/escaped-absolutely.jar").exists()


def test_an_archive_cannot_replace_a_jar_that_is_there(tmp_path: Path) -> None:
    from opensearch_neural.node import java_and_jars

    (tmp_path / "opensearch.jar").write_bytes(b"the real one")
    with zipfile.ZipFile(tmp_path / "plugin.zip", "w") as archive:
        archive.writestr("opensearch.jar", b"another")
    java_and_jars._unpack_plugins(tmp_path)
    assert (tmp_path / "opensearch.jar").read_bytes() == b"the real one"
