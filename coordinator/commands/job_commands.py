"""The commands for a whole job: their effect on the intent, and their legal states. Pure.

Only commands change the intent. A repeated command changes nothing, and a stronger command
overrides a weaker one. The text of a refusal names the state of the job and what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from unstuck.coordinator.command_table import Answer, Arg, Command, Order, TargetKind
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import TERMINAL, Intent, Status

# The intent that each command writes.
INTENTS = {
    "pause": Intent.PAUSE,
    "resume": Intent.RUN,
    "stop": Intent.STOP,
    "cancel": Intent.CANCEL,
    "force-stop": Intent.FORCE_STOP,
}


@dataclass(frozen=True, slots=True)
class Commanded:
    """The result of a command: the job's record after it, and a sentence for the user.

    ``plans`` and ``params``: new values for runners, if an ``alter`` changed them. ``note``: the
    beginning of the event's text.
    """

    answer: Answer
    job: JobRecord
    text: str
    plans: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] | None = None
    note: str = ""


OPEN = frozenset(status for status in Status if not status.terminal)

# For skip, rerun, and alter of code.
GROUPS_LEGAL = frozenset({Status.PAUSED, Status.HALTED, Status.RETRYING})
RETRY_LEGAL = TERMINAL - {Status.FINISHED}  # it makes a new job of an old one
_ENDS = {"stop": Status.STOPPED, "cancel": Status.CANCELED, "force-stop": Status.CANCELED}
_STRENGTH = tuple(Intent)  # a later one overrides an earlier one


@Command(
    "pause",
    TargetKind.JOB,
    "unstuck pause flights --now --reason 'the source is being repaired'",
    legal=OPEN - {Status.HALTED, Status.STOPPING, Status.CANCELING},
)
def pause(
    state: JobState,
    order: Order,
    *,
    now: Annotated[bool, Arg("Interrupt running groups. They use up no retries.")] = False,
) -> Commanded:
    """Start no more groups. Running groups finish."""
    return command(state.job, "pause", now=now, by=order.by, why=order.reason)


@Command(
    "resume",
    TargetKind.JOB,
    "unstuck resume flights",
    legal={Status.PAUSING, Status.PAUSED, Status.HALTED},
)
def resume(state: JobState, order: Order) -> Commanded:
    """Continue a PAUSED or HALTED job with its full retry budget.

    Refused in RETRYING, where the job retries by itself.
    """
    return command(state.job, "resume", by=order.by, why=order.reason)


@Command("stop", TargetKind.JOB, "unstuck stop flights", legal=OPEN - {Status.CANCELING}, ends=True)
def stop(state: JobState, order: Order) -> Commanded:
    """Start no more groups, wait for running groups, and end the job without publishing."""
    return command(state.job, "stop", by=order.by, why=order.reason)


@Command(
    "cancel",
    TargetKind.JOB,
    "unstuck cancel --name 'nightly-*' --since 1d --yes",
    legal=OPEN,
    ends=True,
)
def cancel(state: JobState, order: Order) -> Commanded:
    """Interrupt running groups and end the job.

    After the cancel deadline the job ends without its workers.
    """
    return command(state.job, "cancel", by=order.by, why=order.reason)


@Command(
    "force-stop",
    TargetKind.JOB,
    "unstuck force-stop 20131231T235959-k3f9a2xw",
    legal=OPEN,
    ends=True,
    damaged_too=True,
)
def force_stop(job: JobRecord, order: Order) -> Commanded:
    """End the job at once. Afterwards its workers cannot change anything."""
    return command(job, "force-stop", by=order.by, why=order.reason)


def command(
    job: JobRecord, requested: str, *, now: bool = False, by: str = "", why: str = ""
) -> Commanded:
    """Return the answer to ``requested``, a key of `INTENTS`, and the record of ``job`` after it.

    Args:
        by: who gives the command; ``why``: the reason, as shown to users.
        now: whether a pause interrupts running groups, without a charge to their budgets.
    """
    answer, text = _answer(job, requested, now)
    if requested == "pause" and answer is not Answer.REFUSED and job.phase:
        text += ". It comes too late, since all groups are done and the job is publishing; "
        text += f"`unstuck cancel {job.id}` ends it, unless its package stands by then"
    if answer is not Answer.DONE:
        return Commanded(answer, job, text)
    updated = replace(
        job,
        intent=INTENTS[requested],
        intent_by=by,
        intent_why=why,
        pause_now=now,
    )
    if requested == "resume":
        updated = replace(updated, halted=None, reset_budgets=True)
    return Commanded(answer, updated, text, note="now, interrupting what runs" if now else "")


def _answer(job: JobRecord, requested: str, now: bool) -> tuple[Answer, str]:
    where = f"job {job.id} is {job.status}"
    if job.terminal and job.status is _ENDS.get(requested):
        return Answer.ALREADY, f"{where} already; {_after(job)}"
    if job.terminal:
        return Answer.REFUSED, f"{where}, and a job that has ended never changes; {_after(job)}"
    if requested == "resume":
        return _answer_to_resume(job, where)
    return _answer_to_end(job, requested, now, where)


def _answer_to_resume(job: JobRecord, where: str) -> tuple[Answer, str]:
    """Return the answer to a resume of a job that has not ended; ``where``: its status in words."""
    if job.intent not in (Intent.RUN, Intent.PAUSE):
        text = f"{where}: a {job.intent.command} cannot be taken back; {_ending(job)}"
        return Answer.REFUSED, text
    if job.intent is Intent.PAUSE or job.halted is not None:
        return Answer.DONE, f"job {job.id} goes on, with its full retry budget"
    if job.reset_budgets:  # its status says so as soon as a coordinator has looked
        return Answer.ALREADY, f"job {job.id} goes on: resume had been asked for before"
    if job.status is Status.RETRYING:
        text = (
            f"{where} and tries again by itself (`unstuck why {job.id}` says when); to try at "
            f"once: `unstuck pause {job.id}`, and then resume"
        )
        return Answer.REFUSED, text
    text = (
        f"{where}: it is not paused, so there is nothing to resume; `unstuck why {job.id}` "
        "says what it waits for"
    )
    return Answer.ALREADY, text


def _answer_to_end(job: JobRecord, requested: str, now: bool, where: str) -> tuple[Answer, str]:
    """Return the answer to a pause, stop or cancel of a job that has not ended.

    Args:
        now: as for `command`.
        where: its status, in words.
    """
    intent = INTENTS[requested]
    if requested == "pause" and job.halted is not None and job.intent in (Intent.RUN, Intent.PAUSE):
        text = (
            f"{where}: nothing of it begins before it is resumed, and `unstuck why {job.id}` "
            "says what stopped it"
        )
        return Answer.REFUSED, text
    if job.intent is intent and (not now or job.pause_now):
        return Answer.ALREADY, f"{where}, and {requested} had been asked for before"
    if _STRENGTH.index(job.intent) > _STRENGTH.index(intent):
        text = (
            f"{where}: {job.intent.command} was asked for, which {requested} does not override; "
            f"{_ending(job)}"
        )
        return Answer.REFUSED, text
    return Answer.DONE, f"{requested} of job {job.id} is on record; it was {job.status}"


def against_damage(job: JobRecord, damage: str) -> Commanded:
    """The answer to every command but force-stop if ``job`` has ``damage``."""
    ended = f"job {job.id} is {job.status}, and {damage}; submit it again for another run"
    return Commanded(Answer.REFUSED, job, ended if job.terminal else damage)


def status_has_followed(job: JobRecord) -> bool:
    """Return whether the status reflects the last command of the user."""
    if job.terminal or job.halted is not None:
        return True
    if job.status is Status.HALTED:
        return False  # it was resumed
    return not job.requests and (job.intent is Intent.PAUSE) == (
        job.status in (Status.PAUSING, Status.PAUSED)
    )


def against_retry(job: JobRecord) -> str:
    """Return why ``job`` cannot be retried, and what to do instead."""
    if job.status is Status.FINISHED:
        return f"job {job.id} is FINISHED: there is nothing left to retry; {_after(job)}"
    return (
        f"job {job.id} is {job.status}: only a job that has ended can be retried; `unstuck "
        f"cancel {job.id}` ends it"
    )


def _after(job: JobRecord) -> str:
    if job.status is Status.FINISHED:
        return "submit it again for another run"
    return ways_on(job)


def ways_on(job: JobRecord) -> str:
    """Return how to run an ended job again; for a run, this depends on its schedule."""
    if job.schedule:
        return f"`unstuck why {job.id}` names the command that runs it again"
    return f"`unstuck retry {job.id}` makes a new job of it"


def _ending(job: JobRecord) -> str:
    if job.status is Status.HALTED:
        return (
            f"it is looked at again from time to time, and `unstuck force-stop {job.id}` ends "
            "it at once"
        )
    return f"it is ending by itself, and `unstuck why {job.id}` says what it waits for"
