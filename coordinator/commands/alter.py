"""The ``alter`` command changes values in the spec of a started job, all or none. Pure.

Policy (timeouts, retries, limits, priority, notify, queues, pools) may change while a job runs;
code, parameters and Spark conf only while it is PAUSED, HALTED or RETRYING; its shape never. Groups
that succeeded, and attempts that run without failures, keep their values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from unstuck.coordinator.command_table import Answer, Arg, Command, Order, TargetKind
from unstuck.coordinator.commands.job_commands import GROUPS_LEGAL, OPEN, Commanded, ways_on
from unstuck.coordinator.model.records import Alteration, AlteredValue, GroupRequest, JobRecord
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.spec.checks.fork_checks import values_reader
from unstuck.coordinator.spec.job_params import UnparsedText, with_value, without_value
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, listed, suggestion
from unstuck.tasks.protocol.token import split_member

MAX_CHANGES_SHOWN = 5
# Policies of a group.
_NO_WORK = ("retry", "timeout", "queue_timeout", "worker_losses", "queue", "pool")
_GROUP = r"(groups\.[^.]+|defaults)\."
_STEP = r"groups\.[^.]+\.steps"
_POLICY = re.compile(
    rf"max_parallel|priority|mixed|on_failure|timeout|notify|{_STEP}\.\d+\.timeout|"
    rf"{_GROUP}({'|'.join(_NO_WORK)})|{_GROUP}retry\..+"
)
_QUEUE = re.compile(rf"{_GROUP}(queue|pool)")
_CODE = re.compile(
    rf"params(\..+)?|{_GROUP}conf(\..+)?|groups\.[^.]+\.(params(\..+)?|when)|{_STEP}(\..+)?"
)
_PARAM = re.compile(r"params\.[^.]+")
_SHAPE = re.compile(
    r"name|publish(\..+)?|groups\.[^.]+\.(name|needs|join|for_each|optional|spark|inputs)(\..+)?"
)
_DURATION = re.compile(r"(.+\.)?(timeout|queue_timeout|backoff|max_backoff)")


def work_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group of a spec without the policies, whose change invalidates no finished work."""
    steps = [
        {name: value for name, value in step.items() if name != "timeout"}
        for step in group.get("steps", ())
    ]
    return {
        **{name: value for name, value in group.items() if name not in _NO_WORK},
        "steps": steps,
    }


@Command(
    "alter",
    TargetKind.JOB,
    "unstuck alter flights --set groups.clean.timeout=2h",
    legal=OPEN,
    settles=True,
)
def alter(
    state: JobState,
    order: Order,
    values: Annotated[
        Mapping[str, Any],
        Arg(
            "`groups.clean.timeout=2h`, `params.year=2014`; `=null` takes it out.",
            option="--set",
            metavar="PATH=VALUE",
        ),
    ],
) -> Commanded:
    """Change values of a job's spec, all or none.

    Timeouts, retries, limits and queues in every state; code, parameters and conf while it is
    PAUSED, HALTED or RETRYING.

    Args:
        values: by path, with groups by name and steps by number. An `UnparsedText` is parsed as in
            a spec, unless the current value is text. None removes a value.

    Raises:
        SpecError: a path leads nowhere, or the spec would be wrong with these values.
    """
    job = state.job
    if job.terminal:
        text = f"job {job.id} is {job.status}, and a job that has ended never changes"
        return Commanded(Answer.REFUSED, job, f"{text}; {ways_on(job)}")
    new = _with_values(job.written(), values)
    try:
        spec = JobSpec.from_values(new, {})
    except SpecError:
        shape = next(filter(_SHAPE.fullmatch, values), "")
        if not shape:
            raise
        return _refused(job, _of_the_shape(shape))  # no other value would be legal there
    changes = tuple(changes_between(job.written(), spec.dumped()))
    if not changes:
        text = f"job {job.id} is {job.status}, and its spec says so already; nothing changed"
        return Commanded(Answer.ALREADY, job, text)
    if refusal := _refusal(state, changes):
        return _refused(job, refusal)
    alteration = Alteration(order.at, order.by, order.reason, changes)
    altered = replace(
        job,
        revision=job.revision + 1,
        alterations=(*job.alterations, alteration),
        priority=spec.priority,
        mixed=spec.mixed,
    )
    compiled = compile_to_store(spec, altered)
    if refusal := _shape_refusal(state.plan, compiled.plan):
        return _refused(job, refusal)
    before, after = job.group_plans(state.plan), job.group_plans(compiled.plan)
    plans = {name: stored for name, stored in after.items() if stored != before.get(name)}
    altered = replace(
        altered,
        spec=compiled.spec,
        texts={**job.texts, **compiled.texts},
        requests=(*altered.requests, *_restarts(state, compiled.plan, plans, changes)),
    )
    return Commanded(Answer.DONE, altered, _done_text(job, changes), plans, compiled.plan.params)


