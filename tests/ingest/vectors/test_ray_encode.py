"""`osn encode --ray`: the same files as without, whoever encodes what, and whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from corpora import letters
from tokenizers import Tokenizer

pytest.importorskip("ray", reason="needs the extra [ray]")
torch = pytest.importorskip("torch", reason="needs the extra [encode]")

from ingest.commands.encode import encode  # noqa: E402
from ingest.corpus import CorpusSource  # noqa: E402
from ingest.error_limit import ErrorLimit, TooManyErrors  # noqa: E402
from ingest.settings import Models, RayOptions  # noqa: E402
from ingest.vectorizers import Encoders  # noqa: E402
from ingest.vectors.encode_corpus import EncodeJob, run_encode  # noqa: E402
from ingest.vectors.ray_encode import (  # noqa: E402
    PackedModels,
    _connected,
    _sized,
    shards_on_ray,
)
from ingest.vectors.shards import shard_path  # noqa: E402
from opensearch_neural.errors import InputError, ModelError, OsnError  # noqa: E402
from opensearch_neural.models.sparse.encoder import load_sparse  # noqa: E402
from opensearch_neural.models.sparse.lexical import build_lexical  # noqa: E402
from opensearch_neural.models.sparse.word_pieces import train_word_pieces  # noqa: E402

DOCUMENTS = 150
SHARD = 5


@pytest.fixture(scope="module")
def ray_here():
    """A Ray with two processors, for all tests of this module."""
    with _connected(RayOptions(workers=2)):
        yield


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small masked language model with random weights."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = BertTokenizerFast(tokenizer_object=word_pieces(), model_max_length=64)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), initializer_range=0.2, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "idf.json").write_text(json.dumps({"number": 2.0}))
    return folder


@pytest.fixture(scope="module")
def lexical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that workers load in no time."""
    folder = tmp_path_factory.mktemp("models") / "words"
    build_lexical([text_of(number) for number in range(DOCUMENTS)], tokenizer=word_pieces()).save(folder)
    return folder


def word_pieces() -> Tokenizer:
    return train_word_pieces([text_of(number) for number in range(DOCUMENTS)], 200)


