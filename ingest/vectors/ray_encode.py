"""Encodes the shards of `osn encode` on a Ray cluster: `osn encode --ray [ADDRESS]`.

    this process                                                   workers, anywhere in the cluster
    reads the corpus, skips shards that exist,     records  ──►    `encode_shard`, as `osn encode` calls it here,
    writes each shard and the manifest             ◄──  shards     with models sent to them

Only the machine that runs the command needs the corpus, the models and the output folder: models are sent through Ray's
object store, and shards come back as bytes. If a worker dies, Ray restarts it and encodes its shard again; since a shard
depends only on its records and the models, the result is the same.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ingest.corpus import Records, everything
from ingest.error_limit import ErrorLimit
from ingest.settings import Dtype, RayOptions
from ingest.vectorizers import Encoders
from ingest.vectors.shards import (
    LoadedShard,
    ShardDone,
    encode_shard,
    shard_path,
    shard_written_before,
    shards_of,
    write_shard,
)
from opensearch_neural import __version__
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import InputError, MissingExtra, ModelError, OsnError
from opensearch_neural.models.sparse.pruning import Pruning

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 1 << 30
"""Memory of the object store if Ray is started here. A shard with its vectors takes some 12 MB."""
IN_PROGRESS = 2
"""Shards that each worker has: one that it encodes, and the next."""

_REMEDY = "is it running, and is this machine part of it (`ray status`)? --ray alone starts Ray here"

# Files of a model's folder that do not affect its encoding; see `models.directory.hash_files`.
_LEFT_OUT = (".md", ".onnx", ".data", ".py", ".pyc", ".bin", ".pt", ".ckpt", ".h5", ".msgpack")


@dataclass(frozen=True)
class PackedModels:
    """The models as they are sent to workers: their files, and how to load them."""

    sparse: dict[str, bytes] | None
    """{relative path: content} of the sparse model's files; None: no sparse model."""
    dense: dict[str, bytes] | None
    """Likewise, of the dense model."""
    batch_size: int
    """Texts in one batch of a network."""
    device: str | None
    """cpu, cuda, … of each worker; None: a GPU if the worker has one."""
    dtype: Dtype
    """The precision of the sparse model's network."""
    quantized: dict[str, bytes] | None = None
    """Likewise, of the quantized model."""
    prune: Pruning | None = None
    """Which terms of the sparse vectors are kept; None: all."""
    version: str = __version__
    """The version of this package, which workers must have too."""

    @classmethod
    def of(cls, encoders: Encoders, device: str | None, dtype: Dtype) -> PackedModels:
        sparse, dense, quantized = (
            None if encoder is None else _files(encoder.info.path)
            for encoder in (encoders.sparse, encoders.dense, encoders.quantized)
        )
        return cls(sparse, dense, encoders.batch_size, device, dtype, quantized, encoders.prune)

    def load(self) -> Encoders:
        """Load the models. Raises ModelError if this machine has another version of the package."""
        from opensearch_neural.models.dense.multi_layer import load_single_or_several
        from opensearch_neural.models.dense.quantized import load_quantized
        from opensearch_neural.models.sparse.encoder import load_sparse

        if self.version != __version__:
            raise ModelError(
                f"a Ray worker runs opensearch-neural {__version__}, but this command {self.version}",
                "install the same version on every machine of the cluster",
            )
        with tempfile.TemporaryDirectory(prefix="osn-model-") as folder:
            sparse = dense = quantized = None
            if self.sparse is not None:
                place = _written(self.sparse, Path(folder) / "sparse")
                sparse = load_sparse(place, device=self.device, dtype=self.dtype)
            if self.dense is not None:
                dense = load_single_or_several(_written(self.dense, Path(folder) / "dense"), device=self.device)
            if self.quantized is not None:
                quantized = load_quantized(_written(self.quantized, Path(folder) / "quantized"), device=self.device)
            return Encoders(sparse, dense, self.batch_size, quantized, prune=self.prune)


