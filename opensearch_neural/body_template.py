"""Production's own query, unchanged: a request body as a JSON file, with {{query}} in place of the user's words.

    template = BodyTemplate.read("production.json")
    client.search(index="articles", body=template.body("what causes a rainbow", size=10))

It searches any index, even if `osn` did not write it. The user's words are put into the parsed body, so a quotation mark
or line end in them cannot break it. {{size}} and {{from}} become the numbers of the requested page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensearch_neural.errors import InputError
from opensearch_neural.files import parse_json
from opensearch_neural.queries import Body

PLACEHOLDERS = ("query", "size", "from")
# Three braces mean the same as two: Mustache, OpenSearch's own language of templates, escapes nothing between three.
PLACEHOLDER = re.compile(r"\{\{(?P<third>\{)?\s*(?P<name>[^{}]*?)\s*(?(third)\}\}\}|\}\})")
_STRING_OR_BARE = re.compile(r'"(?:\\.|[^"\\])*"|' + PLACEHOLDER.pattern)


@dataclass(frozen=True)
class BodyTemplate:
    """A request body with {{query}} in it."""

    content: Mapping[str, Any]
    """The parsed body, with its placeholders."""

    @classmethod
    def read(cls, path: str | Path) -> BodyTemplate:
        """The template in a file. Raises InputError, naming file and line, if the file is not a template."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the template {path} cannot be read: {error}") from None
        return cls.parse(text, where=str(path))

    @classmethod
    def parse(cls, text: str, *, where: str = "the template") -> BodyTemplate:
        """The template in a text; a placeholder may have quotation marks or not. Raises InputError as `read` does."""
        return cls.of(parse_json(quoted_placeholders(text), where), where=where)

    @classmethod
    def of(cls, content: Any, *, where: str = "the template") -> BodyTemplate:
        """The template in a parsed body. Raises InputError as `read` does."""
        if not isinstance(content, dict):
            raise InputError(f"{where}: expected a request body, as an object in braces")
        names = placeholders(content)
        for name in sorted(names - {*PLACEHOLDERS}):
            raise InputError(
                f"{where}: {{{{{name}}}}} is not a known placeholder",
                "write its value there; only {{query}}, {{size}} and {{from}} are filled in",
            )
        if "query" not in names:
            raise InputError(f"{where}: {{{{query}}}} is missing", "put it where the user's words belong")
        return cls(content)

    def body(self, query: str, size: int = 10, from_: int = 0) -> Body:
        """The request body of a query; `size` and `from_` replace the template's own values."""
        filled = self.filled(query, size, from_)
        return {**filled, "size": size, **({"from": from_} if from_ or "from" in filled else {})}

    def filled(self, query: str, size: int = 10, from_: int = 0) -> Body:
        """The template with its placeholders filled; a `size` or `from` that it has written out stays."""
        values: dict[str, str | int] = {"query": query, "size": size, "from": from_}
        filled: Body = _filled(self.content, values)
        return filled


def quoted_placeholders(text: str) -> str:
    """The text of a template with quotation marks around each placeholder that has none."""
    return _STRING_OR_BARE.sub(_quoted, text)


def placeholders(content: Any) -> set[str]:
    """The names between double braces in a parsed body."""
    return {match["name"] for match in PLACEHOLDER.finditer(json.dumps(content, ensure_ascii=False))}


def _quoted(match: re.Match[str]) -> str:
    """Put a bare placeholder in quotation marks; leave strings unchanged."""
    return match[0] if match["name"] is None else json.dumps(match[0])


def _filled(value: Any, values: Mapping[str, str | int]) -> Any:
    if isinstance(value, dict):
        return {_text(key, values): _filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    if not isinstance(value, str):
        return value
    alone = PLACEHOLDER.fullmatch(value)
    if alone is not None:
        return values[alone["name"]]
    return _text(value, values)


def _text(text: str, values: Mapping[str, str | int]) -> str:
    return PLACEHOLDER.sub(lambda match: str(values[match["name"]]), text)
