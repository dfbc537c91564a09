"""Since when the oldest message of a queue lies there, as a coordinator remembers it."""

from __future__ import annotations

from unstuck.coordinator.reconcile.heartbeat import QueueAges, ages_after


def since(*looks: tuple[dict[str, str], float]) -> dict[str, float]:
    known: QueueAges = {}
    for oldest, at in looks:
        known = ages_after(known, oldest, at)
    return {queue: age for queue, (_, age) in known.items()}


def test_the_age_of_the_oldest_message_counts_from_its_first_sighting() -> None:
    found = since(({"light": "m1", "big": "b1"}, 100.0), ({"light": "m1", "big": "b2"}, 160.0))
    assert found == {"light": 100.0, "big": 160.0}, "somebody takes from big, however long it is"


def test_the_age_restarts_after_a_queue_was_empty() -> None:
    assert since(({"light": "m1"}, 100.0), ({}, 110.0)) == {}
    assert since(({"light": "m1"}, 100.0), ({}, 110.0), ({"light": "m1"}, 120.0)) == {
        "light": 120.0
    }


def test_a_clock_that_was_set_back_puts_no_age_into_the_future() -> None:
    assert since(({"light": "m1"}, 100.0), ({"light": "m1"}, 40.0)) == {"light": 40.0}
