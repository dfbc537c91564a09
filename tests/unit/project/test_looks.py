"""Tests with readers that poll fail if the readers looked seldom, and not if they were given no processor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import looks as module
from tests.support.looks import DENSE, Looks


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
