"""The inputs of steps: staged datasets and results of the needed groups, and published datasets.

The attempts to read are fixed when the group is first queued, and the version of the warehouse when
the job was submitted, so every retry reads the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unstuck.tasks.errors import (
    DatasetNotFound,
    InputMissing,
    InputNotPublished,
    OutputInvalid,
    VersionRemoved,
)
from unstuck.tasks.frames.casts import declared_fields
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.spec.inputs import DatasetInput, GroupInput
from unstuck.tasks.spec.outputs import MAX_RUNS, Checks
from unstuck.tasks.spec.schemas import fields_of, schema_of
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import DatasetState, Entry, State
from unstuck.tasks.warehouse.marker import (
    Checkpoint,
    Marker,
    Read,
    StagedOutput,
    bytes_by_uri,
    joined_versions,
    read_marker,
)
from unstuck.tasks.warehouse.published import Where, files_where, warehouse_at

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named input of a step: what a group, or all members of a fork, staged under that name."""

    name: str
    parts: tuple[StagedOutput, ...]

    def by_schema(self, files: Files) -> list[tuple[str, dict[str, int]]]:
        """Return each schema with the URIs and sizes of its files.

        Most datasets have one schema and are one plain read.
        """
        groups: dict[str, tuple[str, dict[str, int]]] = {}
        for part in self.parts:
            _, sizes = groups.setdefault(schema_of(fields_of(part.schema)), (part.schema, {}))
            sizes.update(bytes_by_uri(files, part.files))
        return list(groups.values())


@dataclass(frozen=True, slots=True)
class Inputs:
    """Datasets and results of the groups that an attempt reads.

    Attributes:
        datasets: by every name that a step may call them. A group with exactly one output answers
            to its own name too; rejected rows do not count as an output there.
        results: group → what it recorded; of a fork a list, with one mapping per member that
            succeeded, in their order.
        sources: published dataset → the versions that stand behind all this.
    """

    datasets: Mapping[str, Dataset]
    results: Mapping[str, dict[str, Any] | list[dict[str, Any]]]
    sources: Mapping[str, list[int]]


def read_inputs(
    files: Files, inputs: Mapping[str, Iterable[str]], forks: Collection[str] = ()
) -> Inputs:
    """Read the markers in ``inputs`` (group → staging folders). ``forks``: groups that are forks.

    Raises:
        InputMissing: a marker is not there, or cannot be read.
        OutputInvalid: two needed groups have an output of the same name.
        OSError: the warehouse could not be asked.
    """
    makers: dict[str, str] = {}
    by_output: dict[str, Dataset] = {}
    by_group: dict[str, Dataset] = {}
    results: dict[str, dict[str, Any] | list[dict[str, Any]]] = {}
    sources: dict[str, list[int]] = {}
    for need, folders in inputs.items():
        markers = _markers_of(files, need, folders)
        recorded = [marker.results for marker in markers]
        is_fork = need in forks or len(recorded) > 1
        results[need] = recorded if is_fork else next(iter(recorded), {})
        sources = joined_versions([sources, *(marker.sources for marker in markers)])
        datasets = _datasets_of(markers)
        for name in makers.keys() & datasets.keys():
            raise OutputInvalid(
                f"both {makers[name]} and {need} have an output named {name}; give one of them "
                "another name"
            )
        makers |= dict.fromkeys(datasets, need)
        by_output |= datasets
        own = [dataset for dataset in datasets.values() if not dataset.parts[0].rejected_of]
        if len(own) == 1:
            by_group[need] = own[0]
    # An output's own name wins over a group that happens to be called the same.
    return Inputs({**by_group, **by_output}, results, sources)


def _datasets_of(markers: Iterable[Marker]) -> dict[str, Dataset]:
    """Return the outputs of the members of a fork, or of one group, by their names.

    The columns of a part without rows may be a guess from no values, so it counts only if no part
    has rows.
    """
    outputs = _parts_by_output(markers)
    filled = {name: [part for part in parts if part.rows] for name, parts in outputs.items()}
    return {name: Dataset(name, tuple(filled[name] or parts)) for name, parts in outputs.items()}


def _parts_by_output(markers: Iterable[Marker]) -> dict[str, list[StagedOutput]]:
    """Group the outputs of the members of a fork, or of one group, by their names."""
    outputs: dict[str, list[StagedOutput]] = {}
    for marker in markers:
        for name, staged in marker.outputs.items():
            outputs.setdefault(name, []).append(staged)
    return outputs


