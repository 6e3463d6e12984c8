"""Corpora in parquet files: each row is a document. Columns that only the names of folders hold are its fields, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from opensearch_neural.corpus.documents import (
    Document,
    FieldNames,
    OnReject,
    check_columns,
    document_of_row,
    first_line,
)
from opensearch_neural.errors import InputError, MissingExtra

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for null in the name of a folder."""


def partition_of(path: PurePath) -> dict[str, str]:
    """{column: value} that the folders of a path name, as Hive and Spark write them: lang=en/year=2025/part-0.parquet"""
    parts = [part.partition("=") for part in path.parts[:-1]]
    return {
        unquote(name): unquote(value) for name, equals, value in parts if name and equals and value != DEFAULT_PARTITION
    }


def read_parquet(
    file: Path, names: FieldNames, on_reject: OnReject, partition: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Document]:
    """Rows of one parquet file.

    partition: {column: value} of all rows, unless the file has the column

    Raises InputError for a file that is not parquet or is truncated, and at a damaged row group.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("reading parquet", "corpora") from None
    errors = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError, TypeError, IndexError)
    remedy = "fetch or write the file again"
    try:
        source = parquet.ParquetFile(file)
        sizes = [source.metadata.row_group(group).num_rows for group in range(source.metadata.num_row_groups)]
        columns = source.schema_arrow.names
        partition = {name: value for name, value in partition.items() if name not in columns}
        maps = {field.name for field in source.schema_arrow if pa.types.is_map(field.type)}
        objects = maps | {field.name for field in source.schema_arrow if _holds_objects(pa, field.type)}
    except errors as error:
        reason = f"cannot be read as parquet (truncated or damaged?): {first_line(error)}"
        raise InputError(f"{file}: {reason}", remedy) from None
    with source:
        check_columns([*columns, *partition], names, str(file), objects)
        number = 0
        for group, size in enumerate(sizes):
            end = number + size
            batches = source.iter_batches(batch_size=1024, row_groups=[group])
            while True:
                try:
                    batch = next(batches, None)
                except errors as error:
                    raise InputError(
                        f"{file}, row {number + 1}: row group {group + 1} is damaged, {end - number:,} of its rows "
                        f"cannot be read: {first_line(error)}",
                        remedy,
                    ) from None
                if batch is None:
                    break
                for row in _rows(batch, maps, errors):
                    number += 1
                    document = document_of_row({**row, **partition}, names, str(file), number, on_reject)
                    if document is not None:
                        yield document


def _holds_objects(pa: Any, kind: Any) -> bool:
    """Whether a column of this type holds objects, or lists of them."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _holds_objects(pa, kind.value_type)
    return bool(pa.types.is_struct(kind))


def _rows(batch: Any, maps: set[str], errors: tuple[type[Exception], ...]) -> list[dict[str, Any]]:
    """The rows of a record batch, converted together, or cell by cell if that fails (for invalid UTF-8 in a cell, say).
    A cell that cannot be converted is the error.

    maps: the columns of maps, which pyarrow gives as lists of pairs; a document has objects
    """
    try:
        rows = batch.to_pylist()
    except errors:
        rows = [{} for _ in range(len(batch))]
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for row, cell in zip(rows, column, strict=True):
                try:
                    row[name] = cell.as_py()
                except errors as error:
                    row[name] = error
    return [_with_objects(row, maps) for row in rows] if maps else rows


def _with_objects(row: dict[str, Any], maps: set[str]) -> dict[str, Any]:
    return row | {name: {str(key): value for key, value in row[name]} for name in maps if isinstance(row[name], list)}
