"""Promise 4: of a step that runs long, `why` says where it stands."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.coordinator import Coordinator, group
from tests.support.programs.runner import SingleRunner, single_runner
from tests.support.servers import wait_until
from tests.support.steps import hanging_steps
from unstuck.cli.jobs.look import stacks_of
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.explain.stack_words import stage_text
from unstuck.documents.json_text import plain
from unstuck.tasks.process.tree import is_watchdog
from unstuck.tasks.protocol.step_stack import Frame, SparkStage, StepStack
from unstuck.tasks.transport.stack_store import StackStore
from unstuck.views.jobs.job_lines import lines_of

STEPS = Path(hanging_steps.__file__)
EVERY = {"UNSTUCK_STACK_EVERY": "200ms", "PW": "hunter2-and-more"}


class Hung:
    """A job whose only group hangs in a real runner."""

    def __init__(self, coordinator: Coordinator, job: str, runner: SingleRunner) -> None:
        self.coordinator, self.job, self.runner = coordinator, job, runner

    def why(self) -> Explanation:
        self.coordinator.read()
        return {one.subject: one for one in self.coordinator.client.explain(self.job)}["g"]

    def stack(self, fits: Callable[[StepStack], bool] = lambda stack: True) -> StepStack:
        """What `why` shows of the step, once that ``fits``."""
        return wait_until(
            lambda: (one := self.why().stack) and fits(one) and one, 60, "a stack to be shown"
        )

    def standing(self) -> StepStack:
        """What `why` shows once the step stands still: two looks have found the same."""
        return self.stack(
            lambda stack: stack.since < stack.at and any(one.own for one in stack.frames)
        )

    def frames(self) -> list[Frame]:
        return list(self.standing().frames)


@pytest.fixture
def hung(coordinator: Coordinator, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def hang(
        step: str,
        *,
        timeout: str | None = None,
        environ: dict[str, str] | None = None,
        **params: Any,
    ) -> Iterator[Hung]:
        steps = [{"python": f"hanging_steps:{step}", "params": params}]
        job = coordinator.submit(group("g", steps=steps, spark=False, timeout=timeout))
        coordinator.read()
        url = coordinator.settings.redis_url
        with single_runner(
            url, tmp_path, *coordinator.sent, environ={**EVERY, **(environ or {})}
        ) as runner:
            yield Hung(coordinator, job, runner)

    return hang


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(STEPS.read_text().splitlines(), 1) if text in line)


@pytest.mark.claim("`unstuck why` shows the line of code that a long step is executing.")
def test_the_line_of_a_step_waiting_for_a_lock_is_shown_with_its_caller(hung: Any) -> None:
    with hung("waits_for_a_lock") as job:
        outer, inner = job.frames()
        assert (outer.function, outer.source, outer.own) == (
            "waits_for_a_lock",
            "taken_twice(lock)",
            True,
        )
        assert inner.source == "lock.acquire()  # the line that waits"
        assert (Path(inner.file).name, inner.line) == (STEPS.name, line_of("the line that waits"))
        why = job.why()
        assert f"; its step stands at {inner} for " in why.what
        told = plain(why)["stack"]["frames"][1]
        assert (told["line"], told["source"]) == (inner.line, inner.source)
        view = job.coordinator.client.show(job.job, why=True)
        assert f"at hanging_steps.py:{inner.line} for " in next(
            one.detail for one in lines_of(view, view.at)
        )
        (stack,) = stacks_of(view)
        assert f"\n  {outer}: taken_twice(lock)\n  {inner}: lock.acquire()" in stack.plain


@pytest.mark.claim("`unstuck why` shows the line of code that a long step is executing.")
def test_the_blocking_call_of_a_step_reading_a_socket_is_shown(hung: Any) -> None:
    with hung("reads_a_socket") as job:
        own, last = job.frames()
        assert own.source == "line.makefile().readline()  # nobody ever answers"
        assert (last.file, last.function, last.own) == ("socket.py", "readinto", False)


@pytest.mark.claim("`unstuck why` shows the line of code that a long step is executing.")
def test_a_step_in_a_c_call_that_holds_the_gil_is_shown(hung: Any) -> None:
    with hung("keeps_the_gil") as job:
        own, last = job.frames()
        assert (own.line, own.function) == (
            line_of("one call in C that holds the GIL"),
            "keeps_the_gil",
        )
        assert (last.file, last.function) == ("re/__init__.py", "match")


def test_the_time_a_step_spent_at_its_current_lines_is_shown(hung: Any, tmp_path: Path) -> None:
    passed = tmp_path / "passed"
    with hung("goes_on", passed=str(passed)) as job:
        first = job.stack(lambda stack: stack.frames[0].line == line_of("gone.wait(0.05)"))
        passed.touch()
        moved = job.stack(lambda stack: stack.frames[0].line == line_of("gone.wait()"))
        assert moved.since > first.at
        later = job.stack(lambda stack: stack.at > moved.at)
        assert later.since == pytest.approx(moved.since, abs=(later.at - moved.at) / 2), (
            "it has not moved since"
        )


def test_a_timeout_failure_names_the_line_of_the_step(hung: Any) -> None:
    """Nobody may have looked while it hung. The step is told to end, does not, and is killed."""
    with hung("waits_for_a_lock", timeout="4s", environ={"UNSTUCK_CANCEL_GRACE": "1s"}) as job:
        wait_until(lambda: job.why().state == "BACKOFF", 60, "the timeout to be taken in")
        where = f"{STEPS.name}:{line_of('the line that waits')} in taken_twice"
        assert re.search(
            rf"longer than its timeout of 4s; its step was last seen at \S*{where}; raise",
            job.why().what,
        )


@pytest.mark.variant
def test_a_new_watchdog_shows_the_step_after_one_was_killed_while_sampling(
    hung: Any,
) -> None:
    with hung("waits_for_a_lock") as job:
        for _ in range(3):
            before = job.standing()
            watchdog = next(
                one
                for one in psutil.Process(job.runner.process.pid).children()
                if is_watchdog(one.pid)
            )
            watchdog.kill()
            after = job.stack(lambda stack: stack.at > before.at)  # noqa: B023
            assert after.frames == before.frames
        assert job.why().state == "RUNNING"


def test_the_stack_of_a_dead_runner_is_not_shown_for_the_next_attempt(hung: Any) -> None:
    with hung("waits_for_a_lock") as job:
        job.standing()
        os.kill(job.runner.process.pid, signal.SIGKILL)
        wait_until(lambda: job.why().state == "QUEUED", 60, "the loss to be taken in")
        assert job.why().stack is None
        (offer,) = job.coordinator.sent
        job.coordinator.claim(offer)
        assert job.coordinator.redis.hlen(job.coordinator.keys.of(job.job).stacks) == 1, (
            "that of before still stands"
        )
        assert (job.why().state, job.why().stack) == ("RUNNING", None)


def test_a_secret_in_a_file_name_is_not_shown(hung: Any) -> None:
    with hung("with_a_secret", password="${secret:PW}") as job:
        assert [frame.file for frame in job.frames() if "etc" in frame.file] == [
            "/etc/${secret:PW}/file.py"
        ]
        (text,) = job.coordinator.redis.hvals(job.coordinator.keys.of(job.job).stacks)
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (
            {"done": 198, "running": 2, "longest": 840.0, "host": "h3"},
            "198 of 200 tasks done, 2 run, the longest for 14m00s on h3",
        ),
        ({"done": 0, "running": 0}, "0 of 200 tasks done, none runs"),
        ({"done": 5, "running": 1, "failed": 3}, "5 of 200 tasks done, 1 runs, 3 failed"),
    ],
)
def test_a_spark_stage_is_shown_with_its_tasks(stage: dict[str, Any], told: str) -> None:
    one = SparkStage(id=12, name="count at etl.py:7", tasks=200, **{"failed": 0, **stage})
    assert stage_text(one) == f"Spark stage 12 (count at etl.py:7): {told}"


def test_after_a_minute_at_the_same_lines_a_restart_of_the_attempt_is_suggested(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("g"))
    coordinator.read()
    (offer,) = coordinator.sent
    coordinator.claim(offer)
    token = offer.held_by("runner1")
    coordinator.read()
    store, frames = (
        StackStore(coordinator.redis, coordinator.keys),
        (Frame("etl.py", 7, "load", own=True),),
    )
    for stood, offered in ((50.0, False), (70.0, True)):
        store.note(token, frames, "", age=1.0, stood=stood, keep=60.0)
        why = next(one for one in coordinator.client.explain(job) if one.subject == "g")
        assert (
            f"its step stands at etl.py:7 in load for {'50s' if stood < 60 else '1m10s'}"
            in why.what
        )
        assert (f"unstuck pause {job} --now" in why.help) is offered
    store.note(token, frames, "", age=30.0, stood=70.0, keep=60.0)
    assert re.search(
        r"for 1m10s, as seen 3\ds ago",
        coordinator.client.show(job, why=True).explanations["g"].what,
    )
    assert coordinator.redis.ttl(coordinator.keys.of(job).stacks) > 0
