"""The inbox: the stream on which workers report, read at least once through a consumer group.

What cannot be applied is parked where people see it, never acked away: a report of an unknown job, one that cannot be
read. One that a newer release wrote waits on a stream of its own, for as long as it takes, until a coordinator that can
read it puts it back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from unstuck.coordinator.store.jobs import REPORT_GROUP
from unstuck.tasks.protocol import report
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lease import script

Fields = dict[str, str]
CONSUMER_SILENCE = 3600.0  # seconds; one that is alive asks at least once a second
DEAD_KEPT = 10_000  # parked reports, about; what waits for a newer coordinator has no bound
READMITTED_AT_ONCE = 500  # reports that come back in one step

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stream entry as it came. ``deliveries``: how often some consumer was handed it, this time included."""

    id: str
    fields: Fields
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class DeadReport:
    """A parked report: why it was parked, and what it said.

    Attributes:
        entry: its id on the report stream, which says when the worker sent it.
        deliveries: how often a coordinator was handed it before it was parked; 0 if that was not recorded.
        raw: what stands on the dead stream, as it stands.
    """

    id: str
    reason: str
    fields: Fields
    entry: str = ""
    deliveries: int = 0
    raw: Fields = field(default_factory=dict)


class Inbox:
    """The report stream, as one consumer sees it. ``client`` must decode responses and wait longer than ``block``."""

    def __init__(self, client: redis.Redis, keys: Keys, consumer: str) -> None:
        self._redis = client
        self._keys = keys
        self._consumer = consumer
        self._park = script(client, "unstuck.coordinator.store", "park")
        self._readmit = script(client, "unstuck.coordinator.store", "readmit")

    def open(self) -> None:
        """Make the stream and its consumer group if they are not there (also after a store came back empty).

        Then put back what waited for a release that reads what this one reads.
        """
        try:
            self._redis.xgroup_create(self._keys.reports, REPORT_GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self.readmit()

    def readmit(self) -> int:
        """Put reports back that an older coordinator left for one like this. Returns how many.

        Again now and then, since an older one may run beside us and leave more.
        """
        back = 0
        for version in range(2, report.SCHEMA_VERSION + 1):
            waiting = self._waiting_for(version)
            moved = [1]
            while any(moved):
                moved = self._readmit(
                    keys=[self._keys.reports, waiting, self._keys.dead, self._keys.counters],
                    args=[READMITTED_AT_ONCE, DEAD_KEPT, f"UNREADABLE: it stood in {waiting} and holds no report"],
                )
                back += int(moved[0])
        if back:
            log.info("%d reports that had waited for this release are read now", back)
        return back

    def _waiting_for(self, version: int) -> str:
        return self._keys.newer_reports(version)

    def read(self, count: int, block: float) -> list[Entry]:
        """New reports, waiting up to ``block`` seconds for the first."""
        answer = self._redis.xreadgroup(
            REPORT_GROUP, self._consumer, {self._keys.reports: ">"}, count=count, block=max(1, round(block * 1000))
        )
        if not answer:
            return []
        streams = cast(Any, answer)
        (batches,) = streams.values() if isinstance(streams, dict) else [streams[0][1]]
        if batches and isinstance(batches[0], list):
            (batches,) = batches
        return [Entry(entry_id, fields or {}) for entry_id, fields in batches]

    def claim_idle(self, idle: float, count: int) -> list[Entry]:
        """Reports that some consumer read and did not finish within ``idle`` seconds.

        Raises:
            redis.RedisError: the store is away, or refuses writes.
        """
        # A store whose memory is full gives reports out, and counts that, though none can be applied. It refuses this.
        self._redis.xgroup_createconsumer(self._keys.reports, REPORT_GROUP, self._consumer)
        answer = cast(
            Any,
            self._redis.xautoclaim(
                self._keys.reports, REPORT_GROUP, self._consumer, round(idle * 1000), "0-0", count=count
            ),
        )
        if not answer[1]:
            return []
        pending = self._redis.xpending_range(
            self._keys.reports, REPORT_GROUP, answer[1][0][0], answer[1][-1][0], count, self._consumer
        )
        times = {one["message_id"]: int(one["times_delivered"]) for one in pending}
        # Several of ours may lie between the first and the last: one that is not counted here counts as new.
        return [Entry(entry_id, fields or {}, times.get(entry_id, 1)) for entry_id, fields in answer[1]]

    def park(self, entries: Sequence[Entry], reason: str, counter: str) -> int:
        """Set reports aside with the reason, and ack them, in one step."""
        return self._aside(self._keys.dead, entries, reason, counter, DEAD_KEPT)

    def leave_for_newer(self, entries: Sequence[Entry], version: int) -> int:
        """Move reports of a newer schema to the stream of that version."""
        reason = f"schema version {version} is newer than this coordinator reads"
        return self._aside(self._waiting_for(version), entries, reason, "NEWER", 0)

    def _aside(self, target: str, entries: Sequence[Entry], reason: str, counter: str, kept: int) -> int:
        payload = json.dumps([{"id": entry.id, "fields": entry.fields} for entry in entries])
        return int(
            self._park(
                keys=[self._keys.reports, target, self._keys.counters],
                args=[REPORT_GROUP, counter, reason, payload, kept],
            )
        )

    def ack(self, entries: Sequence[Entry]) -> None:
        """Ack entries that only woke us."""
        if entries:
            self._redis.xack(self._keys.reports, REPORT_GROUP, *(entry.id for entry in entries))

    def trim(self) -> int:
        """Drop what every consumer has acked: by the oldest pending id, never by length. Returns how many."""
        self._forget_consumers()
        groups = self._redis.xinfo_groups(self._keys.reports)
        bounds = []
        for group in groups:
            pending = self._redis.xpending(self._keys.reports, group["name"])
            bounds.append(str(pending["min"] or group["last-delivered-id"]))
        if not bounds:
            return 0
        oldest = min(bounds, key=_id_order)
        return int(self._redis.xtrim(self._keys.reports, minid=oldest, approximate=False))

    def _forget_consumers(self) -> None:
        """Drop consumers of processes that are gone: silent for an hour, and nothing pending."""
        for consumer in self._redis.xinfo_consumers(self._keys.reports, REPORT_GROUP):
            if consumer["pending"] == 0 and consumer["idle"] > CONSUMER_SILENCE * 1000:
                self._redis.xgroup_delconsumer(self._keys.reports, REPORT_GROUP, consumer["name"])

    def dead(self, limit: int = 100) -> list[DeadReport]:
        """Parked reports, the newest first."""
        entries = cast(list[tuple[str, Fields]], self._redis.xrevrange(self._keys.dead, count=limit))
        return [dead_report(entry_id, fields) for entry_id, fields in entries]


def dead_report(entry_id: str, raw: Fields) -> DeadReport:
    """One entry of the dead stream. What was not written by us is shown as far as it can be."""
    try:
        fields = json.loads(raw.get("report", "{}"))
        fields = {str(name): str(value) for name, value in fields.items()}
    except (ValueError, AttributeError):
        fields = {}
    times = raw.get("deliveries", "")
    return DeadReport(
        entry_id, raw.get("reason", ""), fields, raw.get("from", ""), int(times) if times.isdecimal() else 0, dict(raw)
    )


def _id_order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
