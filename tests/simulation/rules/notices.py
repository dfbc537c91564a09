"""Who is told of what, counted a second time: every change that a rule names, once, as it was
committed.

What begins without ``_`` goes back with the store. Each function answers what is wrong, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.rules.broken import TOLD, UNTOLD
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.notice import TOLD_AGAIN_AFTER, Notice
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import HELD, GroupState, Intent, Status
from unstuck.coordinator.spec.plan import plan_of

SLACK = 0.01  # seconds
Lies = Iterator[tuple[str, str]]


class Notices:
    """``ran``: the seconds for which a job has run, by the clock of promises."""

    def __init__(self, core: ModelStore, ran: Callable[[JobRecord, float], float]) -> None:
        self._core, self._ran = core, ran
        self.outbox = {"notices": 0}  # how many the commits have written
        self.written: set[str] = set()  # their ids
        self.troubled: dict[
            tuple[str, str], float
        ] = {}  # group → since when it fails without a success
        self._meant: dict[
            str, tuple[str, str, str]
        ] = {}  # id → job, event and problem, also of what the store forgot
        self._ended: dict[tuple[str, str], str] = {}  # job and event → its id, likewise

    def committed(self, before: StoredJob, after: StoredJob, decision: Decision) -> Lies:
        job, notices = after.record, [Notice.from_json(text) for text in decision.notices]
        self._note_troubles(after, decision)
        self.outbox["notices"] += len(notices)
        if len(self._core.outbox) != self.outbox["notices"]:
            yield (
                TOLD,
                (
                    f"{len(self._core.outbox)} notices stand in the outbox, commits wrote "
                    f"{self.outbox['notices']}"
                ),
            )
        for notice in notices:
            what = f"{job.id}: {notice.event} ({notice.id})"
            if (notice.job, notice.status) != (job.id, job.status):
                yield TOLD, f"{what} says {notice.status}, and {job.status} was committed"
            if notice.id in self.written:
                yield TOLD, f"{what} was told before"
            self.written.add(notice.id)
            meaning = (job.id, notice.event, notice.problem)
            if self._meant.setdefault(notice.id, meaning) != meaning:
                yield TOLD, f"{what} has the id of {self._meant[notice.id]}"
            if (early := self._early(after, notice)) and not self._core.set_back:
                yield TOLD, f"{what}: {early}"
        yield from self._end(before.record, job, notices)

    def _note_troubles(self, after: StoredJob, decision: Decision) -> None:
        job = after.record.id
        for group in (*decision.groups, *decision.forgotten):
            record = after.groups.get(group)
            if (
                record is not None
                and not record.state.terminal
                and (record.failures or record.losses)
            ):
                self.troubled.setdefault((job, group), after.decided_at)
            else:
                self.troubled.pop((job, group), None)
        if any(event["kind"] == "PUBLISH_TROUBLE" for event in decision.events):
            self.troubled.setdefault((job, "publishing"), after.decided_at)
        elif not after.record.phase:
            self.troubled.pop((job, "publishing"), None)

    def _troubled_since(self, job: str) -> float:
        return min((since for (of, _), since in self.troubled.items() if of == job), default=0.0)

    def _end(self, before: JobRecord, job: JobRecord, notices: list[Notice]) -> Lies:
        """A job that ends is told as its rules say; one that does not is not."""
        ends = {"finished", "failed"} if job.terminal and not before.terminal else set()
        right = "finished" if job.status is Status.FINISHED else "failed"
        for event in ("finished", "failed"):
            ids = [notice.id for notice in notices if notice.event == event]
            asked = event in ends and event == right and event in asked_for(job)
            if len(ids) != asked:
                yield (
                    UNTOLD if asked else TOLD,
                    f"{job.id} is {job.status}, told as {event} {len(ids)} times",
                )
            for one in ids:
                if self._ended.setdefault((job.id, event), one) != one:
                    yield (
                        TOLD,
                        f"{job.id}: {event} had the id {self._ended[job.id, event]}, and has {one}",
                    )
        stands = [key for key, told in job.alerts.items() if not told.over]
        if right == "finished" and ends and stands:
            yield UNTOLD, f"{job.id} is FINISHED, and nobody is told that {stands} are over"

    def _early(self, after: StoredJob, notice: Notice) -> str:
        """It has not lasted as long as its rule says, or not since then."""
        job, now = after.record, after.decided_at
        limit = asked_for(job).get(notice.event)
        if not isinstance(limit, float):
            return ""
        if notice.event == "waiting_for_worker":
            waits = [one.since for one in after.groups.values() if one.state is GroupState.QUEUED]
            since = min(waits, default=now)
        else:
            since = (
                now - self._ran(job, now)
                if notice.event == "running_for"
                else self._troubled_since(job.id)
            )
        if notice.event == "retrying_for" and abs(notice.since - since) > SLACK:
            return f"it has lasted since {since:.3f}, not {notice.since:.3f}"
        lasted = now - since if since else 0.0
        return f"it has lasted {lasted:.1f}s of {limit}s" if lasted < limit - SLACK else ""

    def overdue(self, job: StoredJob, now: float, within: float, from_when: float) -> str:
        """A condition with a time that has come is told.

        Args:
            within: seconds that it may take.
            from_when: nobody could look before.
        """
        record = job.record
        if record.terminal or record.intent is not Intent.RUN or record.status in HELD:
            return ""
        lasts = {"running_for": self._ran(record, now), "retrying_for": 0.0}
        if since := self._troubled_since(record.id):
            lasts["retrying_for"] = now - since
        for word, lasted in lasts.items():
            limit = asked_for(record).get(word)
            told = next((one for key, one in record.alerts.items() if key.startswith(word)), None)
            again = told is not None and (not told.over or now - told.at < TOLD_AGAIN_AFTER)
            if (
                isinstance(limit, float)
                and not again
                and min(lasted - limit, now - from_when) > within
            ):
                return (
                    f"{record.id}: {word} {limit:g}s has lasted {lasted:.1f}s, and nobody was told"
                )
        return ""


def asked_for(job: JobRecord) -> Mapping[str, object]:
    """The conditions of the rules of a job, each with its value."""
    return _asked_for(job.spec)


@lru_cache(maxsize=1024)
def _asked_for(spec: str) -> Mapping[str, object]:
    return {one.word: one.value for rule in plan_of(spec).notify for one in rule.conditions}
