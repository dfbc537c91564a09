"""Promise 5, of listings: whatever changes meanwhile, no job is missing, shown twice, or seen to
come back to life.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

from tests.support.coordinator import Coordinator, group
from tests.support.servers import wait_until
from unstuck import Client, Status
from unstuck.read_model.job import JobInfo
from unstuck.tasks.transport.redis_client import connect

JOBS = 300
CLAIMED = 40


class Lister:
    """Lists all jobs again and again on a connection of its own, and keeps what was wrong with what
    it saw.
    """

    def __init__(self, coordinator: Coordinator, ids: set[str]) -> None:
        self._client = Client(
            coordinator.settings, redis_client=connect(coordinator.settings.redis_url)
        )
        self._ids = ids
        self._ended: dict[str, Status] = {}
        self.seen: Counter[Status] = Counter()
        self.looks = 0
        self.wrong: list[str] = []

    def close(self) -> None:
        self._client.close()

    def look(self) -> None:
        whole = self._client.jobs(limit=None)
        self._check("the list", whole)
        # The indexes of all statuses together: a job that moves between two of them is in one of
        # them at any moment.
        self._check("the list by status", self._client.jobs(status=list(Status), limit=None))
        for job in whole:
            self.seen[job.status] += 1
            was = self._ended.get(job.id)
            if was is not None and job.status is not was:
                self.wrong.append(f"{job.id} was {was} and is {job.status}")
            if job.status.terminal:
                self._ended[job.id] = job.status
        self.looks += 1

    def _check(self, what: str, listed: list[JobInfo]) -> None:
        ids = Counter(job.id for job in listed)
        twice = [job for job, n in ids.items() if n > 1]
        if (
            twice
            or set(ids) != self._ids
            or sum(Counter(job.status for job in listed).values()) != JOBS
        ):
            self.wrong.append(
                f"{what}: {len(listed)} jobs, twice {twice}, missing {self._ids - set(ids)}"
            )


@pytest.mark.variant
def test_a_list_stays_correct_while_300_jobs_are_canceled(
    coordinator: Coordinator,
) -> None:
    jobs = [coordinator.submit(group("a"), name=f"job-{n}") for n in range(JOBS)]
    coordinator.read()
    held = {
        offer.job
        for offer in coordinator.offers()[:CLAIMED]
        if coordinator.claim(offer).answer == "CLAIMED"
    }
    coordinator.read()
    assert len(held) == CLAIMED
    lister = Lister(coordinator, set(jobs))
    lister.look()
    done = threading.Event()
    errors: list[BaseException] = []

    def list_on() -> None:
        try:
            while not done.is_set():
                lister.look()
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=list_on)
    thread.start()
    try:
        # One command after the other, while the coordinator takes them in: as a fleet does it, on
        # one machine.
        for number, job in enumerate(jobs):
            coordinator.client.cancel(job)
            if number % 10 == 9:
                coordinator.read()
        coordinator.read()
        # What is held ends only when its runner says so, as CANCELED.
        assert {
            job.id for job in coordinator.client.jobs(status=[Status.CANCELING], limit=None)
        } == held
        looked = lister.looks
        wait_until(lambda: lister.looks > looked + 1 or errors, 10, "another look at the list")
        for job in held:
            coordinator.client.force_stop(job)
        coordinator.read()
    finally:
        done.set()
        thread.join()
    lister.look()
    lister.close()
    assert errors == []
    assert lister.wrong == []
    assert lister.looks > 10, "the list was hardly looked at meanwhile"
    assert lister.seen[Status.CANCELING], "the list never saw a job on its way"
    assert {job.status for job in coordinator.client.jobs(limit=None)} == {Status.CANCELED}


def test_a_list_of_several_statuses_shows_the_newest_jobs_in_order(
    coordinator: Coordinator,
) -> None:
    jobs = [coordinator.submit(group("a"), name=f"job-{n}") for n in range(24)]
    coordinator.read()
    for job in jobs[::3]:
        coordinator.client.cancel(job)
    for job in jobs[1::3]:
        coordinator.client.pause(job)
    coordinator.read()
    asked = [Status.CANCELED, Status.PAUSED]
    newest = [job for n, job in enumerate(jobs) if n % 3 != 2][::-1]
    for limit in (1, 5, 11):
        listed = coordinator.client.jobs(status=asked, limit=limit)
        assert [job.id for job in listed] == newest[:limit]
        assert {job.status for job in listed} <= set(asked)


def test_a_name_is_searched_among_all_jobs(
    coordinator: Coordinator,
) -> None:
    """Their lines are read 500 at a time."""
    line = coordinator.redis.hget(
        coordinator.keys.summary, coordinator.submit(group("a"), name="one")
    )
    pipe = coordinator.redis.pipeline()
    ids = [f"20130101T{n:06}-abcdefgh" for n in range(1200)]
    for at, job in enumerate(ids):
        pipe.hset(
            coordinator.keys.summary,
            job,
            json.dumps({**json.loads(str(line)), "id": job, "name": "nightly"}),
        )
        pipe.zadd(coordinator.keys.jobs, {job: at})
    pipe.execute()
    newest_first = ids[::-1]
    client = coordinator.client
    assert [job.id for job in client.jobs(name="night*", limit=None)] == newest_first
    assert [job.id for job in client.jobs(name="night*", since=100, limit=None)] == newest_first[
        :1100
    ]
    assert [job.id for job in client.jobs(name="night*", limit=1001)] == newest_first[:1001]
    assert len(client.jobs(limit=None)) == 1201
