"""The README's tables are those of the result files, and its Python is code that runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from benchmarks.readme import README, with_tables


def test_every_table_is_that_of_its_result_file() -> None:
    text = README.read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert with_tables(text) == text


def test_python_examples_are_python_and_import_what_there_is() -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opensearch_neural"):
                module = __import__(node.module or "", fromlist=[alias.name for alias in node.names])
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_files_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\(((?!https?:)[^)]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert all((Path(README).parent / link).exists() for link in links)
