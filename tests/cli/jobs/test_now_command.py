"""``unstuck now``: what is not well, in one command, with an exit code for scripts."""

from __future__ import annotations

import json
from dataclasses import replace

import redis

from tests.cli.conftest import ByHand, Cli
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import CoordinatorStatus, ProcessRegistry


def coordinator_lives(client: redis.Redis) -> None:
    one = CoordinatorStatus(id="c", host="host", pid=1, seen=0.0, queues=("control",))
    ProcessRegistry(client, Keys()).note(lambda now: replace(one, seen=now))


def test_where_all_is_well_it_says_so_and_exits_0(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    coordinator_lives(client)
    done = cli("now")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "All is well.")
    coordinator_lives(client)
    hand.finished("report")
    done = cli("now")
    assert done.returncode == 0
    assert "1 FINISHED" in done.stdout


def test_what_is_not_well_comes_first_with_its_reason_and_exits_1(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    job = hand.submit({"name": "load", "retry": {"max": 0}}, name="night")
    hand.decide(job)
    hand.fail(job, "load", "no such column: price")
    other = hand.submit({"name": "wait"}, name="day")
    hand.decide(other)
    coordinator_lives(client)
    done = cli("now")
    assert done.returncode == 1
    not_well, _, rest = done.stdout.partition("Goes on")
    assert not_well.startswith("Not well (1)")
    assert f"job night ({job})" in not_well
    assert "no such column: price" in not_well
    assert other in rest
    assert "1 FAILED" in rest
    coordinator_lives(client)
    done = cli("now", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    (trouble,), (going_on,), (ended,) = told["not_well"], told["goes_on"], told["ended"]
    assert (trouble["kind"], trouble["name"], trouble["status"], trouble["job"]) == (
        "job",
        "night",
        "FAILED",
        job,
    )
    assert (
        trouble["text"].startswith("group load has FAILED")
        or "no such column: price" in trouble["text"]
    )
    assert (going_on["id"], bool(going_on["why"])) == (other, True)
    assert (ended["job"], ended["counts"]) == (job, {"FAILED": 1})
