"""The text of a notice of a job: the sentence of ``why``, the first error, the next step. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from unstuck.coordinator.explain.explanation import Event, Explanation
from unstuck.coordinator.explain.job import explain, explain_job
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.token import split_member

MAX_TEXT = 2000
_OVER = {
    "halted": "it goes on",
    "failed": "its retry has ended well",
    "retrying_for": "what had failed has succeeded",
    "running_for": "it does not run any more",
    "waiting_for_worker": "a worker has taken what waited",
}


class Words(NamedTuple):
    """The parts of the text of a notice; ``job``: the id of the job that it concerns."""

    text: str
    first_error: str = ""
    next: str = ""
    commands: tuple[str, ...] = ()
    job: str = ""


def words(
    state: JobState,
    env: Environment,
    due: float | None,
    event: str,
    *,
    group: str = "",
    limit: float = 0.0,
    over: Sequence[str] = (),
) -> Words:
    """Return the text for ``event``, for the job in ``state``.

    Args:
        group: the group that waits for a worker, or is retried.
        limit: the seconds of its condition.
        over: keys of the problems that ended.
    """
    job = state.job
    # The groups of a halted job cannot be judged.
    is_open = not (job.terminal or job.halted)
    explained = explain(state, env, due) if is_open else [explain_job(state, env, due)]
    about = _of_group(explained, group) if group else explained[0]
    what = explained[0].what
    match event:
        case "waiting_for_worker":
            what = f"{about.subject}: {about.what}"
        case "retrying_for":
            what = explained[0].short or what
        case "running_for":
            duration, most = format_duration(env.now - job.counted_from), format_duration(limit)
            what = f"it has run for {duration}, more than {most}; {what}"
        case "recovered" if is_open or job.retry_of:
            ends = dict.fromkeys(_OVER.get(key.partition(":")[0], key) for key in over)
            what = f"{', and '.join(ends)}; {what}"
    following = about.next if about.next.what else about.ends
    first_error = _first_error(state)[:MAX_TEXT]
    helps = _helps(job, event, about)
    return Words(what[:MAX_TEXT], first_error, event_text(following), helps, job.id)


def _helps(job: JobRecord, event: str, about: Explanation) -> tuple[str, ...]:
    if event in ("finished", "recovered"):  # nothing need be done
        return (f"unstuck show {job.id}",)
    return about.help if job.terminal else (f"unstuck why {job.id}", *about.help)


def event_text(event: Event) -> str:
    """Return the event as text, with its time."""
    if not event.at:
        return event.what
    at = datetime.datetime.fromtimestamp(int(event.at), datetime.UTC)
    return f"{event.what}, at {at.isoformat().replace('+00:00', 'Z')}"


def _of_group(explained: Sequence[Explanation], group: str) -> Explanation:
    """Return the explanation of ``group``; of another member if a wide fork has none for it."""
    name = split_member(group)[0]
    same = [
        explanation for explanation in explained[1:] if split_member(explanation.subject)[0] == name
    ]
    return next(
        (explanation for explanation in same if explanation.subject == group),
        same[0] if same else explained[0],
    )


def _first_error(state: JobState) -> str:
    name = state.first_failed if state.fatal else next(iter(state.recovering), "")
    error = state.record(name).first_error
    return "" if error is None else f"group {name}: {error.code}: {error.text}"
