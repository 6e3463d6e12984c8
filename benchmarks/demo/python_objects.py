"""The documented public objects of the standard library and of the installed Python packages, read from their sources.

Sources are parsed and never imported. An object is a class, function, method or module with a docstring; what a module
only imports from elsewhere is not one of its objects.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import logging
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from opensearch_neural.corpus.documents import MAX_ID_BYTES
from opensearch_neural.errors import OsnError
from opensearch_neural.progress import counted

log = logging.getLogger(__name__)

MIN_WORDS = 20  # of a docstring
SIGNATURE_CHARACTERS = 400
FILES_OF_ONE_PROCESS = 500
"""Fewer files than these are read by one process: others take a second to start."""

_TESTS = re.compile(r"tests?|test_.*|.*_tests?|conftest")
_VENDORED = {"vendor", "vendored", "third_party", "thirdparty", "extern", "externals", "externs"}
_NOT_LIBRARIES = {"site-packages", "dist-packages", "opensearch_neural", "trainers", "ingest", "benchmarks"}


@dataclass(frozen=True)
class ModuleFolder:
    """A folder of importable modules and packages."""

    folder: Path
    """Its path, an entry of `sys.path`."""
    standard_library: bool = False
    """Whether it is that of Python's standard library."""


@dataclass(slots=True, frozen=True)
class Documented:
    """A public object and its docstring."""

    name: str
    """Qualified: `json.JSONEncoder.encode`."""
    kind: str
    """module, class, function or method."""
    module: str
    """The dotted name of the module that holds it."""
    signature: str
    """Its `def` or `class` line; empty for a module."""
    docstring: str
    """Without indentation."""
    standard_library: bool
    """Whether its module is part of the standard library."""

    @property
    def package(self) -> str:
        """The top-level module."""
        return self.module.partition(".")[0]

    def text(self, docstring: str | None = None) -> str:
        """The signature and `docstring`; None: the whole docstring."""
        parts = (self.signature, self.docstring if docstring is None else docstring)
        return "\n\n".join(part for part in parts if part)


def installed_sources() -> list[ModuleFolder]:
    """The standard library, and the folders that this Python's packages are installed in."""
    paths = sysconfig.get_paths()
    sites = dict.fromkeys([paths["purelib"], paths["platlib"]])
    return [ModuleFolder(Path(paths["stdlib"]), True), *(ModuleFolder(Path(site)) for site in sites)]


# ---------------------------------------------------------------- reading sources


def source_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """(path, module) of the public modules below a folder, tests and vendored copies left out, sorted."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not _is_public_module(path.stem):
            continue
        if path.suffix == ".py":
            yield path, path.stem
        elif not path.suffix and path.is_dir():
            if (init := path / "__init__.py").is_file():
                yield init, path.name
            yield from ((inner, f"{path.name}.{module}") for inner, module in source_files(path))


def _is_public_module(name: str) -> bool:
    excluded = name.startswith("_") or _TESTS.fullmatch(name) or name in _VENDORED or name in _NOT_LIBRARIES
    return name.isidentifier() and not excluded


_Source = tuple[Path, str, bool]  # path, module, whether it is of the standard library


def read_objects(sources: Sequence[ModuleFolder]) -> list[Documented]:
    """All documented public objects of MIN_WORDS or more, each name and each docstring once, the first one kept."""
    files = [
        (path, module, source.standard_library) for source in sources for path, module in source_files(source.folder)
    ]
    objects: list[Documented] = []
    unreadable = 0
    for of_file in counted(_read(files), "reading sources", total=len(files), unit="files"):
        unreadable += of_file is None
        objects += of_file or []
    if unreadable:
        log.warning("%d of %d source files could not be parsed and were passed over", unreadable, len(files))
    return list(_distinct(objects))


def _read(files: Sequence[_Source]) -> Iterator[list[Documented] | None]:
    """`_objects_of` each file; of many files in as many processes as there are cores."""
    if len(files) < FILES_OF_ONE_PROCESS:
        yield from map(_objects_of, files)
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        try:
            yield from processes.map(_objects_of, files, chunksize=50)
        except BrokenProcessPool:
            raise OsnError("a process that read sources was killed", "free some memory, and try again") from None


def _objects_of(source: _Source) -> list[Documented] | None:
    """The documented public objects of a file; None if it cannot be parsed."""
    path, module, standard_library = source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(path.read_bytes())
        return list(_documented(tree, module, "module", module, standard_library))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _documented(node: Any, name: str, kind: str, module: str, standard_library: bool) -> Iterator[Documented]:
    """A module, class or function if it has a docstring, and the public objects inside a module or class."""
    if docstring := _docstring(node):
        yield Documented(name, kind, module, _signature(node), docstring, standard_library)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for inner in _statements(node.body):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and inner.name[0] != "_":
            function = "function" if isinstance(node, ast.Module) else "method"
            inner_kind = "class" if isinstance(inner, ast.ClassDef) else function
            yield from _documented(inner, f"{name}.{inner.name}", inner_kind, module, standard_library)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, also those inside `if`, `try` and `with`, such as for one platform."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
        else:
            yield node


def _docstring(node: Any) -> str:
    """An object's docstring, cleaned; empty if it has none."""
    text = ast.get_docstring(node, clean=False) or ""
    # Half surrogate pairs and control characters, which a document cannot hold, are left out.
    text = inspect.cleandoc(text.encode("utf-8", "ignore").decode())
    return _CONTROL.sub("", text).strip()


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _signature(node: Any) -> str:
    if isinstance(node, ast.Module):
        return ""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        signature = f"class {node.name}({bases})" if bases else f"class {node.name}"
    else:
        start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"{start} {node.name}({ast.unparse(node.args)}){returns}"
    signature = " ".join(_CONTROL.sub("", signature.encode("utf-8", "ignore").decode()).split())
    return signature if len(signature) <= SIGNATURE_CHARACTERS else signature[: SIGNATURE_CHARACTERS - 1] + "…"


def _distinct(objects: Iterable[Documented]) -> Iterator[Documented]:
    names: set[str] = set()
    docstrings: set[bytes] = set()
    for item in sorted(objects, key=lambda item: (not item.standard_library, item.name)):
        words = item.docstring.split()
        digest = hashlib.sha256(" ".join(words).encode()).digest()
        fits = len(words) >= MIN_WORDS and len(item.name.encode()) <= MAX_ID_BYTES
        if fits and item.name not in names and digest not in docstrings:
            names.add(item.name)
            docstrings.add(digest)
            yield item
