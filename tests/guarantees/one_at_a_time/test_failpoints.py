"""Deaths, frosts and lost replies of a coordinator at every trigger point it passes, each time that
it passes it.

In one process, on a real Valkey and a real warehouse: what a point is and that it strikes exactly
there. The same with
real processes and real signals: test_deaths.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import redis

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, group
from tests.support.failpoints import OF_A_COORDINATOR, Death, Died, Hold, Once, Route, armed
from tests.support.servers import wait_until
from unstuck import Status, Unreachable
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse

MakeCoordinator = Callable[..., Coordinator]
SOON = {"dispatch_timeout": 0.05, "report_idle": 0.02}  # seconds


@dataclass
class FailpointJob:
    """One job, and which of its groups ran, each time that one did."""

    id: str
    groups: list[str]
    ran: list[str] = field(default_factory=list)

    def work(self, coordinator: Coordinator) -> None:
        """The workers' part: every offer that stands ready is claimed, run and finished by a runner
        of its own.
        """
        for offer in coordinator.offers(self.id):
            claimant = f"runner{len(self.ran) + 1}"
            if coordinator.claim(offer, claimant).answer == "CLAIMED":
                self.ran.append(offer.group)
                coordinator.finish(offer.held_by(claimant), staged(coordinator, offer, offer.group))

    def go_on(self, coordinator: Coordinator) -> bool:
        """One round of a coordinator and its workers.

        True once the job has ended and no report is left.
        """
        coordinator.read()
        self.work(coordinator)
        return (
            coordinator.status(self.id).terminal
            and not coordinator.redis.xpending(coordinator.keys.reports, "coordinators")["pending"]
        )

    def inherit(self, heir: Coordinator) -> bool:
        """A round of the next coordinator, with the waits over: the lock's term, reports idle, a
        publisher's turn.
        """
        keys = heir.keys.of(self.id)
        heir.redis.delete(keys.lock)
        if heir.redis.hget(keys.job, "phase"):
            heir.redis.hset(keys.job, "publish_next", "1")
        heir.redis.zadd(heir.keys.due, {self.id: 0}, xx=True)
        heir.consumer.step()
        heir.sweep.run()
        return self.go_on(heir)


def submitted(coordinator: Coordinator, length: int = 2) -> FailpointJob:
    """A chain of groups; the last one's output is published."""
    names = [f"g{n}" for n in range(length)]
    return FailpointJob(
        coordinator.submit(*(group(name, *names[n - 1 : n]) for n, name in enumerate(names))), names
    )


def check(coordinator: Coordinator, job: FailpointJob, at: object) -> None:
    """The job has ended well, and nothing was done or applied twice."""
    assert coordinator.status(job.id) is Status.FINISHED, at
    assert job.ran == job.groups, at
    events = [(event.get("group"), event["kind"]) for _, event in coordinator.client.events(job.id)]
    wanted = [(name, kind) for name in job.groups for kind in ("QUEUED", "RUNNING", "SUCCEEDED")]
    wanted += [(None, kind) for kind in ("SUBMITTED", "PUBLISHING", "FINISHED")]
    assert Counter(events) == Counter(wanted), at
    log = Warehouse(coordinator.settings.warehouse)
    entries = [log.entry(n) for n in range(1, log.head() + 1)]
    assert [entry.kind for entry in entries if entry and entry.job == job.id] == ["package"], at


def route(make_coordinator: MakeCoordinator, length: int = 2) -> list[Point]:
    """The points that a coordinator passes in the life of one such job, in order."""
    coordinator = make_coordinator()
    job = submitted(coordinator, length)
    with armed(way := Route(OF_A_COORDINATOR)):
        wait_until(lambda: job.go_on(coordinator), 10, "the job to end")
    check(coordinator, job, "undisturbed")
    return way.reached


@pytest.mark.claim(
    "If a coordinator dies at any point, another one continues its jobs and applies nothing twice."
)
def test_a_coordinator_that_dies_at_any_point_is_replaced_and_nothing_is_applied_twice(
    make_coordinator: MakeCoordinator,
) -> None:
    way = route(make_coordinator)
    assert set(way) == set(OF_A_COORDINATOR)
    heir = make_coordinator(**SOON)
    for nth, point in enumerate(way):
        dies = make_coordinator()
        job = submitted(dies)
        with armed(death := Death(OF_A_COORDINATOR, nth)), pytest.raises(Died):
            wait_until(lambda job=job, dies=dies: job.go_on(dies), 10, "the death")
        assert death.at is point
        job.work(dies)  # offers that stand ready
        wait_until(
            lambda job=job: job.inherit(heir), 10, f"the heir of {nth} {point} to end the job"
        )
        check(heir, job, (nth, point))


