"""Computes the change that an output makes to its dataset, by its mode. Pure."""

from __future__ import annotations

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.publishing.table_formats.table_writer import PARTITION_MISMATCH
from unstuck.coordinator.publishing.tables import Target
from unstuck.tasks.errors import SchemaMismatch
from unstuck.tasks.protocol.replaced import replaced
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.schemas import closed, fields_of, schema_after, schema_of
from unstuck.tasks.warehouse.log_entry import Change, DatasetState
from unstuck.tasks.warehouse.marker import DataFile, StagedOutput, are_named, load_of

FORMAT_MISMATCH = "FORMAT_MISMATCH"


def change_of(
    name: str,
    output: StagedOutput,
    spec: OutputSpec,
    published: DatasetState | None,
    target: Target | None = None,
) -> Change:
    """Return the change that ``output`` makes to the dataset ``name``.

    Args:
        published: the published dataset; None if there is none.
        target: the table of the output; None if it has none.

    Raises: PublishFailed: the rows do not fit the published rows.
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
    """Check that a dataset stays in a table of its format, or outside. Raises: PublishFailed."""
    if published is None or spec.format == published.format:
        return
    was = "a dataset of the warehouse"
    if published.table is not None:
        was = f"the {published.table.title}"
    raise PublishFailed(
        FORMAT_MISMATCH,
        f"{name} is published as {was}, so mode: {spec.mode} would leave its rows behind. "
        "Publish once with mode: replace, or give the output another name",
    )


def _table_change(
    output: StagedOutput,
    spec: OutputSpec,
    published: DatasetState | None,
    target: Target,
) -> Change:
    """Return the change of a dataset in a table."""
    is_replaced = are_named(output.replaces)
    # The table copies the staged files, so a vacuum may remove them.
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
    """Return the change of a dataset that keeps rows: all, or those of other partitions.

    Raises: PublishFailed.
    """
    # Without rows, its one file has only the schema, which may be a guess.
    schema = _schema_after(name, output, spec, published) if output.rows else published.schema
    gone = _overwritten(name, output, spec, published) if spec.mode == "partition_overwrite" else []
    removed = [file.path for file in gone]
    stay = set(_paths(published)) - set(removed)
    added = _added(output, stay)
    if not (added or stay) and fields_of(output.schema) == fields_of(schema):
        # Readers of files find the columns of a dataset without rows.
        added = output.files[:1]
    replacement = None if output.rejected_of else replaced(published.files, gone, added)
    rows = sum(file.rows for file in added)
    return Change(spec.mode, added, removed, rows, schema, replaced=replacement)


def _added(output: StagedOutput, published: set[str]) -> list[DataFile]:
    """Return the files with rows that are not published: two retries may take over the same."""
    return [file for file in output.files if file.rows and file.path not in published]


def _overwritten(
    name: str, output: StagedOutput, spec: OutputSpec, published: DatasetState
) -> list[DataFile]:
    """Return the published files that ``partition_overwrite`` replaces. Raises: PublishFailed."""
    for file in (*output.files, *published.files):
        if file.rows and set(file.partition) != set(spec.partition_by):
            parts = ", ".join(file.partition) or "no column"
            columns = ", ".join(spec.partition_by)
            raise PublishFailed(
                PARTITION_MISMATCH,
                f"{name} has files that are partitioned by {parts}, and the job partitions by "
                f"{columns}, so its partitions cannot be distinguished. Publish once with mode: "
                "replace and this partition_by",
            )
    # A named partition without rows in the output is replaced by nothing. An earlier load of the
    # same partitions may have appended rows outside them, which are replaced with it.
    is_replaced = are_named(output.replaces)
    loads = {load_of(named) for named in output.replaces}
    return [
        file for file in published.files if is_replaced(file.partition) or file.outside_of in loads
    ]


def _schema_after(
    name: str, output: StagedOutput, spec: OutputSpec, published: DatasetState
) -> str:
    """Return the schema of the dataset with the output. Raises: PublishFailed."""
    try:
        by = (published.schema, published.job)
        return schema_after(name, output.schema, spec.mode, spec.on_schema_change, *by)
    except SchemaMismatch as error:
        raise PublishFailed(error.code, str(error)) from error
