"""The house: no import circles, imports between the packages point one way, and each docstring lists its modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("opensearch_neural", "ingest", "trainers", "benchmarks")
MAY_IMPORT = {
    "opensearch_neural": {"opensearch_neural"},
    "ingest": {"ingest", "opensearch_neural"},
    "trainers": {"trainers", "opensearch_neural"},
    "benchmarks": set(PACKAGES),
}


def modules(root: Path) -> dict[str, Path]:
    """{dotted name: file} of every module of the four packages, a package named without its `__init__`."""
    named = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imported(source: str, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ours that a source imports: at the top, inside functions, and for type checking alike."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "the arrow of a relative import is not seen here"
            for alias in node.names:
                # A name is either a module of the package or something that the package's own file defines.
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in known else node.module
                if target in known:
                    yield target


def arrows(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {name: set(imported(path.read_text(), known)) - {name} for name, path in known.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or by others (strongly connected components, Tarjan)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        path.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return groups


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(arrows(ROOT)) == []


def test_arrows_between_the_packages_point_one_way() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in arrows(ROOT).items()
        for other in sorted(others)
        if other.partition(".")[0] not in MAY_IMPORT[name.partition(".")[0]]
    ]
    assert wrong == []


def test_what_all_trainings_share_imports_no_other_part_of_the_trainers() -> None:
    wrong = {
        name: others
        for name, imports in arrows(ROOT).items()
        if name.startswith("trainers.common.")
        and (others := {each for each in imports if each.startswith("trainers.") and ".common." not in f"{each}."})
    }
    assert wrong == {}


def test_what_renders_results_imports_no_experiment() -> None:
    """A table or figure of one experiment is in its own file (`docs_tables.of_experiments`)."""
    graph = arrows(ROOT)
    wrong = {
        name: others
        for name in ("benchmarks.render", "benchmarks.docs_tables")
        if (others := {each for each in graph[name] if each.startswith("benchmarks.")} - {"benchmarks.render"})
    }
    assert wrong == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_do_not_import_each_other_in_a_circle(package: str) -> None:
    """A folder below the package counts as one; the package's own modules count one by one."""
    files, folders = modules(ROOT), dict[str, set[str]]()

    def folder(name: str) -> str:
        file = files[name].relative_to(ROOT / package)
        return name if len(file.parts) == 1 else file.parts[0]

    for name, others in arrows(ROOT).items():
        if name.startswith(f"{package}."):
            inside = {folder(other) for other in others if other.startswith(f"{package}.")}
            folders.setdefault(folder(name), set()).update(inside - {folder(name)})
    assert circles(folders) == []


def test_the_library_does_not_import_its_command_line() -> None:
    commands = "opensearch_neural.commands"
    wrong = {
        name: others
        for name, imports in arrows(ROOT).items()
        if name.startswith("opensearch_neural.")
        and not name.startswith((commands, "opensearch_neural.cli"))
        and (others := {each for each in imports if each.startswith(commands)})
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "late",
    ["from ingest.b import thing", "def f():\n    from ingest import b", "import ingest.b"],
)
def test_a_circle_is_seen_however_it_is_imported(tmp_path: Path, late: str) -> None:
    folder = tmp_path / "ingest"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "a.py").write_text(f"from typing import TYPE_CHECKING\n{late}\n")
    (folder / "b.py").write_text("if TYPE_CHECKING:\n    from ingest.a import other\n")
    assert circles(arrows(tmp_path)) == [["ingest.a", "ingest.b"]]


def test_package_docstrings_list_exactly_the_modules_that_there_are() -> None:
    """A list names files: "record.py", or "writing/bulk.py" for a package within."""
    paths = {path.relative_to(ROOT) for path in modules(ROOT).values()}
    listed = {
        path.parent / file
        for path in paths
        if path.name == "__init__.py"
        for file in re.findall(r"[\w/]+\.py\b", ast.get_docstring(ast.parse((ROOT / path).read_text())) or "")
    }
    there = {path for path in paths if path.name != "__init__.py"}
    assert sorted(map(str, there - listed)) == [], (
        "give each of these a line in the docstring of its package's __init__.py"
    )
    assert sorted(map(str, listed - there)) == [], "a package's docstring lists these, and there are none"
