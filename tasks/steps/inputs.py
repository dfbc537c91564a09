"""What is read with Spark: what the needed groups staged, and what is published.

The attempts to read are fixed when the group is first queued, so every retry reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.tasks.errors import InputMissing, OutputInvalid
from unstuck.tasks.steps.spark import comparable, read_parquet
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import StagedOutput, read_marker


@dataclass(frozen=True, slots=True)
class Dataset:
    """One name that steps can read: the parts that the members of one fork (or one group) staged under it."""

    name: str
    parts: tuple[StagedOutput, ...]

    def by_schema(self, files: Files) -> list[tuple[str, list[str]]]:
        """Each schema with the URIs of its files, so that most datasets are one plain read."""
        groups: dict[str, tuple[str, list[str]]] = {}
        for part in self.parts:
            _, uris = groups.setdefault(comparable(part.schema), (part.schema, []))
            uris.extend(files.uri(file.path) for file in part.files)
        return list(groups.values())


def read_inputs(files: Files, inputs: Mapping[str, Iterable[str]]) -> dict[str, Dataset]:
    """The datasets in ``inputs`` (needed group → staging folders), by every name a step may call them.

    A group with exactly one output answers to its own name too.

    Raises:
        InputMissing: a marker is not there, or cannot be read.
        OutputInvalid: two needed groups have an output of the same name.
        OSError: the warehouse could not be asked.
    """
    found: dict[str, Dataset] = {}
    maker: dict[str, str] = {}
    by_group: dict[str, Dataset] = {}
    for need, folders in inputs.items():
        outputs = _outputs_of(files, need, folders)
        for name, parts in outputs.items():
            if name in maker:
                raise OutputInvalid(
                    f"both {maker[name]} and {need} have an output named {name}; give one of them another name"
                )
            maker[name] = need
            found[name] = Dataset(name, tuple(parts))
            if len(outputs) == 1:
                by_group[need] = found[name]
    # An output's own name wins over a group that happens to be called the same.
    return {**by_group, **found}


def _outputs_of(files: Files, need: str, folders: Iterable[str]) -> dict[str, list[StagedOutput]]:
    outputs: dict[str, list[StagedOutput]] = {}
    for folder in folders:
        marker = read_marker(files, folder)
        if marker is None:
            raise InputMissing(
                f"what {need} staged cannot be read: no marker in {files.uri(folder)}. It may have been swept, or this "
                "worker does not see the folder that the other one wrote to"
            )
        for name, staged in marker.outputs.items():
            outputs.setdefault(name, []).append(staged)
    return outputs


def published(spark: Any, warehouse: Warehouse | str, dataset: str, version: int | None = None) -> Any:
    """``dataset`` as a Spark DataFrame: all of one version, whatever is published while it is read.

    Args:
        spark: a SparkSession, Classic or Connect.
        warehouse: the warehouse, or its URI.
        version: of the log; None for the newest.

    Raises:
        DatasetNotFound: no such dataset, or no such version; or it is a Delta table, which the text names.
    """
    place = Warehouse(warehouse) if isinstance(warehouse, str) else warehouse
    state = place.files_of(dataset, version)
    return read_parquet(spark, [(state.schema, [place.storage.uri(file.path) for file in state.files])])
