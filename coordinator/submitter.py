"""Stores a job that a user submits or retries, after a check against its warehouse."""

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
from unstuck.coordinator.model.size import Compiled, compile_to_store
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

DURABLE_WITHIN_S = 5.0  # seconds
MAX_CACHED_ENTRIES = 100_000  # of the log of each warehouse


class StandsAlready(Exception):
    """The warehouse log has an entry of the job, which the store lost in a rollback."""

    def __init__(self, job: str, result: PublishResult) -> None:
        super().__init__(result)
        self.job, self.result = job, result


@dataclass(frozen=True, slots=True)
class OfSchedule:
    """The conditions of a schedule for the submit of a run.

    Attributes:
        since: the job may have been stored after this time, and forgotten.
        expected_commit: returns the commit of the schedule that requests the run; raises if there
            is none.
    """

    since: float
    expected_commit: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _JobWarehouse:
    """The warehouse of a job that is stored.

    Attributes:
        refused: begins the errors.
        base: its newest version.
        vacuums: how many vacuums it has had.
        is_new: it was created for this job.
    """

    files: Warehouse
    refused: str
    id: str
    base: int
    vacuums: int
    is_new: bool


@dataclass(frozen=True)
class Submitter:
    """Stores jobs in one Redis.

    Attributes:
        client: confirms that a stored job is durable; None if the store is not durable.
        breaker: bounds the waits for warehouses that do not answer.
        entries: by id of the warehouse, as `find_since` has read them.
        owners: by id of the warehouse, as of the last check.
    """

    settings: Settings
    client: redis.Redis | None
    submissions: Submissions
    breaker: CircuitBreaker
    entries: dict[str, dict[int, tuple[float, str, str]]] = field(default_factory=dict)
    owners: dict[str, OwnersAt] = field(default_factory=dict)

    def published_names(self) -> Collection[str]:
        """Return the names of the datasets in the warehouse of the settings."""
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
        """Store a job, or return the stored job with its key.

        Args:
            again: the retry of an ended job; without a ``key``, it has its own.
            fields: more fields of the record of a new job, such as its id.
            run: the job is a run of a schedule.

        Raises: as `Client.submit`, and KeyTaken, NotEnded, StandsAlready, DatasetOwned.
        """
        compiled = compile_to_store(job_spec)
        if again is not None and not key:
            key = again.key(compiled.fingerprint)
        # Before the warehouse is read, which may be in trouble: a stored job must not be reported
        # as not stored, or its work is done again under another key.
        stored = self.submissions.submitted(key, compiled.fingerprint) if key else None
        if stored is not None:
            self.make_durable(f"job {stored}")
            return Submitted(stored, new=False)
        place = self._check_warehouse(job_spec, warehouse, again)
        record_fields: dict[str, Any] = {
            "id": new_job_id(time.time()),
            **({} if again is None else again.fields),
            **(fields or {}),
        }
        self._check_not_published(place, record_fields, again, run)
        if not record_fields.get("take_over"):
            self._check_owners(job_spec, place.files, place.refused, place.id, place.base)
        job = JobRecord(
            **record_fields,
            name=job_spec.name,
            spec=compiled.spec,
            texts=compiled.texts,
            commit="new",
            submitted_at=time.time(),
            submitted_by=by or user_here(),
            warehouse=warehouse,
            warehouse_id=place.id,
            base=place.base,
            key=key,
            priority=job_spec.priority,
            mixed=job_spec.mixed,
        )
        try:
            job_id, new = self._submit(job, compiled, reason, place, run)
        except VacuumSince:
            return self.store_job(job_spec, warehouse, key, by, reason, again, fields, run)
        if place.is_new:
            log.info(
                "The warehouse %s did not exist and was created; job %s is its first.",
                warehouse,
                job_id,
            )
        self.make_durable(f"job {job_id}")
        return Submitted(job_id, new, place.is_new)

    def _submit(
        self,
        job: JobRecord,
        compiled: Compiled,
        reason: str,
        place: _JobWarehouse,
        run: OfSchedule | None,
    ) -> tuple[str, bool]:
        """Store a job. Return its id, and whether it is new. Raises: VacuumSince."""
        plan, late = compiled.plan, expecting(compiled.plan.notify)
        rules = [rule.model_dump(mode="json", exclude_none=True) for rule in late]
        expected = json.dumps(rules) if rules else ""
        submission = Submission(
            job, job.group_plans(plan), plan.params, compiled.fingerprint, expected
        )
        summary = summary_of(JobState(plan, job, {}, {}, {}))
        while True:
            try:
                commit = run.expected_commit() if run else ""
                return self.submissions.submit(submission, summary, reason, place.vacuums, commit)
            except ScheduleChanged:
                continue

    def _check_warehouse(
        self, job_spec: JobSpec, warehouse: str, again: Retried | None
    ) -> _JobWarehouse:
        """Check that a job can run in its warehouse, which is created if it does not exist."""
        job_spec.check_zone(self.settings.time_zone)
        files, old = Warehouse(warehouse), None if again is None else again.job
        refused = f"job {job_spec.name} is not stored"
        if old is not None:
            refused = f"job {old.id} is not retried"
            if expected := old.warehouse_id:
                self.breaker.call(warehouse, refused, lambda: files.check_id(expected))
        existing_id = self.breaker.call(warehouse, refused, files.tried_id)
        vacuums = self.submissions.vacuums(existing_id) if existing_id else 0
        # Read here, before anything can be published: a store that is rolled back to any later
        # point still finds the job's own package above its base.
        oldest, base = self.breaker.call(warehouse, refused, files.readable, LISTING)
        # The versions that an ended job names may stay for its retry.
        job_spec.check_versions(oldest if old is None else 0, base)
        # A call of its own: a call above that was given up and goes on must not make a warehouse.
        warehouse_id = existing_id or self.breaker.call(warehouse, refused, files.ensure_id)
        return _JobWarehouse(files, refused, warehouse_id, base, vacuums, existing_id is None)

    def _check_not_published(
        self,
        place: _JobWarehouse,
        fields: Mapping[str, Any],
        again: Retried | None,
        run: OfSchedule | None,
    ) -> None:
        """Check that the log has no package of a job that the store may have forgotten.

        Raises: StandsAlready.
        """
        package_id = fields.get("package_id", "")
        if run is not None:
            self._find_package(place, run.since, package_id, fields["id"])
        elif again is not None and package_id:
            # An earlier retry was submitted after the end of the job.
            self._find_package(place, again.job.ended_at - CLOCKS_DIFFER, package_id)

    def check_owners(self, job_spec: JobSpec, warehouse: str, refused: str) -> None:
        """Check that no other job owns a dataset that the job publishes. Publishers check again.

        Args:
            refused: begins the error if the warehouse does not answer.

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

    def _find_package(
        self, place: _JobWarehouse, since: float, package_id: str, own_id: str = ""
    ) -> None:
        """Search the log for a package up to the base; publishers search above.

        Args:
            since: as in `OfSchedule`.
            own_id: id of a job that may have been stored before; an ABORT of it counts, too.

        Raises: StandsAlready.
        """
        uri, cached = place.files.storage.uri(""), self._cached(place.id)

        def matches(publish_id: str, of_package: str) -> bool:
            return of_package == package_id or (own_id != "" and publish_id == own_id)

        match = self.breaker.call(
            uri,
            place.refused,
            lambda: place.files.find_since(matches, place.base, since, cached),
            LISTING,
        )
        if match is not None:
            slot, job = match
            request = PublishRequest(
                uri, place.id, publish_id=job, job=job, job_name="", base=slot - 1, at=since
            )
            raise StandsAlready(job, publish(request))

    def log_seen(self, record: ScheduleRecord, first: float, schedules: ScheduleStore) -> LogSeen:
        """Read the packages of a schedule's ticks from ``first`` on in the warehouse log.

        Raises: WarehouseSilent, LogBroken, WarehouseNewer, OSError, redis.RedisError.
        """
        name, uri = record.name, record.warehouse
        place, refused = Warehouse(uri), f"ticks of schedule {name} are not skipped"
        warehouse_id = self.breaker.call(uri, refused, place.identity)
        if warehouse_id is None:
            return LogSeen(first, {})
        cached, since = self._cached(warehouse_id), earliest_package(record, first)
        runs = self.breaker.call(
            uri, refused, lambda: runs_since(place, name, since, cached), LISTING
        )
        ticks = schedules.ticks(name, first) if runs else {}
        return LogSeen(
            first, runs, [at for at, tick in ticks.items() if tick.outcome is TickOutcome.DONE]
        )

    def _cached(self, warehouse_id: str) -> dict[int, tuple[float, str, str]]:
        """Return the cached entries of a warehouse."""
        cached = self.entries.setdefault(warehouse_id, {})
        if len(cached) > MAX_CACHED_ENTRIES:
            cached.clear()
        return cached

    def make_durable(self, what: str) -> None:
        """Wait until the stored job is as durable as ``UNSTUCK_DURABILITY`` requires.

        Raises: NotDurable.
        """
        kind, most = self.settings.durability, round(DURABLE_WITHIN_S * 1000)
        if kind == "everysec" or self.client is None:
            return
        # A connection waits for its own writes, and the commit may have used another connection.
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
                f"{DURABLE_WITHIN_S:g}s"
            )
