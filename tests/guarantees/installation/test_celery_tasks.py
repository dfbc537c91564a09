"""What an app that has nothing of ours installed can ask by a Celery message: every task, and who
is said to ask.

A real coordinator on a real store, and a plain Celery app that knows the address of the broker and
nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.utils.nodenames import anon_nodename

from tests.support.coordinator import group, take
from tests.support.jobs.stored import offer_of
from tests.support.paths import ROOT
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.transport.redis_client import connect

SPEC = {"name": "job", "params": {"year": 2013}, "groups": [group("a"), group("b", "a")]}
Send = Callable[..., None]


class CommandSender:
    """A client of the same store, and what the event log says of who asked."""

    def __init__(
        self, client: Client, store: redis.Redis, keys: Keys, lease: Lease, log: Path
    ) -> None:
        self.client, self.store, self.keys, self.lease, self.log = client, store, keys, lease, log

    def logged(self) -> str:
        """What the coordinator has logged."""
        return self.log.read_text(errors="replace")

    def job(self, status: Status | None = None) -> str:
        """A job that a coordinator has taken up, and brought into ``status``."""
        job = self.client.submit(SPEC).id
        self.event(job, "QUEUED")  # no worker is there: so it stays
        if status is not None:
            {Status.PAUSED: self.client.pause, Status.CANCELED: self.client.cancel}[status](job)
            self.reaches(job, status)
        return job

    def claim(self, job: str) -> Token:
        """Take the attempt of its first group, as a runner does."""
        offer = offer_of(self.client, job, "a")
        claimant = mint()
        assert take(self.lease, self.store, self.keys, offer, claimant).answer == "CLAIMED"
        return offer.held_by(claimant)

    def reaches(self, job: str, status: Status) -> None:
        wait_until(lambda: self.client.show(job).status is status, 60, f"job {job} to be {status}")

    def event(self, job: str, kind: str) -> dict[str, Any]:
        """The one event of this kind, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [event for _, event in self.client.events(job) if event["kind"] == kind]

        (event,) = wait_until(found, 60, f"{kind} in the event log of job {job}")
        return event


