"""Stores a job that a user submits or retries: checks it against its warehouse first, and makes it durable."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from unstuck.coordinator.commands.retry_job import Retried
from unstuck.coordinator.errors import NotDurable
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.model.state import JobState, summary_of
from unstuck.coordinator.notices.rules.expected import expecting
from unstuck.coordinator.publishing.breaker import LISTING, CircuitBreaker
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.store.answers import ScheduleChanged, Submission, Submitted, VacuumSince, new_job_id
from unstuck.coordinator.store.submissions import Submissions
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse

log = logging.getLogger(__name__)

DURABLE_WITHIN = 5.0  # seconds
ENTRIES_KNOWN = 100_000  # of the log of each warehouse


class StandsAlready(Exception):
    """The log has an entry of the job that was to be stored: the store forgot it when it was rolled back."""

    def __init__(self, job: str, result: PublishResult) -> None:
        super().__init__(result)
        self.job, self.result = job, result


@dataclass(frozen=True, slots=True)
class OfSchedule:
    """For the submit of a run: how its schedule wants it to be stored.

    Attributes:
        since: the job may have been stored before, but not before this time, and be forgotten.
        same: whether the job of this id has run for the same tick, as this try or a later one.
        wanted: answers the commit by which the schedule wants the run; raises if it does not.
    """

    since: float
    same: Callable[[str], bool]
    wanted: Callable[[], str]


@dataclass(frozen=True)
class Submitter:
    """Stores jobs in one Redis; ``breaker``: with warehouses that do not answer.

    Attributes:
        client: by which it is asked whether what is stored is durable; None: of a store that is not.
    """

    settings: Settings
    client: redis.Redis | None
    submissions: Submissions
    breaker: CircuitBreaker
    entries: dict[str, dict[int, tuple[float, str]]] = field(default_factory=dict)  # by warehouse, as `find_since` read

    def store_job(
        self,
        job_spec: JobSpec,
        warehouse: str,
        key: str,
        by: str | None,
        reason: str,
        again: Retried | None = None,
        fields: Mapping[str, Any] | None = None,
        run: OfSchedule | None = None,
    ) -> Submitted:
        """The stored job, or the one that stands under its key.

        Args:
            again: it retries an ended job; without a ``key``, under one of its own.
            fields: more of the record of a new job, such as its id.
            run: it is a run of a schedule.

        Raises: as `Client.submit`, and KeyTaken, NotEnded, StandsAlready.
        """
        compiled = compile_to_store(job_spec)
        old = None if again is None else again.job
        key = key if key or again is None else again.key(compiled.fingerprint)
        # Before the warehouse is asked, which may be in trouble by now: a job that is stored must not be called not
        # stored, or its work is done again under another key.
        if key and (stored := self.submissions.submitted(key, compiled.fingerprint)) is not None:
            self.make_durable(f"job {stored}")
            return Submitted(stored, new=False)
        job_spec.check_zone(self.settings.time_zone)
        place = Warehouse(warehouse)
        refused = f"job {job_spec.name} is not stored" if old is None else f"job {old.id} is not retried"
        if old is not None and (expected := old.warehouse_id):
            self.breaker.call(warehouse, refused, lambda: place.check_id(expected))
        standing = self.breaker.call(warehouse, refused, place.tried_id)
        vacuums = self.submissions.vacuums(standing) if standing else 0
        # Noted here, before anything can be published: a store that is rolled back to any later point still finds
        # the job's own package above its base.
        oldest, base = self.breaker.call(warehouse, refused, place.readable, LISTING)
        job_spec.check_versions(oldest if old is None else 0, base)  # what an ended job names may stay for its retry
        # A call of its own: one that was given up above and goes on must not make a warehouse.
        warehouse_id = standing or self.breaker.call(warehouse, refused, place.ensure_id)
        known: dict[str, Any] = {
            "id": new_job_id(time.time()),
            **(again.fields if again is not None else {}),
            **(fields or {}),
        }
        if run is not None:
            self._raise_if_it_stands(place, refused, run, warehouse_id, base)
        job = JobRecord(
            **known,
            name=job_spec.name,
            spec=compiled.spec,
            texts=compiled.texts,
            commit="new",
            submitted_at=time.time(),
            submitted_by=by or user_here(),
            warehouse=warehouse,
            warehouse_id=warehouse_id,
            base=base,
            key=key,
            priority=job_spec.priority,
            mixed=job_spec.mixed,
        )
        plan, late = compiled.plan, expecting(compiled.plan.notify)
        expected = json.dumps([rule.model_dump(mode="json", exclude_none=True) for rule in late]) if late else ""
        submission = Submission(job, job.group_plans(plan), plan.params, compiled.fingerprint, expected)
        summary = summary_of(JobState(compiled.plan, job, {}, {}, {}))
        while True:
            try:
                job_id, new = self.submissions.submit(submission, summary, reason, vacuums, run.wanted() if run else "")
                break
            except ScheduleChanged:
                continue
            except VacuumSince:
                return self.store_job(job_spec, warehouse, key, by, reason, again, fields, run)
        if standing is None:
            log.info("The warehouse %s was not there, and was made; job %s is its first.", warehouse, job_id)
        self.make_durable(f"job {job_id}")
        return Submitted(job_id, new, standing is None)

    def _raise_if_it_stands(
        self, place: Warehouse, refused: str, run: OfSchedule, warehouse_id: str, base: int
    ) -> None:
        """Look for the job in the log, up to its base: its publishers look above. Raises: StandsAlready."""
        uri = place.storage.uri("")
        known = self.entries.setdefault(warehouse_id, {})
        if len(known) > ENTRIES_KNOWN:
            known.clear()
        found = self.breaker.call(uri, refused, lambda: place.find_since(run.same, base, run.since, known), LISTING)
        if found is not None:
            slot, job = found
            request = PublishRequest(
                uri, warehouse_id, publish_id=job, job=job, job_name="", base=slot - 1, at=run.since
            )
            raise StandsAlready(job, publish(request))

    def make_durable(self, what: str) -> None:
        """Wait until what is stored is as durable as ``UNSTUCK_DURABILITY`` says. Raises: NotDurable."""
        kind, most = self.settings.durability, round(DURABLE_WITHIN * 1000)
        if kind == "everysec" or self.client is None:
            return
        # A connection waits for what it has written itself, and this may be another one than that of the commit.
        with self.client.pipeline(transaction=False) as pipe:
            pipe.set(Keys(self.settings.prefix).durable, "", px=most)
            if kind == "fsync":
                pipe.waitaof(1, 0, most)
            else:
                pipe.wait(1, most)
            answer = pipe.execute()[1]
        confirmed = answer[0] if kind == "fsync" else answer
        if confirmed < 1:
            raise NotDurable(
                f"{what} was stored, but UNSTUCK_DURABILITY={kind} was not confirmed within {DURABLE_WITHIN:g}s"
            )
