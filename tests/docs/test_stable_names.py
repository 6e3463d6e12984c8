"""The stable names of `docs/reference/stability.md` exist, and applications import no others in the pages and examples."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STABLE = (ROOT / "docs" / "reference" / "stability.md").read_text(encoding="utf-8").split("\n| ")[2].split(" | ")[0]
NAMES = [
    name if name.startswith(("opensearch_neural", "ingest")) else f"opensearch_neural.{name}"
    for name in re.findall(r"`([^`]+)`", STABLE)
]
PAGES = [
    "README.md",
    *(f"docs/how-to/{page}.md" for page in ("production-query", "search-from-an-application", "updates")),
    "examples/batch.py",
    "examples/search.ipynb",
    "examples/service.py",
]


def imported(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("opensearch_neural", "ingest")):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def programs(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return [text] if page.endswith(".py") else re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_stable_name_exists(name: str) -> None:
    module, _, last = name.rpartition(".")
    assert find_spec(name) if not module else hasattr(import_module(module), last) or find_spec(name)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_stable_name_is_on_the_page_of_the_api(name: str) -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    members = dict(re.findall(r"automodule:: (\S+)\n   :members:(.*)", page))
    module, _, last = name.rpartition(".")
    own = ("opensearch_neural.query_encoder", "opensearch_neural.cluster.connect", "opensearch_neural.errors")
    modules = own if module == "opensearch_neural" else (module,)
    shown = [members[each].split(", ") for each in modules if each in members and hasattr(import_module(each), last)]
    assert name in members or any(names == [""] or last in map(str.strip, names) for names in shown)


def test_the_page_of_the_api_shows_the_options_of_a_page() -> None:
    """They were `**page` in every signature, and nowhere named."""
    from opensearch_neural import queries

    assert "PageOptions" in queries.__all__


@pytest.mark.parametrize("page", PAGES)
def test_applications_import_stable_names_alone(page: str) -> None:
    names = {name for code in programs(page) for name in imported(code)}
    assert names
    modules = {name for name in NAMES if name != "opensearch_neural"}
    assert {name for name in names if name not in NAMES and name.rpartition(".")[0] not in modules} == set()
