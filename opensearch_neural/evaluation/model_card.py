"""Rows of result files as the table of a model's card (`osn model export hub`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.evaluation.results import Row
from opensearch_neural.files import read_json_object

MOST_ROWS = 200
"""Nobody reads a card with more measurements."""
P_VALUES = ("p-value", "holm")
"""The kinds of rows that a card leaves out: a difference has its interval beside it."""
HEADING = ("| set | engine | measure | value | 95% interval | queries |", "|---|---|---|---|---|---|")


def card_table(results: Sequence[Path], only: Mapping[str, Collection[str]] = MappingProxyType({})) -> list[str]:
    """The table's lines, in Markdown, without p-values; none if there are no other rows.

    results: `summary.json` files of measurements. only: {field of a row: values} chooses among their rows ("variant",
    "engine", "measure"); a field without values leaves out no row.

    Raises InputError if a file is no result file, if no row is chosen, or if a card cannot show so many.
    """
    rows = _chosen([row for path in results for row in _rows(path)], only)
    return [*HEADING, *map(_line, rows)] if rows else []


def _line(row: Row) -> str:
    interval = "" if row.low is None or row.high is None else f"{row.low:.4f} to {row.high:.4f}"
    cells = (row.where, row.line, row.column, f"{row.value:.4f}", interval, row.n or "")
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _chosen(rows: list[Row], only: Mapping[str, Collection[str]]) -> list[Row]:
    """The rows whose fields have one of the values that are named for them."""
    for field, values in only.items():
        there = {str(getattr(row, field)) for row in rows}
        if unknown := set(values) - there:
            raise InputError(
                f"no row of the results has the {field} {', '.join(map(repr, sorted(unknown)))}",
                f"known are {', '.join(map(repr, sorted(there)))}",
            )
        rows = [row for row in rows if not values or getattr(row, field) in values]
    if len(rows) > MOST_ROWS:
        raise InputError(
            f"the results have {len(rows):,} rows, more than the {MOST_ROWS} that a card can show",
            "choose some with --variant, --engine and --measure",
        )
    return rows


def _rows(path: Path) -> list[Row]:
    """The rows of a result file, without p-values. Raises InputError for any other file."""
    try:
        rows = [Row.from_json(row) for row in read_json_object(path)["rows"]]
        for row in rows:
            _line(row)
    except (ModelError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no result file: {error}", "give a summary.json of a measurement") from None
    return [row for row in rows if row.kind not in P_VALUES]
