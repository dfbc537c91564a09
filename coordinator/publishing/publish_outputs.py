"""Publishes the outputs of a job: all become visible together, once, or never.

``publish`` and ``abort`` compete for the one log entry of the job's publish id: the first to create
it wins. Both may be repeated by any coordinator after any crash.
"""
# Redis is not asked, so a store that was rolled back cannot publish twice. Nothing here writes to
# Redis, decides a status, or calls a publish failed whose outcome is unknown.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing import delta_tables
from unstuck.coordinator.publishing.expectation_checks import check_expectations
from unstuck.coordinator.publishing.lost_updates import check_unchanged
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.publishing.streams.fork_positions import whole_checkpoint
from unstuck.coordinator.publishing.streams.stream_positions import with_checkpoint, with_news
from unstuck.coordinator.spec.lineage import Needs, led_to
from unstuck.tasks.errors import SchemaMismatch
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.identity import all_in_words
from unstuck.tasks.protocol.replaced import replaced
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.schemas import closed, fields_of, joined, schema_after, schema_of
from unstuck.tasks.warehouse.dataset_owner import DATASET_OWNED, Owner, Owners, owner_after, refusal
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry, State, owners_of
from unstuck.tasks.warehouse.marker import (
    DataFile,
    Marker,
    StagedOutput,
    are_named,
    files_exist,
    joined_versions,
    load_of,
    read_marker,
)

MARKER_GONE = "MARKER_GONE"
OUTPUT_MISSING = "OUTPUT_MISSING"
DUPLICATE_OUTPUT = "DUPLICATE_OUTPUT"
PARTITION_MISMATCH = "PARTITION_MISMATCH"
FORMAT_MISMATCH = "FORMAT_MISMATCH"


def publish(
    request: PublishRequest,
    answered: Callable[[], None] = lambda: None,
    *,
    now: float | None = None,
) -> PublishResult:
    """Make the outputs of a job visible, all in one entry of the warehouse log.

    Args:
        answered: called after each answer of the warehouse, of which there may be tens of
            thousands.
        now: seconds since the epoch by the clock of the job, if it has one of its own; for
            `expect.fresh`.

    Returns:
        What the entry says. ``failed``: it can never be published; final, and the same on every
        repeat.

    Raises:
        WarehouseMismatch: this process does not see the job's warehouse.
        LogBroken, WarehouseNewer, WarehouseUnsupported, OSError: the outcome is unknown. Repeat, or
            ``abort``; the job must not be called failed before one of them has answered.
    """
    warehouse = _open(request, answered)
    # The log comes first: the staging of a job that is published already may be gone.
    entry_number = warehouse.find_publish(request.publish_id, request.base, request.package_id)
    if entry_number is not None and (entry := warehouse.entry(entry_number)) is not None:
        return _answer(warehouse, entry)
    reach(Point.BEFORE_PACKAGE, request.job)
    try:
        package = _package(warehouse.storage, request)
        check_expectations(request.outputs, package.expected, request.as_of if now is None else now)
        idle = dict.fromkeys(
            output.nothing_new for output in package.outputs.values() if output.nothing_new
        )
        if idle:
            package = package._replace(outputs=with_news(package.outputs, warehouse.state()))
        if not package.outputs:
            skipped = ["the groups of its outputs were skipped"] if request.requested else []
            return PublishResult(nothing_new="; ".join([*idle] or skipped))
        entry = _append_package(warehouse, request, package)
    except PublishFailed as failure:
        # Another publisher may have read the markers while they stood, and be frozen since. Its
        # entry must not appear under a job that was called FAILED, so the failure takes the job's
        # place in the log.
        entry = _append_abort(warehouse, request, failure.code, str(failure))
    return _answer(warehouse, entry)


