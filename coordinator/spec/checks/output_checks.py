"""Checks outputs and streams: which groups write them, how they are published, rejected rows.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from unstuck.coordinator.spec.problems import Loc, SpecProblem, path_text
from unstuck.tasks.spec.group import GroupSpec, Step
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.outputs import REJECTED, OutputSpec, named_param
from unstuck.tasks.spec.streams.kafka_input import KafkaInput

MAX_NAME = 63  # characters of the name of an output
Hint = Callable[[str, Collection[str], str], str]


def outputs_of(group: GroupSpec) -> list[str]:
    """Return the outputs that ``group`` declares, in the order of its steps."""
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
) -> Iterator[SpecProblem]:
    """Find mistakes in outputs, ``publish:`` and ``outputs:``.

    Args:
        params: the names of the job's parameters.
        hint: suggests a name for a misspelled one.
    """
    makers = _makers(every)
    return chain(
        _outputs(every),
        _unknown_outputs(every, publish or (), outputs, makers, hint),
        _modes(every, publish, outputs, makers, hint),
        _rejected(every, publish or (), outputs, makers),
        _unique_keys(outputs, makers),
        _tables(outputs),
        _partitions(every, params, outputs, hint),
    )


def _outputs(every: Sequence[GroupSpec]) -> Iterator[SpecProblem]:
    # Compared without case: Spark's views and some file systems treat `Flights` and `flights` as
    # one name.
    first: dict[str, tuple[str, Loc]] = {}
    for loc, step in steps_of(every):
        if step.output is None:
            continue
        name, maker = first.setdefault(step.output.lower(), (step.output, loc))
        if maker != loc:
            other = "" if name == step.output else f" (or {name!r}: case does not count)"
            message = (
                f"{path_text(maker)} makes the output {step.output!r}{other}, too; give one of "
                "them another name"
            )
            yield SpecProblem(message, (*loc, "output"))


def _makers(every: Sequence[GroupSpec]) -> dict[str, list[GroupSpec]]:
    """Return the groups that declare each output."""
    makers: dict[str, list[GroupSpec]] = {}
    for group in every:
        for name in outputs_of(group):
            makers.setdefault(name, []).append(group)
    return makers


def _unknown_outputs(
    every: Sequence[GroupSpec],
    publish: Sequence[str],
    outputs: Mapping[str, OutputSpec],
    makers: Mapping[str, list[GroupSpec]],
    hint: Hint,
) -> Iterator[SpecProblem]:
    """Find names under ``publish:`` and ``outputs:`` that no group makes."""
    any_python = any(step.python for _, step in steps_of(every))
    places: list[tuple[str, Loc]] = [(name, ("publish", j)) for j, name in enumerate(publish)]
    listed_names: set[str] = set()
    for name, loc in [*places, *((name, ("outputs", name)) for name in outputs)]:
        if loc[0] == "publish" and name in listed_names:
            yield SpecProblem(f"{name!r} is listed twice; remove one of them", loc)
        elif name not in makers and not any_python:
            yield SpecProblem(
                f"no group makes an output {name!r}{hint(name, makers, 'outputs')}", loc
            )
        listed_names.add(name)


def _modes(
    every: Sequence[GroupSpec],
    publish: Sequence[str] | None,
    outputs: Mapping[str, OutputSpec],
    makers: Mapping[str, list[GroupSpec]],
    hint: Hint,
) -> Iterator[SpecProblem]:
    """Find outputs that have a mode and are not published.

    The columns, rules and expectations of an output that is not published are checked.
    """
    visible = published_outputs(every, publish)
    for name, spec in outputs.items():
        if name in visible or not _has_mode(spec):
            continue
        loc = ("outputs", name)
        if publish is not None:
            yield SpecProblem(
                f"publish: does not name {name!r}{hint(name, publish, 'outputs')}", loc
            )
        elif name in makers:
            maker = makers[name][0].name
            text = (
                f"{name!r} is not published, since other groups need {maker}; name it in publish:"
            )
            yield SpecProblem(text, loc)


def _has_mode(spec: OutputSpec) -> bool:
    """Return whether ``spec`` says more than what is checked."""
    checks = {"quality": spec.quality, "columns": spec.columns, "expect": spec.expect}
    return not any(checks.values()) or spec != OutputSpec().model_copy(update=checks)


def published_outputs(every: Sequence[GroupSpec], publish: Sequence[str] | None) -> Collection[str]:
    """Return the outputs that become visible.

    These are the names under ``publish:``, else the outputs of groups that no other group needs.
    """
    if publish is not None:
        return publish
    readers = [group for group in every if group.steps and not group.join.wants_failure]
    needed = set(chain.from_iterable(group.needs for group in readers))
    last = [group for group in every if group.name not in needed]
    return set(chain.from_iterable(map(outputs_of, last)))


def _rejected(
    every: Sequence[GroupSpec],
    publish: Sequence[str],
    outputs: Mapping[str, OutputSpec],
    makers: Mapping[str, list[GroupSpec]],
) -> Iterator[SpecProblem]:
    """Find outputs whose rejected rows have a name that is in use or too long."""
    places: dict[str, Loc] = {}  # compared without case, as in `_outputs`
    for loc, step in steps_of(every):
        if step.output is not None:
            places.setdefault(step.output.lower(), (*loc, "output"))
    for j, name in enumerate(publish):
        places.setdefault(name.lower(), ("publish", j))
    for name in outputs:
        places.setdefault(name.lower(), ("outputs", name))
    for name, spec in outputs.items():
        if not _may_reject(spec, makers.get(name, ())):
            continue
        rejected = name + REJECTED
        if (place := places.get(rejected.lower())) is not None:
            text = f"the rejected rows of {name!r} have the name {rejected!r}; use another name"
            yield SpecProblem(text, place)
        if len(rejected) > MAX_NAME:
            longest = MAX_NAME - len(REJECTED)
            text = (
                f"the name of an output with rules has at most {longest} characters, since "
                f"{REJECTED} is appended to it"
            )
            yield SpecProblem(text, ("outputs", name), True)


def _may_reject(spec: OutputSpec, makers: Sequence[GroupSpec]) -> bool:
    """Return whether an output may have rejected rows."""
    if spec.checks.rejects:
        return True
    streams = chain.from_iterable(group.streams.values() for group in makers)
    return spec.mode == "append" and any(stream.skips for stream in streams)


def _unique_keys(
    outputs: Mapping[str, OutputSpec], makers: Mapping[str, list[GroupSpec]]
) -> Iterator[SpecProblem]:
    """Find keys that no attempt can check, since each sees the rows of one member of a fork."""
    for name, spec in outputs.items():
        forks = [group.name for group in makers.get(name, ()) if group.for_each is not None]
        if forks and spec.expect is not None and spec.expect.unique:
            text = (
                f"the members of the fork {forks[0]!r} make {name!r}, and each sees only its own "
                "rows; check the keys in a group that needs the fork"
            )
            yield SpecProblem(text, ("outputs", name, "expect", "unique"))


def _partitions(
    every: Sequence[GroupSpec],
    params: Collection[str],
    outputs: Mapping[str, OutputSpec],
    hint: Hint,
) -> Iterator[SpecProblem]:
    """Find parameters that ``partitions:`` names and the step that writes the output lacks."""
    for name, spec in outputs.items():
        if not spec.partitions:
            continue
        visible = _params_of_writers(every, params, name)
        for column, values in spec.partitions.items():
            for param in filter(None, map(named_param, values)):
                if visible and not any(param in names for names in visible):
                    near = hint(param, visible[0], "parameters")
                    text = f"the step that makes {name!r} has no parameter {param!r}{near}"
                    yield SpecProblem(text, ("outputs", name, "partitions", column))


def _params_of_writers(
    every: Sequence[GroupSpec], params: Collection[str], output: str
) -> list[set[str]]:
    """Return the parameters of each step that writes an output, or may write it in Python."""
    steps = [(group, step) for group in every for step in group.steps]
    writers = [pair for pair in steps if pair[1].output == output]
    if not writers:
        writers = [pair for pair in steps if pair[1].python]
    return [{*params, *group.params, *group.fork_params, *step.params} for group, step in writers]


def _tables(outputs: Mapping[str, OutputSpec]) -> Iterator[SpecProblem]:
    """Find tables with two outputs: readers could see the commit of one without the other."""
    owners: dict[str, str] = {}
    for name, output in outputs.items():
        if output.table is None:
            continue
        owner = owners.setdefault(output.table, name)
        if owner != name:
            text = f"{owner!r} has the same table; give each output its own"
            yield SpecProblem(text, ("outputs", name, "path"))


def appended_outputs(
    outputs: Mapping[str, OutputSpec], publish: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the outputs that are published by appending to a dataset of the warehouse."""
    appended = [
        name for name, output in outputs.items() if output.mode == "append" and output.table is None
    ]
    return tuple(name for name in appended if publish is None or name in publish)


