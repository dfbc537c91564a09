"""HALTED, said by the system, and PAUSED, said by a person, look alike in no command."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import ByHand, Cli
from tests.support.servers import wait_until
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.protocol.keys import Keys

WHY = "the coordinator could not decide this job: KeyError: 'clean'"


@pytest.fixture
def store(hand: ByHand, client: redis.Redis) -> Store:
    return Store(hand.settings, client)


def halt(store: Store, job: str) -> None:
    store.halt(job, Reason("UNDECIDABLE", WHY), "halted", time.time())


@pytest.mark.variant
def test_every_command_distinguishes_halted_from_paused_jobs(
    cli: Cli, hand: ByHand, store: Store
) -> None:
    halted, paused = (
        hand.submit({"name": "a"}, name="broken"),
        hand.submit({"name": "a"}, name="held"),
    )
    hand.client.pause(paused, by="anna", reason="night")
    for job in (halted, paused):
        hand.decide(job)
    halt(store, halted)
    assert [one["id"] for one in cli.json("list", "--status", "HALTED")] == [halted]
    assert [one["id"] for one in cli.json("list", "--status", "paused")] == [paused]
    for command in (["list"], ["show", halted], ["why", halted], ["events", halted]):
        said = cli(*command).stdout
        assert ("HALTED" in said, WHY in said) == (True, True), said
        assert ("PAUSED" in said) == (command == ["list"]), said
    for command in (["show", paused], ["why", paused], ["events", paused]):
        assert "HALTED" not in cli(*command).stdout
    assert f"unstuck resume {halted}" in cli.json("why", halted)[0]["help"]
    found = json.loads(cli("doctor", "--json").stdout)["findings"]
    (cure,) = [one["cure"] for one in found if one["code"] == "JOBS_HALTED"]
    assert f"unstuck resume {halted}" in cure


def test_an_unreadable_job_does_not_hide_others_in_a_list(
    cli: Cli, hand: ByHand, store: Store, client: redis.Redis
) -> None:
    """The list ended with an error of Redis, and showed none of the jobs."""
    broken, well = hand.submit({"name": "a"}), hand.submit({"name": "a"})
    halt(store, broken)
    client.delete(groups := Keys(hand.settings.prefix).of(broken).groups)
    client.set(groups, "not a hash any more")
    listed = {one["id"]: (one["status"], one["why"]) for one in cli.json("list")}
    assert set(listed) == {broken, well}
    assert (listed[broken][0], "WRONGTYPE" in listed[broken][1]) == ("HALTED", True)


@pytest.mark.variant
def test_waiting_for_a_halted_job_exits_with_1_and_a_remedy(
    cli: Cli, hand: ByHand, store: Store, tmp_path: Path
) -> None:
    """A cron job that waited for it waited until somebody looked."""
    spec = tmp_path / "waited.yaml"
    spec.write_text(
        "name: waited\ngroups: [{name: a, spark: false, steps: [{python: 'some.where:step'}]}]\n"
    )
    waiting = cli.start("submit", spec, "--wait")
    job = wait_until(lambda: hand.client.jobs(), 20, "the job to be submitted")[0].id
    hand.decide(job)
    halt(store, job)
    said, _ = waiting.communicate()
    assert waiting.returncode == 1
    for done in (said, cli("watch", job).stdout):
        assert done.count(WHY) == 1
        assert f"waited {job} HALTED after" in done
        assert f"unstuck why {job}" in done
        assert f"unstuck resume {job}" in done
    assert cli("watch", job).returncode == 1
    assert hand.client.wait(job).halted is not None


def test_a_halted_job_refuses_pause_and_accepts_resume_and_cancel(
    cli: Cli, hand: ByHand, store: Store
) -> None:
    job, other = hand.submit({"name": "a"}), hand.submit({"name": "a"})
    for each in (job, other):
        hand.decide(each)
        halt(store, each)
    refused = cli("pause", job)
    assert (refused.returncode, f"job {job} is HALTED" in refused.stderr) == (4, True)
    assert cli("skip", job, "a").returncode == 0
    assert "goes on, with its full retry budget" in cli("resume", job).stdout
    hand.decide(job)
    assert cli.json("show", job)["status"] == "FINISHED", "its only group was skipped"
    assert cli("cancel", other).returncode == 0
    hand.decide(other)
    assert cli.json("show", other)["status"] == "CANCELED"