def _append_package(warehouse: Warehouse, request: PublishRequest, package: _Package) -> Entry:
    """The entry of the publish id: this package, or what stood before. Raises: PublishFailed,
    TableTrouble, OSError.
    """
    tables = _tables(warehouse, request, package.outputs)

    def entry_of(n: int, state: State) -> Entry:
        """The package for the number ``n``, against the version before. Raises: PublishFailed."""
        datasets, owners = {}, owners_of(state)
        _check_owners(request, package.outputs, owners)
        for name, output in package.outputs.items():
            spec, published = request.spec_of(name, output), state.get(name)
            own = package.sources[name].get(name)
            if own and published is not None and published.changed > request.base:
                before = warehouse.state(request.base, removed=True).get(name)
                if (before.changed if before is not None else 0) in own:
                    check_unchanged(name, output, spec, before, published)
            change = change_of(name, output, spec, published, tables.get(name))
            change = _with_owner(change, request, spec, owners.get(output.rejected_of or name))
            change = replace(change, inputs=package.inputs_of(name), steps=package.steps[name])
            datasets[name] = with_checkpoint(name, change, output, published)
        more: dict[str, Any] = {"tokens": package.tokens, "made_on": package.made_on}
        more["tables"] = {
            name: table.made_by(n, name, state.get(name)) for name, table in tables.items()
        }
        return request.entry(n, "package", params=dict(request.params), datasets=datasets, **more)

    while True:
        try:
            return warehouse.append(request.publish_id, request.base, entry_of, request.package_id)[
                0
            ]
        except delta_tables.TableMoved:
            tables = _tables(warehouse, request, package.outputs)


def _check_owners(
    request: PublishRequest, outputs: Mapping[str, StagedOutput], owners: Owners
) -> None:
    """Check that the job may publish its outputs. Rejected rows belong to the owner of their
    output.

    Raises: PublishFailed.
    """
    names = dict.fromkeys(output.rejected_of or name for name, output in outputs.items())
    if why := refusal(names, owners, request.job_name, take_over=request.take_over):
        raise PublishFailed(DATASET_OWNED, f"{why}. Nothing was published")


def _with_owner(
    change: Change, request: PublishRequest, spec: OutputSpec, owner: Owner | None
) -> Change:
    """``change`` with the owner of the dataset from then on. ``owner``: the one before."""
    after = owner_after(owner, request.job_name, spec.shared_with, take_over=request.take_over)
    taken = owner is not None and after is not None and owner.job_name != after.job_name
    return replace(
        change, owner=after, taken_from=owner.job_name if taken and owner is not None else ""
    )


def abort(
    request: PublishRequest, why: Reason, answered: Callable[[], None] = lambda: None
) -> PublishResult:
    """Make sure that a job is never published, unless it is already; says which of the two is so.

    For cancel, force-stop and the deadline that meet a job in publishing. Errors and repeats as for
    ``publish``.
    """
    warehouse = _open(request, answered)
    entry = _append_abort(warehouse, request, why.code, why.text)
    return PublishResult(failed=why) if entry.kind == "abort" else _answer(warehouse, entry)


def _append_abort(warehouse: Warehouse, request: PublishRequest, code: str, reason: str) -> Entry:
    """The entry of the publish id: this ABORT, or what stood before."""
    return warehouse.append(
        request.publish_id,
        request.base,
        lambda n, _: request.entry(n, "abort", code=code, reason=reason),
    )[0]


def _open(request: PublishRequest, answered: Callable[[], None]) -> Warehouse:
    """Raises: WarehouseMismatch; so does every write, if the warehouse goes away later."""
    warehouse = Warehouse(request.warehouse, request.warehouse_id)
    warehouse.storage.answered = answered
    warehouse.storage.check()
    return warehouse


def _tables(
    warehouse: Warehouse, request: PublishRequest, outputs: Mapping[str, StagedOutput]
) -> dict[str, delta_tables.Target]:
    """The Delta tables into which outputs go, each found fit for it. Raises: PublishFailed,
    TableTrouble, OSError.
    """
    specs = {
        name: spec
        for name, spec in request.outputs.items()
        if spec.table is not None and name in outputs
    }
    if not specs:
        return {}
    state = warehouse.state()
    for name in specs:
        # What was published before comes first: it may make the table, or change it.
        if (published := state.get(name)) is not None and published.table is not None:
            delta_tables.write_tables(warehouse, warehouse.existing_entry(published.changed))
    return {
        name: delta_tables.check(warehouse, request.job, name, outputs[name], spec, state.get(name))
        for name, spec in specs.items()
    }


