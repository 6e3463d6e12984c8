"""The exports in ml-commons itself, on a local node with the plugin: `make test-ml-commons`.

It fetches 500 MB once, which is why no other command runs it. ml-commons 2.19 would fetch libtorch 1.13.1 and DJL's library
from DJL's own site; here both are what Maven has, of the nearest version to DJL 0.31.1 that has the functions it calls.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural import QueryEncoder, node
from opensearch_neural.cluster.connect import connect
from opensearch_neural.models.sparse.encoder import load_network
from opensearch_neural.models.sparse.ml_commons import Exported, export
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.node import java_and_jars

from .test_encoder import QUERIES, TEXTS, masked_lm, router_model
from .test_inference_free import siamese

pytestmark = [
    pytest.mark.skipif("OSN_ML_COMMONS" not in os.environ, reason="fetches 500 MB: make test-ml-commons"),
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="libtorch is taken for this one"
    ),
    pytest.mark.timeout(3600),
]

DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
ADDED = (
    ("org.opensearch.plugin", "opensearch-job-scheduler", "2.19.1.0", "<type>zip</type>"),
    ("org.opensearch.plugin", "opensearch-ml-plugin", "2.19.1.0", "<type>zip</type>"),
    ("ai.djl.pytorch", "pytorch-native-cpu", "2.5.1", "<classifier>linux-x86_64</classifier>"),
    ("ai.djl.pytorch", "pytorch-jni", "2.5.1-0.32.0", ""),
)
LIBRARIES = {"pytorch-native-cpu-*.jar": "pytorch/cpu/linux-x86_64/", "pytorch-jni-*.jar": "jnilib/linux-x86_64/cpu/"}
"""Where the jars have their libraries. DJL rejects them on the class path, where it wants those of its own version."""
SETTINGS = {
    "plugins.ml_commons.only_run_on_ml_node": False,
    "plugins.ml_commons.allow_registering_model_via_url": True,
}
"""As the page sets them."""


@dataclass(frozen=True)
class WithPlugin(java_and_jars.Profile):
    written: Path

    @property
    def pom(self) -> Path:
        return self.written


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("ml-commons")
    full = java_and_jars.PROFILES["full"]
    added = "".join(DEPENDENCY.format(*each) for each in ADDED)
    (folder / "pom.xml").write_text(full.pom.read_text().replace("</dependencies>", added + "</dependencies>"))
    knn, neural_search = full.plugins
    plugins = (
        "org.opensearch.jobscheduler.JobSchedulerPlugin",
        knn,
        "org.opensearch.ml.plugin.MachineLearningPlugin",
        neural_search,
    )
    profile = WithPlugin("ml-commons", full.version, full.java, plugins, folder / "pom.xml")
    lib = java_and_jars.prepare(profile, java_and_jars.find_java(full.java, "ml-commons"), print)
    for jar, members in LIBRARIES.items():
        with zipfile.ZipFile(next(lib.glob(jar))) as archive:
            for member in archive.namelist():
                if member.startswith(members) and member.endswith((".so", ".so.1")):
                    (folder / Path(member).name).write_bytes(archive.read(member))
    name = f"osn-tests-ml-commons-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(java_and_jars.PROFILES, profile.name, profile)
        for variable, value in {"LIBRARY_PATH": str(folder), "VERSION": "2.5.1", "FLAVOR": "cpu"}.items():
            patch.setenv(f"PYTORCH_{variable}", value)
        try:
            url = node.start(profile.name, port=0, heap="2g", name=name, attached=True, timeout=600).url
            connected = connect(url)
            connected.cluster.put_settings(body={"persistent": SETTINGS})
            yield connected
            connected.close()
        finally:
            node.stop(name, purge=True)


def ask(client: Any, method: str, path: str, body: Any = None) -> Any:
    return client.transport.perform_request(method, path, body=body, params={"request_timeout": 300})


def deployed(client: Any, exported: Exported) -> str:
    """The model's id, registered as docs/how-to/use-a-model-elsewhere.md says."""
    body = {**json.loads(exported.config.read_text()), "url": exported.zip.as_uri()}
    task = ask(client, "POST", "/_plugins/_ml/models/_register?deploy=true", body)["task_id"]
    for _ in range(600):
        state = ask(client, "GET", f"/_plugins/_ml/tasks/{task}")
        assert state["state"] != "FAILED", state
        if model := state.get("model_id"):
            known = ask(client, "GET", f"/_plugins/_ml/models/{model}")["model_state"]
            assert known != "DEPLOY_FAILED", state
            if known == "DEPLOYED":
                return str(model)
        time.sleep(0.5)
    raise AssertionError(state)


@pytest.mark.parametrize("kind", ["table", "double log, a limit", "pruned", "siamese"])
def test_ml_commons_gives_documents_and_queries_the_weights_they_have_here(
    client: Any, tmp_path: Path, tokenizer_folder: Path, kind: str
) -> None:
    folder = tmp_path / "model"
    if kind == "siamese":
        siamese(folder, masked_lm(tmp_path / "network", tokenizer_folder), max_active_dims=30)
    elif kind == "double log, a limit":
        router_model(folder, tokenizer_folder, max_active_dims=20)
    else:
        router_model(folder, tokenizer_folder, activation="relu")
    if kind == "pruned":
        Pruning.parse("max_ratio:0.4").save(folder)
    exported = export(folder, tmp_path / "out", name=kind.split(",")[0].replace(" ", "-"))
    encoder, *query_side = [deployed(client, each) for each in exported]
    network = load_network(folder, device="cpu")

    # ml-commons refuses a document with an empty text, and an empty query.
    texts, queries = [list(filter(None, each)) for each in (TEXTS, QUERIES)]
    index = f"books-{encoder}".lower()
    processor = {"sparse_encoding": {"model_id": encoder, "field_map": {"text": "sparse"}}}
    ask(client, "PUT", f"/_ingest/pipeline/{index}", {"processors": [processor]})
    mappings = {"properties": {"sparse": {"type": "rank_features"}}}
    client.indices.create(index=index, body={"settings": {"default_pipeline": index}, "mappings": mappings})
    for place, text in enumerate(texts):
        client.index(index=index, id=str(place), body={"text": text}, refresh=True)
    for place, wanted in enumerate(network.encode_documents(texts).rows()):
        found = client.get(index=index, id=str(place))["_source"]["sparse"]
        assert len(wanted) > 1 and found == pytest.approx(wanted, abs=1e-5), texts[place]

    if query_side:
        weights = QueryEncoder.load(folder).encode_batch(queries)
    else:
        weights = list(network.encode_documents(queries).rows())
    compared = 0
    for text, tokens in zip(queries, weights, strict=True):
        by_text, by_tokens = (
            client.search(index=index, body={"query": {"neural_sparse": {"sparse": query}}})["hits"]["hits"]
            for query in ({"query_text": text, "model_id": [encoder, *query_side][-1]}, {"query_tokens": tokens})
        )
        # A token of weight 0, which is left out here, is exported with 1e-6.
        found, wanted = (
            {hit["_id"]: hit["_score"] for hit in hits if hit["_score"] > 1e-4} for hits in (by_text, by_tokens)
        )
        assert found == pytest.approx(wanted, rel=1e-4), text
        compared += len(found)
    assert compared > len(texts)
