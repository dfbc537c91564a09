"""What Redis stores of a job and no client shows, for tests that run a fleet of real processes."""

from __future__ import annotations

from unstuck import Client
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.transport.redis_client import connect


def record_of(client: Client, job: str) -> JobRecord:
    """Return the record of a job. Its ``commit`` changes with each write of a coordinator."""
    with connect(client.settings.redis_url) as store:
        record = Store(client.settings, store).job(job)
    assert record is not None, f"no job {job}"
    return record


def versions_of(client: Client, job: str) -> dict[str, str]:
    """Return the versions of Python and Spark that a job keeps to, by name."""
    with connect(client.settings.redis_url) as store:
        return Queries(store, Keys(client.settings.prefix)).versions(job)


def offer_of(client: Client, job: str, group: str) -> Offer:
    """Return the newest offer of a group."""
    with connect(client.settings.redis_url) as store:
        state = Store(client.settings, store).load(job)
    assert state is not None, f"no job {job}"
    return state.record(group).offer(job, group)
