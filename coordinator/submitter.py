"""Stores a job that a user submits or retries: checks it against its warehouse first, and makes it
durable.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from unstuck.coordinator.commands.retry_job import Retried
from unstuck.coordinator.errors import DatasetOwned, NotDurable
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.model.state import JobState, summary_of
from unstuck.coordinator.model.tick import TickOutcome
from unstuck.coordinator.notices.rules.expected import expecting
from unstuck.coordinator.publishing.breaker import LISTING, CircuitBreaker
from unstuck.coordinator.publishing.last_run import runs_since
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.publishing.published_names import published_names
from unstuck.coordinator.schedules.decide_schedule import earliest_package
from unstuck.coordinator.schedules.steps import CLOCKS_DIFFER, LogSeen
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.store.answers import (
    ScheduleChanged,
    Submission,
    Submitted,
    VacuumSince,
    new_job_id,
)
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.store.submissions import Submissions
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.dataset_owner import OwnersAt, refusal
from unstuck.tasks.warehouse.log import Warehouse

log = logging.getLogger(__name__)

DURABLE_WITHIN = 5.0  # seconds
ENTRIES_KNOWN = 100_000  # of the log of each warehouse


class StandsAlready(Exception):
    """The log has an entry of the job that was to be stored: the store forgot it when it was rolled
    back.
    """

    def __init__(self, job: str, result: PublishResult) -> None:
        super().__init__(result)
        self.job, self.result = job, result


@dataclass(frozen=True, slots=True)
class OfSchedule:
    """For the submit of a run: how its schedule wants it to be stored.

    Attributes:
        since: the job may have been stored before, but not before this time, and be forgotten.
        expected_commit: returns the commit by which the schedule wants the run; raises if it does
            not.
    """

    since: float
    expected_commit: Callable[[], str]


@dataclass(frozen=True)
class Submitter:
    """Stores jobs in one Redis; ``breaker``: with warehouses that do not answer.

    Attributes:
        client: by which it is asked whether what is stored is durable; None: of a store that is
            not.
    """

    settings: Settings
    client: redis.Redis | None
    submissions: Submissions
    breaker: CircuitBreaker
    # By the id of the warehouse: as `find_since` has read them, and as of the last check.
    entries: dict[str, dict[int, tuple[float, str, str]]] = field(default_factory=dict)
    owners: dict[str, OwnersAt] = field(default_factory=dict)

    def published_names(self) -> Collection[str]:
        """Return the names of the datasets in the warehouse of the settings, as `published_names`
        does.
        """
        return published_names(self.settings.warehouse, self.breaker)

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

        Raises: as `Client.submit`, and KeyTaken, NotEnded, StandsAlready, DatasetOwned.
        """
        compiled = compile_to_store(job_spec)
        old = None if again is None else again.job
        key = key if key or again is None else again.key(compiled.fingerprint)
        # Before the warehouse is asked, which may be in trouble by now: a job that is stored must
        # not be called not stored, or its work is done again under another key.
        if key and (stored := self.submissions.submitted(key, compiled.fingerprint)) is not None:
            self.make_durable(f"job {stored}")
            return Submitted(stored, new=False)
        job_spec.check_zone(self.settings.time_zone)
        place = Warehouse(warehouse)
        refused = (
            f"job {job_spec.name} is not stored" if old is None else f"job {old.id} is not retried"
        )
        if old is not None and (expected := old.warehouse_id):
            self.breaker.call(warehouse, refused, lambda: place.check_id(expected))
        existing_id = self.breaker.call(warehouse, refused, place.tried_id)
        vacuums = self.submissions.vacuums(existing_id) if existing_id else 0
        # Noted here, before anything can be published: a store that is rolled back to any later
        # point still finds the job's own package above its base.
        oldest, base = self.breaker.call(warehouse, refused, place.readable, LISTING)
        job_spec.check_versions(
            oldest if old is None else 0, base
        )  # what an ended job names may stay for its retry
        # A call of its own: one that was given up above and goes on must not make a warehouse.
        warehouse_id = existing_id or self.breaker.call(warehouse, refused, place.ensure_id)
        record_fields: dict[str, Any] = {
            "id": new_job_id(time.time()),
            **(again.fields if again is not None else {}),
            **(fields or {}),
        }
        if run is not None:
            self._raise_if_it_stands(
                place,
                refused,
                warehouse_id,
                base,
                run.since,
                record_fields["package_id"],
                record_fields["id"],
            )
        elif again is not None and record_fields["package_id"]:
            since = again.job.ended_at - CLOCKS_DIFFER  # an earlier retry was submitted after that
            self._raise_if_it_stands(
                place, refused, warehouse_id, base, since, record_fields["package_id"]
            )
        if not record_fields.get("take_over"):
            self._check_owners(job_spec, place, refused, warehouse_id, base)
        job = JobRecord(
            **record_fields,
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
        expected = (
            json.dumps([rule.model_dump(mode="json", exclude_none=True) for rule in late])
            if late
            else ""
        )
        submission = Submission(
            job, job.group_plans(plan), plan.params, compiled.fingerprint, expected
        )
        summary = summary_of(JobState(compiled.plan, job, {}, {}, {}))
        while True:
            try:
                job_id, new = self.submissions.submit(
                    submission, summary, reason, vacuums, run.expected_commit() if run else ""
                )
                break
            except ScheduleChanged:
                continue
            except VacuumSince:
                return self.store_job(job_spec, warehouse, key, by, reason, again, fields, run)
        if existing_id is None:
            log.info(
                "The warehouse %s was not there, and was made; job %s is its first.",
                warehouse,
                job_id,
            )
        self.make_durable(f"job {job_id}")
        return Submitted(job_id, new, existing_id is None)

    def check_owners(self, job_spec: JobSpec, warehouse: str, refused: str) -> None:
        """Look whether another job owns a dataset that the job publishes. Publishers look again.

        Args:
            refused: what does not happen if the warehouse does not answer.

        Raises: DatasetOwned, WarehouseSilent, LogBroken, WarehouseNewer, OSError.
        """
        place = Warehouse(warehouse)
        identity = self.breaker.call(warehouse, refused, place.identity)
        if identity is not None:
            version = self.breaker.call(warehouse, refused, place.head, LISTING)
            self._check_owners(job_spec, place, refused, identity, version)

    def _check_owners(
        self, job_spec: JobSpec, place: Warehouse, refused: str, warehouse_id: str, version: int
    ) -> None:
        if not version or not job_spec.published:
            return
        uri = place.storage.uri("")
        before = self.owners.get(warehouse_id)
        now = self.breaker.call(uri, refused, lambda: place.owners(version, before), LISTING)
        self.owners[warehouse_id] = now
        if why := refusal(sorted(job_spec.published), now.owners, job_spec.name, take_over=False):
            raise DatasetOwned(f"{refused}: {why}")

    def _raise_if_it_stands(
        self,
        place: Warehouse,
        refused: str,
        warehouse_id: str,
        base: int,
        since: float,
        package_id: str,
        own_id: str = "",
    ) -> None:
        """Look for the package in the log, up to ``base``: publishers look above. Raises:
        StandsAlready.

        Args:
            since: as in `OfSchedule`.
            own_id: of a job that may have been stored before; then an ABORT of it is found, too.
        """
        uri = place.storage.uri("")
        cached = self._known(warehouse_id)

        def wanted(publish_id: str, of_package: str) -> bool:
            return of_package == package_id or (own_id != "" and publish_id == own_id)

        match = self.breaker.call(
            uri, refused, lambda: place.find_since(wanted, base, since, cached), LISTING
        )
        if match is not None:
            slot, job = match
            request = PublishRequest(
                uri, warehouse_id, publish_id=job, job=job, job_name="", base=slot - 1, at=since
            )
            raise StandsAlready(job, publish(request))

    def log_seen(self, record: ScheduleRecord, first: float, schedules: ScheduleStore) -> LogSeen:
        """Read what the warehouse log has of the ticks of a schedule from ``first`` on.

        Raises: WarehouseSilent, LogBroken, WarehouseNewer, OSError, redis.RedisError.
        """
        name, uri = record.name, record.warehouse
        place, refused = Warehouse(uri), f"ticks of schedule {name} are not skipped"
        warehouse_id = self.breaker.call(uri, refused, place.identity)
        if warehouse_id is None:
            return LogSeen(first, {})
        cached, since = self._known(warehouse_id), earliest_package(record, first)
        runs = self.breaker.call(
            uri, refused, lambda: runs_since(place, name, since, cached), LISTING
        )
        ticks = schedules.ticks(name, first) if runs else {}
        return LogSeen(
            first, runs, [at for at, tick in ticks.items() if tick.outcome is TickOutcome.DONE]
        )

    def _known(self, warehouse_id: str) -> dict[int, tuple[float, str, str]]:
        """Return what is known of the entries of a warehouse."""
        cached = self.entries.setdefault(warehouse_id, {})
        if len(cached) > ENTRIES_KNOWN:
            cached.clear()
        return cached

    def make_durable(self, what: str) -> None:
        """Wait until what is stored is as durable as ``UNSTUCK_DURABILITY`` says. Raises:
        NotDurable.
        """
        kind, most = self.settings.durability, round(DURABLE_WITHIN * 1000)
        if kind == "everysec" or self.client is None:
            return
        # A connection waits for what it has written itself, and this may be another one than that
        # of the commit.
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
                f"{what} was stored, but UNSTUCK_DURABILITY={kind} was not confirmed within "
                f"{DURABLE_WITHIN:g}s"
            )
