"""One coordinator without Redis: the real reconciler and sweep on the reference model."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import command
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import Acks, Decision, Environment, PublishResult
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import Begun, CommitAnswer, Submission, new_job_id
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.reports import StreamEntry
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import Submitter
from unstuck.in_process.at_once import AtOnce
from unstuck.in_process.store import ReferenceStore
from unstuck.in_process.stored import Fields
from unstuck.read_model.job import JobInfo
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.keys import queue_of
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.settings import Settings, whoami
from unstuck.tasks.transport.lease import Claim

SHOWN = 10  # members of each fork whose wait is explained
# Ends the ids of jobs that no Redis knows, so that `unstuck doctor` does not report them as lost.
ID_ENDING = "-run"


class JumpingClock:
    """The time of day, which advances by itself and skips waits."""

    def __init__(self, now: datetime.datetime | None = None) -> None:
        """Create the clock. ``now``: its start."""
        self._ahead = 0.0 if now is None else now.timestamp() - time.time()

    def __call__(self) -> float:
        """Return seconds since the epoch."""
        return time.time() + self._ahead

    def jump(self, seconds: float) -> None:
        self._ahead += max(0.0, seconds)


class _WarehousesHere(Warehouses):
    """Judges the run of a tick as of its tick, also if a test runs a future tick."""

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        request = PublishRequest.of(state, time.time())
        return publish(replace(request, judged_at=state.job.tick), answered)


class Reported:
    """The report stream of one reader, which loses nothing."""

    def __init__(self) -> None:
        self._entries: list[StreamEntry] = []
        self._seq = 0

    def add(self, fields: Fields) -> None:
        self._seq += 1
        self._entries.append(StreamEntry(f"{self._seq}-0", dict(fields)))

    def ack(self, ids: Iterable[str]) -> list[str]:
        return list(ids)

    def count(self, counts: Iterable[tuple[str, int]]) -> None: ...

    def read(self) -> list[StreamEntry]:
        taken, self._entries = self._entries, []
        return taken


class StoreHere:
    """The reference model as a coordinator calls its store."""

    def __init__(self, core: ReferenceStore) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)  # end, job, command, acknowledge, halt, tick, free_slots

    def listening(self, now: float, max_age: float) -> dict[str, list[RunnerInfo]]:
        """Return this process as the one runner of every queue that a job names."""
        open_jobs = [job.record for job in self._core.jobs.values() if not job.record.terminal]
        plans = [plan_of(job.spec, job.texts) for job in open_jobs]
        queues = tuple(
            sorted({group.spec.queue_name for plan in plans for group in plan.groups.values()})
        )
        host, pid = os.uname().nodename, os.getpid()
        here = RunnerInfo(
            id="here",
            host=host,
            pid=pid,
            queues=queues,
            heard_at=now,
            worker_pid=pid,
            idle_since=now,
        )
        return {queue: [here] for queue in queues}

    def begin(self, job: str, owner: str, groups: Sequence[str] = ()) -> Begun:
        return self._core.begin(job, owner)

    def load(
        self,
        job: str,
        cached: JobState | None = None,
        changed: Sequence[str] | None = None,
        begun: Begun | None = None,
        *,
        bare: bool = False,
    ) -> JobState | None:
        if cached is None or bare or self._core.commit_id(job) != cached.job.commit:
            return self._core.load(job)
        for name, attempt in self._core.attempts_of(
            job, cached.active if changed is None else changed
        ).items():
            if attempt is None:
                cached.attempts.pop(name, None)
            else:
                cached.attempts[name] = attempt
        return cached

    def commit(
        self, decision: Decision, commit_id: str, due_seen: str, acks: Acks, summary: str
    ) -> CommitAnswer:
        return self._core.commit(decision, commit_id, due_seen, acks)

    def lanes(self) -> list[str]:
        return [lane for lane, offers in self._core.ready.items() if offers]

    def wake_ups(self, lanes: object, listening: object, now: float) -> dict[str, int]:
        """Send no wake-ups, since no runner sleeps."""
        return {}

    def due(self, now: float, limit: int) -> list[str]:
        return self._core.due_by(now, limit)

    def usual(self, name: str, schedule: str) -> float:
        return 0.0

    def forget_ended(self, now: float) -> int:
        return 0


class _SubmissionsHere:
    """As `Submissions`, on the reference model."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    def submitted(self, key: str, fingerprint: str) -> str | None:
        return self._store.submitted(key, fingerprint)

    def vacuums(self, warehouse_id: str) -> int:
        return 0

    def submit(
        self,
        submission: Submission,
        summary: str,
        reason: str = "",
        vacuums: int = 0,
        expect: str = "",
    ) -> tuple[str, bool]:
        job, new = self._store.submit(submission.job, submission.fingerprint)
        if new:
            event = {"kind": "SUBMITTED", "at": self._store.now, "by": submission.job.submitted_by}
            self._store.jobs[job].events.append(event)
        return job, new


