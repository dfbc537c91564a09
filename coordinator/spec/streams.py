"""Streams that groups read: which outputs may be written from one, and what is wrong with it (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unstuck.coordinator.spec.output_checks import outputs_of
from unstuck.coordinator.spec.problems import Loc, Problem
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.outputs import OutputSpec


def appended_outputs(outputs: Mapping[str, OutputSpec], publish: Sequence[str] | None) -> tuple[str, ...]:
    """The outputs that are published by appending to a dataset of the warehouse."""
    return tuple(
        name
        for name, output in outputs.items()
        if output.mode == "append" and output.table is None and (publish is None or name in publish)
    )


def stream_problems(
    every: Sequence[GroupSpec], publish: Sequence[str] | None, outputs: Mapping[str, OutputSpec]
) -> Iterator[Problem]:
    """What is wrong with the streams that groups read. Which output is written from one, only a run shows."""
    appended = appended_outputs(outputs, publish)
    for i, group in enumerate(every):
        streams = group.streams
        for name in streams:
            at: Loc = ("groups", i, "inputs", name)
            if not group.spark:
                yield Problem(f"{name!r} is a stream, which Spark reads; leave out spark: false", at)
            if group.for_each is not None:
                yield Problem(f"{name!r} is a stream, and the members of a fork cannot share one yet", at)
            if len(streams) > 1:
                yield Problem(f"{name!r} is one of several streams; a group cannot read more than one yet", at)
            any_python = any(step.python for step in group.steps)
            made = [output for output in appended if any_python or output in outputs_of(group)]
            if group.steps and not made:
                wants = next(iter(outputs_of(group)), "NAME")
                yield Problem(
                    f"{name!r} is a stream, and no output of the group is published by appending to a dataset; say "
                    f"outputs: {{{wants}: {{mode: append}}}}, and name it under publish: where there is one",
                    at,
                )
