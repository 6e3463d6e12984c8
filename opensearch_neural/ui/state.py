"""The state of the page. All of it is in the page's address, so that an address can be saved and sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import urlencode

from opensearch_neural.engines import ENGINES, options_by_name
from opensearch_neural.engines.engine import Option
from opensearch_neural.errors import InputError

OWN_BODY = "own body"
"""The engine's name for a column whose body the user writes."""
MOST_COLUMNS = 4
MOST_HITS = 50
LONGEST_QUERY = 2_000
LONGEST_BODY = 20_000


class Parameters(Protocol):
    """The parameters of an address, as Starlette reads them."""

    def getlist(self, key: Any, /) -> list[Any]: ...


@dataclass(frozen=True)
class Column:
    """How a column searches, in the texts that the user wrote; empty: the default of the index and the engine."""

    engine: str
    """The name of an engine, or "own body"."""
    index: str = ""
    """An index or alias."""
    body: str = ""
    """For the engine "own body": a search body as JSON, with {{query}} in place of the query's text."""
    name: str = ""
    """For the engine "own body": its name on the page; empty: "own body"."""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """{option of an engine: what the user wrote, of a flag "yes"}, without empty texts."""

    @property
    def texts(self) -> dict[str, str]:
        """{parameter of an address: its text}; every column has all parameters."""
        options = {name: self.options.get(name, "") for name in takers()}
        return {"engine": self.engine, "index": self.index, **options, "name": self.name, "body": self.body}

    @property
    def chosen(self) -> dict[str, tuple[Option, str]]:
        """{name: (setting of the engine, what the user wrote)}, for the settings that the user set."""
        return {
            name: (option, text)
            for name, option in offered(self.engine).items()
            if (text := self.options.get(name, "").strip())
        }

    def settings(self) -> dict[str, Any]:
        """The settings of the engine. Raises InputError for an invalid value."""
        values = {}
        for name, (option, text) in self.chosen.items():
            try:
                values[name] = flag(text) if option.is_flag else option.parse(text)
            except ValueError as error:
                raise InputError(f"{self.engine}, {name.replace('_', ' ')} {text}: {error}") from None
        return values

    @property
    def title(self) -> str:
        """ "bm25-sparse, window 20, exact"."""
        options = [
            name.replace("_", " ") + ("" if option.is_flag else f" {text}")
            for name, (option, text) in self.chosen.items()
        ]
        return ", ".join([(self.engine == OWN_BODY and self.name) or self.engine, *options])


def offered(engine: str) -> dict[str, Option]:
    """{name: option} for the engine's options that the page offers: those that load no files of the server."""
    options = ENGINES[engine].options if engine in ENGINES else ()
    return {each.name: each for each in options if not each.loads}


def takers() -> dict[str, dict[str, Option]]:
    """{option that the page offers: {engine that takes it: the option}}"""
    return {name: by for name, by in options_by_name().items() if not any(option.loads for option in by.values())}


def flag(text: str) -> bool:
    """True for "yes". Raises ValueError for any other text."""
    if text != "yes":
        raise ValueError("yes, or nothing")
    return True


@dataclass(frozen=True)
class State:
    """The state of the page."""

    query: str = ""
    """The query's text."""
    filters: tuple[str, ...] = ()
    """Filters of all columns, as the user wrote them."""
    size: int = 10
    """Hits of each column."""
    columns: tuple[Column, ...] = ()
    """From left to right; others are compared with the first."""
    document: str = ""
    """The id of the document whose absence is explained; empty: none."""
    timed: bool = False
    """Whether the page measures the columns' times."""
    id: str = ""
    """The id of a query in the file of queries; empty: none."""
    who: str = ""
    """The person who judges."""
    searched: int | None = None
    """How many queries of the file had been searched when the user began to step through it, which fixes the order."""

    @classmethod
    def of(cls, parameters: Parameters, columns: tuple[Column, ...], indexes: tuple[str, ...]) -> State:
        """Parse an address. columns: the default columns. Raises InputError for invalid values, but not for a long query,
        which the file of queries may have."""

        def last(name: str, default: str = "") -> str:
            return [default, *parameters.getlist(name)][-1]

        query, size = last("q"), last("size", "10")
        if not size.isdecimal() or len(size) > 9 or not 1 <= int(size) <= MOST_HITS:
            raise InputError(f"the number of hits must be from 1 to {MOST_HITS}, not {size[:20]!r}")
        lists = {name: parameters.getlist(name) for name in Column("").texts}
        chosen = []
        for at, engine in enumerate(lists["engine"]):
            if engine:
                texts = {name: texts[at] for name, texts in lists.items() if at < len(texts)}
                options = {name: texts[name] for name in takers() if texts.get(name)}
                name = texts.get("name", "").strip()[:100]
                chosen.append(Column(engine, texts.get("index", ""), texts.get("body", ""), name, options))
        return cls(
            query=query,
            filters=tuple(
                line.strip() for text in parameters.getlist("filter") for line in text.splitlines() if line.strip()
            ),
            size=int(size),
            columns=checked(chosen, indexes) or columns,
            document=last("document").strip(),
            timed=last("timed") == "yes",
            id=last("id"),
            who=last("who").strip()[:100],
            searched=int(last("searched")) if last("searched").isdecimal() and len(last("searched")) < 9 else None,
        )

    def address(self, **changed: Any) -> str:
        """The part of the address after the question mark. changed: fields of the state to change first."""
        state = replace(self, **changed)
        known = state.id and len(state.query) > LONGEST_QUERY  # the file of queries has the text
        parts = [
            ("q", "" if known else state.query),
            *(("filter", text) for text in state.filters),
            ("size", str(state.size)),
        ]
        for column in state.columns:
            parts += column.texts.items()
        parts += [("document", state.document)] if state.document else []
        parts += [("timed", "yes")] if state.timed else []
        parts += [(name, text) for name, text in (("id", state.id), ("who", state.who)) if text]
        parts += [] if state.searched is None else [("searched", str(state.searched))]
        return urlencode(parts)


def checked(columns: Sequence[Column], indexes: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns, each with an index. Raises InputError for too many columns, and for an engine or index that the page does
    not search."""
    if len(columns) > MOST_COLUMNS:
        raise InputError(f"the page shows at most {MOST_COLUMNS} columns")
    return tuple(_checked_column(column, indexes) for column in columns)


def _checked_column(column: Column, indexes: tuple[str, ...]) -> Column:
    if column.engine not in ENGINES and column.engine != OWN_BODY:
        raise InputError(f"there is no engine {column.engine!r}", f"engines: {', '.join([*ENGINES, OWN_BODY])}")
    index = column.index or indexes[0]
    if index not in indexes:
        raise InputError(f"this page does not search the index {index!r}", f"it searches: {', '.join(indexes)}")
    if len(column.body) > LONGEST_BODY:
        raise InputError(f"the body has {len(column.body):,} characters, and the page allows {LONGEST_BODY:,}")
    return replace(column, index=index)