def text_of(number: int) -> str:
    return f"This is number {number}, which comes after number {number - 1}. " * (1 + number % 7)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Documents, and a line that is none."""
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": str(number), "text": text_of(number)}) for number in range(DOCUMENTS)]
    lines.insert(13, "{broken")
    path.write_text("\n".join(lines) + "\n")
    return path


def job(corpus: Path, out: Path, model: Path) -> EncodeJob:
    return EncodeJob(CorpusSource(str(corpus)), out, Models(sparse=str(model), device="cpu"), shard_records=SHARD)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_workers_one_killed_in_the_middle_write_what_one_process_writes(
    ray_here: None, corpus: Path, lexical: Path, tmp_path: Path
) -> None:
    here = run_encode(job(corpus, tmp_path / "here", lexical), show_progress=False)
    (manifest,) = (tmp_path / "here").glob("*.json")
    # Two shards are there already, as after an interrupted run.
    folder = tmp_path / "there" / manifest.stem
    folder.mkdir(parents=True)
    for start in (0, 20):
        name = shard_path(folder, start).name
        (folder / name).write_bytes((tmp_path / "here" / manifest.stem / name).read_bytes())

    models = PackedModels.of(Encoders(load_sparse(lexical)), None, "fp32")
    records = CorpusSource(str(corpus)).reader(str(corpus))
    done = []
    killed: int | None = None
    for shard in shards_on_ray(records, folder, SHARD, models, 8 * 32, RayOptions(workers=2), ErrorLimit(1)):
        done.append(shard)
        if killed is None and not shard.reused:
            killed = shard.process
            assert killed not in (None, os.getpid())
            os.kill(killed, signal.SIGKILL)

    assert sorted(shard.start for shard in done) == list(range(0, DOCUMENTS + 1, SHARD))
    assert {shard.start for shard in done if shard.reused} == {0, 20}
    assert sum(shard.rejected for shard in done) == here.rejected == 1
    assert sum(shard.records for shard in done) == DOCUMENTS + 1
    assert sum(shard.process not in (None, killed) for shard in done) > len(done) / 4  # the other one, and a new one
    expected = {name: data for name, data in content(tmp_path / "here").items() if name.endswith(".safetensors")}
    written = content(tmp_path / "there")
    assert {name: data for name, data in expected.items() if "model" not in name} == written

    # Without Ray again: nothing is left to encode, and the manifest says so.
    whole = run_encode(job(corpus, tmp_path / "there", lexical), show_progress=False)
    assert whole.reused == whole.shards == len(done)
    assert (whole.documents, whole.rejected, whole.unfit) == (here.documents, here.rejected, here.unfit)
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_a_network_gives_the_same_bytes_in_a_worker(
    ray_here: None, corpus: Path, network: Path, tmp_path: Path
) -> None:
    here = job(corpus, tmp_path / "here", network)
    run_encode(here, show_progress=False)
    there = replace(here, out=tmp_path / "there", ray=RayOptions(workers=1, cpus=2))
    assert run_encode(there, show_progress=False).rejected == 1
    assert content(tmp_path / "there") == content(tmp_path / "here")
    here_, there_ = (letters(tmp_path / name / "encode.dead-letters.jsonl") for name in ("here", "there"))
    assert there_ == here_ and [letter["raw"] for letter in here_] == ["{broken"]


def test_what_the_reader_meets_is_told_as_without_ray(
    ray_here: None, corpus: Path, lexical: Path, tmp_path: Path
) -> None:
    on_ray = replace(job(corpus, tmp_path / "v", lexical), ray=RayOptions(workers=1))
    with pytest.raises(TooManyErrors, match="1 documents were rejected, more than --max-errors 0 allows"):
        run_encode(replace(on_ray, max_errors=0), show_progress=False)
    assert run_encode(on_ray, show_progress=False).rejected == 1
    (manifest,) = (tmp_path / "v").glob("*.json")
    corpus.write_text(corpus.read_text().replace("number 30,", "number thirty,"))
    with pytest.raises(InputError, match=r"records 31 to 35 differ") as raised:
        run_encode(on_ray, show_progress=False)
    assert raised.value.remedy and f"delete {tmp_path / 'v' / manifest.stem}" in raised.value.remedy


def test_another_version_on_a_worker_is_refused(network: Path) -> None:
    packed = PackedModels.of(Encoders(load_sparse(network, device="cpu"), batch_size=4), "cpu", "bf16")
    loaded = packed.load()
    assert loaded.sparse is not None and loaded.batch_size == 4
    assert loaded.sparse.dtype == "bf16"
    with pytest.raises(ModelError, match=r"a Ray worker runs opensearch-neural .*, but this command 0\.0"):
        replace(packed, version="0.0").load()


def test_workers_fill_the_cluster_and_not_more() -> None:
    assert _sized(RayOptions(), {"CPU": 5.0}) == RayOptions(workers=5, gpus=0.0)
    assert _sized(RayOptions(cpus=2), {"CPU": 5.0}).workers == 2
    on_gpus = _sized(RayOptions(), {"CPU": 64.0, "GPU": 8.0})
    assert (on_gpus.workers, on_gpus.gpus) == (8, 1.0)
    assert _sized(RayOptions(gpus=0.25), {"CPU": 64.0, "GPU": 8.0}).workers == 32
    with pytest.raises(InputError, match="enough for 2 workers of 2 CPUs"):
        _sized(RayOptions(workers=3, cpus=2), {"CPU": 5.0})
    with pytest.raises(InputError, match="0 GPUs, enough for 0 workers"):
        _sized(RayOptions(gpus=1), {"CPU": 5.0})


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ray://head:10001", "run the command on a machine of the cluster"),
        ("head", "expected HOST:PORT"),
        ("127.0.0.1:1", r"no Ray cluster at 127\.0\.0\.1:1"),
        ("127.0.0.1:99999", "no Ray cluster"),
    ],
)
def test_an_address_that_cannot_serve_is_told_at_once(corpus: Path, tmp_path: Path, address: str, told: str) -> None:
    arguments = ["--corpus", str(corpus), "--out", str(tmp_path / "v"), "--ray", address]
    with pytest.raises(OsnError, match=told):
        CliRunner().invoke(encode, arguments, catch_exceptions=False)
