"""Small Parquet files are written together into larger ones, with the same rows, columns and types."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile


class Rewritten(NamedTuple):
    """One new file, and those whose rows it holds."""

    made: DataFile
    sources: tuple[DataFile, ...]


def rewrite(files: Files, folder: str, small: Iterable[DataFile], target: int) -> Iterator[Rewritten]:
    """Write files below ``folder`` (relative to the warehouse), each of about ``target`` bytes, and name the sources.

    Rows keep their order. Only files of one partition, whose columns have the same names and types, come together; one
    that would stand alone is left as it is.

    Raises: OSError: the store failed; what was written counts for nothing.
    """
    for number, bundle in enumerate(_bundles(files, small, target)):
        path = f"{folder}/part-{number:05d}.parquet"
        data = _together(files, bundle)
        files.write_durable(path, data)
        rows = sum(file.rows for file in bundle)
        yield Rewritten(DataFile(path, rows, len(data), bundle[0].partition), tuple(bundle))


def _bundles(files: Files, small: Iterable[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Files that may come together, at most ``target`` bytes at a time, two at least."""
    alike: dict[Any, list[DataFile]] = {}
    for file in small:
        alike.setdefault((frozenset(file.partition.items()), _columns(files, file)), []).append(file)
    for standing in alike.values():
        bundle: list[DataFile] = []
        for file in standing:
            if bundle and sum(one.bytes for one in bundle) + file.bytes > target:
                if len(bundle) > 1:
                    yield bundle
                bundle = []
            bundle.append(file)
        if len(bundle) > 1:
            yield bundle


def _columns(files: Files, file: DataFile) -> tuple[tuple[str, str], ...]:
    import pyarrow.parquet as pq

    with files.open(file.path) as source:
        return tuple((field.name, str(field.type)) for field in pq.read_schema(source))


def _together(files: Files, bundle: list[DataFile]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in bundle:
        with files.open(file.path) as source:
            tables.append(pq.ParquetFile(source).read())
    data = io.BytesIO()
    # As in an output: the schema of Arrow would be known to some readers alone.
    pq.write_table(pa.concat_tables(tables, promote_options="default"), data, store_schema=False)
    return data.getvalue()
