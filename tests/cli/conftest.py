"""The command line as a user has it: real processes against a real Valkey, and a fleet that is
played by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
import redis

from tests.support.coordinator import take
from tests.support.machine import seconds
from tests.support.paths import ROOT
from tests.support.programs import forked_command as forked
from tests.support.programs.foreground import Up
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.reconcile.reconciler import PassResult, Reconciler
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.job_store import Store
from unstuck.in_process.at_once import AtOnce
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.transport.lease import Lease

COMMAND = (sys.executable, "-m", "unstuck.cli")


class ByHand:
    """A coordinator and workers, one step at a time."""

    def __init__(self, url: str, store: redis.Redis, folder: Path) -> None:
        self.settings = Settings(redis_url=url, warehouse=str(folder / "warehouse"))
        self.client = Client(self.settings, redis_client=store)
        self._stored = Store(self.settings, store)
        # No wake-up is sent: the tests claim by hand.
        self._reconciler = Reconciler(
            self._stored, lambda _: None, Warehouses(), self.settings, mint, AtOnce()
        )
        self._redis, self._keys = store, Keys(self.settings.prefix)

    def submit(self, *groups: dict[str, Any], name: str = "job", **more: Any) -> str:
        """A job of these groups; those without steps get one that is never run here."""
        full = [
            {"steps": [{"python": "some.where:step"}], "spark": False, **group} for group in groups
        ]
        spec = JobSpec.model_validate({"name": name, "groups": full, **more})
        return self.client.submit(spec, by="tester").id

    def decide(self, job: str) -> None:
        assert self._reconciler.reconcile(job, due=True) is PassResult.DONE

    def claim(self, job: str, group: str, worker: str = "host-1:4242") -> Token:
        state = self._stored.load(job)
        assert state is not None
        offer = state.record(group).offer(job, group)
        taken = take(self._lease(str(offer)), self._redis, self._keys, offer, "me", worker)
        assert taken.answer == "CLAIMED"
        self.decide(job)
        return offer.held_by("me")

    def _lease(self, caller: str) -> Lease:
        return Lease(self._redis, self._keys, self.settings.lease_ttl, caller)

    def progress(self, token: Token, **value: Any) -> None:
        self._lease("me").renew(token, "host-1:4242", json.dumps(value))

    def finish(self, token: Token, outcome: Outcome) -> None:
        self._lease("me").finish(token, outcome, mint())
        self.decide(token.job)

    def succeed(self, job: str, group: str, **outcome: Any) -> None:
        self.finish(self.claim(job, group), Outcome(OutcomeKind.SUCCEEDED, **outcome))

    def fail(
        self, job: str, group: str, text: str, *, recoverable: bool = False, traceback: str = ""
    ) -> None:
        failure = Failure("USER_ERROR", text, recoverable, traceback)
        self.finish(self.claim(job, group), Outcome(OutcomeKind.FAILED, failure=failure))

    def finished(self, name: str = "job") -> str:
        """A job that has ended well."""
        job = self.submit({"name": "only"}, name=name)
        self.decide(job)
        self.succeed(job, "only")
        assert self.view(job).terminal
        return job

    def view(self, job: str) -> JobInfo:
        return self.client.show(job)


class Cli:
    """``unstuck``, or another program, run as a process in a folder of its own."""

    def __init__(self, url: str | None, folder: Path, program: Sequence[str] = COMMAND) -> None:
        self.folder = folder
        self.program = program
        self.env = {
            key: value for key, value in os.environ.items() if not key.startswith("UNSTUCK_")
        }
        self.env |= {
            "UNSTUCK_WAREHOUSE": str(folder / "warehouse"),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
        }
        if url is not None:
            self.env["UNSTUCK_REDIS_URL"] = url

    def __call__(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run to the end. What no user should ever see is looked for in every answer."""
        done = forked.run([*map(str, arguments)], cwd=self.folder, env={**self.env, **env})
        if "UNSTUCK_DEBUG" not in env:
            assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert "\x1b" not in done.stdout + done.stderr, "colours in a pipe"
        return done

    def json(self, *arguments: str | Path) -> Any:
        """The answer to a command that must succeed, read from its standard output alone."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str | Path, **more: Any) -> subprocess.Popen[str]:
        """Run in the background; the test ends it."""
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        return subprocess.Popen(
            [*self.program, *map(str, arguments)], cwd=self.folder, env=self.env, **settings
        )


@pytest.fixture
def hand(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> ByHand:
    return ByHand(redis_server.url, client, tmp_path)


@pytest.fixture
def cli(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> Cli:
    return Cli(redis_server.url, tmp_path)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts fleets; whatever the test does to them, none of their processes outlives it."""
    started: list[Up] = []

    def start(terminal: Literal["file", "pipe", "tty"] = "file", **told: Any) -> Up:
        started.append(Up(tmp_path, terminal, **told))
        return started[-1]

    yield start
    for fleet in started:
        if fleet.process.poll() is None:
            fleet.family()
            fleet.process.terminate()
            try:
                fleet.process.wait(seconds(20))
            except subprocess.TimeoutExpired:
                fleet.process.kill()
                fleet.process.wait()
        try:
            fleet.is_gone()
        finally:
            for process in fleet.seen.values():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            fleet.close()
