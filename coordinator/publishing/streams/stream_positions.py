"""How publishing goes on with a stream: each row of it once, also when two jobs have read the same
files (pure).
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
    """``outputs`` without those for whose stream nothing had arrived, if their datasets stand as
    they would then.
    """

    def is_idle(name: str, output: StagedOutput) -> bool:
        current = state.get(name)
        same = current is not None and fields_of(current.schema) == fields_of(output.schema)
        return bool(output.nothing_new) and same

    # An output and its rejected rows are published together.
    news = {
        output.rejected_of or name for name, output in outputs.items() if not is_idle(name, output)
    }
    return {
        name: output for name, output in outputs.items() if (output.rejected_of or name) in news
    }


def with_checkpoint(
    name: str, change: Change, output: StagedOutput, current: DatasetState | None
) -> Change:
    """``change`` of the dataset ``name``, with the checkpoint of the stream that ``output`` was
    read from, if any.

    Args:
        current: the dataset as it is published.

    Raises: PublishFailed: another job has gone on with the stream since the attempt began.
    """
    checkpoint = output.checkpoint
    if checkpoint is None:
        return change
    published = current.checkpoint if current is not None else None
    # Who holds the position is compared, and a note takes the place of notes of this stream alone.
    if checkpoint.held_by:
        note = published is None or (
            bool(published.held_by) and published.stream == checkpoint.stream
        )
        return replace(change, checkpoint=checkpoint) if note else change
    before = "" if published is None else published.path
    if before == checkpoint.path:  # a job that took over the same work has published it
        return replace(change, added=[], removed=[], rows=0, checkpoint=checkpoint)
    if before != checkpoint.after:
        # The folder of an attempt begins with the staging of its job.
        other = (
            f"job {before.split('/')[1]} has gone on with it"
            if before
            else "its checkpoint is not published any more"
        )
        raise PublishFailed(
            STREAM_MOVED if before else CANNOT_RESUME,
            f"{name} was read from a stream, and {other} since this job was submitted. What both "
            "have read must not be published twice, so nothing was published. Submit the job "
            "again: it will read what is new",
        )
    return replace(change, checkpoint=checkpoint)
