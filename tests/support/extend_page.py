"""The Python of docs/how-to/extend.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"


def names_below(heading: str) -> dict[str, Any]:
    """{name: what the first Python block below a heading of the page defines}."""
    _, found, text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    block = re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found and block is not None, f"{PAGE.name} has no Python below {heading!r}"
    names: dict[str, Any] = {"__name__": f"{PAGE.stem}.{heading}"}
    exec(block[1], names)
    return names
