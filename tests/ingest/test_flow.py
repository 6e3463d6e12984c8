"""The list at the head of the package is complete and exact."""

from __future__ import annotations

import re
from pathlib import Path

import ingest


def test_the_package_lists_each_of_its_modules_once() -> None:
    assert ingest.__doc__ is not None
    listed = re.findall(r"^    (\S+\.py) ", ingest.__doc__, re.MULTILINE)
    package = Path(str(ingest.__file__)).parent
    modules = [str(path.relative_to(package)) for path in package.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(listed) == sorted(modules)
