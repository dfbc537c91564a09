"""A fleet of two versions of Spark or Python: the real scripts on a real Valkey, and a coordinator.

A runner is played by its lease, which says which versions it has.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.coordinator import NOOP, Coordinator, group, mint
from tests.support.paths import PYTHONPATH
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck import Status
from unstuck.coordinator.reconcile import reconciler
from unstuck.tasks.identity import RunsOn
from unstuck.tasks.transport.lease import Claim, Lease
from unstuck.tasks.warehouse.log import Warehouse

OLD = RunsOn("0.1.0", "3.11.7", "3.5.4")
NEW = RunsOn("0.1.0", "3.11.7", "4.3.0")
OTHER_PYTHON = RunsOn("0.1.0", "3.12.1", "4.3.0")
NO_SPARK = RunsOn("0.1.0", "3.11.7", "none")
SPARK = {"spark": True, "queue": "light", "steps": NOOP}


class VersionedRunner:
    """A runner of queue ``light`` on these versions."""

    def __init__(self, coordinator: Coordinator, on: RunsOn, name: str) -> None:
        self.name, self.on, self._coordinator = name, on, coordinator
        settings = coordinator.settings
        self.lease = Lease(coordinator.redis, coordinator.keys, settings.lease_ttl, name, on.bound)
        self.note()

    def note(self) -> None:
        self._coordinator.note_runner(self.name, host=self.name, runs_on=self.on, idle_since=1.0)

    def take(self) -> Claim | None:
        return self.lease.take(["light"], mint(), self.name, mint())

    def took(self) -> str | None:
        """The group that it takes and ends; None: nothing stands for it."""
        claim = self.take()
        if claim is not None:
            self._coordinator.finish(claim.token)
            self._coordinator.read()
        return None if claim is None else claim.token.group


@pytest.fixture
def coordinator(make_coordinator: Callable[..., Coordinator]) -> Coordinator:
    return make_coordinator(dispatch_timeout=0.2)


def fork(coordinator: Coordinator, *, name: str = "job", members: int = 3, **spec: object) -> str:
    job = coordinator.submit(
        {**group("f"), **SPARK, "for_each": {"n": list(range(members))}}, name=name, **spec
    )
    coordinator.read()
    return job


@pytest.mark.claim("A job runs on one version of Spark and Python, unless its spec allows several.")
def test_a_job_runs_only_on_the_spark_version_of_its_first_claim(
    coordinator: Coordinator,
) -> None:
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    job = fork(coordinator)
    assert new.took() == "f[0]"
    assert [old.took() for _ in range(3)] == [None] * 3
    assert [new.took(), new.took(), new.took()] == ["f[1]", "f[2]", None]
    assert coordinator.status(job) is Status.FINISHED


def test_a_job_keeps_its_python_version_even_without_spark(
    coordinator: Coordinator,
) -> None:
    new, other = (
        VersionedRunner(coordinator, NEW, "new"),
        VersionedRunner(coordinator, OTHER_PYTHON, "other"),
    )
    old = VersionedRunner(coordinator, OLD, "old")
    job = coordinator.submit(group("a"), group("b"), {**group("c"), **SPARK})
    coordinator.read()
    assert new.took() == "a"
    assert other.took() is None
    assert old.took() == "b", "another Spark makes no difference to a group without Spark"
    assert old.took() == "c", "nobody has used Spark in this job yet"
    assert coordinator.status(job) is Status.FINISHED


@pytest.mark.variant
def test_offers_that_a_runner_may_not_take_do_not_block_other_jobs(
    coordinator: Coordinator,
) -> None:
    """However many they are: each is moved away once."""
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    wide = fork(coordinator, name="wide", members=60)
    assert new.took() == "f[0]"
    other = fork(coordinator, name="other", members=1)
    claim = old.take()
    assert claim is not None
    assert claim.token.job == other
    coordinator.finish(claim.token)
    coordinator.read()
    assert old.take() is None
    before = coordinator.redis.info("commandstats")["cmdstat_zrange"]["calls"]
    assert old.take() is None
    assert coordinator.redis.info("commandstats")["cmdstat_zrange"]["calls"] - before < 10
    while new.took():
        pass
    assert coordinator.status(wide) is Status.FINISHED


def test_offers_of_a_pool_wait_for_a_slot_after_runners_of_other_versions_skipped_them(
    coordinator: Coordinator,
) -> None:
    """None of them is dropped, to be found missing later, because the slot was taken."""
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    job = coordinator.submit({**group("f"), **SPARK, "pool": "p", "for_each": {"n": [0, 1, 2]}})
    coordinator.read()
    assert new.took() == "f[0]"
    assert old.took() is None, "it moves the others into the lane of the newer Spark"
    second = new.take()
    assert second is not None
    assert new.take() is None, "the pool has one slot"
    (pool,) = coordinator.client.pools.all()
    assert (pool.name, pool.used, pool.waiting) == ("p", 1, 1)
    coordinator.finish(second.token)
    last = new.take()
    assert last is not None
    coordinator.finish(last.token)
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED


def test_two_runners_with_simultaneous_claims_use_one_version(coordinator: Coordinator) -> None:
    """Before any commit has seen the first claim."""
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    fork(coordinator)
    assert new.take() is not None
    assert old.take() is None
    assert new.take() is not None


def rolled_back(coordinator: Coordinator, job: str) -> Callable[[], None]:
    """Forgets what happens between this call and the call of what it answers, as a rollback of
    Redis does.
    """
    of, queue = coordinator.keys.of(job), coordinator.keys.ready("light")
    before = {key: coordinator.redis.dump(key) for key in (of.attempts, of.versions, queue)}

    def forget() -> None:
        for key, value in before.items():
            coordinator.redis.delete(key)
            if value is not None:
                coordinator.redis.restore(key, 0, value)

    return forget


def test_a_renewal_after_a_rollback_binds_the_job_to_its_versions_again(
    coordinator: Coordinator,
) -> None:
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    job = fork(coordinator)
    forget = rolled_back(coordinator, job)
    claim = new.take()
    assert claim is not None
    forget()
    assert new.lease.renew(claim.token, "new") == "CONTINUE"
    assert coordinator.queries.versions(job) == NEW.bound
    assert old.took() is None
    coordinator.finish(claim.token)
    coordinator.read()
    assert [new.took(), new.took()] == ["f[1]", "f[2]"]
    assert coordinator.status(job) is Status.FINISHED


def test_a_rolled_back_attempt_is_stale_if_other_versions_have_started_its_job(
    coordinator: Coordinator,
) -> None:
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    job = fork(coordinator)
    forget = rolled_back(coordinator, job)
    assert (lost := new.take()) is not None
    assert (second := new.take()) is not None
    forget()
    assert old.took() == "f[0]"
    assert new.lease.renew(lost.token, "new") == "STALE"
    assert new.lease.renew(second.token, "new") == "STALE", (
        "made by Spark 4.3, where the job began on 3.5"
    )
    assert coordinator.finish(second.token) == "STALE"
    assert [old.took(), old.took()] == ["f[1]", "f[2]"], "its offer stands, and none is lost"
    assert coordinator.status(job) is Status.FINISHED


def test_runners_of_all_versions_take_a_mixed_job_after_a_rollback(
    coordinator: Coordinator,
) -> None:
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    job = fork(coordinator, mixed=True)
    forget = rolled_back(coordinator, job)
    assert (claim := new.take()) is not None
    forget()
    assert new.lease.renew(claim.token, "new") == "CONTINUE"
    assert old.took() == "f[1]"
    assert coordinator.queries.versions(job) == {}


@pytest.mark.claim("A job runs on one version of Spark and Python, unless its spec allows several.")
def test_runners_of_all_versions_take_a_mixed_job(coordinator: Coordinator) -> None:
    old, new = VersionedRunner(coordinator, OLD, "old"), VersionedRunner(coordinator, NEW, "new")
    job = fork(coordinator, mixed=True)
    assert [new.took(), old.took(), new.took()] == ["f[0]", "f[1]", "f[2]"]
    assert coordinator.status(job) is Status.FINISHED


def woken(coordinator: Coordinator, *idle: VersionedRunner) -> int:
    """How many wake-ups a sweep sends, where these runners are idle."""
    coordinator.wake_ups.clear()
    coordinator.redis.delete(coordinator.keys.queue("light"))
    for runner in idle:
        runner.note()
    with patch.object(reconciler, "CACHE_SECONDS", 0.0):  # it asks anew who listens
        coordinator.sweep.run()
    return coordinator.wake_ups["light"]


def test_a_fleet_upgraded_during_a_job_is_explained_and_alter_continues_the_job(
    coordinator: Coordinator,
) -> None:
    old = VersionedRunner(coordinator, OLD, "old")
    job = fork(coordinator)
    assert old.took() == "f[0]"
    coordinator.redis.delete(
        coordinator.keys.processes
    )  # the old worker is stopped, and a new one started
    new = VersionedRunner(coordinator, NEW, "new")
    assert new.took() is None
    why = {one.subject: one for one in coordinator.client.explain(job)}["f[1]"]
    assert "the job began on Spark 3.5, Python 3.11 and keeps to it" in why.what
    assert "new:77 (Spark 4.3, Python 3.11), and nobody else listens there" in why.what
    assert why.help[0] == f"unstuck alter {job} --set mixed=true"

    coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    woken(coordinator, new)
    assert new.took() is None
    assert woken(coordinator, new) == 0, "no runner is woken for what it may not take"
    again = VersionedRunner(coordinator, OLD, "again")
    assert woken(coordinator, new, again) > 0, "and one that may is woken"
    coordinator.redis.hdel(coordinator.keys.processes, "again")

    assert coordinator.client.alter(job, {"mixed": True}).answer == "DONE"
    taken = []
    while len(taken) < 2:
        coordinator.redis.zadd(coordinator.keys.due, {job: 0}, xx=True)
        coordinator.sweep.run()
        taken += filter(None, [new.took()])
    assert taken == ["f[1]", "f[2]"]
    assert coordinator.status(job) is Status.FINISHED


def test_why_names_runners_with_other_versions(
    coordinator: Coordinator,
) -> None:
    new = VersionedRunner(coordinator, NEW, "new")
    VersionedRunner(coordinator, OLD, "old")
    job = fork(coordinator)
    assert new.took() == "f[0]"
    (why,) = [one for one in coordinator.client.explain(job) if one.subject == "f[1]"]
    assert "2 runners listen" in why.what
    assert "may not be taken by old:77 (Spark 3.5, Python 3.11)" in why.what


@pytest.mark.parametrize("mixed", [False, True])
def test_a_runner_without_spark_takes_only_groups_without_spark(
    coordinator: Coordinator, mixed: bool
) -> None:
    """It took them, and the job FAILED: three workers in a row seemed to be lost under it."""
    none = VersionedRunner(coordinator, NO_SPARK, "none")
    job = fork(coordinator, mixed=mixed)
    other = coordinator.submit({**group("plain"), "queue": "light"}, name="other", mixed=mixed)
    coordinator.read()
    assert [none.took(), none.took()] == ["plain", None]
    assert coordinator.status(other) is Status.FINISHED
    coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    woken(coordinator, none)
    assert none.took() is None
    assert woken(coordinator, none) == 0, "no runner is woken for what it may not take"
    why = {one.subject: one for one in coordinator.client.explain(job)}["f[0]"]
    assert why.what == (
        "queue light: the group runs on Spark; it may not be taken by "
        "none:77 (runs no Spark), and nobody else listens there"
    )
    assert why.help[0] == "celery -A unstuck.tasks worker -Q light"

    new = VersionedRunner(coordinator, NEW, "new")
    assert woken(coordinator, none, new) > 0
    assert new.took() == "f[0]"
    assert none.took() is None
    assert [new.took(), new.took()] == ["f[1]", "f[2]"]
    assert coordinator.status(job) is Status.FINISHED


def test_a_job_started_on_a_runner_without_spark_continues_with_any_spark(
    coordinator: Coordinator,
) -> None:
    none, new = (
        VersionedRunner(coordinator, NO_SPARK, "none"),
        VersionedRunner(coordinator, NEW, "new"),
    )
    other = VersionedRunner(coordinator, OTHER_PYTHON, "other")
    job = coordinator.submit(group("a"), {**group("b"), **SPARK})
    coordinator.read()
    assert [none.took(), none.took(), other.took(), new.took()] == ["a", None, None, "b"]
    assert coordinator.status(job) is Status.FINISHED


def test_the_recorded_versions_are_removed_with_the_job(coordinator: Coordinator) -> None:
    job = fork(coordinator, members=1)
    assert VersionedRunner(coordinator, NEW, "new").took() == "f[0]"
    assert coordinator.queries.versions(job) == {"python": "3.11", "spark": "4.3"}
    assert coordinator.redis.ttl(coordinator.keys.of(job).versions) > 0


@pytest.mark.claim("A job runs on one version of Spark and Python, unless its spec allows several.")
@pytest.mark.variant
def test_a_dataset_version_records_its_software_and_a_retry_on_another_python_reuses_nothing(
    redis_server: RedisServer, coordinator: Coordinator, tmp_path: Path
) -> None:
    """Real runners; the second says that it has another Python, which would need packages of its
    own.
    """
    (tmp_path / "made.py").write_text(
        "import pyarrow as pa\n"
        "def rows(spark, ctx):\n    return pa.table({'n': [1]})\n"
        "def fails(spark, ctx):\n    raise ValueError('no')\n"
    )
    made = group("a", steps=[{"python": "made:rows", "output": "made"}])
    broken = group("b", "a", steps=[{"python": "made:fails"}], retry={"max": 0})
    job = coordinator.submit(made, broken, publish=["made"], on_failure="finish_others")
    environ = {"PYTHONPATH": f"{tmp_path}:{PYTHONPATH}", "UNSTUCK_SPARK_MASTER": "none"}

    def run(job: str, prepared: str = "") -> None:
        coordinator.read()
        for _ in range(2):
            offers = coordinator.offers(job)
            with single_runner(
                redis_server.url, tmp_path, *offers, prepared=prepared, environ=environ
            ) as runner:
                runner.said()
            coordinator.read()

    run(job)
    assert coordinator.status(job) is Status.FAILED
    again = coordinator.client.retry(job, reason="b is mended").id
    run(
        again,
        "import dataclasses; runner.runs_on = dataclasses.replace(runner.runs_on, python='3.99.1')",
    )
    (a,) = coordinator.show(again).groups[0].members
    assert not a.adopted
    assert a.reason is not None
    assert "ran it on another version of Spark or Python" in a.reason.text
    third = coordinator.client.retry(again).id
    run(
        third,
        "import dataclasses; runner.runs_on = dataclasses.replace(runner.runs_on, python='3.99.2')",
    )
    assert coordinator.show(third).groups[0].members[0].adopted, (
        "a patch release makes no difference"
    )

    whole = coordinator.submit(made, name="whole")
    run(whole)
    assert coordinator.status(whole) is Status.FINISHED
    (entry,) = Warehouse(coordinator.settings.warehouse).history("made", 1)
    (said,) = entry.made_on["made"]
    assert said.startswith(f"Python {platform.python_version()}, pandas ")
    assert "Spark" not in said, "no Spark made these rows"
