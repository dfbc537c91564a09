"""The ``alter`` command: it changes values in the spec of a started job, all or none (pure).

Policy (timeouts, retries, limits, priority, notify, queues, pools) may change while a job runs;
code, parameters and Spark conf only while it is PAUSED, HALTED or RETRYING; its shape never. Groups
that have succeeded, and attempts that run well, keep what they began with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from unstuck.coordinator.command_table import Answer, Arg, Command, Order, TargetKind
from unstuck.coordinator.commands.job_commands import GROUPS_LEGAL, OPEN, Commanded, ways_on
from unstuck.coordinator.model.records import Alteration, AlteredValue, GroupRequest
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.spec.checks.fork_checks import values_reader
from unstuck.coordinator.spec.job_params import UnparsedText, with_value, without_value
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, listed, suggestion
from unstuck.tasks.protocol.token import split_member

_NO_WORK = (
    "retry",
    "timeout",
    "queue_timeout",
    "worker_losses",
    "queue",
    "pool",
)  # policies of a group
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
    """A group of a written spec without its policies, which make no work stale."""
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
    where = f"job {job.id} is {job.status}"
    if job.terminal:
        text = f"{where}, and a job that has ended never changes; {ways_on(job)}"
        return Commanded(Answer.REFUSED, job, text)
    old, new = job.written(), job.written()
    problems = [
        problem for path, value in values.items() if (problem := _set(new, path, value)) is not None
    ]
    if problems:
        raise SpecError(problems)
    try:
        spec = JobSpec.from_values(new, {})
    except SpecError:
        if shape := next(
            filter(_SHAPE.fullmatch, values), ""
        ):  # no other value would be legal there either
            return Commanded(
                Answer.REFUSED, job, f"{where}: {_of_the_shape(shape)}. Nothing was changed."
            )
        raise
    changes = tuple(changes_between(old, spec.dumped()))
    if not changes:
        return Commanded(
            Answer.ALREADY, job, f"{where}, and its spec says so already; nothing changed"
        )
    if refused := _refusal(state, changes):
        return Commanded(Answer.REFUSED, job, f"{where}: {refused}. Nothing was changed.")
    alteration = Alteration(order.at, order.by, order.reason, changes)
    alterations = (*job.alterations, alteration)
    altered = replace(
        job,
        revision=job.revision + 1,
        alterations=alterations,
        priority=spec.priority,
        mixed=spec.mixed,
    )
    compiled = compile_to_store(spec, altered)
    was, groups = state.plan.groups, compiled.plan.groups.items()
    if fork := next((name for name, group in groups if group.values != was[name].values), ""):
        text = (
            f"{where}: the members of the fork {fork} come from a parameter, and "
            f"{_of_the_shape('for_each')}"
        )
        return Commanded(Answer.REFUSED, job, f"{text}. Nothing was changed.")
    if odd := next(
        (name for name, group in groups if group.spec.is_join != was[name].spec.is_join), ""
    ):
        text = _of_the_shape(f"whether {odd} has steps")
        return Commanded(Answer.REFUSED, job, f"{where}: {text}. Nothing was changed.")
    plan, texts = compiled.plan, {**job.texts, **compiled.texts}
    altered = replace(altered, spec=compiled.spec, texts=texts)
    before, after = job.group_plans(state.plan), job.group_plans(plan)
    plans = {name: stored for name, stored in after.items() if stored != before.get(name)}
    if any(_CODE.fullmatch(change.path) for change in changes):
        stale = [
            g
            for g in state.recovering
            if plan.params != state.plan.params or split_member(g)[0] in plans
        ]
        restarts = (GroupRequest("restart", group_id) for group_id in stale)
        altered = replace(altered, requests=(*altered.requests, *restarts))
    changed = ", ".join(
        f"{change.path}: {_short(change.path, change.old)} → {_short(change.path, change.new)}"
        for change in changes[:5]
    )
    more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
    text = (
        f"job {job.id} is altered ({changed}{more}); `unstuck show {job.id} --diff` shows "
        "which "
        "groups ran with what"
    )
    return Commanded(Answer.DONE, altered, text, plans, plan.params)


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


def _queued_on(state: JobState, path: str) -> str:
    """Return an active group whose queue or pool ``path`` changes; empty if there is none."""
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


def _set(spec: dict[str, Any], path: str, value: Any) -> SpecProblem | None:
    """Set one value in the parsed spec, in place. A problem where the path leads nowhere."""
    head, conf, key = path.partition(".conf.")
    parts = (
        [*head.split("."), "conf", key] if conf else path.split(".")
    )  # the names of Spark's conf hold dots
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
    if isinstance(old or {}, dict) and isinstance(new or {}, dict) and (old or new):
        before, after = old or {}, new or {}
        for part in sorted({*before, *after}):
            yield from _differences(
                f"{path}.{part}" if path else part, before.get(part), after.get(part)
            )
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(old) == len(new)
        and path.endswith(".steps")
    ):
        for number, steps in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}.{number}", *steps)
    elif json.dumps(old, sort_keys=True) != json.dumps(
        new, sort_keys=True
    ):  # 1 and true are equal, to Python
        yield AlteredValue(path, old, new)


def in_words(path: str, value: Any) -> str:
    """A value of a spec as people read it: ``none``, ``5s`` of a duration, else JSON."""
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