def _answer(warehouse: Warehouse, entry: Entry) -> PublishResult:
    """The result of publishing by the entry of its publish id; a package stands once its Delta
    tables are written.

    Raises: TableTrouble: one of them is not.
    """
    if entry.tables:
        delta_tables.write_tables(warehouse, entry)
    if entry.kind == "package":
        changes = entry.datasets
        replacements = {
            name: change.replaced for name, change in changes.items() if change.replaced is not None
        }
        read = [change.checkpoint for change in changes.values() if change.checkpoint is not None]
        left = sum(
            checkpoint.counts.get("left", 0) for checkpoint in read if not checkpoint.held_by
        )
        rows = {name: change.rows for name, change in changes.items()}
        taken = {name: change.taken_from for name, change in changes.items() if change.taken_from}
        return PublishResult(entry.n, rows, replacements, left=left, taken_over=taken, at=entry.at)
    return PublishResult(
        failed=Reason(entry.code or "PUBLISH_ABORTED", entry.reason or "publishing was aborted")
    )


def change_of(
    name: str,
    output: StagedOutput,
    spec: OutputSpec,
    published: DatasetState | None,
    target: delta_tables.Target | None = None,
) -> Change:
    """Return the change that ``output``, in its mode, makes to the dataset ``name``.

    Args:
        published: the dataset as it is published, if it is.
        target: the Delta table into which it goes, if so.

    Raises: PublishFailed: the rows cannot stand beside those that are published.
    """
    if spec.mode != "replace":
        _check_kept_in_place(name, spec, published)
    if target is not None:
        return _table_change(output, spec, published, target)
    paths = _paths(published)
    if published is None or not published.rows:
        return Change(spec.mode, output.files, paths, output.rows, output.schema)
    if spec.mode == "replace":
        if spec.on_schema_change == "fail" and output.rows:
            schema = _schema_after(name, output, spec, published)
        else:
            schema = schema_of(closed(fields_of(output.schema), fields_of(published.schema)))
        return Change(spec.mode, output.files, paths, output.rows, schema)
    return _partial_change(name, output, spec, published)


def _paths(published: DatasetState | None) -> list[str]:
    return [] if published is None else [file.path for file in published.files]


def _check_kept_in_place(name: str, spec: OutputSpec, published: DatasetState | None) -> None:
    """Check that a dataset which is not replaced stays a Delta table, or stays none. Raises:
    PublishFailed.
    """
    if published is None or (spec.table is None) == (published.table is None):
        return
    was = (
        "a dataset of the warehouse"
        if published.table is None
        else f"the Delta table {published.table}"
    )
    raise PublishFailed(
        FORMAT_MISMATCH,
        f"{name} is published as {was}, so mode: {spec.mode} would leave its rows behind. "
        "Publish once with mode: replace, or give the output another name",
    )


def _table_change(
    output: StagedOutput,
    spec: OutputSpec,
    published: DatasetState | None,
    target: delta_tables.Target,
) -> Change:
    """Return the change of a dataset in a Delta table."""
    is_replaced = are_named(output.replaces)
    # Nobody reads the staged files once the table has them, so a vacuum may take them.
    added = [file for file in output.files if file.path not in target.appended]
    removed = [*_paths(published), *(file.path for file in output.files)]
    replacement = replaced(
        target.counted_files,
        (file for file in target.counted_files if is_replaced(file.partition)),
        added,
    )
    return Change(
        spec.mode,
        added,
        removed,
        sum(file.rows for file in added),
        output.schema,
        replaces=output.replaces,
        replaced=replacement,
    )


def _partial_change(
    name: str, output: StagedOutput, spec: OutputSpec, published: DatasetState
) -> Change:
    """Return the change of a dataset of which rows stay: all of them, or those of other partitions.

    Raises: PublishFailed.
    """
    # Without rows, its one file holds the schema alone, which may be a guess from no values.
    schema = _schema_after(name, output, spec, published) if output.rows else published.schema
    gone = _overwritten(name, output, spec, published) if spec.mode == "partition_overwrite" else []
    # Two retries of one job may take over the same files: what is published already is not added
    # again.
    removed = [file.path for file in gone]
    stay = set(_paths(published)) - set(removed)
    added = [file for file in output.files if file.rows and file.path not in stay]
    if not (added or stay) and fields_of(output.schema) == fields_of(schema):
        # Readers of files find the columns of a dataset that has no rows any more.
        added = output.files[:1]
    replacement = None if output.rejected_of else replaced(published.files, gone, added)
    return Change(
        spec.mode, added, removed, sum(file.rows for file in added), schema, replaced=replacement
    )


