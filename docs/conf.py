"""The documentation site: `make docs` builds it into docs/_build/html, and takes no warning."""

from __future__ import annotations

import re
from typing import Any

from opensearch_neural import __version__

project = "opensearch-neural"
author = "The opensearch-neural maintainers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_design"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"opensearch-neural {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "none"


def literal(lines: list[str]) -> None:
    """Show text as it stands: docstrings here are plain English, and no reStructuredText."""
    if any(line.strip() for line in lines):
        lines[:] = [".. code-block:: text", "", *("   " + re.sub(r"[\b]", "", line) for line in lines), ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", lambda app, what, name, thing, options, lines: literal(lines))
    app.connect("sphinx-click-process-description", lambda app, context, lines: literal(lines))
