"""Tests with readers that poll fail if the readers looked seldom, and not if they were given no processor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import looks as module
from tests.support.looks import DENSE, Looks
from tests.support.machine import SLOWNESS


def looked(monkeypatch: pytest.MonkeyPatch, times: list[float], waits: list[float]) -> Looks:
    """What is noted at ``times`` by a thread that had waited so long for a processor by then."""
    made = Looks()
    for at, waited in zip(times, waits, strict=True):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda at=at: at))
        monkeypatch.setattr(module, "_waited", lambda waited=waited: waited)
        made.note()
    return made


@pytest.mark.parametrize(
    ("every", "waits", "dense"),
    [(0.004, 0.0, True), (0.02, 0.0, False), (0.02, 0.015, True), (0.02, 0.005, False)],
    ids=["often", "seldom", "seldom, for want of a processor", "seldom, and the processor was there"],
)
def test_looks_are_counted_by_the_time_in_which_the_reader_could_run(
    monkeypatch: pytest.MonkeyPatch, every: float, waits: float, dense: bool
) -> None:
    times = [10 + every * n for n in range(500)]
    made = looked(monkeypatch, times, [waits * n for n in range(500)])
    assert (made.rate(10.5, 11.5) >= DENSE) is dense
    assert made.rate(9.0, 11.5) == 0, "nobody had looked before"
    assert made.rate(10.5, 100.0) == 0, "nobody has looked afterwards"
    assert made.last == times[-1]


@pytest.mark.parametrize(("every", "slow", "enough"), [(0.02, 1.0, False), (0.02, 2.0, True), (2.0, 2.0, False)])
def test_a_busy_machine_owes_a_look_and_an_idle_one_a_hundred_a_second(
    monkeypatch: pytest.MonkeyPatch, every: float, slow: float, enough: bool
) -> None:
    made = looked(monkeypatch, [10 + every * n for n in range(100)], [0.0] * 100)
    monkeypatch.setenv(SLOWNESS, str(slow))
    monkeypatch.setattr(module, "slowness", lambda: 1.0)
    window = (10.5, 11.5) if every < 1 else (9.0, 11.5)  # before the first look: nobody looked then
    made.settle(*window)
    assert (made.rate(*window) >= made.wanted) is enough
