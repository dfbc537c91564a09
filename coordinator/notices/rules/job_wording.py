"""The words of a notice of a job (pure): the sentence of ``why``, the first error, what comes next,
and what helps.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from unstuck.coordinator.explain.explanation import Event, Explanation
from unstuck.coordinator.explain.job import explain, explain_job
from unstuck.coordinator.model.decision import Environment
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
    """The words of a notice; ``job``: the id of the job that it concerns."""

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
    """The words for ``event``, as the job stands in ``state``.

    Args:
        group: the one that waits for a worker, or is tried again.
        limit: the seconds of its condition.
        over: keys of the problems that are over.
    """
    job = state.job
    # Only a job that goes on has groups that can be judged: one is halted because they cannot.
    goes_on = not (job.terminal or job.halted)
    explained = explain(state, env, due) if goes_on else [explain_job(state, env, due)]
    about, what = explained[0], explained[0].what
    if event == "waiting_for_worker":
        about = _of_group(explained, group)
        what = f"{about.subject}: {about.what}"
    elif event == "retrying_for":
        what = about.short or what
        about = _of_group(explained, group) if group else about
    elif event == "running_for":
        so_far, most = format_duration(env.now - job.counted_from), format_duration(limit)
        what = f"it has run for {so_far}, more than {most}; {what}"
    elif event == "recovered":
        ends = dict.fromkeys(_OVER.get(key.partition(":")[0], key) for key in over)
        what = f"{', and '.join(ends)}; {what}" if goes_on or job.retry_of else what
    following = about.next if about.next.what else about.ends
    helps = (f"unstuck why {job.id}", *about.help) if not job.terminal else about.help
    if event in ("finished", "recovered"):  # nothing need be done
        helps = (f"unstuck show {job.id}",)
    first_error = _first_error(state)[:MAX_TEXT]
    return Words(what[:MAX_TEXT], first_error, event_text(following), helps, job.id)


def event_text(event: Event) -> str:
    """The event in words, with its time."""
    if not event.at:
        return event.what
    at = datetime.datetime.fromtimestamp(int(event.at), datetime.UTC)
    return f"{event.what}, at {at.isoformat().replace('+00:00', 'Z')}"


def _of_group(explained: Sequence[Explanation], group: str) -> Explanation:
    """The explanation of ``group``; of a wide fork, in which not all are explained, of another
    member.
    """
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
