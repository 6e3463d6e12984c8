"""The page's HTML: templates that escape all that they show; with `alone`, one file that works offline."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Sequence
from importlib import resources
from typing import Any

from opensearch_neural.engines import ENGINES
from opensearch_neural.errors import MissingExtra, OsnError
from opensearch_neural.search.hits import parts_of
from opensearch_neural.ui.columns import Searcher, spread
from opensearch_neural.ui.comparison import Shown
from opensearch_neural.ui.state import MOST_COLUMNS, MOST_HITS, OWN_BODY, Column, State, offered, takers
from opensearch_neural.ui.walk import Place

try:
    import jinja2
    from markupsafe import Markup, escape
except ModuleNotFoundError as error:
    raise MissingExtra("the compare page", "ui") from error


SLIDES = {"weight": "0.05 2 0.05 0.8", "window": "5 500 5 30", "dense_window": "5 500 5 50"}
"""{setting: minimum, maximum, step and initial position of its slider}"""


def file(name: str) -> str:
    """The text of a file of this package, such as "static/page.js"."""
    return (resources.files("opensearch_neural.ui") / name).read_text(encoding="utf-8")


@functools.cache
def templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("opensearch_neural.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(marked=marked, spread=spread, number=lambda value: f"{value:.3f}")
    made.tests["link"] = lambda url: bool(re.match(r"https?://", str(url)))
    made.globals.update(parts_of=parts_of, offered=offered)
    return made


def marked(text: str, sentence: str = "") -> Markup:
    """The escaped text, with marks for the words that OpenSearch highlights, and for `sentence`, a part of the text."""
    before, sentence, after = text.partition(sentence) if sentence else (text, "", "")
    around = f'<mark class="sentence">{words_marked(sentence)}</mark>' if sentence else ""
    return Markup(f"{words_marked(before)}{around}{words_marked(after)}")


def words_marked(text: str) -> str:
    """The escaped text, with <mark> for each closed pair <em>…</em>. A document may contain such tags itself; a tag that is
    not closed stays text."""
    escaped = str(escape(readable(text)))
    return re.sub("&lt;em&gt;((?:(?!&lt;/?em&gt;).)*)&lt;/em&gt;", r"<mark>\1</mark>", escaped, flags=re.DOTALL)


def readable(text: str) -> str:
    """The text with characters that HTML cannot contain (lone surrogates, control characters) replaced by U+FFFD."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\ufffd", text)


def compare_page(
    searcher: Searcher,
    state: State,
    shown: Sequence[Shown],
    *,
    error: str = "",
    place: Place | None = None,
    alone: bool = False,
) -> str:
    """The whole page. alone: includes script and style, and leaves out forms, which need a server."""
    columns = [*state.columns, *([Column("")] if len(state.columns) < MOST_COLUMNS else [])]
    return render(
        "page.html",
        alone=alone,
        state=state,
        columns=columns,
        shown=shown,
        copies=[copies(searcher, each, state) for each in shown],
        error=error,
        place=place,
        engines={name: engine.finds for name, engine in ENGINES.items()},
        own_body=OWN_BODY,
        slides=SLIDES,
        settings={name: (by, next(iter(by.values())).is_flag) for name, by in takers().items()},
        indexes=searcher.indexes,
        most_hits=MOST_HITS,
    )


def render(name: str, *, alone: bool = False, **values: Any) -> str:
    """A template's text, valid in UTF-8. alone: it includes script and style, and its policy allows only these."""
    style, script = (file("static/page.css"), file("static/page.js")) if alone else ("", "")
    policy = f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; img-src data:"
    text = (
        templates()
        .get_template(name)
        .render(alone=alone, style=Markup(style), script=Markup(script), policy=policy, **values)
    )
    return text.encode("utf-8", "replace").decode()


def digest(text: str) -> str:
    """The hash of a script or style, as a content security policy writes it."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def copies(searcher: Searcher, shown: Shown, state: State) -> dict[str, str]:
    """The texts that a user can copy from a column: the body as JSON, and the same search in Python and with curl."""
    try:
        body = searcher.body_text(shown.column, state)
    except OsnError:
        return {}
    index = shown.column.index
    one_line = json.dumps(json.loads(body), ensure_ascii=False)
    python = (
        "import json\n\nfrom opensearch_neural import connect\n\n"
        f"body = json.loads({one_line!r})\nanswer = connect().search(index={index!r}, body=body)\n"
        'for hit in answer["hits"]["hits"]:\n    print(hit["_score"], hit["_id"])'
    )
    curl = f'curl -s -H "content-type: application/json" "$OSN_URL"/{shlex.quote(index)}/_search -d {shlex.quote(one_line)}'
    return {"JSON": body, "Python": python, "curl": curl}
