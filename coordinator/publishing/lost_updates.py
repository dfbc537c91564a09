"""No update is lost: a dataset that was made from itself is published only if it stands as it was
read (pure).
"""

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
    """Check that nobody has changed what ``output`` was made from, and is now to be published over
    or appended to.

    With ``partition_overwrite`` the partitions that it replaces count, with the other modes the
    whole dataset.

    Args:
        read: the dataset as the job has read it; None: it was not published.

    Raises: PublishFailed: another job has published into it meanwhile.
    """
    if output.checkpoint is not None or (spec.mode == "append" and not output.rows):
        return  # where a stream is read on from, its position is compared
    is_replaced = (
        are_named(output.replaces) if spec.mode == "partition_overwrite" else lambda _: True
    )

    def rows_in(state: DatasetState | None) -> set[str]:
        return (
            {file.path for file in state.files if file.rows and is_replaced(file.partition)}
            if state
            else set()
        )

    if rows_in(read) != rows_in(published):
        raise PublishFailed(
            DATASET_CHANGED,
            f"{name} was made from its own rows, as they were published when this job was "
            f"submitted. Since then job {published.job} has published version {published.changed} "
            "of it. Rows would be lost or doubled, so nothing was published. Retry the job, or "
            "submit it again: it will read the new rows",
        )
