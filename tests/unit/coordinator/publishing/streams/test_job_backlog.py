"""The age of a backlog: by the times of files, and without them by what earlier looks have seen."""

from __future__ import annotations

from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.publishing.streams.job_backlog import backlog_of
from unstuck.tasks.streams.arrived.stream_look import Look


def after(*looks: Look) -> Backlog:
    """The backlog after these looks, of which there is one in each minute."""
    found: Backlog | None = None
    for minute, look in enumerate(looks):
        found = backlog_of({"s": look}, found, 1000.0 + 60 * minute)
    assert found is not None
    return found


def topic(at: int, end: int) -> Look:
    return Look(new=end - at, looked=1, lag={0: end - at}, next={0: at})


def test_the_age_of_the_oldest_unread_file_counts_from_its_modification() -> None:
    assert after(Look(new=2, bytes=4, oldest=900.0, looked=5)).since == 900.0
    assert after(Look(new=2, oldest=900.0, looked=5), Look(looked=5)).since == 0.0


def test_the_age_of_an_offset_counts_from_its_first_sighting_until_it_is_read() -> None:
    assert after(topic(0, 0), topic(0, 10)).since == 1060.0
    assert after(topic(0, 10), topic(0, 20), topic(5, 30)).since == 1000.0, "its runs are too slow"
    assert after(topic(0, 10), topic(10, 30)).since == 1060.0, "all that the first look saw is read"
    assert after(topic(0, 10), topic(10, 10)).since == 0.0


def test_offsets_wait_until_the_position_of_each_partition_passes_them() -> None:
    both = Look(new=20, looked=2, lag={0: 10, 1: 10}, next={0: 0, 1: 0})
    one_left = Look(new=15, looked=2, lag={0: 10, 1: 5}, next={0: 10, 1: 5})
    none_left = Look(new=20, looked=2, lag={0: 10, 1: 10}, next={0: 10, 1: 10})
    assert after(both, one_left).since == 1000.0
    assert after(both, one_left, none_left).since == 1120.0


def test_the_age_of_an_object_without_a_time_counts_from_its_first_sighting() -> None:
    assert after(Look(new=1, looked=3), Look(new=2, looked=4)).since == 1000.0
    assert after(Look(new=1, looked=3), Look(new=1, looked=4)).since == 1060.0


def test_an_unanswered_backlog_check_does_not_mean_that_everything_is_read() -> None:
    waits = Look(new=2, bytes=4, oldest=900.0, looked=5)
    assert after(waits, Look(trouble="the folder is gone")).since == 900.0
    assert after(waits, Look(reachable=False), Look(trouble="gone"), Look(looked=5)).since == 0.0


def test_a_backlog_is_described_by_partition() -> None:
    (stream,) = after(
        Look(new=30, looked=3, lag={0: 10, 1: 0, 2: 20}, next={0: 5, 1: 7, 2: 0})
    ).streams.values()
    assert (
        stream.describe(1060.0)
        == "30 unread offsets, partition 0: 10, partition 2: 20, the oldest for 1m00s"
    )
    assert (
        stream.position
        == "partition 0 at offset 5, partition 1 at offset 7, partition 2 at offset 0"
    )
    assert Backlog.from_json(Backlog(1.0, {"s": stream}).to_json()).streams == {"s": stream}