@pytest.fixture(scope="module")
def asked(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandSender]:
    """One coordinator for all tests here; each has a job of its own."""
    folder = tmp_path_factory.mktemp("coordinator")
    settings = Settings(redis_url=redis_server.url, warehouse=str(folder / "warehouse"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("UNSTUCK_")}
    env |= {
        "UNSTUCK_REDIS_URL": settings.redis_url,
        "UNSTUCK_WAREHOUSE": settings.warehouse,
        "PYTHONPATH": str(ROOT),
    }
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "unstuck.coordinator",
        "worker",
        "-P",
        "threads",
        "-l",
        "INFO",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    try:
        with Client(settings) as client, closing(connect(settings.redis_url)) as store:
            wait_until(lambda: client.fleet().coordinators, 120, "the coordinator to be there")
            keys = Keys(settings.prefix)
            yield CommandSender(
                client,
                store,
                keys,
                Lease(store, keys, settings.lease_ttl, "runner1"),
                folder / "log",
            )
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def send(redis_server: RedisServer) -> Iterator[Send]:
    """Sends a task as any app does."""
    with closing(app_of_strangers(redis_server.url)) as app:
        yield lambda task, **kwargs: app.send_task(
            f"unstuck.{task}", kwargs=kwargs, queue="control"
        )


COMMANDS = [
    ("pause", None, {}),
    ("resume", Status.PAUSED, {}),
    ("stop", None, {}),
    ("cancel", None, {}),
    ("force_stop", None, {}),
    ("alter", None, {"values": {"groups.a.timeout": "2h"}}),
    ("skip", Status.PAUSED, {"group": "b"}),
    ("rerun", Status.PAUSED, {"group": "b"}),
]
OTHERS = {"sweep", "submit", "retry"}
WORDS = ("set", "pause", "resume", "run", "stop", "remove", "skip", "backfill")
OF_SCHEDULES = {f"{word}_schedule" for word in WORDS}


def test_every_celery_task_of_a_coordinator_is_tested_here() -> None:
    # In a process of its own: the tests of this process may have loaded the worker's app beside it.
    code = "from unstuck.coordinator.celery import app; print(*app.tasks)"
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    told = {
        name.removeprefix("unstuck.") for name in printed.split() if name.startswith("unstuck.")
    }
    assert told == {name for name, _, _ in COMMANDS} | OTHERS | OF_SCHEDULES


@pytest.mark.parametrize("by", ["billing", None])
@pytest.mark.parametrize(
    ("task", "status", "given"), COMMANDS, ids=[name for name, _, _ in COMMANDS]
)
def test_a_command_message_is_recorded_with_user_and_reason(
    asked: CommandSender,
    send: Send,
    task: str,
    status: Status | None,
    given: dict[str, Any],
    by: str | None,
) -> None:
    job = asked.job(status)
    if task == "rerun":  # only of a group that was there
        asked.client.skip(job, "b")
        asked.event(job, "SKIPPED")
    send(task, job=job, reason="the disk is full", **given, **({"by": by} if by else {}))
    event = asked.event(job, f"USER_{task.upper()}")
    assert (event["by"], event["text"]) == (
        by or f"a Celery task from {anon_nodename()}",
        "the disk is full",
    )


def test_a_pause_message_that_arrives_too_late_is_refused(asked: CommandSender, send: Send) -> None:
    """Nobody keeps the result of a task but the log of the coordinator, where it said DONE."""
    job = asked.job()
    asked.store.hset(asked.keys.of(job).job, "phase", "publishing")
    send("pause", job=job)

    def answer() -> str:
        return next(
            (
                line
                for line in asked.log.read_text().splitlines()
                if "unstuck.pause[" in line and job in line
            ),
            "",
        )

    told = wait_until(answer, 60, "the answer in the log of the coordinator")
    assert f"DONE: pause of job {job} is on record" in told
    assert "It comes too late" in told


def test_a_task_takes_positional_arguments_too(
    asked: CommandSender, redis_server: RedisServer
) -> None:
    job = asked.job()
    with closing(app_of_strangers(redis_server.url)) as app:
        app.send_task("unstuck.pause", args=[job, "the disk is full", "billing"], queue="control")
    event = asked.event(job, "USER_PAUSE")
    assert (event["by"], event["text"]) == ("billing", "the disk is full")


@pytest.mark.parametrize(("now", "told"), [(True, "DRAIN"), (False, "CONTINUE")])
def test_a_pause_message_can_interrupt_running_attempts(
    asked: CommandSender, send: Send, now: bool, told: str
) -> None:
    # Given an attempt that runs
    job = asked.job()
    token = asked.claim(job)
    asked.reaches(job, Status.RUNNING)
    # When the job is paused
    send("pause", job=job, now=now)
    asked.reaches(job, Status.PAUSING)
    # Then its runner is told to hand it back, or goes on until it has ended
    assert asked.lease.renew(token, "host:1") == told
    asked.lease.finish(
        token, Outcome(OutcomeKind.RELEASED if now else OutcomeKind.SUCCEEDED), mint()
    )
    asked.reaches(job, Status.PAUSED)
    (first, second) = asked.client.show(job).groups
    assert first.states == {"BACKOFF" if now else "SUCCEEDED": 1}
    assert second.states == {"WAITING": 1}


def test_schedules_are_set_and_run_by_message(asked: CommandSender, send: Send) -> None:
    """So an existing beat may fire them."""
    send(
        "set_schedule",
        spec={**SPEC, "name": "by-message", "schedule": {}},
        reason="moved from cron",
    )
    wait_until(lambda: "by-message" in asked.client.schedules.names(), 60, "the schedule to be set")
    send("run_schedule", name="by-message")
    wait_until(lambda: asked.client.schedules.runs("by-message"), 60, "the run")
    by = {event["kind"]: event.get("by") for event in asked.client.schedules.events("by-message")}
    assert by["SET"] == by["USER_RUN"] == f"a Celery task from {anon_nodename()}"
    for word, status in (("pause", "PAUSED"), ("resume", "RUNNING"), ("stop", "STOPPED")):
        send(f"{word}_schedule", name="by-message")
        wait_until(
            lambda status=status: asked.client.schedules.show("by-message").status == status,
            60,
            status,
        )
    going_on = lambda: asked.client.schedules.show("by-message").runs  # noqa: E731
    (run,) = going_on()
    asked.client.cancel(run.job)  # a schedule is removed when no run goes on
    wait_until(lambda: not going_on(), 60, "the end of the run to be noted")
    send("remove_schedule", name="by-message")
    wait_until(
        lambda: "by-message" not in asked.client.schedules.names(), 60, "the schedule to be removed"
    )


@pytest.mark.parametrize("by", ["billing", None])
def test_a_submit_message_records_its_submitter(
    asked: CommandSender, send: Send, by: str | None
) -> None:
    spec = {**SPEC, "name": f"from-{by}"}
    for _ in range(2):
        send(
            "submit", spec=spec, key=f"{by}-1", params={"year": 2014}, **({"by": by} if by else {})
        )
    (listed,) = wait_until(
        lambda: asked.client.jobs(name=f"from-{by}"), 60, "the job to be submitted"
    )
    assert asked.client.show(listed.id).submitted_by == (
        by or f"a Celery task from {anon_nodename()}"
    )


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"year": "soon"}, "params.year: expected a whole number, as in the spec, not 'soon'"),
        ({"yaer": 2014}, "no such parameter; did you mean 'year'"),
    ],
)
def test_a_submit_message_with_a_wrong_parameter_is_refused_with_its_place(
    asked: CommandSender, send: Send, params: dict[str, Any], told: str
) -> None:
    before = len(asked.logged())
    name = f"wrong-{next(iter(params))}"
    send("submit", spec={**SPEC, "name": name}, params=params)
    wait_until(lambda: told in asked.logged()[before:], 60, "the refusal in the log")
    assert asked.client.jobs(name=name) == []


