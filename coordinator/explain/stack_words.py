"""Describes where in the code a running step is. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.step_stack import SparkStage, StepStack, own_frame

LONG_AGO_S = 20.0  # the age of an older look is shown


def stands_at(stack: StepStack, now: float, *, brief: bool = False) -> str:
    """Return the line of user code that a step executes, such as ``at etl.py:12 in load``."""
    frame = own_frame(stack.frames)
    where = f"{frame.file.rpartition('/')[2]}:{frame.line}" if brief else str(frame)
    age = max(0.0, now - stack.at)
    ago = f", as seen {format_duration(age)} ago" if age > LONG_AGO_S else ""
    # Without a duration, the stack was seen only once so far.
    stood = f" for {format_duration(stack.stood)}" if stack.stood else ""
    return f"at {where}{stood}{ago}"


def stack_lines(stack: StepStack) -> Iterator[str]:
    """Yield one line for each frame of the stack, the innermost last."""
    for frame in stack.frames:
        if frame.skipped:
            yield f"… {frame.skipped} in {frame.skipped_in}"
        yield f"{frame}: {frame.source}" if frame.source else str(frame)
    yield from map(stage_text, stack.stages)


def stage_text(stage: SparkStage) -> str:
    """Describe a Spark stage.

    ``Spark stage 3 (count at etl.py:12): 18 of 20 tasks done, 2 run, the longest for 14m``
    """
    running = f"{stage.running or 'none'} run{'' if stage.running > 1 else 's'}"
    parts = [f"{stage.done} of {stage.tasks} tasks done", running]
    if stage.longest:
        parts.append(f"the longest for {format_duration(stage.longest)} on {stage.host}")
    if stage.failed:
        parts.append(f"{stage.failed} failed")
    return f"Spark stage {stage.id} ({stage.name}): {', '.join(parts)}"
