"""What hangs before the first step or after the last one, where no `timeout:` of the user's counts:
it ends too.

A FIFO in the place of a file stands for a mount whose server is gone: whoever opens it waits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.machine import seconds
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from tests.support.steps.fleet_steps import hang
from unstuck.tasks.protocol.report import Failure, OutcomeKind
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Marker, write_marker

# Whoever is not to hang is at work for a small part of it.
TIMEOUT = f"{math.ceil(seconds(0.6))}s"
SOON = {"UNSTUCK_WAREHOUSE_TIMEOUT": TIMEOUT}
LOG_THAT_HANGS = """
import atexit, os, threading
atexit.register(os._exit, 0)  # a child of the pool ends so: logging does not wait for its handlers
from unstuck.tasks.runner.logs.attempt_log import AttemptLog
write = AttemptLog.write
AttemptLog.write = lambda self, record: threading.Event().wait() if record.levelname == 'ERROR' else write(self, record)
runner.replace = lambda: print("replaced")
"""
# In the place of Spark, which takes many seconds to come to a streaming query that does not stop.
DRIVER = """
import time
from contextlib import contextmanager
class Driver:
    pids, application, running, died, starting = [], {}, False, False, False
    unused, broken, left = True, ("", ""), ""
    def start(self, own=None): ...
    def cancel(self, tag): ...
    def blamed(self, failure):
        return failure
    def stop(self): ...
    @contextmanager
    def attempt(self, tag, conf, *more, **others):
        try:
            yield object()
        finally:
            {leave}
runner.driver = Driver()
"""
CANNOT_BE_LEFT = DRIVER.replace("{leave}", "time.sleep(600)")


def make_offer(store: redis.Redis, folder: Path, step: str = "my_pid", **more: Any) -> Offer:
    spec = {
        "name": "g",
        "spark": False,
        "steps": [{"python": f"fleet_steps:{step}", "params": more.pop("given", {})}],
    }
    return fleet.make_offer(store, folder / "warehouse", "job", spec, send=False, **more)


def hung(store: redis.Redis, server: RedisServer, folder: Path, offer: Offer) -> Failure:
    """What is on the record of an attempt that hung: its watchdog has said it, and has killed its
    runner.
    """
    with single_runner(server.url, folder, offer, environ=SOON) as runner:
        outcome = fleet.outcome(store, offer, 60)
        assert outcome.kind is OutcomeKind.FAILED, outcome
        assert runner.process.wait() < 0, "it was killed"
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == ("WAREHOUSE_TIMEOUT", True)
    assert f"the warehouse {folder / 'warehouse'} on " in outcome.failure.text
    assert f"no answer for {TIMEOUT} (UNSTUCK_WAREHOUSE_TIMEOUT)" in outcome.failure.text
    return outcome.failure


@pytest.mark.claim("A warehouse or a session that hangs ends the attempt, not the worker.")
@pytest.mark.variant
def test_a_warehouse_that_hangs_on_open_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path)
    hang(tmp_path / "warehouse" / "_warehouse_id")
    assert hung(client, redis_server, tmp_path, offer).text.startswith("opening")


@pytest.mark.claim("A warehouse or a session that hangs ends the attempt, not the worker.")
@pytest.mark.variant
def test_a_warehouse_that_hangs_on_reading_an_input_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path, inputs={"a": ["_staging/job/a/1-n-c"]})
    (tmp_path / "warehouse" / "_staging/job/a/1-n-c").mkdir(parents=True)
    hang(tmp_path / "warehouse" / "_staging/job/a/1-n-c/_marker.json")
    assert hung(client, redis_server, tmp_path, offer).text.startswith(
        "reading what the group needs"
    )


@pytest.mark.variant
def test_a_warehouse_that_hangs_on_writing_the_marker_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(
        client, tmp_path, "warehouse_hangs", given={"warehouse": str(tmp_path / "warehouse")}
    )
    assert hung(client, redis_server, tmp_path, offer).text.startswith("writing the marker")


@pytest.mark.variant
def test_a_warehouse_that_hangs_after_a_failure_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    given = {"warehouse": str(tmp_path / "warehouse"), "then": "fail"}
    offer = make_offer(client, tmp_path, "warehouse_hangs", given=given)
    said = hung(client, redis_server, tmp_path, offer).text
    assert said.startswith(
        "looking, after it failed with UNRECOVERABLE (no use trying again), for the warehouse "
    )


def test_a_log_that_hangs_while_a_failure_is_written_does_not_hide_the_failure(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path, "boom")
    with single_runner(
        redis_server.url, tmp_path, offer, prepared=LOG_THAT_HANGS, environ=SOON
    ) as runner:
        failure = fleet.outcome(client, offer, 60).failure
        assert runner.said() == ["replaced", "failed APPLIED"]
    assert failure is not None
    assert failure.code == "STEP_FAILED"
    assert "in boom" in failure.traceback


@pytest.mark.variant
def test_a_slow_but_responding_warehouse_does_not_count_as_hanging(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Many answers take longer together than one may: a join of a wide fork on an object store.

    A machine may be too busy to answer in time. Then the runner is killed rightly, and the next one
    has twice the time.
    """
    folders = [f"_staging/job/a/{n}-n-c" for n in range(1, 21)]
    files = Files(str(tmp_path / "warehouse"))
    for folder in folders:
        write_marker(files, folder, Marker(f"job/a/{folder}", "f", {}, {}, {}, 0.0))
    for number in itertools.count(1):
        timeout, answers = 2**number, tmp_path / f"answers{number}"
        answers.touch()
        offer = make_offer(
            client, tmp_path, inputs={"a": folders}, epoch=number, nonce=f"n{number}"
        )
        slow = f"""
import time
from unstuck.tasks.warehouse import files
read = files._read_local
def slowly(path):
    time.sleep({timeout * 0.075})
    with open({str(answers)!r}, "a") as file:
        file.write(f"{{time.monotonic()}}\\n")
    return read(path)
files._read_local = slowly
"""
        environ = {"UNSTUCK_WAREHOUSE_TIMEOUT": f"{timeout}s"}
        with single_runner(
            redis_server.url, tmp_path, offer, prepared=slow, environ=environ
        ) as runner:
            killed = runner.process.wait() < 0
            times = [*map(float, answers.read_text().split()), time.monotonic()]
            if not killed:
                assert runner.said() == ["succeeded APPLIED"]
                assert times[-2] - times[0] > timeout, "longer together than one answer may take"
                return
        longest = max(
            (after - before for before, after in itertools.pairwise(times)), default=math.inf
        )
        assert longest > timeout / 2, (
            f"killed for {timeout} s without an answer; there were none for {longest:.1f} s"
        )