def _markers_of(files: Files, need: str, folders: Iterable[str]) -> list[Marker]:
    markers = []
    for folder in folders:
        # One that made nothing has no folder, and keeps its place among the members of a fork.
        marker = read_marker(files, folder) if folder else Marker("", "", {}, {}, {}, 0.0)
        if marker is None:
            raise InputMissing(
                f"what {need} staged cannot be read: no marker in {files.uri(folder)}. It may have "
                "been swept, or this worker does not see the folder that the other one wrote to"
            )
        markers.append(marker)
    return markers


class PublishedDatasets:
    """The published datasets that an attempt reads, as of the submit of its job.

    Attributes:
        reads: what was read, each once, in order.
    """

    def __init__(self, warehouse: Warehouse, base: int) -> None:
        """``base``: the version at which the job was submitted."""
        self._warehouse = warehouse
        self._base = base
        self._states: dict[int, State] = {}
        # Versions that the log calls removed, with its reason.
        self._removed: dict[int, str] = {}
        self.reads: list[Read] = []

    @property
    def sources(self) -> dict[str, list[int]]:
        """The versions that were read, by dataset; 0 for one that was not published."""
        return joined_versions({read.dataset: [read.version]} for read in self.reads)

    def read(
        self,
        dataset: str,
        version: int | None = None,
        *,
        in_spec: bool = False,
        if_absent: str | None = None,
    ) -> Dataset:
        """Return ``dataset`` at a version; None is the newest one when the job was submitted.

        Args:
            in_spec: the spec of the job names the version, so a vacuum keeps it for the job.
            if_absent: its columns in SQL, in which it has no rows where it was not published; None:
                that is an error.

        Raises:
            InputNotPublished: it was not published then, that version does not exist, or it is a
                table. No retry changes that.
            LogBroken, WarehouseNewer, OSError: the log could not be read.
        """
        at = self._base if version is None else version
        state = self._state(at, kept=version is None or in_spec)
        dataset_state = state.get(dataset)
        self._note(dataset, version or 0, dataset_state)
        if dataset_state is None:
            if if_absent is None:
                raise self._not_published(dataset, at, version, state)
            log.info(
                "%s was not published when this job was submitted, and is read without rows",
                dataset,
            )
            return Dataset(dataset, (StagedOutput([], 0, schema_of(declared(if_absent))),))
        if dataset_state.table is not None:
            raise InputNotPublished(
                f"{dataset} is published as the {dataset_state.table.title}, with versions of "
                "its own; read it there, in a step"
            )
        size = self._warehouse.storage.size
        if at in self._removed and None in {size(file.path) for file in dataset_state.files}:
            raise InputNotPublished(self._removed[at])
        return _whole(dataset, dataset_state)

    @staticmethod
    def _not_published(
        dataset: str, at: int, version: int | None, state: State
    ) -> InputNotPublished:
        when = "" if version else ", the newest one when this job was submitted"
        return InputNotPublished(
            f"no dataset {dataset!r} was published at version {at} of the warehouse{when}. "
            f"There were: {', '.join(sorted(state)) or 'none'}. Submit the job again once it "
            "is published"
        )

    def checkpoint(self, dataset: str) -> Checkpoint | None:
        """Return the stream position of ``dataset`` at the submit of the job, or None.

        Raises: as `read`.
        """
        dataset_state = self._state(self._base, kept=True).get(dataset)
        self._note(dataset, 0, dataset_state)
        return None if dataset_state is None else dataset_state.checkpoint

    def standing(self, dataset: str, *, newest: bool = False) -> DatasetState | None:
        """Return ``dataset`` as published at the submit of the job, or now; None if it was not.

        Not noted as read: no row of it is.

        Raises: LogBroken, WarehouseNewer, OSError: the log could not be read.
        """
        state = self._warehouse.state() if newest else self._state(self._base, kept=True)
        return state.get(dataset)

    def versions(self, dataset: str) -> Iterator[Entry]:
        """Yield the last 1,000 entries before the submit that changed ``dataset``, newest first.

        Not noted as read. Raises: LogBroken, WarehouseNewer, OSError: the log could not be read.
        """
        newest = _changed(self.standing(dataset))
        for n in range(newest, max(self._base - MAX_RUNS, 0), -1):
            entry = self._warehouse.existing_entry(n)
            if dataset in entry.datasets:
                yield entry

    def _note(self, dataset: str, at: int, state: DatasetState | None) -> None:
        read = Read(dataset, at, _changed(state))
        if read not in self.reads:
            self.reads.append(read)

    def changed(self, reads: Iterable[Read]) -> str:
        """Return the first dataset of ``reads`` that has changed for this job; empty if none has.

        Raises: as `read`.
        """
        for read in reads:
            if not read.requested:
                state = self._state(self._base, kept=True).get(read.dataset)
                if read.version != _changed(state):
                    return read.dataset
        return ""

    def _state(self, version: int, *, kept: bool) -> State:
        """Return the state at ``version``.

        ``kept``: a vacuum keeps the files of the version if it found the job in time.
        """
        if version not in self._states:
            try:
                self._states[version] = self._warehouse.state(version)
            except DatasetNotFound as error:
                if not (kept and isinstance(error, VersionRemoved)):
                    raise InputNotPublished(str(error)) from error
                self._states[version] = self._warehouse.state(version, removed=True)
                self._removed[version] = str(error)
        return self._states[version]