@pytest.mark.parametrize(
    "text",
    [json.dumps, "# a comment\nname: {name}\ngroups:\n- {group}\n".format_map],
    ids=["JSON", "YAML"],
)
def test_a_submit_message_may_contain_a_spec_as_text(
    asked: CommandSender, send: Send, text: Callable[[Any], str]
) -> None:
    name = f"text-of-{text is json.dumps}"
    spec = {"name": name, "groups": [group("a")]}
    send(
        "submit",
        spec=text({**spec, "group": json.dumps(group("a"))} if text is not json.dumps else spec),
    )
    wait_until(lambda: asked.client.jobs(name=name), 60, "the job to be submitted")


@pytest.mark.parametrize(
    "path",
    [
        "{folder}/secret.yaml",
        "file://{folder}/secret.yaml",
        "secret.yaml",
        "\n{folder}/secret.yaml",
    ],
)
def test_a_submit_message_cannot_open_paths_and_the_error_says_where_paths_are_allowed(
    asked: CommandSender, send: Send, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret.yaml").write_text("hunter2: the first words of a file\n")
    before = len(asked.logged())
    send("submit", spec=path.format(folder=tmp_path))
    told = (
        "never opens a file by its path: `unstuck submit FILE` and Client().submit(PATH) do, "
        "where they are called"
    )
    wait_until(lambda: told in asked.logged()[before:], 60, "the refusal in the log")
    assert "hunter2" not in asked.logged()


@pytest.mark.parametrize(
    "spec",
    [
        None,
        5,
        ["a"],
        "",
        "name: a\ngroups: [",
        {**SPEC, "groups": [{"name": "a", "steps": [{"sql_file": "/etc/passwd"}]}]},
    ],
)
def test_a_submit_message_without_a_spec_is_refused_as_an_invalid_spec(
    asked: CommandSender, send: Send, spec: Any
) -> None:
    before = len(asked.logged())
    send("submit", spec=spec)
    wait_until(lambda: "SpecError" in asked.logged()[before:], 60, "the refusal in the log")
    assert "root:" not in asked.logged()


@pytest.mark.parametrize("by", ["billing", None])
def test_a_retry_message_creates_a_new_job_and_records_its_user(
    asked: CommandSender, send: Send, by: str | None
) -> None:
    job = asked.job(Status.CANCELED)
    send("retry", job=job, params={"year": 2014}, reason="again", **({"by": by} if by else {}))

    def retried() -> Sequence[str]:
        return [one.id for one in asked.client.jobs() if asked.client.show(one.id).retry_of == job]

    (new,) = wait_until(retried, 60, f"job {job} to be retried")
    record = asked.client.show(new)
    assert record.submitted_by == (by or f"a Celery task from {anon_nodename()}")
    assert asked.event(new, "SUBMITTED")["text"] == "again"
