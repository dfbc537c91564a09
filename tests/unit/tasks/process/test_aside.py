"""A log whose reader may stop: who writes to it never waits, and loses no more than it must."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.machine import Limit
from tests.support.servers import wait_until
from unstuck.tasks.process.deadlines import MOST, WITHIN, AsideHandler


@dataclass
class Log:
    """A log that is written into a pipe."""

    log: logging.Logger
    handler: AsideHandler
    reading: int

    def lines(self) -> list[str]:
        self.handler.flush()
        return os.read(self.reading, 1 << 16).decode().splitlines()


@pytest.fixture
def piped() -> Iterator[Log]:
    reading, writing = os.pipe()
    handler = AsideHandler(writing)
    log = logging.Logger("aside")
    log.addHandler(handler)
    yield Log(log, handler, reading)
    os.close(reading)  # whoever is still writing is told so
    # Its number may be given to another file as soon as it is closed, and must not be written to then.
    wait_until(lambda: not handler._lines.unfinished_tasks, 30, "all that was left to be given up")
    os.close(writing)


def test_lines_are_written_in_order_and_waited_for(piped: Log) -> None:
    for n in range(100):
        piped.log.warning("line %d", n)
    assert piped.lines() == [f"line {n}" for n in range(100)]


def test_a_line_that_cannot_be_made_is_said_to_be_one_and_the_next_is_written(piped: Log) -> None:
    piped.log.warning("too %s %s", "few")
    piped.log.warning("next")
    bad, following = piped.lines()
    assert "'too %s %s' cannot be written: TypeError" in bad
    assert following == "next"


def test_nobody_waits_for_a_log_that_is_not_read(piped: Log) -> None:
    limit = Limit(WITHIN + 5.0)
    for _ in range(2 * MOST):
        piped.log.warning("x" * 1000)
    piped.handler.flush()
    assert limit.kept, limit
