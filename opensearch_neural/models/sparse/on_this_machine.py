"""Lists the sparse models on this machine: used before, fetched from the hub, installed as a package, or in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import ModelError
from opensearch_neural.files import read_json_object
from opensearch_neural.models import directory, registry
from opensearch_neural.models.sparse.corpus_statistics import has_query_table


@dataclass(frozen=True)
class LocalModel:
    """A sparse model on this machine."""

    name: str
    """The value for `--sparse`."""
    path: Path
    """Its folder."""
    kind: str
    """As `sparse_kind` gives it."""
    megabytes: float
    """Size of its files."""


def local_models(folders: Iterable[Path] = ()) -> list[LocalModel]:
    """The models below `folders`, in packages, in the hub's cache, and used by an earlier ingest; each once."""
    models: dict[Path, LocalModel] = {}
    for name, path in _places(folders):
        resolved = path.resolve()
        if models.keys().isdisjoint([resolved, *resolved.parents]) and (kind := sparse_kind(resolved)) is not None:
            size = sum(file.stat().st_size for file in resolved.rglob("*") if file.is_file())
            models[resolved] = LocalModel(name, resolved, kind, round(size / 1e6, 1))
    return list(models.values())


def sparse_kind(folder: Path) -> str | None:
    """The kind of sparse model in a folder; None if it holds no sparse model, or a damaged one."""
    try:
        config = read_json_object(folder / "config.json", missing_ok=True)
        if config.get("kind") == "lexical":
            return "lexical"
        routes = directory.routes(folder)
        types = {module.type for modules in routes.values() for module in modules}
        architectures = config.get("architectures")
        masked = isinstance(architectures, list) and any(str(name).endswith("ForMaskedLM") for name in architectures)
        if has_query_table(folder) and (masked or "SpladePooling" in types):
            return "inference-free"
        if "SpladePooling" in types:
            return "SPLADE"
        return "masked language model" if masked and not routes else None
    except (ModelError, OSError):
        return None


def _places(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """(value for `--sparse`, folder) of every possible model; models used before come last, since they are named by path."""
    for folder in folders:
        for path in (folder, *sorted(folder.glob("*/")), *sorted(folder.glob("*/*/"))):
            yield str(path), path
    if (packaged := directory.published_splade_directory()) is not None:
        yield directory.SPLADE_PACKAGE, packaged
    yield from _hub_cache()
    made = registry.models_folder()
    for path in sorted(made.iterdir()) if made.is_dir() else ():
        # Models that were made from a corpus for one index are stored here; nobody would name them.
        if path.is_dir() and not path.resolve().is_relative_to(made.resolve()):
            yield str(path.resolve()), path


def _hub_cache() -> Iterator[tuple[str, Path]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model" and repository.revisions:
            newest = max(repository.revisions, key=lambda revision: revision.last_modified)
            yield repository.repo_id, newest.snapshot_path