@pytest.mark.claim("A process that was frozen past its lease changes nothing when it thaws.")
@pytest.mark.variant
def test_a_coordinator_that_thaws_after_the_end_of_the_job_changes_nothing(
    make_coordinator: MakeCoordinator,
) -> None:
    heir = make_coordinator(**SOON)
    for nth, point in enumerate(route(make_coordinator, 1)):
        freezes = make_coordinator()
        job = submitted(freezes, 1)

        def live(job: FailpointJob = job, coordinator: Coordinator = freezes) -> None:
            while not job.go_on(coordinator):
                pass

        with armed(hold := Hold(OF_A_COORDINATOR, nth)):
            frozen = threading.Thread(target=live)
            frozen.start()
            try:
                hold.reached.wait()
                wait_until(lambda job=job: job.inherit(heir), 10, f"the heir of {nth} {point}")
                last = Warehouse(heir.settings.warehouse).head()
                ended = heir.show(job.id)
            finally:
                hold.release()
                frozen.join()
        assert hold.at is point
        assert not frozen.is_alive()
        assert heir.show(job.id) == ended
        assert Warehouse(heir.settings.warehouse).head() == last
        check(heir, job, (nth, point))


def lost() -> None:
    raise redis.ConnectionError("the reply was lost")


@pytest.mark.claim("A lost reply from Redis changes no result.")
def test_lost_replies_of_commits_claims_and_finishes_change_nothing(
    make_coordinator: MakeCoordinator,
) -> None:
    way = [point for point in route(make_coordinator) if point is Point.AFTER_COMMIT]
    for nth in range(len(way)):
        coordinator = make_coordinator(**SOON)
        job = submitted(coordinator)

        def round_(job: FailpointJob = job, coordinator: Coordinator = coordinator) -> bool:
            try:
                return job.inherit(coordinator)
            except redis.ConnectionError:
                return False  # as the consumer and Celery do: what is pending or due is done again

        with armed(once := Once(lost, [Point.AFTER_COMMIT], nth)):
            wait_until(round_, 10, f"the job to end although the reply of commit {nth} was lost")
        assert once.at is Point.AFTER_COMMIT
        check(coordinator, job, nth)

    for point in (Point.AFTER_CLAIM, Point.AFTER_FINISH):
        coordinator = make_coordinator()
        job = submitted(coordinator)
        coordinator.read()
        (offer,) = coordinator.offers()
        job.ran += ["g0"]
        with armed(once := Once(lost, [point])):
            for act in (
                lambda coordinator=coordinator, offer=offer: coordinator.claim(offer).answer,
                lambda coordinator=coordinator, offer=offer: coordinator.finish(
                    offer.held_by("runner1"),
                    staged(coordinator, offer, offer.group),
                    f"event-{offer}",
                ),
            ):
                try:
                    act()
                except redis.ConnectionError:
                    assert act() in ("CLAIMED", "DUPLICATE")
        assert once.at is point
        wait_until(
            lambda job=job, coordinator=coordinator: job.go_on(coordinator), 10, "the job to end"
        )
        check(coordinator, job, point)


@pytest.mark.claim("A lost reply from Redis changes no result.")
def test_lost_replies_of_a_submit_and_a_command_create_one_job_and_one_event(
    coordinator: Coordinator,
) -> None:
    spec = {"name": "lossy", "groups": [group("only")]}
    with armed(Once(lost, [Point.AFTER_SUBMIT])), pytest.raises(Unreachable):
        coordinator.client.submit(spec, key="once")
    again = coordinator.client.submit(spec, key="once")
    assert not again.new
    assert [line.id for line in coordinator.client.jobs(name="lossy")] == [again.id]

    with armed(Once(lost, [Point.AFTER_COMMAND])), pytest.raises(Unreachable):
        coordinator.client.pause(again.id)
    assert coordinator.client.pause(again.id).answer == "ALREADY"
    coordinator.read()
    assert coordinator.status(again.id) is Status.PAUSED
    assert coordinator.events(again.id).count("USER_PAUSE") == 1
