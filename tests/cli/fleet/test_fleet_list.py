"""``unstuck fleet``: who is there, what each runs, who has fallen silent, and the queue that nobody
listens to.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from typing import Any

import pytest
import redis

from tests.cli.conftest import Cli
from tests.support.coordinator import Coordinator, group
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.coordinator.problems.problem import ProblemCode
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.tasks.identity import RunsOn
from unstuck.tasks.protocol.process_info import CoordinatorInfo
from unstuck.tasks.protocol.processes import FORGOTTEN, ProcessRegistry
from unstuck.tasks.transport.redis_client import connect


def now(coordinator: Coordinator) -> float:
    seconds, micros = coordinator.redis.time()
    return seconds + micros / 1e6


def test_runners_show_their_attempt_its_start_and_their_last_wake_up(
    cli: Cli, coordinator: Coordinator
) -> None:
    claimed = now(coordinator) - 3690
    busy = {"job": "j1", "group": "month[3]", "attempt": 2, "step": "counting"}
    coordinator.note_runner("busy", claimed_at=claimed, **busy)
    coordinator.note_runner("idle", pid=78, taken_at=now(coordinator) - 7200)
    coordinator.note_runner("fresh", pid=79)
    lines = cli("fleet").stdout.splitlines()
    (first,) = [line for line in lines if "host-9:77" in line]
    assert "j1 month[3]#2 counting" in first
    assert "1h01m" in first
    (second,) = [line for line in lines if "host-9:78" in line]
    assert "idle" in second
    assert "2h00m ago" in second
    assert "never" in next(line for line in lines if "host-9:79" in line)
    told = cli.json("fleet")["runners"][0]
    assert (told["job"], told["group"], told["attempt"], told["silent"]) == (
        "j1",
        "month[3]",
        2,
        False,
    )
    assert told["since"] == told["claimed_at"]


def test_silent_processes_are_marked_and_listed_last(cli: Cli, coordinator: Coordinator) -> None:
    coordinator.note_runner("lost", heard=7210, host="host-1", pid=11)
    coordinator.note_runner("here", host="host-2", pid=22)
    out = cli("fleet").stdout
    assert out.index("host-2:22") < out.index("host-1:11")
    assert "not heard of for 2h00m" in next(
        line for line in out.splitlines() if "host-1:11" in line
    )
    fleet = cli.json("fleet")
    assert [one["silent"] for one in fleet["runners"]] == [False, True]
    assert {"name": "light", "length": 0, "listeners": 1, "oldest_since": None} in fleet[
        "queues"
    ]  # the silent one does not listen


def test_a_coordinator_records_its_last_read_and_sweep(cli: Cli, coordinator: Coordinator) -> None:
    coordinator.consumer.step()
    (one,) = cli.json("fleet")["coordinators"]
    assert (one["read_at"], one["silent"], one["queues"]) == (None, False, ["control"])
    coordinator.submit(group("a"))
    coordinator.read()
    coordinator.work(coordinator.offers()[0])
    coordinator.sweep.run()

    def noted() -> Any:
        coordinator.consumer.step()
        (one,) = coordinator.client.fleet().coordinators
        return one.read_at and one

    one = wait_until(noted, 5, "the coordinator to note its report")
    assert one.swept_at
    assert one.swept_at <= one.heard_at
    (line,) = [line for line in cli("fleet").stdout.splitlines() if "host:1" in line]
    assert line.count(" ago") == 3
    coordinator.heartbeat.leave()
    ProcessRegistry(coordinator.redis, coordinator.keys).note(
        lambda now: replace(one, heard_at=now - 3610)
    )
    done = cli("fleet")
    assert "not heard of for 1h00m" in done.stdout
    assert "No coordinator is heard of" in done.stderr


def test_a_coordinator_continues_if_it_cannot_record_its_heartbeat(
    coordinator: Coordinator,
) -> None:
    heartbeat = Heartbeat(
        connect("redis://127.0.0.1:1/0", timeout=0.2, repeats=0), coordinator.keys, "host:1:word"
    )
    consumer = Consumer(
        coordinator.stream,
        coordinator.reconciler,
        coordinator.sweep,
        coordinator.settings,
        heartbeat,
    )
    job = coordinator.submit(group("a"))
    consumer.step()
    coordinator.work(coordinator.offers(job)[0])
    consumer.step()
    assert coordinator.status(job) is Status.FINISHED
    assert coordinator.client.fleet().coordinators == ()
    heartbeat.leave()
    assert heartbeat.forget_silent() == 0


@pytest.mark.parametrize("round_of", ["a sweep nobody did", "reports"])
def test_a_working_coordinator_is_never_shown_as_silent(
    coordinator: Coordinator, round_of: str
) -> None:
    """After an outage one round takes minutes.

    Here each job takes twenty seconds, by the clock of its thread.
    """
    clock = [0.0]
    consumer = Consumer(
        coordinator.stream,
        coordinator.reconciler,
        coordinator.sweep,
        coordinator.settings,
        coordinator.heartbeat,
        lambda: clock[0],
    )
    for name in ("a", "b", "c"):
        coordinator.submit(group("only"), name=name)
    if round_of != "reports":
        coordinator.redis.xtrim(coordinator.keys.reports, maxlen=0)
    heard: list[bool] = []
    handle = coordinator.reconciler.reconcile

    def slow(*args: Any, **kwargs: Any) -> Any:
        codes = {problem.code for problem in coordinator.client.problems()}
        heard.append(ProblemCode.NO_COORDINATOR not in codes)
        coordinator.redis.delete(coordinator.keys.processes)  # what was noted has grown old
        clock[0] += 20.0
        return handle(*args, **kwargs)

    coordinator.reconciler.reconcile = slow  # type: ignore[method-assign]
    consumer.step()
    assert len(heard) >= 3
    assert heard[0] is False, "nothing was noted before"
    assert all(heard[1:])


def test_a_coordinator_that_shuts_down_cleanly_leaves_the_list(coordinator: Coordinator) -> None:
    thread = threading.Thread(target=coordinator.consumer.run)
    thread.start()
    try:
        wait_until(
            lambda: coordinator.client.fleet().coordinators, 10, "the coordinator to note itself"
        )
    finally:
        coordinator.consumer.stopping.set()
        thread.join()
    assert coordinator.client.fleet().coordinators == ()


def test_silent_runners_and_coordinators_are_forgotten_after_an_hour(
    coordinator: Coordinator,
) -> None:
    coordinator.heartbeat.beat(None, None)
    for name, heard in (("long", FORGOTTEN + 60), ("short", FORGOTTEN - 60)):
        coordinator.note_runner(name, heard)
    assert coordinator.heartbeat.forget_silent() == 1
    assert [one.id for one in coordinator.client.fleet().runners] == ["short"]
    assert len(coordinator.client.fleet().coordinators) == 1
    coordinator.redis.hset(coordinator.keys.processes, "odd", "a line of nobody")
    assert coordinator.heartbeat.forget_silent() == 1
    assert not coordinator.redis.hexists(coordinator.keys.processes, "odd")


def test_a_queue_with_work_but_no_listener_is_shown_with_the_command_to_run(
    cli: Cli, coordinator: Coordinator
) -> None:
    coordinator.submit(group("a", queue="heavy"))
    coordinator.read()
    coordinator.redis.lpush(coordinator.keys.queue("heavy"), *(f"message {n}" for n in range(1200)))
    coordinator.note_runner("light-1")
    done = cli("fleet")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("heavy")]
    assert line.split() == ["heavy", "1,200", "0"]
    assert "celery -A unstuck.tasks worker -Q heavy" in done.stderr
    assert cli.json("fleet")["queues"] == [
        {"name": "heavy", "length": 1200, "listeners": 0, "oldest_since": None},
        {"name": "light", "length": 0, "listeners": 1, "oldest_since": None},
    ]


def test_the_age_of_a_message_counts_from_when_any_live_coordinator_first_saw_it(
    coordinator: Coordinator,
) -> None:
    registry = ProcessRegistry(coordinator.redis, coordinator.keys)
    at = now(coordinator)
    for name, heard, since in (
        ("late", 0.0, 30.0),
        ("early", 0.0, 90.0),
        ("later", 0.0, 20.0),
        ("gone", 60.0, 500.0),
    ):
        seen = {"heard_at": at - heard, "oldest_since": {"light": at - since}}
        one = CoordinatorInfo(id=name, host=name, pid=1, queues=("control",), **seen)  # type: ignore[arg-type]
        registry.note(lambda _, one=one: one)
    for waits, since in ((True, at - 90.0), (False, None)):
        coordinator.redis.delete(coordinator.keys.queue("light"))
        if waits:
            coordinator.redis.lpush(coordinator.keys.queue("light"), "message")
        coordinator.note_runner("here")
        (light,) = [one for one in coordinator.client.fleet().queues if one.name == "light"]
        assert light.oldest_since == since


def test_an_empty_fleet_prints_how_to_start_one_and_succeeds(cli: Cli, client: redis.Redis) -> None:
    done = cli("fleet")
    assert (done.returncode, done.stdout) == (0, "")
    assert "celery -A unstuck.tasks worker" in done.stderr
    assert "celery -A unstuck.coordinator worker" in done.stderr
    assert "unstuck up" in done.stderr
    fleet = cli.json("fleet")
    assert (fleet["runners"], fleet["coordinators"], fleet["queues"]) == ([], [], [])


def test_a_stalled_worker_is_listed_after_it_has_ended(cli: Cli, coordinator: Coordinator) -> None:
    coordinator.note_runner("here", host="host-2", pid=22)
    coordinator.redis.zadd(
        coordinator.keys.stalled,
        {"host-1:11": now(coordinator) - 7210, "host-1:12": now(coordinator) - 130},
    )
    said = " ".join(cli("fleet").stderr.split())
    assert "worker or coordinator host-1:12 stalled and ended itself 2m" in said
    assert "(2 such ends within a day)" in said
    assert [one["worker"] for one in cli.json("fleet")["stalled"]] == ["host-1:12", "host-1:11"]


def test_fleet_and_why_name_workers_that_run_different_code(
    cli: Cli, coordinator: Coordinator
) -> None:
    old, new = "91bc000011112222", "3f2a000011112222"
    job = coordinator.submit(
        {"name": "a", "spark": False, "steps": [{"python": "flights.steps:load"}]}
    )
    coordinator.note_runner("one", pid=11, code={"flights": new})
    coordinator.note_runner("two", pid=12, code={"flights": new, "other": old})
    coordinator.note_runner("elsewhere", pid=14, queues=("heavy",), code={"flights": old})
    coordinator.note_runner("gone", pid=15, heard=7200, code={"flights": old})
    coordinator.note_runner("silent about it", pid=16)
    assert "different code" not in cli.json("why", job)[0]["what"], (
        "the group runs on queue light alone"
    )

    coordinator.note_runner("three", pid=13, code={"flights": old, "other": old})
    done = cli("fleet", COLUMNS="300")
    assert "flights:3f2a0000" in next(
        line for line in done.stdout.splitlines() if "host-9:11" in line
    )
    assert "flights:91bc0000 other:91bc0000" in next(
        line for line in done.stdout.splitlines() if "host-9:13" in line
    )
    said = (
        'runners run different code of "flights": 3f2a0000 on host-9:11, host-9:12, 91bc0000 on '
        "host-9:13; "
        "deploy the same code everywhere; a runner that has not worked since a deploy takes it in "
        "before it works again"
    )
    assert said in cli.json("why", job)[0]["what"]
    assert cli.json("why", job)[0]["help"][0] == "unstuck fleet"
    in_fleet = (
        'Runners run different code of "flights": 3f2a0000 on host-9:11, host-9:12, '
        "91bc0000 on host-9:13"
    )
    assert in_fleet in done.stderr
    assert cli.json("fleet")["runners"][0]["code"] == {"flights": new}


def test_workers_with_different_spark_versions_are_listed_by_version(
    cli: Cli, coordinator: Coordinator
) -> None:
    old = RunsOn("0.1.0", "3.11.7", "3.5.9", "2.3.3", "26.0.1", "17")
    for number in range(1, 5):
        version = "3.5.9" if number == 1 else "4.3.0"
        coordinator.note_runner(f"{number}", pid=number, runs_on=replace(old, spark=version))
    assert "Spark 3.5: host-9:1; Spark 4.3: host-9:2, host-9:3, host-9:4" in cli("fleet").stderr
    assert [one["runs_on"] for one in cli.json("fleet")["runners"]][:1] == [asdict(old)]
    coordinator.note_runner("1", pid=1, runs_on=replace(old, spark="4.3.1"))
    assert "mixed" not in cli("fleet").stderr, "a patch release makes no difference"
