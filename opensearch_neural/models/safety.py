"""Checks a model directory before any library reads it: it may hold only data, no code, and name no files outside.

A model directory often comes from someone else: from a hub, an archive, an index that names it. Loading it must not run
its code, whatever version of transformers or sentence-transformers is installed (before 6.0 the latter imported the
classes in modules.json from a local folder without asking), and must not read files elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ModelError
from opensearch_neural.files import read_json, read_json_object

# Hugging Face's loaders read these if there is no safetensors file; reading a pickle can run any code.
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_NOT_PICKLED_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "openvino")
"""Beginnings of file names that loaders of weights do not read, or that are not pickles."""


def refuse_unsafe(path: Path) -> None:
    """Raises ModelError if loading the directory could run code or read files outside of it.

    It refuses pickled weights without safetensors beside them, an index of weights that names files in other folders, and
    modules whose classes are not sentence-transformers' own.
    """
    _refuse_pickles(path)
    for file in sorted(path.rglob("*.index.json")):
        for name in _values(read_json_object(file).get("weight_map")):
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
                raise ModelError(
                    f"{file}: the weights {name!r} lie outside this folder", "only files beside the index are read"
                )
    for file, name in _module_classes(path):
        if not (isinstance(name, str) and name.startswith("sentence_transformers.")):
            raise ModelError(
                f"{file}: the module {name!r} is code of the model, which is not run",
                "expected classes of sentence_transformers",
            )


def _refuse_pickles(path: Path) -> None:
    for file in sorted(match for pattern in PICKLED for match in path.rglob(pattern)):
        if file.name.startswith(_NOT_PICKLED_WEIGHTS):
            continue
        # pytorch_model.bin and model.safetensors hold the same weights; shards have numbers in their names.
        stem = "model" if file.name.startswith("pytorch_model") else file.stem
        # If the network's safetensors are there, loaders look for no other weights, except an adapter's.
        twins = [f"{stem}*.safetensors"] + ([] if stem.startswith("adapter") else ["model*.safetensors"])
        if not any(twin for pattern in twins for twin in file.parent.glob(pattern)):
            raise ModelError(
                f"{file}: pickled weights are not read, and {file.parent} holds no safetensors file of them",
                f"convert it where you trust it, into a new folder: {_conversion(path, file.parent)}",
            )


def _conversion(path: Path, network: Path) -> str:
    """The calls that save a model as safetensors. The network's own class keeps the head that a SPLADE needs, and
    sentence-transformers all its modules."""
    if modules := [str(name) for _, name in _module_classes(path)]:
        sparse = any(name.endswith("SpladePooling") for name in modules)
        return f"{'SparseEncoder' if sparse else 'SentenceTransformer'}(DIR).save_pretrained(NEW)"
    name = next(iter(_values(read_json_object(network / "config.json", missing_ok=True).get("architectures"))), None)
    loader = name if isinstance(name, str) and name.isidentifier() else "AutoModel"
    return " and ".join(f"{each}.from_pretrained(DIR).save_pretrained(NEW)" for each in (loader, "AutoTokenizer"))


def _module_classes(path: Path) -> Iterator[tuple[Path, Any]]:
    """(file, class name) of each module that sentence-transformers would load."""
    for file in sorted(path.rglob("modules.json")):
        yield from ((file, entry.get("type")) for entry in _values(read_json(file)) if isinstance(entry, dict))
    for file in sorted(path.rglob("router_config.json")):
        yield from ((file, name) for name in _values(read_json_object(file).get("types")))


def _values(content: Any) -> list[Any]:
    if isinstance(content, dict):
        return list(content.values())
    return content if isinstance(content, list) else []
