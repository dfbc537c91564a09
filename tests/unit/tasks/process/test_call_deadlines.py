"""Calls and logs that may hang for ever: nobody waits for them longer than a deadline."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.machine import Limit
from tests.support.servers import wait_until
from unstuck.tasks.process.call_deadlines import (
    LOG_TIMEOUT,
    MAX_WAITING,
    NonBlockingHandler,
    call_in_thread,
    run_with_deadline,
)


def test_a_hanging_call_is_abandoned_and_may_still_end() -> None:
    may_end = threading.Event()
    ended: list[str] = []
    assert not run_with_deadline(lambda: (may_end.wait(), ended.append("late")), seconds=0.01)
    may_end.set()
    wait_until(lambda: ended == ["late"], 30, "the call to end")
    assert run_with_deadline(ended.append, "in time", seconds=30)
    assert ended == ["late", "in time"]


def test_an_error_of_a_call_is_printed_and_does_not_propagate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_with_deadline(int, "no number", seconds=30)
    assert "ValueError: invalid literal" in capsys.readouterr().err


def test_a_call_runs_in_this_thread_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    assert run_with_deadline(lambda: threads.append(threading.current_thread().name))
    assert threads == [threading.current_thread().name]


def test_the_result_or_error_of_a_call_is_in_its_future() -> None:
    assert call_in_thread(lambda: 7, "asks").result() == 7
    error = call_in_thread(lambda: int("no number"), "asks").exception()
    assert isinstance(error, ValueError)


@dataclass
class PipedLog:
    """A log that is written into a pipe."""

    log: logging.Logger
    handler: NonBlockingHandler
    reading: int

    def lines(self) -> list[str]:
        self.handler.flush()
        return os.read(self.reading, 1 << 16).decode().splitlines()


@pytest.fixture
def piped() -> Iterator[PipedLog]:
    reading, writing = os.pipe()
    handler = NonBlockingHandler(writing)
    log = logging.Logger("piped")
    log.addHandler(handler)
    yield PipedLog(log, handler, reading)
    os.close(reading)  # whoever is still writing is told so
    # Its number may be given to another file as soon as it is closed, and must not be written to
    # then.
    wait_until(lambda: not handler.waiting, 30, "all that was left to be given up")
    os.close(writing)


def test_lines_are_written_in_order_and_awaited(piped: PipedLog) -> None:
    for n in range(100):
        piped.log.warning("line %d", n)
    assert piped.lines() == [f"line {n}" for n in range(100)]


def test_an_unformattable_line_is_reported_and_the_next_line_is_written(piped: PipedLog) -> None:
    piped.log.warning("too %s %s", "few")
    piped.log.warning("next")
    bad, following = piped.lines()
    assert "'too %s %s' cannot be written: TypeError" in bad
    assert following == "next"


def test_a_blocked_log_delays_no_process(piped: PipedLog) -> None:
    limit = Limit(LOG_TIMEOUT + 5.0)
    for _ in range(2 * MAX_WAITING):
        piped.log.warning("x" * 1000)
    piped.handler.flush()
    assert limit.kept, limit
