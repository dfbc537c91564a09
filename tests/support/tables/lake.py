"""A warehouse with a table ``flights`` beside it, in one of the table formats."""

from __future__ import annotations

import datetime
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, write_marker

Rows = Sequence[Mapping[str, Any]]
COLUMNS = {"id": (pa.int64(), "long"), "day": (pa.date32(), "date"), "air": (pa.string(), "string")}
ONE, TWO = datetime.date(2013, 1, 1), datetime.date(2013, 1, 2)


def row(id_: int | None, day: datetime.date | None = ONE, air: str | None = "UA") -> dict[str, Any]:
    return {"id": id_, "day": day, "air": air}


def schema() -> pa.Schema:
    return pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])


@dataclass
class Lake(ABC):
    """A warehouse, and a table ``flights`` beside it.

    Attributes:
        path: the value of ``path:``.
    """

    root: str
    path: str
    format = ""

    def spec(self, mode: Any, **more: Any) -> OutputSpec:
        if mode == "partition_overwrite":  # the staged output says which partitions these are
            more["partitions"] = {more["partition_by"][0]: (":day",)}
        return OutputSpec(mode=mode, format=self.format, path=self.path, **more)

    def stage(
        self,
        job: str,
        output: OutputSpec,
        rows: Rows,
        extra: str = "",
        rejected: Rows = (),
        **more: Any,
    ) -> PublishRequest:
        """A job that has made ``rows``, and the request to publish them."""
        files, staging = Files(self.root), f"_staging/{job}/load/1-nonce-claimant"
        warehouse_id = Warehouse(self.root).ensure_id()
        parts: dict[tuple[Any, ...], list[Any]] = {}
        for line in rows:
            parts.setdefault(tuple(line[c] for c in output.partition_by), []).append(line)
        made = []
        for number, (values, some) in enumerate(parts.items()):
            path = f"{staging}/flights/part-{number}.parquet"
            Path(self.root, path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(some, schema()), f"{self.root}/{path}")
            texts = {
                c: None if v is None else str(v)
                for c, v in zip(output.partition_by, values, strict=True)
            }
            made.append(DataFile(path, len(some), Path(self.root, path).stat().st_size, texts))
        fields = [
            {"name": n, "type": t, "nullable": True, "metadata": {}}
            for n, (_, t) in COLUMNS.items()
        ]
        if extra:
            fields.append({"name": extra, "type": "long", "nullable": True, "metadata": {}})
        columns = json.dumps({"type": "struct", "fields": fields})
        if output.partitions:
            named = [{column: [value] for column, value in file.partition.items()} for file in made]
            more.setdefault("replaces", named)
        outputs = {"flights": StagedOutput(made, len(rows), columns, **more)}
        if rejected:
            path = f"{staging}/flights__rejected.parquet"
            pq.write_table(pa.Table.from_pylist([*rejected], schema()), f"{self.root}/{path}")
            bad = [DataFile(path, len(rejected), Path(self.root, path).stat().st_size, {})]
            outputs["flights__rejected"] = StagedOutput(
                bad, len(rejected), columns, rejected_of="flights"
            )
        write_marker(files, staging, Marker(f"{job}/load", "same", outputs, {}, {}, 1.0))
        return PublishRequest(
            *(self.root, warehouse_id, job, job, "nightly", 0, 1000.0),
            sources={"load": (staging,)},
            published_by={"load"},
            outputs={"flights": output},
        )

    def publish(self, job: str, output: OutputSpec, rows: Rows, extra: str = "") -> PublishResult:
        return publish(self.stage(job, output, rows, extra))

    @property
    def ids(self) -> list[int]:
        return sorted(line["id"] for line in self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, which all readers agree on."""
        arrow_rows = self.arrow().select(list(COLUMNS))
        rows = sorted(arrow_rows.to_pylist(), key=str)
        assert sorted(self.polars().select(list(COLUMNS)).to_dicts(), key=str) == rows
        in_duckdb = duckdb.sql(f"SELECT {', '.join(COLUMNS)} FROM arrow_rows").fetchall()
        assert (
            sorted((dict(zip(COLUMNS, line, strict=True)) for line in in_duckdb), key=str) == rows
        )
        return rows

    @property
    @abstractmethod
    def exists(self) -> bool: ...

    @property
    @abstractmethod
    def commits(self) -> int:
        """The commits with rows that the table has had."""

    @abstractmethod
    def arrow(self, commit: int | None = None) -> pa.Table:
        """Return the rows after a commit, counted from 1; None: the newest."""

    @abstractmethod
    def polars(self) -> pl.DataFrame: ...

    @abstractmethod
    def elsewhere(self) -> Lake:
        """Return the same warehouse with another table."""

    @abstractmethod
    def write(self, rows: Rows, partition_by: Sequence[str] = ()) -> None:
        """Append rows as a tool from outside does."""

    @abstractmethod
    def add_column(self) -> None:
        """Add a column as a tool from outside does."""

    @abstractmethod
    def remove_column(self) -> None:
        """Undo `add_column`."""

    @abstractmethod
    def compact(self) -> None:
        """Write the rows into other files, as a tool from outside does."""
