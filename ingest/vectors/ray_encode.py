"""Encodes the shards of `osn encode` on a Ray cluster: `osn encode --ray [ADDRESS]`.

    this process            a reader, on this machine              workers, anywhere in the cluster
    writes each shard  ◄──  reads the corpus, skips shards    ──►  `encode_shard`, as `osn encode` calls it here
    and the manifest        that exist; one block per shard        with models sent to them

Only the machine that runs the command needs the corpus, the models and the output folder: models are sent through Ray's
object store, and shards come back as bytes. If a worker dies, Ray restarts it and encodes its shard again; since a shard
depends only on its records and the models, the result is the same.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.corpus import Records, everything
from ingest.error_limit import ErrorLimit
from ingest.settings import Dtype, RayOptions
from ingest.vectorizers import Encoders
from ingest.vectors.shards import (
    SetAside,
    ShardDone,
    encode_shard,
    set_aside,
    shard_path,
    shard_written_before,
    shards_of,
    unfit_in,
    write_shard,
)
from opensearch_neural import __version__
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.errors import InputError, MissingExtra, ModelError, OsnError
from opensearch_neural.models.sparse.pruning import Pruning

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 1 << 30
"""Memory of the object store if Ray is started here. A shard with its vectors takes some 12 MB, and each worker has three in
progress."""

_REMEDY = "is it running, and is this machine part of it (`ray status`)? --ray alone starts Ray here"

_ERRORS: dict[str, type[OsnError]] = {kind.__name__: kind for kind in (InputError, ModelError, OsnError)}

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
    pq: dict[str, bytes] | None = None
    """Likewise, of the quantized model."""
    prune: Pruning | None = None
    """Which terms of the sparse vectors are kept; None: all."""
    version: str = __version__
    """The version of this package, which workers must have too."""

    @classmethod
    def of(cls, encoders: Encoders, device: str | None, dtype: Dtype) -> PackedModels:
        sparse, dense, pq = (
            None if encoder is None else _files(encoder.info.path)
            for encoder in (encoders.sparse, encoders.dense, encoders.pq)
        )
        return cls(sparse, dense, encoders.batch_size, device, dtype, pq, encoders.prune)

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
            sparse = dense = pq = None
            if self.sparse is not None:
                place = _written(self.sparse, Path(folder) / "sparse")
                sparse = load_sparse(place, device=self.device, dtype=self.dtype)
            if self.dense is not None:
                dense = load_single_or_several(_written(self.dense, Path(folder) / "dense"), device=self.device)
            if self.pq is not None:
                pq = load_quantized(_written(self.pq, Path(folder) / "pq"), device=self.device)
            return Encoders(sparse, dense, self.batch_size, pq, prune=self.prune)


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
    import ray.data

    with _connected(options):
        options = _sized(options, ray.cluster_resources())
        log.info("%d workers on %d nodes", options.workers, sum(node["Alive"] for node in ray.nodes()))
        reader = _ReadShards(records, folder, shard_records, limit)
        here = next(node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id())
        blocks = ray.data.read_datasource(
            _datasource(reader),
            num_cpus=0,
            override_num_blocks=1,
            resources={f"node:{here['NodeManagerAddress']}": 0.001},  # where the corpus is
        ).map_batches(
            EncodeShards,
            fn_constructor_args=(ray.put(models), batch, options.cpus),
            batch_size=None,  # a block, which is a shard
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=options.workers, max_tasks_in_flight_per_actor=2),
            num_cpus=options.cpus,
            num_gpus=options.gpus,
        )
        try:
            for block in blocks.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in block.to_pylist():
                    if row["error"]:
                        raise _told(row["error"])
                    done = ShardDone(row["start"], row["records"], unpacked_aside(row["set_aside"]), row["reused"])
                    if not done.reused:
                        write_shard(shard_path(folder, done.start), row["content"])
                        log.debug("shard %d came from process %d", done.start, row["process"])
                    yield replace(done, process=row["process"])
        except ray.exceptions.RayError as error:
            raise OsnError(
                f"Ray gave up: {str(error).strip().splitlines()[-1]}",
                "run the same command again to encode only what is missing",
            ) from error


class EncodeShards:
    """A worker: loads the models once, then turns blocks of records into blocks of shards."""

    def __init__(self, models: Any, batch: int, threads: int) -> None:
        import ray

        self.batch = batch
        self.error: OsnError | None = None
        try:
            packed: PackedModels = ray.get(models)
            if _needs_torch(packed):
                import torch

                torch.set_num_threads(threads)
            self.encoders = packed.load()
        except OsnError as error:  # reported with the first shard, since Ray would only try again
            self.error = error

    def __call__(self, block: pyarrow.Table) -> pyarrow.Table:
        rows = []
        for row in block.to_pylist():
            row |= {"process": os.getpid(), "content": b""}
            if row["error"] is None and not row["reused"]:
                if self.error is not None:
                    row["error"] = _telling(self.error)
                else:
                    records = unpacked(row["items"])
                    row["content"] = encode_shard(row["start"], records, self.encoders, self.batch)
                    row["set_aside"] = packed_aside(set_aside(records, unfit_in(row["content"])))
            rows.append({**row, "items": ""})
        return _table(rows)


@dataclass(frozen=True)
class _ReadShards:
    """Reads the corpus in a Ray process on this machine; yields a table per shard, with its records only if it must be
    encoded."""

    records: Records
    folder: Path
    shard_records: int
    limit: ErrorLimit

    def __call__(self) -> Iterator[pyarrow.Table]:
        try:
            for start, items in shards_of(everything(self.records, self.limit.too_many), self.shard_records):
                before = shard_written_before(shard_path(self.folder, start), start, items)
                yield _table([_row(start, items, None if before is None else before.unfit)])
        except OsnError as error:
            yield _table([{**_row(0, [], {}), "error": _telling(error)}])


def _row(start: int, items: list[Document | Rejected], unfit: Mapping[bytes, str] | None) -> dict[str, Any]:
    """unfit: of a shard that an earlier run wrote; None if it must be encoded."""
    return {
        "start": start,
        "records": len(items),
        "set_aside": "" if unfit is None else packed_aside(set_aside(items, unfit)),
        "reused": unfit is not None,
        "items": packed(items) if unfit is None else "",
        "content": b"",
        "process": 0,
        "error": None,
    }


def _table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in ("start", "records", "process")]
    contents = [("items", pa.large_string()), ("set_aside", pa.large_string()), ("content", pa.large_binary())]
    others = [("reused", pa.bool_()), ("error", pa.string())]
    return pa.Table.from_pylist(rows, pa.schema([*numbers, *contents, *others]))


def packed(items: Iterable[Document | Rejected]) -> str:
    """Records as sent to a worker, which `unpacked` reads."""
    return json.dumps([_parts(item) for item in items], default=str)


def _parts(item: Document | Rejected) -> list[Any]:
    if isinstance(item, Rejected):
        return [item.file, item.line, item.reason, item.raw]
    parts: list[Any] = [item.id, item.text, item.title, item.url, item.fields, item.file, item.line]
    return [*parts, item.parent, item.number, item.start, item.end] if isinstance(item, Passage) else parts


def unpacked(text: str) -> list[Document | Rejected]:
    """Records with the same digests and contents as the packed ones."""
    return [_item(parts) for parts in json.loads(text)]


def _item(parts: list[Any]) -> Document | Rejected:
    if len(parts) == 4:
        return Rejected(*parts)
    return Document(*parts) if len(parts) == 7 else Passage(*parts)


def packed_aside(aside: Iterable[SetAside]) -> str:
    return json.dumps([[_parts(record), reason] for record, reason in aside], default=str)


def unpacked_aside(text: str) -> list[SetAside]:
    return [(_item(parts), reason) for parts, reason in json.loads(text)]


def _telling(error: OsnError) -> str:
    """An error as text for a row; pickling would break exceptions whose arguments are not just their message."""
    kind = next(kind for kind in _ERRORS.values() if isinstance(error, kind))
    return json.dumps([kind.__name__, error.message, error.remedy])


def _told(text: str) -> OsnError:
    kind, message, remedy = json.loads(text)
    return _ERRORS[kind](message, remedy)


def _datasource(read: _ReadShards) -> Any:
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class CorpusDatasource(Datasource):
        """Reads the corpus with one reader: compressed files are read from the start, and encoding takes far longer."""

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            nothing_known = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
            return [ReadTask(read, nothing_known)]

    return CorpusDatasource()


@contextmanager
def _connected(options: RayOptions) -> Iterator[None]:
    """Start or connect to Ray, with one block per shard; if Ray was started here, it is stopped at the end.

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
    loggers = [logging.getLogger("ray.data"), logging.getLogger("ray")]
    levels = [logger.level for logger in loggers]
    context = ray.data.DataContext.get_current()
    before = (context.enable_progress_bars, context.print_on_execution_start, context.target_max_block_size)
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = 1  # never two shards in a block
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars, context.print_on_execution_start, context.target_max_block_size = before
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
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