def _refused(job: JobRecord, why: str) -> Commanded:
    text = f"job {job.id} is {job.status}: {why}. Nothing was changed."
    return Commanded(Answer.REFUSED, job, text)


def _restarts(
    state: JobState, plan: Plan, plans: Collection[str], changes: Iterable[AlteredValue]
) -> Iterator[GroupRequest]:
    """Yield the restarts of recovering groups whose code or parameters have changed.

    Args:
        plans: the groups whose plan has changed.
    """
    if not any(_CODE.fullmatch(change.path) for change in changes):
        return
    other_params = plan.params != state.plan.params
    for group_id in state.recovering:
        if other_params or split_member(group_id)[0] in plans:
            yield GroupRequest("restart", group_id)


def _done_text(job: JobRecord, changes: Sequence[AlteredValue]) -> str:
    changed = ", ".join(
        f"{change.path}: {_short(change.path, change.old)} → {_short(change.path, change.new)}"
        for change in changes[:MAX_CHANGES_SHOWN]
    )
    more = len(changes) - MAX_CHANGES_SHOWN
    also = f" and {more} more" if more > 0 else ""
    return (
        f"job {job.id} is altered ({changed}{also}); `unstuck show {job.id} --diff` shows which "
        "groups ran with what"
    )


def _refusal(state: JobState, changes: tuple[AlteredValue, ...]) -> str:
    """Why these changes are not legal in this state; empty if they are."""
    for change in changes:
        if _POLICY.fullmatch(change.path):
            busy = _queued_on(state, change.path) if _QUEUE.fullmatch(change.path) else ""
            if busy:
                return (
                    f"{change.path} can change only while {busy} is not queued; "
                    f"`unstuck pause {state.job.id}` takes unclaimed groups back"
                )
        elif not _CODE.fullmatch(change.path):
            return _of_the_shape(change.path)
        elif state.job.status not in GROUPS_LEGAL:
            return (
                f"{change.path} (code, parameters and conf) can change only while a job is PAUSED, "
                f"HALTED or RETRYING; `unstuck pause {state.job.id}` first, or change policy only "
                "(timeouts, retries, max_parallel, priority, mixed, notify, queues, pools)"
            )
    return ""


def _of_the_shape(path: str) -> str:
    return f"{path} is part of the job's shape, which never changes; submit another job"


def _shape_refusal(old: Plan, new: Plan) -> str:
    """Return why a changed value would change the shape of the job; empty if it would not."""
    for name, group in new.groups.items():
        before = old.groups[name]
        if group.values != before.values:
            return (
                f"the members of the fork {name} come from a parameter, and "
                f"{_of_the_shape('for_each')}"
            )
        if group.spec.is_join != before.spec.is_join:
            return _of_the_shape(f"whether {name} has steps")
    return ""


def _queued_on(state: JobState, path: str) -> str:
    """Return the name of an active group whose queue or pool ``path`` changes; empty for none."""
    _, name, *_ = f"{path}.".split(".")
    for group_id in state.active:
        group = split_member(group_id)[0]
        if path.startswith("defaults.") or group in (
            name,
            values_reader(state.plan.groups[name].spec),
        ):
            return group
    return ""


# ---- paths
# --------------------------------------------------------------------------------------------------


