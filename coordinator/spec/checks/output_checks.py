"""Problems of outputs and streams that only the whole spec shows: who makes them, how they are
published, checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from unstuck.coordinator.spec.problems import Loc, Problem, path_text
from unstuck.tasks.spec.group import GroupSpec, Step
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.outputs import REJECTED, OutputSpec, named_param

MAX_NAME = 63  # characters of the name of an output
Hint = Callable[[str, Collection[str], str], str]


def outputs_of(group: GroupSpec) -> list[str]:
    """Outputs that ``group`` declares, in the order of its steps."""
    return [step.output for step in group.steps if step.output is not None]


def steps_of(every: Sequence[GroupSpec]) -> Iterator[tuple[Loc, Step]]:
    for i, group in enumerate(every):
        for j, step in enumerate(group.steps):
            yield ("groups", i, "steps", j), step


def output_problems(
    every: Sequence[GroupSpec],
    params: Collection[str],
    publish: Sequence[str] | None,
    outputs: Mapping[str, OutputSpec],
    hint: Hint,
) -> Iterator[Problem]:
    """Find mistakes in outputs, ``publish:`` and ``outputs:``; ``hint`` suggests a name for a
    misspelled one.

    ``params``: the names of the job's parameters.
    """
    return chain(
        _outputs(every),
        _publish(every, publish or (), outputs, hint),
        _modes(every, publish, outputs, hint),
        _checked(every, publish or (), outputs),
        _tables(outputs),
        _partitions(every, params, outputs, hint),
    )


def _outputs(every: Sequence[GroupSpec]) -> Iterator[Problem]:
    # Compared without case: Spark's views and some file systems treat `Flights` and `flights` as
    # one name.
    first: dict[str, tuple[str, Loc]] = {}
    for loc, step in steps_of(every):
        if step.output is None:
            continue
        name, maker = first.setdefault(step.output.lower(), (step.output, loc))
        if maker != loc:
            same = (
                f"{step.output!r}"
                if name == step.output
                else f"{step.output!r} (or {name!r}: case does not count)"
            )
            message = (
                f"output {same} is made by {path_text(maker)} too; an output has one maker, "
                "give one another name"
            )
            yield Problem(message, (*loc, "output"))


def _makers(every: Sequence[GroupSpec]) -> dict[str, list[GroupSpec]]:
    """The groups that declare each output."""
    makers: dict[str, list[GroupSpec]] = {}
    for group in every:
        for name in outputs_of(group):
            makers.setdefault(name, []).append(group)
    return makers


def _publish(
    every: Sequence[GroupSpec],
    publish: Sequence[str],
    outputs: Mapping[str, OutputSpec],
    hint: Hint,
) -> Iterator[Problem]:
    declared = {name: None for group in every for name in outputs_of(group)}
    any_python = any(step.python for _, step in steps_of(every))
    listed_names: set[str] = set()
    for j, name in enumerate(publish):
        if name in listed_names:
            yield Problem(f"{name!r} is listed twice; keep one", ("publish", j))
        elif name not in declared and not any_python:
            yield Problem(
                f"no group makes an output {name!r}{hint(name, declared, 'outputs')}",
                ("publish", j),
            )
        listed_names.add(name)
    for name in outputs:
        if name not in declared and not any_python:
            yield Problem(
                f"no group makes an output {name!r}{hint(name, declared, 'outputs')}",
                ("outputs", name),
            )


def _modes(
    every: Sequence[GroupSpec],
    publish: Sequence[str] | None,
    outputs: Mapping[str, OutputSpec],
    hint: Hint,
) -> Iterator[Problem]:
    """An output that is not published has no mode.

    Its columns, rules and expectations are checked.
    """
    makers_of, named = _makers(every), set(publish or ())
    shown = published_outputs(every, publish)
    for name, spec in outputs.items():
        checks = {"quality": spec.quality, "columns": spec.columns, "expect": spec.expect}
        if any(checks.values()) and spec == OutputSpec().model_copy(update=checks):
            continue
        makers = [group.name for group in makers_of.get(name, ())]
        if publish is not None and name not in named:
            yield Problem(
                f"publish: does not name {name!r}{hint(name, publish, 'outputs')}",
                ("outputs", name),
            )
        elif publish is None and makers and name not in shown:
            text = (
                f"{name!r} is not published, because other groups need {makers[0]}; name it in "
                "publish:"
            )
            yield Problem(text, ("outputs", name))


def published_outputs(every: Sequence[GroupSpec], publish: Sequence[str] | None) -> Collection[str]:
    """The outputs that become visible: those of ``publish:``, else the declared ones of groups that
    no other needs.
    """
    if publish is not None:
        return publish
    needed = {
        need
        for group in every
        if group.steps and not group.join.wants_failure
        for need in group.needs
    }
    return {name for group in every if group.name not in needed for name in outputs_of(group)}


def _checked(
    every: Sequence[GroupSpec], publish: Sequence[str], outputs: Mapping[str, OutputSpec]
) -> Iterator[Problem]:
    """Names that rejected rows take, and keys that no attempt can see as a whole."""
    taken: dict[str, Loc] = {}  # compared without case, as in `_outputs`
    for loc, step in steps_of(every):
        if step.output is not None:
            taken.setdefault(step.output.lower(), (*loc, "output"))
    for j, name in enumerate(publish):
        taken.setdefault(name.lower(), ("publish", j))
    for name in outputs:
        taken.setdefault(name.lower(), ("outputs", name))
    makers_of = _makers(every)
    for name, spec in outputs.items():
        rejected = name + REJECTED
        skips = any(
            stream.skips for group in makers_of.get(name, ()) for stream in group.streams.values()
        )
        if spec.checks.rejects or (spec.mode == "append" and skips):
            if (place := taken.get(rejected.lower())) is not None:
                yield Problem(
                    f"{rejected!r} is the name of the rejected rows of {name!r}; take another one",
                    place,
                )
            if len(rejected) > MAX_NAME:
                longest = MAX_NAME - len(REJECTED)
                text = (
                    f"an output with rules has a name of at most {longest} characters: "
                    f"{REJECTED} comes after it"
                )
                yield Problem(text, ("outputs", name), True)
        fork = next(
            (group for group in makers_of.get(name, ()) if group.for_each is not None), None
        )
        if spec.expect is not None and spec.expect.unique and fork is not None:
            text = (
                f"{name!r} is made by the members of the fork {fork.name!r}, each of which knows "
                "its own rows alone; check the keys in a group that needs the fork"
            )
            yield Problem(text, ("outputs", name, "expect", "unique"))


def _partitions(
    every: Sequence[GroupSpec],
    params: Collection[str],
    outputs: Mapping[str, OutputSpec],
    hint: Hint,
) -> Iterator[Problem]:
    """A parameter that ``partitions:`` names must be one of the step that writes the output."""
    for name, spec in outputs.items():
        makers = [(group, step) for group in every for step in group.steps if step.output == name]
        if not makers:  # any step in Python may write it
            makers = [(group, step) for group in every for step in group.steps if step.python]
        for column, values in (spec.partitions or {}).items():
            for param in filter(None, map(named_param, values)):
                params_of_makers = [
                    {*params, *group.params, *(group.for_each or ()), *step.params}
                    for group, step in makers
                ]
                if params_of_makers and not any(param in names for names in params_of_makers):
                    text = (
                        f"no parameter {param!r} of the step that makes "
                        f"{name!r}{hint(param, params_of_makers[0], 'parameters')}"
                    )
                    yield Problem(text, ("outputs", name, "partitions", column))


def _tables(outputs: Mapping[str, OutputSpec]) -> Iterator[Problem]:
    """A Delta table has one output: two commits of one job could be seen one without the other."""
    owners: dict[str, str] = {}
    for name, output in outputs.items():
        if output.table is not None and (owner := owners.setdefault(output.table, name)) != name:
            yield Problem(
                f"{owner!r} has the same table; give each output its own", ("outputs", name, "path")
            )


def appended_outputs(
    outputs: Mapping[str, OutputSpec], publish: Sequence[str] | None
) -> tuple[str, ...]:
    """The outputs that are published by appending to a dataset of the warehouse."""
    return tuple(
        name
        for name, output in outputs.items()
        if output.mode == "append" and output.table is None and (publish is None or name in publish)
    )


def stream_problems(
    every: Sequence[GroupSpec], publish: Sequence[str] | None, outputs: Mapping[str, OutputSpec]
) -> Iterator[Problem]:
    """Find mistakes in the streams that groups read.

    Which output is written from one, only a run shows.
    """
    appended = appended_outputs(outputs, publish)
    for i, group in enumerate(every):
        streams = group.streams
        for name, stream in streams.items():
            at: Loc = ("groups", i, "inputs", name)
            if stream.state and not group.spark:
                yield Problem(
                    (
                        f"{name!r} is a stream with state: true, which Spark reads; leave out "
                        "spark: false"
                    ),
                    at,
                )
            if (
                isinstance(stream, StreamInput)
                and stream.known_by == "content"
                and group.for_each is not None
            ):
                yield Problem(
                    (
                        f"{name!r} is a stream with identity: content, which the members of a fork "
                        "cannot share"
                    ),
                    at,
                )
            if stream.state and group.for_each is not None:
                yield Problem(
                    (
                        f"{name!r} is a stream with state: true, which the members of a fork "
                        "cannot share"
                    ),
                    at,
                )
            if len(streams) > 1:
                yield Problem(
                    f"{name!r} is one of several streams; a group cannot read more than one yet", at
                )
            any_python = any(step.python for step in group.steps)
            appendable = [
                output for output in appended if any_python or output in outputs_of(group)
            ]
            if group.steps and not appendable:
                wants = next(iter(outputs_of(group)), "NAME")
                yield Problem(
                    f"{name!r} is a stream, and no output of the group is published by appending "
                    f"to a dataset; say outputs: {{{wants}: {{mode: append}}}}, and name it under "
                    "publish: where there is one",
                    at,
                )
