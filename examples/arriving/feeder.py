"""Drops the flights out of New York into a folder, a file for each hour: what ``departures.yaml``
loads.
"""

# From the root of the repository: python -m examples.arriving.feeder /data/landing/flights --days 3
# --every 1

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from examples.nycflights import read_table

COLUMNS = ("time_hour", "carrier", "flight", "origin", "dest", "dep_delay")


def hours(days: int) -> Iterator[tuple[str, bytes]]:
    """The name and the content of a file for each hour in which flights were to leave, in the first
    days of 2013.
    """
    flights = read_table("flights").select(["month", "day", *COLUMNS])
    first = pc.and_(pc.equal(flights["month"], 1), pc.less_equal(flights["day"], days))
    flights = flights.filter(first).select(COLUMNS)
    for hour in sorted(flights["time_hour"].unique().to_pylist()):
        rows = flights.filter(
            pc.equal(flights["time_hour"], pa.scalar(hour, flights.schema.field("time_hour").type))
        )
        content = BytesIO()
        csv.write_csv(rows, content, csv.WriteOptions(quoting_style="needed"))
        yield f"{hour:%Y-%m-%dT%H}.csv", content.getvalue()


def drop(folder: Path, name: str, content: bytes) -> None:
    """Write a file under a name that does not count, and rename it once it is whole: no reader
    finds half of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_bytes(content)
    part.replace(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Drop the flights into a folder, hour by hour.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=3, help="so many days of January 2013")
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="from one file to the next"
    )
    parser.add_argument(
        "--cut", metavar="NAME", help="send this file cut short, as a system does that dies"
    )
    parser.add_argument("--only", metavar="NAME", help="send this file alone, and whole")
    given = parser.parse_args()
    for name, content in hours(given.days):
        if given.only in (None, name):
            drop(
                given.folder,
                name,
                content[: content.rindex(b",")] if name == given.cut else content,
            )
            time.sleep(given.every if given.only is None else 0)


if __name__ == "__main__":
    main()
