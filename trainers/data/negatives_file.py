"""Reads the negatives of an `osn data mine` file, to replace a set's own or to add to them."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from opensearch_neural.errors import InputError
from trainers.data import formats
from trainers.data.examples import TrainingData

NEGATIVES = "negatives"


def with_negatives(data: TrainingData, path: str | Path, *, add: bool = False) -> TrainingData:
    """`data` with the negatives of an `osn data mine` file, without the queries that its filter left out.

    add: keep the data's own negatives too; the two lists alternate, the hardest first. Raises InputError for a file that
    was mined for other texts.
    """
    path = Path(path)
    header = formats.read_header(path, NEGATIVES)
    for what, store in (("queries", data.queries), ("documents", data.documents)):
        if header.get(what) != store.hash:
            raise InputError(
                f"{path} was mined for other {what} (hash {header.get(what)}) than {data.name} has ({store.hash})",
                "mine again for this data: osn data mine",
            )
    mined: dict[int, list[int]] = {}
    left_out: set[int] = set()
    for number, line in formats.read_json_lines(path):
        if number == 1:
            continue
        try:
            query = data.queries.row(line["query_id"])
            mined[query] = [data.documents.row(document) for document in line["negatives"]]
        except (KeyError, TypeError):
            raise InputError(f"{path}, line {number}: expected an object with 'query_id' and 'negatives'") from None
        if line.get("left_out"):
            left_out.add(query)
    rows = data.query_rows.tolist()
    chosen = [index for index, query in enumerate(rows) if query not in left_out]
    positives = [data.positives[index].tolist() for index in chosen]
    negatives = [mined.get(rows[index], []) for index in chosen]
    if add:
        own = [data.negatives[index].tolist() for index in chosen]
        negatives = [_in_turns(mined_rows, own_rows) for mined_rows, own_rows in zip(negatives, own, strict=True)]
    result = data.take(chosen, positives=positives, negatives=negatives)
    if left_out:
        result.notes.append(f"{path}: {len(rows) - len(chosen)} queries left out by the consistency filter")
    if without := sum(rows[index] not in mined for index in chosen):
        result.notes.append(f"{path}: {without} of {len(chosen)} queries were not mined and have no hard negatives")
    return result


def _in_turns(first: list[int], second: list[int]) -> list[int]:
    taken = [row for pair in zip_longest(first, second) for row in pair if row is not None]
    return list(dict.fromkeys(taken))