def _overwritten(
    name: str, output: StagedOutput, spec: OutputSpec, published: DatasetState
) -> list[DataFile]:
    """Return the published files that ``partition_overwrite`` replaces. Raises: PublishFailed."""
    columns = list(spec.partition_by)
    foreign = (
        file
        for file in (*output.files, *published.files)
        if file.rows and set(file.partition) != set(columns)
    )
    if (odd := next(foreign, None)) is not None:
        parts = ", ".join(odd.partition) or "no column"
        raise PublishFailed(
            PARTITION_MISMATCH,
            f"{name} has files that are parted by {parts}, and the job parts by "
            f"{', '.join(columns)}, so its partitions cannot be told from the rest. Publish "
            "once with mode: replace and this partition_by",
        )
    # One that is named is replaced also where the output has no rows of it: by nothing. An
    # earlier load of the same partitions may have appended rows outside them: these go with it.
    is_replaced = are_named(output.replaces)
    loads = {load_of(named) for named in output.replaces}
    return [
        file for file in published.files if is_replaced(file.partition) or file.outside_of in loads
    ]


def _schema_after(
    name: str, output: StagedOutput, spec: OutputSpec, published: DatasetState
) -> str:
    """Raises: PublishFailed."""
    try:
        by = (published.schema, published.job)
        return schema_after(name, output.schema, spec.mode, spec.on_schema_change, *by)
    except SchemaMismatch as error:
        raise PublishFailed(error.code, str(error)) from error


class _Part(NamedTuple):
    """The part of a dataset that one attempt made."""

    group: str
    staging: str
    output: StagedOutput
    marker: Marker


class _Package(NamedTuple):
    """One output per dataset, the staging folders that hold the files, and what they were made from
    and by.

    ``expected``: the parts of each output that has expectations, be it published or not.
    ``sources``: by output, the published datasets that it was made from, each with its versions; 0:
    not published.
    ``steps``: by output, as of `Change`.
    """

    outputs: dict[str, StagedOutput]
    expected: dict[str, list[StagedOutput]]
    tokens: list[str]
    sources: dict[str, dict[str, list[int]]]
    steps: dict[str, dict[str, str]]
    made_on: dict[str, list[str]]

    def inputs_of(self, name: str) -> dict[str, list[int]]:
        """Return the versions that were read of each dataset from which the output ``name`` was
        made.
        """
        read = {
            dataset: [n for n in versions if n] for dataset, versions in self.sources[name].items()
        }
        return {dataset: versions for dataset, versions in read.items() if versions}


def _package(files: Files, request: PublishRequest) -> _Package:
    """As ``_collect``; a missing file is missing in the job's own warehouse. Raises: also
    WarehouseMismatch.
    """
    try:
        return _collect(files, request)
    except PublishFailed:
        # A failure is final. A warehouse that is away raises here, so its job does not fail. A
        # warehouse that was away while its markers were read, and is back, is read once more.
        files.check()
        return _collect(files, request)


def _collect(files: Files, request: PublishRequest) -> _Package:
    """Read the markers and put the package together. Raises: PublishFailed, OSError."""
    job = request.job
    parts_by_name, expected = _read_markers(files, request)
    names = _names_to_publish(request, parts_by_name)
    if missing := [name for name in names if name not in parts_by_name]:
        raise PublishFailed(
            OUTPUT_MISSING,
            f"job {job} is to publish {', '.join(missing)}, which none of its groups made. They "
            f"made: {', '.join(sorted(parts_by_name)) or 'no outputs'}. Mend publish: in the spec, "
            "or the step that should write it",
        )
    outputs = {name: _union(files, job, name, parts_by_name[name]) for name in names}
    parts = [part for name in names for part in parts_by_name[name]]
    return _Package(
        outputs,
        expected,
        list(dict.fromkeys(part.staging for part in parts)),
        {
            name: joined_versions(part.marker.sources for part in parts_by_name[name])
            for name in names
        },
        _steps(parts, {name: parts_by_name[name][0].group for name in names}, request.needs),
        {
            name: sorted({all_in_words(part.marker.made_on) for part in parts_by_name[name]} - {""})
            for name in names
        },
    )