def with_session(store: redis.Redis, folder: Path, step: str) -> Offer:
    spec = {"name": "g", "retry": {"max": 0}, "steps": [{"python": f"fleet_steps:{step}"}]}
    return fleet.make_offer(store, folder / "warehouse", "job", spec, send=False)


def log_of(folder: Path) -> str:
    (log,) = (folder / "warehouse").glob("_staging/job/job.logs/g.*.log")
    return log.read_text()


@pytest.mark.claim("A warehouse or a session that hangs ends the attempt, not the worker.")
@pytest.mark.variant
@pytest.mark.parametrize(
    ("step", "said"), [("my_pid", []), ("never", ["UNRECOVERABLE", "no use trying again"])]
)
def test_a_session_that_cannot_be_closed_keeps_the_outcome_and_ends_its_runner(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, step: str, said: Sequence[str]
) -> None:
    offer = with_session(client, tmp_path, step)
    environ = {"UNSTUCK_SESSION_TIMEOUT": TIMEOUT}
    with single_runner(
        redis_server.url, tmp_path, offer, prepared=CANNOT_BE_LEFT, environ=environ
    ) as runner:
        outcome = fleet.outcome(client, offer, 60)
        assert runner.process.wait() < 0, "it was killed"
    assert outcome.kind is (OutcomeKind.FAILED if said else OutcomeKind.SUCCEEDED)
    failure = outcome.failure
    assert ([] if failure is None else [failure.code, failure.text]) == said
    assert [one["kind"] for one in fleet.reports(client)] == ["claimed", outcome.kind], (
        "its watchdog says no more"
    )
    log = log_of(tmp_path)
    assert "was killed: leaving the Spark session on " in log
    assert ("in never" in log) == (step == "never"), "the step's own traceback is for people to see"


@pytest.mark.variant
def test_closing_a_session_may_take_longer_than_the_grace_within_its_own_limit(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = with_session(client, tmp_path, "my_pid")
    slow = DRIVER.replace("{leave}", "time.sleep(1.5)")
    with single_runner(redis_server.url, tmp_path, offer, prepared=slow) as runner:
        assert runner.said() == ["succeeded APPLIED"]


def test_an_error_while_closing_the_session_does_not_end_the_runner_or_its_task(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = with_session(client, tmp_path, "my_pid")
    broken = DRIVER.replace("{leave}", "raise SystemExit('the JVM has died')")
    broken += "runner.replace = lambda: print('replaced')"
    with single_runner(redis_server.url, tmp_path, offer, prepared=broken) as runner:
        assert runner.said() == ["replaced", "succeeded APPLIED"]
    assert "the JVM has died" in log_of(tmp_path)
