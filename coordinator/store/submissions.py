"""Stores new jobs, each under its key, and knows which job a key has."""

from __future__ import annotations

import json
from typing import cast

import redis

from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.answers import (
    KeyTaken,
    NotEnded,
    ScheduleChanged,
    Submission,
    VacuumSince,
)
from unstuck.coordinator.store.failed_jobs import reported_as
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script


class Submissions:
    """The new jobs of one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._submit = Script(client, keys, __package__, "jobs/submit")

    def submitted(self, key: str, fingerprint: str) -> str | None:
        """Return the id of the stored job with ``key``; None if there is none.

        Only `submit` decides, since another caller may store a job meanwhile.

        Raises: KeyTaken: as `submit`.
        """
        fields = ["job", "last", "fingerprint", "retried"]
        job, last, *fingerprints = cast(
            list[str | None], self._redis.hmget(self._keys.submit_key(key), fields)
        )
        if job is not None and fingerprint not in fingerprints:
            raise KeyTaken(last or job)
        return last or job

    def vacuums(self, warehouse_id: str) -> int:
        """The vacuums of the warehouse that were counted so far."""
        return int(self._redis.zscore(self._keys.vacuums, warehouse_id) or 0)

    def submit(
        self,
        submission: Submission,
        summary: str,
        reason: str = "",
        vacuums: int = 0,
        expect: str = "",
    ) -> tuple[str, bool]:
        """Store a job. Returns its id, and whether it is new.

        Args:
            reason: for the event log.
            vacuums: how many there had been before the caller looked at the warehouse.
            expect: the commit by which its schedule wants it as a run; empty if none does.

        Raises:
            KeyTaken: its key belongs to a job with another spec.
            NotEnded: it retries a job that has not ended badly.
            VacuumSince: look at the warehouse once more.
            ScheduleChanged: see whether the schedule still wants it.
        """
        job, retried = submission.job, self._keys.of(submission.job.retry_of)
        change = {
            # Once for all groups: take.lua hands them to runners beside the plan of the group.
            "fields": {**job.to_fields(), "params": json.dumps(dict(submission.params))},
            "plans": dict(submission.plans),
            "summary": summary,
            "fingerprint": submission.fingerprint,
            "key": job.key,
            "reason": reason,
            "vacuums": vacuums,
            "expect": expect,
            "name": "" if job.schedule else job.name,
            "expected": "" if job.schedule else submission.expected,
            "reported_as": reported_as(job),
        }
        answer, subject = self._submit(
            job.id,
            change=json.dumps(change),
            pending=self._keys.status(Status.PENDING),
            submit_key=self._keys.submit_key(job.key),
            chain_key=self._keys.submit_key(job.chain_key),
            retried_job=retried.job,
            retried_events=retried.events,
            schedule=self._keys.of_schedule(job.schedule).schedule,
        )
        reach(Point.AFTER_SUBMIT, job.id)
        if answer == "KEY_TAKEN":
            raise KeyTaken(subject)
        if answer == "NOT_ENDED":
            raise NotEnded(Status(subject))
        if answer == "VACUUM":
            raise VacuumSince(subject)
        if answer == "SCHEDULE":
            raise ScheduleChanged(subject)
        return str(subject), answer == "SUBMITTED"