def shards_on_ray(
    records: Records,
    folder: Path,
    shard_records: int,
    models: PackedModels,
    batch: int,
    options: RayOptions,
    limit: ErrorLimit,
) -> Iterator[ShardDone]:
    """Encode the shards that `folder` lacks, and write each as it comes back, in any order.

    batch: documents that `encode_shard` passes to the models at once. limit: as in `shards_here`. Raises OsnError if the
    cluster cannot be reached or has too few CPUs, and the errors of readers and workers.
    """
    import ray

    with _connected(options):
        options = _sized(options, ray.cluster_resources())
        log.info("%d workers on %d nodes", options.workers, sum(node["Alive"] for node in ray.nodes()))
        # A worker that dies starts again, and with it its shards.
        on_ray: Any = ray.remote(
            num_cpus=options.cpus, num_gpus=options.gpus or 0, max_restarts=-1, max_task_retries=-1
        )
        sent = ray.put(models)
        workers = [on_ray(ShardEncoder).remote(sent, batch, options.cpus) for _ in range(options.workers or 0)]
        free = workers * IN_PROGRESS
        encoding: dict[Any, tuple[Any, int, list[Document | Rejected]]] = {}  # {result: (worker, start, records)}

        def next_done() -> ShardDone:
            (result,), _ = ray.wait(list(encoding))
            worker, start, part = encoding.pop(result)
            free.append(worker)
            content, process = ray.get(result)
            if isinstance(content, OsnError):
                raise content
            path = shard_path(folder, start)
            write_shard(path, content)
            log.debug("shard %d came from process %d", start, process)
            return ShardDone.of(LoadedShard.read(path, []), part, reused=False, process=process)

        try:
            for start, part in shards_of(everything(records, limit.too_many), shard_records):
                before = shard_written_before(shard_path(folder, start), start, part)
                if before is not None:
                    yield ShardDone.of(before, part, reused=True)
                    continue
                if not free:
                    yield next_done()
                worker = free.pop(0)
                encoding[worker.encode.remote(start, part)] = (worker, start, part)
            while encoding:
                yield next_done()
        except ray.exceptions.RayError as error:
            raise OsnError(
                f"Ray gave up: {str(error).strip().splitlines()[-1]}",
                "run the same command again to encode only what is missing",
            ) from error
        finally:
            for worker in workers:
                ray.kill(worker)


class ShardEncoder:
    """A worker: loads the models once, then encodes shards."""

    def __init__(self, models: PackedModels, batch: int, threads: int) -> None:
        self.batch = batch
        self.error: OsnError | None = None
        try:
            if _needs_torch(models):
                import torch

                torch.set_num_threads(threads)
            self.encoders = models.load()
        except OsnError as error:
            # Returned with the first shard: Ray would hide the message, and not every class of error can be sent.
            self.error = OsnError(error.message, error.remedy)

    def encode(self, start: int, records: list[Document | Rejected]) -> tuple[bytes | OsnError, int]:
        """(a shard's content, or why the models cannot be loaded; this process)"""
        return self.error or encode_shard(start, records, self.encoders, self.batch), os.getpid()


@contextmanager
def _connected(options: RayOptions) -> Iterator[None]:
    """Start or connect to Ray; if Ray was started here, it is stopped at the end.

    An existing connection of this program is used, and stays open.
    """
    import ray

    started = not ray.is_initialized()
    if started:
        # Whoever can reach Ray's ports can run code here; since 2.60 Ray requires a token itself.
        local = options.address == "local"
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}.items():
            os.environ.setdefault(name, value)
        settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if local:
            settings |= {
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "num_cpus": max(os.cpu_count() or 1, (options.workers or 1) * options.cpus),
                "_node_ip_address": "127.0.0.1",
            }
        try:
            ray.init(address=options.address, **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise OsnError(
                f"no Ray cluster at {options.address}: {str(error).strip().splitlines()[0]}", _REMEDY
            ) from None
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def check(options: RayOptions) -> None:
    """Raise MissingExtra without Ray, InputError for an invalid address, OsnError if nothing answers there.

    This check comes before any work; Ray itself would retry for minutes.
    """
    if find_spec("ray") is None:
        raise MissingExtra("encoding on Ray", "ray")
    address = options.address
    if address in ("local", "auto"):
        return
    if address.startswith("ray://"):
        raise InputError(
            f"--ray {address}: run the command on a machine of the cluster, since it reads the corpus",
            "run it there, or add this machine (ray start --address=HOST:PORT) and give --ray auto",
        )
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise InputError(f"--ray {address}: expected HOST:PORT, auto, or no address at all")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise OsnError(f"no Ray cluster at {address}: {error}", _REMEDY) from None


def _sized(options: RayOptions, resources: dict[str, float]) -> RayOptions:
    """The options, with open numbers filled in from the cluster's resources."""
    cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
    per_worker = options.gpus if options.gpus is not None else (1.0 if gpus else 0.0)
    possible = int(cpus // options.cpus)
    if per_worker:
        possible = min(possible, int(gpus // per_worker))
    workers = options.workers or possible
    if not 1 <= workers <= possible:
        each = f"{options.cpus} CPUs" + (f" and {per_worker:g} GPUs" if per_worker else "")
        raise InputError(
            f"the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs, enough for {possible} workers of {each}",
            "give other --ray-workers, --ray-cpus or --ray-gpus",
        )
    return replace(options, workers=workers, gpus=per_worker)


def _needs_torch(models: PackedModels) -> bool:
    return models.dense is not None or any(name.endswith(".safetensors") for name in models.sparse or {})


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix not in _LEFT_OUT
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def _written(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
