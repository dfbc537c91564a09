"""The deadlines of ``late``, and the ticks that count for each (pure).

They are ticks of a cron expression, so they come once on the nights when clocks change, on every
host alike.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import lru_cache

from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.trigger import next_tick, previous_tick
from unstuck.coordinator.spec.notify_spec import Late
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec

_EVERY_DAY = frozenset(range(7))
_JUST = datetime.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The deadlines around one moment, in Unix seconds.

    Attributes:
        at: the last deadline; 0 if there was none.
        counts_from: runs of ticks after this time count for the deadline.
        asks_for: the last tick before the deadline; without a clock, the deadline itself.
        next_at: the next deadline.
    """

    at: float
    counts_from: float
    asks_for: float
    next_at: float


def deadlines(late: Late, zone: str, now: float, policy: str = "{}") -> Deadlines:
    """Return the deadlines of ``late`` at ``now``.

    Runs of the day before a deadline count for it. If ``policy`` has no tick on that day, its last
    tick counts.

    Args:
        zone: time zone if ``late`` names none.
        policy: policy of a schedule, as JSON.
    """
    of_days = _clock(late, zone)
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    last, following = previous_tick(of_days, moment + _JUST), next_tick(of_days, moment)
    next_at = following.timestamp() if following is not None else 0.0
    if last is None:
        return Deadlines(0.0, 0.0, 0.0, next_at)
    return Deadlines(last.timestamp(), *_asked(late, zone, last, policy), next_at)


def zone_name(late: Late, zone: str) -> str:
    """Return the zone of the local time of ``late``."""
    return late.zone or zone


@lru_cache(4096)
def _asked(late: Late, zone: str, last: datetime.datetime, policy: str) -> tuple[float, float]:
    """Return from when on runs count for the deadline ``last``, and the last tick before it."""
    daily = _clock(Late(late.hour, late.minute, _EVERY_DAY, late.zone), zone)
    day_before = previous_tick(daily, last) or last - datetime.timedelta(days=1)
    tick = previous_tick(policy_of(policy), last)
    begins = day_before if tick is None or tick > day_before else tick - _JUST
    return begins.timestamp(), (tick or last).timestamp()


@lru_cache(1024)
def _clock(late: Late, zone: str) -> ScheduleSpec:
    # Monday is 0 here, and 1 in cron.
    days = "*" if late.days == _EVERY_DAY else ",".join(str(day + 1) for day in sorted(late.days))
    return ScheduleSpec(cron=f"{late.minute} {late.hour} * * {days}", zone=zone_name(late, zone))
