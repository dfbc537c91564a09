"""The report stream, on which workers report; coordinators read it at least once, as a group.

A report that cannot be applied becomes a dead letter, with the reason, and is never just acked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, cast

import redis
from pydantic import Field, computed_field

from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.store.job_store import REPORT_GROUP
from unstuck.tasks.errors import Malformed
from unstuck.tasks.json_fields import Time, Word
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script, ask
from unstuck.tasks.protocol.report import Report, in_short

Fields = dict[str, str]
CONSUMER_SILENCE = 3600.0  # seconds; a consumer that is alive reads at least once a second
DEAD_KEPT = 10_000  # dead letters, about


@dataclass(frozen=True)
class StreamEntry:
    """One stream entry. ``deliveries``: how often a consumer was given it, this time included."""

    id: str
    fields: Fields
    deliveries: int = 1

    @cached_property
    def report(self) -> Report:
        """Parse the report of a worker. Raises: Malformed."""
        return Report.from_fields(self.fields)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A report, notice or task that could not be handled, and the reason.

    Attributes:
        id: of the entry on the dead stream.
        reason: why it could not be handled.
        fields: of the report, of the notice, or of the submit.
        entry: the id of a report on the report stream, which has the time of the worker.
        deliveries: earlier deliveries to coordinators, or tries to send; None if unknown.
        raw: the entry of the dead stream, unchanged.
        notice: JSON of a notice.
        to: target of a notice.
        task: the Celery task of a refused submit, such as ``unstuck.submit``.
    """

    id: str
    reason: str
    fields: Fields
    entry: Word = ""
    deliveries: int | None = None
    raw: Fields = field(default_factory=dict)
    notice: Annotated[str, Field(exclude=True)] = ""
    to: Word = ""
    task: Word = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def at(self) -> Time:
        """When it became a dead letter, in seconds since the epoch."""
        return int(self.id.partition("-")[0]) / 1000

    @computed_field  # type: ignore[prop-decorator]
    @property
    def unreadable(self) -> Word:
        """Why no coordinator of this release can read it; empty if one can."""
        if self.task:
            return "the sender must correct a refused task and send it again"
        try:
            if self.notice:
                Notice.from_json(self.notice)
            else:
                Report.from_fields(self.fields)
        except Malformed as error:
            return str(error)
        except ValueError as error:
            return in_short(error)
        return "" if self.to or not self.notice else "it names no target"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kind(self) -> str:
        """The kind of report, ``notice``, or the name of the task."""
        return self.task or ("notice" if self.notice else self.fields.get("kind", "?"))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def subject(self) -> str:
        """The token of a report, the event and target of a notice, or the sender of a task."""
        if self.task:
            return self.fields.get("by", "?")
        if self.notice:
            return (
                f"{self.fields.get('event', '?')} of {self.fields.get('name', '?')}, for "
                f"{self.to or '?'}"
            )
        return self.fields.get("token", "?")

    @classmethod
    def of(cls, entry_id: str, raw: Fields) -> DeadLetter:
        """Return the dead letter of an entry of the dead stream, as far as it is readable."""
        try:
            text = raw.get("report", raw.get("notice", raw.get("arguments", "{}")))
            fields = {str(name): str(value) for name, value in json.loads(text).items()}
        except (ValueError, AttributeError):
            fields = {}
        times = raw.get("deliveries", "")
        deliveries = int(times) if times.isdecimal() else None
        origin = raw.get("notice", ""), raw.get("to", ""), raw.get("task", "")
        return cls(
            entry_id,
            raw.get("reason", ""),
            fields,
            raw.get("from", ""),
            deliveries,
            dict(raw),
            *origin,
        )


class ReportStream:
    """The report stream, as one consumer sees it.

    ``client`` must decode responses and wait longer than ``block``.
    """

    def __init__(self, client: redis.Redis, keys: Keys, consumer: str) -> None:
        self._redis = client
        self._keys = keys
        self._consumer = consumer
        self._dead_letter = Script(client, keys, __package__, "reports/dead_letter")

    def open(self) -> None:
        """Make the stream and its consumer group if they are missing."""
        try:
            self._redis.xgroup_create(self._keys.reports, REPORT_GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def read(self, count: int, block: float) -> list[StreamEntry]:
        """Return new reports; wait up to ``block`` seconds for the first."""
        wait = max(1, round(block * 1000))  # 0 would wait for ever
        group = ("GROUP", REPORT_GROUP, self._consumer, "COUNT", count, "BLOCK", wait)
        (answer,) = ask(self._redis, ("XREADGROUP", *group, "STREAMS", self._keys.reports, ">"))
        if not answer:
            return []
        (entries,) = (
            answer.values() if isinstance(answer, dict) else (stream[1] for stream in answer)
        )
        return [
            StreamEntry(
                entry_id, dict(zip(fields[::2], fields[1::2], strict=True)) if fields else {}
            )
            for entry_id, fields in entries
        ]

    def claim_idle(self, idle: float, count: int) -> list[StreamEntry]:
        """Return reports that a consumer read and did not finish within ``idle`` seconds.

        Raises:
            redis.RedisError: the store is away, or refuses writes.
        """
        # A store whose memory is full would give reports out, and count that, though none can be
        # applied. It refuses this write first.
        self._redis.xgroup_createconsumer(self._keys.reports, REPORT_GROUP, self._consumer)
        answer = cast(
            Any,
            self._redis.xautoclaim(
                self._keys.reports,
                REPORT_GROUP,
                self._consumer,
                round(idle * 1000),
                "0-0",
                count=count,
            ),
        )
        if not answer[1]:
            return []
        pending = self._redis.xpending_range(
            self._keys.reports,
            REPORT_GROUP,
            answer[1][0][0],
            answer[1][-1][0],
            count,
            self._consumer,
        )
        times = {entry["message_id"]: int(entry["times_delivered"]) for entry in pending}
        # Other entries of this consumer may lie between the first and the last; an entry without a
        # count is new.
        return [
            StreamEntry(entry_id, fields or {}, times.get(entry_id, 1))
            for entry_id, fields in answer[1]
        ]

    def dead_letter(self, entries: Sequence[StreamEntry], reason: str, counter: str) -> int:
        """Make reports dead letters with this reason, and ack them, in one step."""
        payload = json.dumps([{"id": entry.id, "fields": entry.fields} for entry in entries])
        return int(
            self._dead_letter(
                consumer_group=REPORT_GROUP,
                counter=counter,
                reason=reason,
                entries=payload,
                kept=DEAD_KEPT,
            )
        )

    def ack(self, entries: Sequence[StreamEntry]) -> None:
        """Acknowledge entries that only woke this consumer."""
        if entries:
            self._redis.xack(self._keys.reports, REPORT_GROUP, *(entry.id for entry in entries))

    def trim(self) -> int:
        """Drop entries that every consumer has acked: by the oldest pending id, never by length.

        Returns how many.
        """
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


def _id_order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
