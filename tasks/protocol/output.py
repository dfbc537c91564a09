"""How one output is published: in which mode, and whether as a dataset of the warehouse or into a Delta table."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from unstuck.tasks.protocol.group import ColumnName, Listed, Strict

_PLACES = ("/", "file:///", "s3://")


class OutputSpec(Strict):
    """How one output is published, and into which files it is written for that.

    The modes and their names are those of Spark's writers and of dbt's incremental models: ``replace`` (all rows),
    ``append``, ``partition_overwrite`` (the partitions of which the output has rows), and ``merge`` (the rows with the
    same keys).
    """

    mode: Literal["replace", "append", "partition_overwrite", "merge"] = Field(
        default="replace",
        description="What becomes of the rows that are published: replace all, append to them, replace the "
        "partitions of which the output has rows, or replace the rows with the same keys.",
    )
    partition_by: Listed[ColumnName] = Field(
        default=(), description="Columns whose values part the rows: each file has the rows of one partition."
    )
    format: Literal["parquet", "delta"] = Field(
        default="parquet", description="parquet: files that the warehouse log names; delta: a Delta table at path."
    )
    path: str | None = Field(
        default=None,
        strict=True,
        min_length=2,
        max_length=2000,
        description="For delta: the table, an absolute path or a URI; it is made if it is absent.",
    )
    keys: Listed[ColumnName] = Field(
        default=(), description="For merge: the columns that tell one row from another; none is null or there twice."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for field, columns in (("partition_by", self.partition_by), ("keys", self.keys)):
            if len(set(columns)) != len(columns):
                raise ValueError(f"{field} names a column twice")
        if self.mode == "partition_overwrite" and not self.partition_by:
            raise ValueError("mode: partition_overwrite wants partition_by: with the columns that part the rows")
        if self.mode == "merge" and self.format != "delta":
            raise ValueError("mode: merge wants format: delta")
        if (self.mode == "merge") != bool(self.keys):
            wants = "mode: merge wants keys: with the columns that tell one row from another"
            raise ValueError(wants if self.mode == "merge" else "keys: are for mode: merge alone")
        if (self.format == "delta") != (self.path is not None):
            wants = "format: delta wants path: with the place of the table"
            raise ValueError(wants if self.format == "delta" else "path: is for format: delta alone")
        if self.path is not None and (not self.path.startswith(_PLACES) or ".." in self.path.split("/")):
            raise ValueError(f"path: {self.path!r} must be an absolute path without .., file:///… or s3://…")
        return self

    @property
    def table(self) -> str | None:
        """The place of the Delta table, written in one way; None for a dataset of the warehouse."""
        if self.path is None:
            return None
        path = self.path
        if not path.startswith("s3://"):
            path = "/" + "/".join(part for part in path.removeprefix("file:").split("/") if part not in ("", "."))
        return path.rstrip("/")
