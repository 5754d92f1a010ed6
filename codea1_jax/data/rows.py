"""Rows of JSON, JSON lines (plain or gzip) and Parquet files, as dictionaries."""

import gzip
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from codea1_jax.data.location import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


def read_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of one file; a `.json` file holds one array of rows."""
    if path.name.endswith(".parquet"):
        yield from _parquet_rows(path)
        return
    try:
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8") as file:
            text = file.read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if path.name.removesuffix(".gz").endswith(".json"):
        yield from _array_rows(text, path)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _row(line, f"{path}:{number}")


def _row(text: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object, found {type(row).__name__}")
    return row


def _array_rows(text: str, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected an array of objects")
    yield from rows


def _parquet_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def field(row: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """A field of a row, checked; the error names the row."""
    if name not in row:
        raise DataError(f"{where}: the field {name!r} is missing")
    value = row[name]
    if not isinstance(value, kind):
        raise DataError(
            f"{where}: the field {name!r} is {type(value).__name__}, expected {kind.__name__}"
        )
    return value
