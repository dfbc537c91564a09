"""Prevents lost updates: a dataset that a job read and rewrites must not change meanwhile. Pure."""

from __future__ import annotations

from unstuck.coordinator.errors import PublishFailed
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import StagedOutput, are_named

DATASET_CHANGED = "DATASET_CHANGED"


def check_unchanged(
    name: str,
    output: StagedOutput,
    spec: OutputSpec,
    read: DatasetState | None,
    published: DatasetState,
) -> None:
    """Check that no other job has changed the rows that ``output`` was computed from.

    With ``partition_overwrite`` only the replaced partitions count, else the whole dataset.

    Args:
        read: the dataset that the job read; None: it was not published.

    Raises: PublishFailed: another job has published into it meanwhile.
    """
    if output.checkpoint is not None or (spec.mode == "append" and not output.rows):
        return  # where a stream is read on from, its position is compared
    if _files_used(read, output, spec) != _files_used(published, output, spec):
        raise PublishFailed(
            DATASET_CHANGED,
            f"{name} was made from its own rows, as they were published when this job was "
            f"submitted. Since then job {published.job} has published version {published.changed} "
            "of it. Rows would be lost or doubled, so nothing was published. Retry the job, or "
            "submit it again: it will read the new rows",
        )


def _files_used(state: DatasetState | None, output: StagedOutput, spec: OutputSpec) -> set[str]:
    """Return the files with rows that the output replaces, or that it was made from."""
    files = [file for file in state.files if file.rows] if state is not None else []
    if spec.mode == "partition_overwrite":
        is_replaced = are_named(output.replaces)
        files = [file for file in files if is_replaced(file.partition)]
    return {file.path for file in files}
