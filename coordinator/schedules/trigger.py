"""The ticks of a schedule: UTC instants that follow from its trigger alone, on every host alike.

Pure.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cronsim import CronSim

from unstuck.coordinator.spec.schedule_spec import ScheduleSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPANS = tuple(timedelta(minutes=8**n) for n in range(10))  # up to 255 years


def next_tick(schedule: ScheduleSpec, after: datetime) -> datetime | None:
    """Return the first tick later than ``after``, in UTC; None if the trigger has no further tick.

    Args:
        after: an aware time of any zone.
    """
    return next(_ticks(schedule, after.astimezone(UTC)), None)


def ticks(schedule: ScheduleSpec, after: datetime, to: datetime) -> Iterator[datetime]:
    """Yield the ticks later than ``after`` and not later than ``to``, in order."""
    for tick in _ticks(schedule, after.astimezone(UTC)):
        if tick > to:
            return
        yield tick


def previous_tick(schedule: ScheduleSpec, before: datetime) -> datetime | None:
    """Return the last tick earlier than ``before``; None if the trigger has none."""
    end = before.astimezone(UTC) - timedelta(microseconds=1)
    if schedule.every is not None:
        latest = end
        if schedule.until is not None:
            latest = min(end, schedule.until - timedelta(microseconds=1))
        every = timedelta(seconds=schedule.every)
        return _EPOCH + (latest - _EPOCH) // every * every
    # Each span is eight times as long as the one before, which had no tick: few ticks are read.
    for span in _SPANS:
        if last := deque(ticks(schedule, end - span, end), maxlen=1):
            return last[0]
    return None


def start_delay(schedule: ScheduleSpec, name: str) -> timedelta:
    """Return how long after its tick each run of the schedule ``name`` begins.

    The delay is the same on every host and day.
    """
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return timedelta(seconds=share * schedule.jitter)


def _ticks(schedule: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    instants: Iterator[datetime] = iter(())
    if schedule.cron is not None:
        instants = _of_cron(schedule, schedule.cron, after)
    elif schedule.every is not None:
        instants = _of_distance(timedelta(seconds=schedule.every), after)
    for tick in instants:
        if schedule.until is not None and tick >= schedule.until:
            return
        yield tick


def _of_distance(every: timedelta, after: datetime) -> Iterator[datetime]:
    # Not from the time at which the schedule was set: the ticks stay the same when the store is
    # lost.
    count = (after - _EPOCH) // every
    while True:
        count += 1
        yield _EPOCH + count * every


def _of_cron(schedule: ScheduleSpec, cron: str, after: datetime) -> Iterator[datetime]:
    zone = schedule.time_zone
    local = after.astimezone(zone)
    clock = CronSim(cron, local)
    if len(clock.hours) < 24:
        # Hours that are named are those of the clock on the wall. Where the clock is set back, the
        # first of two counts; where it is set forward, the first instant behind the gap. CronSim
        # would do so for fixed minutes alone.
        clock = CronSim(cron, local.replace(tzinfo=None))
        clock.fixup_tz = zone
    last = after
    for tick in clock:
        instant = tick.astimezone(UTC)
        # Two times in one gap are one instant, and the second hour of a fold is over when its first
        # was a tick.
        if instant > last:
            last = instant
            yield instant
