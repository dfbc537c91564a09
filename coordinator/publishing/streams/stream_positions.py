"""Ensures that each row of a stream is published once, even if two jobs read the same files.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unstuck.coordinator.errors import PublishFailed
from unstuck.tasks.spec.schemas import fields_of
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, State
from unstuck.tasks.warehouse.marker import StagedOutput

CANNOT_RESUME = "CANNOT_RESUME"
# Another publisher was first: a run that begins after it reads what is new.
STREAM_MOVED = "STREAM_MOVED"


def with_news(outputs: Mapping[str, StagedOutput], state: State) -> dict[str, StagedOutput]:
    """Return ``outputs`` without those that change neither their dataset nor its position."""
    # An output and its rejected rows are published together.
    news = {
        output.rejected_of or name
        for name, output in outputs.items()
        if not _is_idle(output, state.get(name))
    }
    return {
        name: output for name, output in outputs.items() if (output.rejected_of or name) in news
    }


def _is_idle(output: StagedOutput, current: DatasetState | None) -> bool:
    if not output.nothing_new or current is None:
        return False
    return fields_of(current.schema) == fields_of(output.schema)


def with_checkpoint(
    name: str, change: Change, output: StagedOutput, current: DatasetState | None
) -> Change:
    """Return the change of a dataset with the checkpoint of the stream that was read, if any.

    Args:
        current: the published dataset.

    Raises: PublishFailed: another job has published a later position since the attempt started.
    """
    checkpoint = output.checkpoint
    if checkpoint is None:
        return change
    published = current.checkpoint if current is not None else None
    if checkpoint.held_by:
        # Only the output that holds the position is compared. A note of another output replaces
        # only a note of the same stream.
        if published is None or (published.held_by and published.stream == checkpoint.stream):
            return replace(change, checkpoint=checkpoint)
        return change
    before = "" if published is None else published.path
    if before == checkpoint.path:  # a job that adopted the same work has published it
        return replace(change, added=[], removed=[], rows=0, checkpoint=checkpoint)
    if before != checkpoint.after:
        raise _moved(name, before)
    return replace(change, checkpoint=checkpoint)


def _moved(name: str, published: str) -> PublishFailed:
    """Return the failure of a job whose stream has another position since it began."""
    code, reason = CANNOT_RESUME, "its checkpoint is not published any more"
    if published:
        # The path of a checkpoint begins with the staging folder of its job.
        code, reason = STREAM_MOVED, f"job {published.split('/')[1]} has read on"
    return PublishFailed(
        code,
        f"{name} was read from a stream, and {reason} since this job was submitted. Rows "
        "that both have read must not be published twice, so nothing was published. Submit the "
        "job again: it reads the new rows",
    )