class Coordinator:
    """Stores jobs, and decides them on request.

    Attributes:
        clock: of the store, of timers and of backoffs.
    """

    def __init__(self, settings: Settings, clock: JumpingClock) -> None:
        self._settings, self.clock, self._reports = settings, clock, Reported()
        self.store = ReferenceStore(
            clock, self._reports, lock_term=settings.lock_term, lease_ttl=settings.lease_ttl
        )
        store = cast(Store, StoreHere(self.store))
        self._reconciler = Reconciler(
            *(
                store,
                lambda wake_ups: None,
                _WarehousesHere(),
                settings,
                _mint,
                cast(Background, AtOnce()),
            ),
            sleep=clock.jump,
            clock=clock,
        )
        self._sweep = Sweep(store, self._reconciler, settings, clock)
        submissions = cast(Submissions, _SubmissionsHere(self.store))
        self._submitter = Submitter(settings, None, submissions, CircuitBreaker())

    def submit(self, spec: JobSpec, key: str = "", *, take_over: bool = False) -> str:
        """Store a job. Return its id. Raises: as `Submitter.store_job`."""
        fields = {"take_over": take_over, "id": f"{new_job_id(time.time())}{ID_ENDING}"}
        return self._submitter.store_job(
            spec, self._settings.warehouse, key, None, "", fields=fields
        ).id

    def decide(self) -> None:
        """Decide everything that was reported or is due, and publish completed jobs."""
        while entries := self._reports.read():
            by_job: dict[str, list[StreamEntry]] = {}
            for entry in entries:
                job = (
                    entry.fields["job"] if entry.fields["kind"] == "due" else entry.report.token.job
                )
                by_job.setdefault(job, []).append(entry)
            for job, batch in by_job.items():
                reports = [
                    Delivered(entry.id, entry.report)
                    for entry in batch
                    if entry.fields["kind"] != "due"
                ]
                self._reconciler.reconcile(job, reports, due=len(reports) < len(batch))
        # A long step or a jump of the clock is no outage, so no grace period follows.
        self.store.alive_at = self.store.now
        self._sweep.run()

    def take(self) -> Claim | None:
        """Return the attempt whose turn is next; None if none is ready."""
        queues = sorted(map(queue_of, self.store.ready))
        return self.store.take(list(dict.fromkeys(queues)), "here", _mint(), whoami(), _mint())

    def jump(self) -> None:
        """Advance the clock to the next due time."""
        self.clock.jump(min(self.store.due.values(), default=0.0) - self.clock())

    def cancel(self, job: str, why: str) -> None:
        """Cancel like `Client.cancel`, by the user of this process."""
        record = self.record(job)
        cancellation = command(record, "cancel", by=user_here(), why=why)
        if cancellation.answer is Answer.DONE:
            event = {"kind": "USER_CANCEL", "by": user_here(), "was": record.status, "text": why}
            self.store.command(cancellation.job, record, _mint(), event)

    def note_progress(self, token: Token, progress: str) -> None:
        attempts = self.store.jobs[token.job].attempts
        attempts[token.group] = replace(attempts[token.group], progress=progress)

    def record(self, job: str) -> JobRecord:
        return self.store.jobs[job].record

    def show(self, job: str) -> JobInfo:
        """Return the job as users see it, with its explanations."""
        state = self.store.load(job)
        assert state is not None
        now = self.store.now
        # The job is decided when the step has ended.
        due = max(now, self.store.due[job]) if job in self.store.due else None
        settings, queues = (
            self._settings,
            {group.spec.queue_name for group in state.plan.groups.values()},
        )
        env = Environment(
            now=now,
            nonce="",
            runners=dict.fromkeys(queues, 1),
            dispatch_timeout=settings.dispatch_timeout,
            dispatch_window=settings.dispatch_window,
            lease_ttl=settings.lease_ttl,
            cancel_deadline=settings.cancel_deadline,
        )
        return JobInfo.of_state(state, now, due, explain(state, env, due, SHOWN))

    def events(self, job: str, after: int = 0) -> list[dict[str, Any]]:
        """Return the event log of a job, from its entry ``after`` on."""
        return self.store.jobs[job].events[after:]


def _mint() -> str:
    return secrets.token_hex(8)
