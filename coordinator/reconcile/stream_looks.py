"""Reads the backlogs of the streams of schedules in the background, from time to time."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import redis

from unstuck.coordinator.errors import WarehouseSilent
from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.streams.job_backlog import BacklogLooks, backlog_of
from unstuck.coordinator.schedules.tick_params import run_spec
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.tasks.errors import SourceUnavailable, UnstuckError
from unstuck.tasks.warehouse.log import Warehouse

log = logging.getLogger(__name__)
# Seconds for a look at the streams of a job, some of which may be on a dead mount.
LOOK_WITHIN = 30.0
LOOK_EVERY = 60.0  # seconds between looks at the streams of a schedule


@lru_cache(1024)
def reads_streams(spec: str) -> bool:
    """Return whether a job spec, as JSON, reads streams."""
    groups = json.loads(spec).get("groups") or []
    inputs = (source for group in groups for source in (group.get("inputs") or {}).values())
    return any(isinstance(source, dict) and "stream" in source for source in inputs)


class StreamLooks:
    """Reads backlogs of streams.

    One object for the life of a process, so that an idle stream costs little.
    """

    def __init__(
        self,
        schedules: ScheduleStore,
        background: Background,
        concern: Callable[[ScheduleRecord], bool],
    ) -> None:
        """Create the object.

        Args:
            concern: returns whether a rule concerns the backlog of a schedule, which is then
                decided after each look.
        """
        self._concern = concern
        self._schedules, self._background = schedules, background
        self._looks, self._breaker = BacklogLooks(), CircuitBreaker(LOOK_WITHIN)

    def begin(self, record: ScheduleRecord, last: Backlog | None, now: float) -> None:
        """Read the backlog in the background, unless the ``last`` read was recent."""
        if last is not None and now - LOOK_EVERY < last.at <= now:
            return

        def work(alive: object) -> None:
            try:
                tick = datetime.datetime.fromtimestamp(now, datetime.UTC)
                self.look(
                    record, run_spec(JobSpec.from_values(json.loads(record.spec), None), tick)
                )
            except (SpecError, UnstuckError, OSError, redis.RedisError) as error:
                log.warning(
                    "the streams of schedule %s could not be checked: %s", record.name, error
                )

        self._background((record.name, "streams"), place_of(record), work)

    def look(self, record: ScheduleRecord, spec: JobSpec) -> Backlog:
        """Read and store the backlog now.

        Raises:
            SourceUnavailable: there was no answer in time.
            LogBroken, WarehouseNewer, OSError: the warehouse cannot be read.
        """
        place, last = Warehouse(record.warehouse), self._schedules.backlogs([record.name])[0]
        # Before the look: input that a run reads meanwhile may count as unread.
        now = self._schedules.now()
        try:
            looks = self._breaker.call(record.name, "", lambda: self._looks.look(spec, place))
        except WarehouseSilent:
            text = (
                f"a look at its streams was not answered within {LOOK_WITHIN:.0f}s; see "
                "whether "
                "they are mounted"
            )
            streams = {"its streams": StreamBacklog()} if last is None else last.streams
            troubled = {
                address: replace(stream, trouble=text) for address, stream in streams.items()
            }
            self._schedules.note_backlog(
                record.name, Backlog(now, troubled), notify=self._concern(record)
            )
            raise SourceUnavailable(text) from None
        backlog = backlog_of(looks, last, now)
        self._schedules.note_backlog(record.name, backlog, notify=self._concern(record))
        return backlog


def place_of(record: ScheduleRecord) -> str:
    """Return the place under which `Background` reads the backlog of a schedule.

    Other work of the same warehouse has another place, so it does not wait for slow reads.
    """
    return f"{record.warehouse} and its streams"
