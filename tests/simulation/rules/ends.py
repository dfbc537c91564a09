"""How a job is shown, and how it ended: is it so? Plain rules over the record and the warehouse
log.

Each function yields what is wrong: the promise, and words.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from tests.simulation.actors.dispatch import package_id_of, package_of
from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.stored import StoredJob
from tests.simulation.rules.broken import ONE, SHOWN, WAIT, WHOLE, WORD
from tests.simulation.rules.user import word
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status, derive
from unstuck.coordinator.spec.plan import plan_of

S = GroupState
ACTIVE = (S.QUEUED, S.RUNNING, S.CANCELING)
Lie = tuple[str, str]


def status(after: StoredJob) -> Iterator[Lie]:
    """The status that is shown is that of the groups, derived a second time."""
    job, records = after.record, after.groups.values()
    expected = derive(
        intent=job.intent,
        outcome=job.status if job.terminal else None,
        halted=job.halted is not None,
        started=bool(job.started_at),
        active=any(record.state in ACTIVE for record in records) or bool(job.phase),
        recovering=any(bool(r.failures or r.losses) and not r.state.terminal for r in records),
    )
    if job.status is not expected:
        yield SHOWN, f"{job.id} is shown {job.status}; its groups say {expected}"


def limits(after: StoredJob, decision: Decision) -> Iterator[Lie]:
    """No more groups are active than the job allows."""
    plan = plan_of(after.record.spec)
    if not any(event["kind"] == S.QUEUED for event in decision.events):
        return  # an alter may have lowered the limit since
    active = sum(1 for record in after.groups.values() if record.state in ACTIVE)
    if plan.max_parallel is not None and active > plan.max_parallel:
        yield (
            WORD,
            f"{after.record.id}: {active} groups are active, max_parallel is {plan.max_parallel}",
        )


def next_try(before: JobRecord, after: StoredJob) -> str:
    """Publishing is looked after half a minute later; after trouble it is tried again in 2, 4, 8 …
    60 seconds.
    """
    job, tries = after.record, after.record.publish_tries
    wait = min(60.0, 2.0 ** min(tries, 6)) if tries > before.publish_tries else 30.0
    late = job.publish_next - after.decided_at > wait + 0.01
    if job.phase and job.publish_next != before.publish_next and late:
        return (
            f"{job.id} is to be published {job.publish_next - after.decided_at:.1f}s later, "
            f"after {tries} tries"
        )
    return ""


def ended(after: StoredJob, state: JobState, depot: Depot, outlasted: Set[str]) -> Iterator[Lie]:
    """A job has ended: how, and what stands in the warehouse log, is what the user wanted and what
    its groups say.

    Args:
        outlasted: jobs whose package stood when the store went back to before it. One that the user
            ends then is ended, although its package stands: nobody asks the log for a job that is
            not publishing. One that the user alters then keeps the package that stands
            (docs/guarantees.md).
    """
    job = after.record
    left = [
        m
        for name in state.plan.groups
        for m in state.members(name)
        if not state.record(m).state.terminal
    ]
    if left:
        yield SHOWN, f"{job.id} is {job.status}, and {left} have not ended"
    if after.attempts:
        yield ONE, f"{job.id} is {job.status}, and attempts of {list(after.attempts)} are on record"
    entries = [
        (slot, e) for slot, e in enumerate(depot.log, 1) if e.is_of(job.id, package_id_of(job))
    ]
    packages = [(slot, e) for slot, e in entries if e.kind == "package"]
    own = [(slot, e) for slot, e in packages if e.publish_id == job.id]
    if job.status not in word.ENDS[job.intent]:
        yield WORD, f"{job.id} is {job.status}, and the user had asked for {job.intent}"
    late = job.timed_out is not None
    if (
        job.intent is Intent.RUN
        and late
        and (job.status is not Status.FAILED or job.reason != job.timed_out)
    ):
        yield (
            WAIT,
            f"{job.id} is {job.status} ({job.reason}), and its time was over: {job.timed_out}",
        )
    if job.status is Status.FAILED and not entries and not late and not state.fatal:
        yield (
            SHOWN,
            f"{job.id} is FAILED ({job.reason}), and it could have lived with all that failed",
        )
    if job.status is Status.FINISHED:
        wanted = package_of(state, depot)
        # A package of another job of its chain of retries is what was asked for, too.
        known = {job.id} - outlasted
        standing = [
            (slot, entry if entry.publish_id in known else wanted) for slot, entry in packages
        ]
        if (wanted.outputs or packages) and standing != [(job.version, wanted)]:
            yield SHOWN, f"{job.id} is FINISHED as version {job.version}; the log holds {entries}"
        if not packages and (entries or job.intent in word.ENDED_BY_USER):
            yield (
                WORD,
                (
                    f"{job.id} is FINISHED under {job.intent}, and the log holds "
                    f"{entries or 'nothing'}"
                ),
            )
        if lacking := [*state.fatal, *state.by_state[S.CANCELED]]:
            yield SHOWN, f"{job.id} is FINISHED, and {lacking} failed for good or were canceled"
    elif own and job.id not in outlasted:
        yield WHOLE, f"{job.id} is {job.status}, and its package stands in the log: {own}"
