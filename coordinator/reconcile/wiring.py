"""Assembles a coordinator from settings."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from unstuck.coordinator.notices.open_problems import ForgottenProblems, OpenProblems
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.coordinator.notices.sender import Sender
from unstuck.coordinator.notices.setting import notify_setting
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.staging_gc import StagingCollector
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.expected_jobs import ExpectedJobs
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.schedule_notices import ScheduleNotices
from unstuck.coordinator.reconcile.schedule_sweep import ScheduleSweep
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.indexes import Indexes
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.reports import ReportStream
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import Submitter
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.settings import Settings, settings
from unstuck.tasks.transport.celery_app import app as fleet
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.probe import WarehouseProbe

PUBLISHERS = 8  # jobs that one coordinator publishes at a time, in each warehouse
SUBMITTERS = 4  # runs of schedules that one coordinator submits at a time, in each warehouse
# Seconds after which the sweep of a warehouse's staging counts as hanging, and is tried again.
COLLECTOR_TERM = 3600.0
COLLECTORS = 3  # threads of one coordinator that may hang in the sweep of one warehouse


def mint() -> str:
    """Return a fresh random word, for commit ids, lock owners, nonces and event ids."""
    return secrets.token_hex(8)


def send_wake_ups(wake_ups: Mapping[str, int]) -> None:
    """Send wake-ups, as many to each queue as requested, in one batch through the Celery app."""
    with fleet.producer_pool.acquire(block=True) as producer, producer.batch():
        for queue in (queue for queue, count in wake_ups.items() for _ in range(count)):
            fleet.send_task(
                "unstuck.run", args=[queue], queue=queue, producer=producer, retry=False
            )


def assemble(settings: Settings) -> Consumer:
    """Create all parts of one coordinator process."""
    client = connect(settings.redis_url)
    store = Store(settings, client)
    notify_settings = notify_setting(settings)
    publishing = Background(PUBLISHERS)
    reconciler = Reconciler(
        store, send_wake_ups, Warehouses(), settings, mint, publishing, rules=notify_settings.rules
    )
    keys = Keys(settings.prefix)
    collecting = Background(1, "staging-collector", term=COLLECTOR_TERM, beside=COLLECTORS)
    collector = StagingCollector(StagingIndex(client, keys), store, collecting, settings)
    submitter = Submitter(settings, client, Submissions(client, keys), CircuitBreaker())
    submitting = Background(SUBMITTERS, "run-submitter")
    telling = ScheduleNotices(notify_settings.rules, settings.time_zone)
    schedules = ScheduleSweep(
        ScheduleStore(client, keys),
        store,
        submitter,
        submitting,
        mint,
        settings.lock_term,
        notices=telling,
    )
    indexes = Indexes(client, keys, store)
    expected = ExpectedJobs(ExpectedJobsStore(client, keys), telling.rules, telling.zone)
    parts: dict[str, Any] = {
        "collector": collector,
        "indexes": indexes,
        "schedules": schedules,
        "expected": expected,
    }
    sweep = Sweep(store, reconciler, settings, **parts)
    name = f"{os.uname().nodename}:{os.getpid()}:{mint()[:4]}"
    stream = ReportStream(client, keys, name)
    heartbeat = Heartbeat(client, keys, name, WarehouseProbe(settings), notify_settings.targets)
    return Consumer(stream, reconciler, sweep, settings, heartbeat)


_assembling = threading.Lock()


@cache
def _assembled() -> Consumer:
    return assemble(settings())


def consumer() -> Consumer:
    """Return the consumer of this process, assembled once."""
    with _assembling:
        return _assembled()


def sender() -> Sender:
    """Return the sender of notices of this process. Raises: SettingsInvalid."""
    process_settings = settings()
    client, keys = connect(process_settings.redis_url), Keys(process_settings.prefix)
    outbox, problems = Outbox(client, keys), OpenProblems(process_settings)
    stores = (
        Store(process_settings, client),
        ScheduleStore(client, keys),
        ExpectedJobsStore(client, keys),
    )
    forgotten = ForgottenProblems(problems, outbox, *stores, process_settings.retention)
    registry = ProcessRegistry(client, keys)
    return Sender(
        outbox,
        notify_setting(process_settings),
        mint,
        registry.targets,
        problems=problems,
        forgotten=forgotten,
    )
