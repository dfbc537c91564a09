"""Tests with readers that poll fail if the readers looked seldom, and not if they were given no processor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import looks as module
from tests.support.looks import DENSE, Looks
from tests.support.machine import SLOWNESS


def looked(monkeypatch: pytest.MonkeyPatch, times: list[float], waits: list[float], contended: float = 0.0) -> Looks:
    """What is noted at ``times`` by a thread that had waited so long for a processor by then.

    ``contended``: the share of the time in which some process had.
    """
    made = Looks()
    for at, waited in zip(times, waits, strict=True):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda at=at: at))
        monkeypatch.setattr(module, "contended", lambda at=at: 5.0 + contended * at)
        monkeypatch.setattr(module, "waited", lambda waited=waited: waited)
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


@pytest.mark.parametrize(
    ("every", "busy", "ends"),
    [
        (0.004, False, "passes"),
        (0.004, True, "passes"),
        (0.02, False, "fails"),
        (0.02, True, "is skipped"),
        (2.0, True, "fails"),  # before the first look: nobody looked then
    ],
)
@pytest.mark.parametrize("when", ["then", "now", "when the tests began"])
def test_too_few_looks_fail_a_test_on_an_idle_machine_and_have_it_skipped_with_the_reason_on_a_busy_one(
    monkeypatch: pytest.MonkeyPatch, every: float, busy: bool, ends: str, when: str
) -> None:
    share = 0.8 if busy and when == "then" else 0.2
    made = looked(monkeypatch, [10 + every * n for n in range(600)], [0.0] * 600, share)
    monkeypatch.setenv(SLOWNESS, str(2.0 if busy and when == "when the tests began" else 1.0))
    monkeypatch.setattr(module, "slowness", lambda: 2.0 if busy and when == "now" else 1.0)
    window = (10.5, 11.5) if every < 1 else (9.0, 11.5)
    ended, said = "passes", ""
    try:
        made.require(*window, "readers")
    except AssertionError:
        ended = "fails"
    except pytest.skip.Exception as skipped:
        ended, said = "is skipped", str(skipped)
    assert ended == ends
    if ended == "is skipped":
        assert "readers looked 50 times a second, and 100 are promised" in said
        assert ("for 80% of that time some process waited" if when == "then" else "2.0 times as slow") in said
