"""Every link of README, changelog and docs leads somewhere, and so does every page that code or a message names.

Addresses on the web are read for their form alone; `make docs-links` asks them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.docs_tables import PAGES, README

ROOT = README.parent
LINKED = (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
FILES = re.compile(r"`((?:opensearch_neural|ingest|trainers|benchmarks|tests|examples|docs)/[\w/.-]*)`")
CODE = re.compile(r"^(`{3,}|~{3,})(?!\{).*?^\1`*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
TARGETS = (
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)",  # [text](target "title"), also of pictures
    r"^\[(?!\^)[^\]]+\]:\s+(\S+)",  # [name]: target, but no [^footnote]: text
    r"<(https?:[^>\s]+)>",
    r"\b(?:href|src)=\"([^\"]+)\"",
)
SITE_HEADINGS = int(re.findall(r"myst_heading_anchors = (\d)", (ROOT / "docs" / "conf.py").read_text())[0])


def prose(text: str) -> str:
    """A page without its code, in which brackets are no links."""
    return CODE.sub("", text)


def links(text: str) -> list[str]:
    """Every target that the Markdown of a page links to or shows."""
    found = [target for pattern in TARGETS for target in re.findall(pattern, prose(text), re.MULTILINE)]
    cards = re.findall(r"^:link: (\S+)\n:link-type: doc$", text, re.MULTILINE)
    return [*found, *(f"{card}.md" for card in cards)]


def anchors(text: str, levels: int = 6) -> set[str]:
    """The names of a page's headings, as GitHub and the documentation site make them; a name that is taken gets -1, -2."""
    made: set[str] = set()
    without_fences = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(rf"^#{{1,{levels}}} (.+)$", without_fences, re.MULTILINE):
        name = slug = re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
        count = 0
        while name in made:
            count += 1
            name = f"{slug}-{count}"
        made.add(name)
    return made


def broken(page: Path, target: str) -> str | None:
    """What is wrong with a link of a page; None if nothing is."""
    if re.match(r"[a-z][a-z+.-]*:", target):
        address = urlsplit(target)
        if address.scheme == "http" and address.hostname == "localhost":
            return None
        whole = re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", address.hostname or "")
        if address.scheme != "https" or not whole or not re.fullmatch(r"(/[!-~]*)?", address.path):
            return f"{target} is no address of a page"
        return None
    path, _, heading = target.partition("#")
    to = page.parent / path if path else page
    if not to.exists():
        return f"{target}: there is no {path}"
    levels = SITE_HEADINGS if (ROOT / "docs") in (page if to == page else to).resolve().parents else 6
    if heading and heading not in anchors(to.read_text(encoding="utf-8"), levels):
        return f"{target}: {to.name} has no heading #{heading}"
    return None


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    found = links(page.read_text(encoding="utf-8"))
    assert [wrong for target in found if (wrong := broken(page, target))] == []
    assert found or page != README


def test_files_that_the_page_of_contributors_names_exist() -> None:
    text = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
    named = [file for file in FILES.findall(text) if "NAME" not in file]
    assert [file for file in named if not (ROOT / file).exists()] == [] != named


def test_pages_that_code_names_exist() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = [
        ROOT / name for name in listed if Path(name).suffix in (".py", ".yaml", ".cfg", ".toml", ".ipynb", ".html")
    ]
    named = [(file, page) for file in (*files, ROOT / "Makefile") for page in named_in(file.read_text("utf-8"))]
    assert len(named) >= 5
    assert [(str(file), wrong) for file, page in named if (wrong := broken(README, page))] == []


def named_in(text: str) -> list[str]:
    """The pages of docs/, with a heading or without, that a source names anywhere."""
    return re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", text)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text("# A page\n\n## Twice\n\n## Twice\n\n```sh\n# Code\n```\n")
    other.write_text("# It's *here*: `x`\n")
    for target in (
        "#twice-1",
        "other.md",
        "other.md#its-here-x",
        "https://example.org/a_b?c=1#d",
        "https://example.org",
    ):
        assert broken(page, target) is None, target
    for target in (
        "#code", "#twice-2", "othr.md", "other.md#there",
        "http://example.org", "https://example", "https:/example.org", "https://exa mple.org/a", "mailto:someone",
    ):  # fmt: skip
        assert broken(page, target) is not None, target
    shown = '[a\nb](x.md "t") ![p](p.png) <https://a.org> <img src="i.png">\n\n[r]: r.md\n'
    shown += "\n`[no](no.md)`\n\n```\n[no](n.md)\n```\n\n[^1]: A footnote.\n"
    assert sorted(links(shown)) == ["https://a.org", "i.png", "p.png", "r.md", "x.md"]
    assert links(":link: here/page\n:link-type: doc\n") == ["here/page.md"]
