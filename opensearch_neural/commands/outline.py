"""The help text of a command, read from its source, so that commands can be listed without importing them.

Importing every command of `osn` would take seconds, since most need torch; `osn --help` only shows one line of each.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

OWN_PACKAGES = ("opensearch_neural", "trainers", "ingest", "benchmarks")


def docstring_of(entry: EntryPoint) -> str | None:
    """The docstring of the function that an entry point names; None if it is not in this project's source."""
    tree = _source(entry.module)
    functions = [] if tree is None else [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return next((ast.get_docstring(node) for node in functions if node.name == entry.attr), None)


def missing_module(module: str) -> str | None:
    """A library that is not installed but needed to import a module of this project; None if there is none.

    The imports at the top of this project's modules are followed.
    """
    seen: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        package = name.partition(".")[0]
        if package in OWN_PACKAGES:
            pending += _imported(name)
        elif not _is_installed(package):
            return package
    return None


def _imported(module: str) -> Iterator[str]:
    tree = _source(module)
    for node in [] if tree is None else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            spec = _spec(node.module) if node.module.partition(".")[0] in OWN_PACKAGES else None
            if spec is not None and spec.submodule_search_locations is not None:
                # A name imported from a package may be one of its modules; other names have no source.
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@cache
def _spec(module: str) -> ModuleSpec | None:
    """Where a module of this project is. Finding it imports its parent packages, which import nothing else."""
    return find_spec(module)


@cache
def _source(module: str) -> ast.Module | None:
    """The syntax tree of a module of this project; None for other modules."""
    if module.partition(".")[0] not in OWN_PACKAGES:
        return None
    spec = _spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
