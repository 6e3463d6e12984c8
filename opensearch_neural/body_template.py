"""Production's own query as it is: a JSON file of a request body, in which {{query}} stands for what the user asked.

    template = BodyTemplate.read("production.json")
    client.search(index="articles", body=template.body("what causes a rainbow", size=10))

It searches any index, also one that `osn` did not write. Text takes the place of {{query}} inside the parsed body, so a
quotation mark or a line end in a query is only a letter. {{size}} and {{from}} become the numbers of the page asked for.
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
PLACEHOLDER = re.compile(r"\{\{\s*(?P<name>[^{}]*?)\s*\}\}")
_STRING_OR_BARE = re.compile(r'"(?:\\.|[^"\\])*"|' + PLACEHOLDER.pattern)


@dataclass(frozen=True)
class BodyTemplate:
    """A request body with {{query}} in it."""

    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> BodyTemplate:
        """The template in a file. Raises InputError, naming file and line, for what is no such template."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the template {path} cannot be read: {error}") from None
        return cls.parse(text, where=str(path))

    @classmethod
    def parse(cls, text: str, *, where: str = "the template") -> BodyTemplate:
        """The template in a text; a placeholder may stand with or without quotation marks. Raises InputError as `read`."""
        content = parse_json(_STRING_OR_BARE.sub(_quoted, text), where)
        if not isinstance(content, dict):
            raise InputError(f"{where}: expected a request body, as an object in braces")
        names = {match["name"] for match in PLACEHOLDER.finditer(json.dumps(content, ensure_ascii=False))}
        for name in sorted(names - {*PLACEHOLDERS}):
            raise InputError(
                f"{where}: {{{{{name}}}}} is not a known placeholder",
                "write its value there; only {{query}}, {{size}} and {{from}} are filled in",
            )
        if "query" not in names:
            raise InputError(f"{where}: {{{{query}}}} is missing", "put it where the user's words belong")
        return cls(content)

    def body(self, query: str, size: int = 10, from_: int = 0) -> Body:
        """The request body of a query, for `size` hits from `from_` on, whatever the template itself says of them."""
        values: dict[str, str | int] = {"query": query, "size": size, "from": from_}
        filled: Body = _filled(self.content, values)
        return {**filled, "size": size, **({"from": from_} if from_ or "from" in filled else {})}


def _quoted(match: re.Match[str]) -> str:
    """A string as it is, a placeholder without quotation marks as one with them."""
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