def _read_markers(
    files: Files, request: PublishRequest
) -> tuple[dict[str, list[_Part]], dict[str, list[StagedOutput]]]:
    """Return by name the parts of outputs that may be published, and the outputs with expectations.

    Raises: PublishFailed, OSError.
    """
    parts_by_name: dict[str, list[_Part]] = {}
    expected: dict[str, list[StagedOutput]] = {
        name: [] for name, spec in request.outputs.items() if spec.expect is not None
    }
    for group, folders in request.sources.items():
        may_publish = request.requested is not None or group in request.published_by
        if not (may_publish or expected):
            continue
        for staging in folders:
            marker = read_marker(files, staging)
            if marker is None:
                raise _gone(
                    files, request.job, group, staging, "its marker is gone or cannot be read"
                )
            for name, output in marker.outputs.items():
                if may_publish:
                    parts_by_name.setdefault(name, []).append(_Part(group, staging, output, marker))
                if name in expected:
                    expected[name].append(output)
    return parts_by_name, expected


def _names_to_publish(
    request: PublishRequest, parts_by_name: Mapping[str, Sequence[_Part]]
) -> list[str]:
    """Return the names of the datasets to publish; nobody may have made one of them."""
    if request.requested is None:
        return list(parts_by_name)
    names = list(dict.fromkeys(request.requested))
    requested = set(names)
    rejected = [
        name
        for name, parts in parts_by_name.items()
        if parts[0].output.rejected_of in requested and name not in requested
    ]
    # Rejected rows are published with their output.
    return [
        name for name in (*names, *rejected) if name in parts_by_name or name not in request.skipped
    ]


def _steps(
    parts: Sequence[_Part], makers: Mapping[str, str], needs: Needs
) -> dict[str, dict[str, str]]:
    """Return the code that led to each output. ``makers``: by output, the group that made it."""
    codes: dict[
        str, dict[str, None]
    ] = {}  # members of a fork may have run different code, after a deploy
    for part in parts:
        codes.setdefault(part.group, {})[part.marker.code] = None
    code_of = {group: ", ".join(filter(None, each)) for group, each in codes.items()}
    groups = led_to(needs, code_of)
    return {
        name: {group: code_of[group] for group in sorted(groups[maker])}
        for name, maker in makers.items()
    }


def _union(files: Files, job: str, name: str, parts: list[_Part]) -> StagedOutput:
    """The parts of one dataset, from the members of one fork, as one output. Raises: PublishFailed,
    OSError.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.group != first.group:
            raise PublishFailed(
                DUPLICATE_OUTPUT,
                f"job {job}: the groups {first.group} and {part.group} both made the output "
                f"{name}. Only members of one fork may share an output; give one of them another "
                "name",
            )
    for part in parts:
        if not files_exist(files, part.output.written):
            raise _gone(
                files,
                job,
                part.group,
                part.staging,
                f"files of its output {name} are gone or cut short",
            )
    # The file of a member without rows holds its columns alone, which may be a guess from no
    # values.
    filled = [part for part in parts if part.output.rows] or parts
    schema = _joined_schema(files, job, name, filled)
    checkpoints = [part.output.checkpoint for part in parts if part.output.checkpoint]
    idle = all(part.output.nothing_new for part in parts)
    return StagedOutput(
        files=[file for part in filled for file in part.output.files],
        rows=sum(part.output.rows for part in parts),
        schema=schema,
        rejected_of=first.output.rejected_of,
        checkpoint=whole_checkpoint(files, name, checkpoints),
        replaces=[named for part in parts for named in part.output.replaces],
        nothing_new=first.output.nothing_new if idle else "",
    )


def _joined_schema(files: Files, job: str, name: str, parts: Sequence[_Part]) -> str:
    """Return the schema that holds the columns of all parts. Raises: PublishFailed."""
    first, schema = parts[0], parts[0].output.schema
    for part in parts[1:]:
        try:
            schema = joined(schema, part.output.schema)
        except SchemaMismatch as error:
            raise PublishFailed(
                error.code,
                f"job {job}: the members of {first.group} made {name} with different columns: "
                f"{error} ({files.uri(first.staging)} against {files.uri(part.staging)}). Give "
                "the columns fixed types, as columns: does",
            ) from error
    return schema


def _gone(files: Files, job: str, group: str, staging: str, what: str) -> PublishFailed:
    return PublishFailed(
        MARKER_GONE,
        f"job {job}, group {group}: {what} ({files.uri(staging)}), so its outputs cannot be "
        "published. Something outside removed it; submit the job again",
    )