def _changed(state: DatasetState | None) -> int:
    """Return the version at which a dataset was last changed; 0 if it is not published."""
    return 0 if state is None else state.changed


def with_published(
    upstream: Mapping[str, Dataset],
    group_inputs: Mapping[str, GroupInput],
    published: PublishedDatasets,
) -> dict[str, Dataset]:
    """Return all datasets that a group reads, by name.

    Args:
        upstream: the outputs of the groups that it needs.
        group_inputs: its ``inputs:``, of which those that are published datasets are read here.

    Raises:
        OutputInvalid: a needed group has an output of the same name.
        InputNotPublished, LogBroken, WarehouseNewer, OSError: as `PublishedDatasets.read`.
    """
    datasets = dict(upstream)
    for name, source in group_inputs.items():
        # Otherwise it is the name of another group, which yields.
        if name in upstream and upstream[name].name == name:
            raise OutputInvalid(
                f"a needed group has an output named {name} too; give the one in inputs: another "
                "name"
            )
        if isinstance(source, DatasetInput):
            dataset = published.read(
                source.dataset, source.version, in_spec=True, if_absent=source.if_absent
            )
            datasets[name] = replace(dataset, name=name)
    return datasets


def of_skipped(work_order: WorkOrder, published: PublishedDatasets) -> dict[str, Dataset]:
    """Return empty datasets for needed groups that were skipped and for forks without members.

    Their columns are the declared ones, or else the published ones. If none are known, a fork's
    have none, and the others are no inputs.

    Raises: LogBroken, WarehouseNewer, OSError: as `PublishedDatasets.standing`.
    """
    plan, datasets = work_order.plan, dict[str, Dataset]()
    for group in work_order.frozen.empty:
        outputs = plan.branches.get(group)
        if outputs is None:
            outputs = plan.forks.get(group) or (group,)
        for name in outputs:
            schema = _schema_of_skipped(work_order, group, name, published)
            if schema is not None:
                datasets[name] = Dataset(name, (StagedOutput([], 0, schema),))
        if len(outputs) == 1 and outputs[0] in datasets:
            datasets[group] = datasets[outputs[0]]
    return datasets


def _schema_of_skipped(
    work_order: WorkOrder, group: str, name: str, published: PublishedDatasets
) -> str | None:
    """Return the schema of an output of a skipped group; None if it cannot be an input."""
    plan = work_order.plan
    state = published.standing(name)
    columns = plan.checks.get(name, Checks()).columns
    if columns or state is not None:
        log.info("the group %s was skipped, so its output %s is read without rows", group, name)
    if columns:
        return schema_of(declared_fields(columns))
    if state is not None:
        return state.schema
    if group in plan.branches:
        log.warning(
            "the group %s was skipped, and the columns of its output %s are not known, so it is no "
            "input here. Declare them under columns: of the output, and it is one without rows",
            group,
            name,
        )
        return None
    log.warning(
        "the fork %s has no members, so its output %s is read without rows, and without columns, "
        "since none are known. Declare them under columns: if a step names one",
        group,
        name,
    )
    return schema_of([])


def _whole(name: str, state: DatasetState) -> Dataset:
    """A published dataset as steps read what groups have staged."""
    return Dataset(name, (StagedOutput(state.files, state.rows, state.schema),))


def published(
    spark: Any,
    warehouse: Warehouse | str,
    dataset: str,
    version: int | None = None,
    *,
    where: Where | None = None,
) -> Any:
    """``dataset`` as a Spark DataFrame: all of one version, whatever is published while it is read.

    Args:
        spark: a SparkSession, Classic or Connect.
        warehouse: the warehouse, its URI, or its path, which counts from the working folder.
        version: of the log; None for the newest.
        where: only the files of these partitions; as of `published_files`.

    Raises:
        DatasetNotFound: no such dataset, or no such version; or it is a table, which the text
            names.
        ValueError, TypeError: as of `published_files`, for ``where``.
    """
    place = warehouse_at(warehouse)
    state = place.files_of(dataset, version)
    files = files_where(dataset, state.files, where)
    return read_parquet(spark, [(state.schema, bytes_by_uri(place.storage, files))])
