"""A log whose reader may stop: who writes to it never waits, and loses no more than it must."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

import pytest

from tasks.aside import MOST, WITHIN, AsideHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)  # whoever is still writing then is told so
    os.close(writing)


def a_log(writing: int) -> tuple[logging.Logger, AsideHandler]:
    handler = AsideHandler(writing)
    log = logging.Logger("aside")
    log.addHandler(handler)
    return log, handler


def test_lines_are_written_in_order_and_waited_for(pipe: tuple[int, int]) -> None:
    log, handler = a_log(pipe[1])
    for n in range(100):
        log.warning("line %d", n)
    handler.flush()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == [f"line {n}" for n in range(100)]


def test_a_line_that_cannot_be_made_is_said_to_be_one_and_the_next_is_written(pipe: tuple[int, int]) -> None:
    log, handler = a_log(pipe[1])
    log.warning("too %s %s", "few")
    log.warning("next")
    handler.flush()
    bad, following = os.read(pipe[0], 1 << 16).decode().splitlines()
    assert "'too %s %s' cannot be written: TypeError" in bad
    assert following == "next"


def test_nobody_waits_for_a_log_that_is_not_read(pipe: tuple[int, int]) -> None:
    log, handler = a_log(pipe[1])
    began = time.monotonic()
    for _ in range(2 * MOST):
        log.warning("x" * 1000)
    handler.flush()
    assert time.monotonic() - began < WITHIN + 5.0