def stream_problems(
    every: Sequence[GroupSpec], publish: Sequence[str] | None, outputs: Mapping[str, OutputSpec]
) -> Iterator[SpecProblem]:
    """Find mistakes in the streams that groups read.

    Only a run shows which output a group writes from a stream.
    """
    appended = appended_outputs(outputs, publish)
    for i, group in enumerate(every):
        own = outputs_of(group)
        any_python = any(step.python for step in group.steps)
        appends = any(any_python or output in own for output in appended)
        for name, stream in group.streams.items():
            wrongs = _wrong_stream(group, stream)
            if group.steps and not appends:
                output = next(iter(own), "NAME")
                wrongs.append(
                    "no output of the group is published by appending to a dataset; write "
                    f"outputs: {{{output}: {{mode: append}}}}, and name it in publish: if the spec "
                    "has one"
                )
            for wrong in wrongs:
                yield SpecProblem(f"{name!r} is a stream: {wrong}", ("groups", i, "inputs", name))


def _wrong_stream(group: GroupSpec, stream: StreamInput | KafkaInput) -> list[str]:
    """Return what the group of a stream does not allow."""
    by_content = isinstance(stream, StreamInput) and stream.known_by == "content"
    forked = group.for_each is not None
    rules = [
        (stream.state and not group.spark, "Spark reads state: true; remove spark: false"),
        (by_content and forked, "the members of a fork cannot share identity: content"),
        (stream.state and forked, "the members of a fork cannot share state: true"),
        (len(group.streams) > 1, "a group cannot read more than one stream yet"),
    ]
    return [text for is_wrong, text in rules if is_wrong]
