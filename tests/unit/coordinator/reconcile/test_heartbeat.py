"""Since when the oldest message of a queue lies there, as a coordinator remembers it."""

from __future__ import annotations

from unstuck.coordinator.reconcile.queue_age import QueueAges


def test_the_oldest_message_lies_since_it_was_first_seen_as_the_oldest() -> None:
    standing = QueueAges().after({"light": "m1", "big": "b1"}, 100.0).after({"light": "m1", "big": "b2"}, 160.0)
    assert standing.since == {"light": 100.0, "big": 160.0}, "somebody takes from big, however long it is"


def test_a_queue_that_was_seen_empty_begins_anew() -> None:
    assert QueueAges().after({"light": "m1"}, 100.0).after({}, 110.0).since == {}
    assert QueueAges().after({"light": "m1"}, 100.0).after({}, 110.0).after({"light": "m1"}, 120.0).since == {
        "light": 120
    }


def test_a_clock_that_was_set_back_does_not_put_it_into_the_future() -> None:
    assert QueueAges().after({"light": "m1"}, 100.0).after({"light": "m1"}, 40.0).since == {"light": 40.0}