def _with_values(spec: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``spec`` with ``values`` set in place. Raises: SpecError: a path leads nowhere."""
    results = [_set(spec, path, value) for path, value in values.items()]
    problems = [problem for problem in results if problem is not None]
    if problems:
        raise SpecError(problems)
    return spec


def _set(spec: dict[str, Any], path: str, value: Any) -> SpecProblem | None:
    """Set one value in the parsed spec, in place. A problem where the path leads nowhere."""
    head, conf, key = path.partition(".conf.")
    # Names in Spark's conf contain dots.
    parts = [*head.split("."), "conf", key] if conf else path.split(".")
    if not all(parts):
        return SpecProblem(f"expected a path such as groups.clean.timeout, not {path!r}")
    place: Any = spec
    for depth, part in enumerate(parts):
        walked = ".".join(parts[: depth + 1])
        at: Any = _index(part, place) if isinstance(place, list) else part
        if at is None:
            names = [item["name"] if _is_named(item) else str(n) for n, item in enumerate(place)]
            return SpecProblem(
                f"{walked}: there is no such part{suggestion(part, names)}; there are: "
                f"{listed(names)}"
            )
        if not isinstance(place, dict | list):
            return SpecProblem(f"{walked}: {'.'.join(parts[:depth])} holds a value, and no parts")
        if depth == len(parts) - 1:
            return _put(place, at, path, value)
        place = place.setdefault(at, {}) if isinstance(place, dict) else place[at]
    return None


def _put(place: Any, key: Any, path: str, value: Any) -> SpecProblem | None:
    current = place.get(key) if isinstance(place, dict) else place[key]
    try:
        if _PARAM.fullmatch(path) and current is not None:
            value = without_value(current) if value is None else with_value(current, value)
        elif isinstance(value, UnparsedText):  # Spark's conf is text
            value = value.value(stays_text=isinstance(current, str) or ".conf." in path)
    except ValueError as error:
        return SpecProblem(f"{path}: {error}")
    if value is None and isinstance(place, dict):
        place.pop(key, None)
    else:
        place[key] = value
    return None


def _index(part: str, items: list[Any]) -> int | None:
    """Where ``part`` stands, a number from 0 or a name."""
    # Short first: `²` is a digit, and int() takes neither it nor many thousand digits.
    if re.fullmatch("[0-9]{1,9}", part) and int(part) < len(items):
        return int(part)
    return next(
        (n for n, item in enumerate(items) if _is_named(item) and item["name"] == part), None
    )


def _is_named(item: Any) -> bool:
    return isinstance(item, dict) and "name" in item


def changes_between(old: dict[str, Any], new: dict[str, Any]) -> Iterator[AlteredValue]:
    """Yield the differences between two parsed specs, value by value, with groups by name."""
    yield from _differences("", _by_name(old), _by_name(new))


def _by_name(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "groups": {group["name"]: group for group in spec["groups"]}}


def _differences(path: str, old: Any, new: Any) -> Iterator[AlteredValue]:
    parts = _parts(path, old, new)
    for part, *values in parts:
        yield from _differences(part, *values)
    # 1 and true are equal, to Python.
    if not parts and json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True):
        yield AlteredValue(path, old, new)


def _parts(path: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Return the parts of two values that are compared each for itself; empty: the values are."""
    if path.endswith(".steps") and _are_alike(old, new):
        return [(f"{path}.{n}", *steps) for n, steps in enumerate(zip(old, new, strict=True))]
    before, after = old or {}, new or {}
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return []
    begin = f"{path}." if path else ""
    return [
        (f"{begin}{part}", before.get(part), after.get(part)) for part in sorted({*before, *after})
    ]


def _are_alike(old: Any, new: Any) -> bool:
    return isinstance(old, list) and isinstance(new, list) and len(old) == len(new)


def in_words(path: str, value: Any) -> str:
    """Return a value of a spec as text: ``none``, a duration such as ``5s``, or JSON."""
    if value is None:
        return "none"
    return (
        f"{value:g}s"
        if _DURATION.fullmatch(path) and isinstance(value, int | float)
        else json.dumps(value)
    )


def _short(path: str, value: Any) -> str:
    text = in_words(path, value)
    return text if len(text) <= 60 else f"{text[:57]}…"
