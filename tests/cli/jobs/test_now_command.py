"""``unstuck now``: what is not well, in one command, with an exit code for scripts."""

from __future__ import annotations

import json
from dataclasses import replace

import redis

from tests.cli.conftest import ByHand, Cli
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry


def fleet_lives(client: redis.Redis) -> None:
    one = CoordinatorInfo(id="c", host="host", pid=1, heard_at=0.0, queues=("control",))
    runner = RunnerInfo(id="r", host="host", pid=2, worker_pid=2, queues=("spark",), heard_at=0.0)
    for process in (one, runner):
        ProcessRegistry(client, Keys()).note(
            lambda now, process=process: replace(process, heard_at=now)
        )


def test_without_problems_it_reports_that_and_exits_with_0(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    fleet_lives(client)
    done = cli("now")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "All is well.")
    fleet_lives(client)
    hand.finished("report")
    done = cli("now")
    assert done.returncode == 0
    assert "1 FINISHED" in done.stdout


def test_problems_come_first_with_their_reason_and_exit_with_1(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    job = hand.submit({"name": "load", "retry": {"max": 0}}, name="night")
    hand.decide(job)
    hand.fail(job, "load", "no such column: price")
    other = hand.submit({"name": "wait"}, name="day")
    hand.decide(other)
    fleet_lives(client)
    done = cli("now")
    assert done.returncode == 1
    problems, _, rest = done.stdout.partition("Running")
    assert problems.startswith("Problems (1)")
    assert f"job night ({job})" in problems
    assert "no such column: price" in problems
    assert other in rest
    assert "1 FAILED" in rest
    fleet_lives(client)
    done = cli("now", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    (problem,), (going_on,), (ended,) = told["problems"], told["running"], told["ended"]
    assert (problem["kind"], problem["name"], problem["code"], problem["job"]) == (
        "job",
        "night",
        "FAILED",
        job,
    )
    assert (
        problem["text"].startswith("group load has FAILED")
        or "no such column: price" in problem["text"]
    )
    assert (going_on["id"], bool(going_on["why"])) == (other, True)
    assert (ended["job"], ended["counts"]) == (job, {"FAILED": 1})
