"""Stores schedules in Redis: records, event logs, the jobs of their runs, and due times."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from unstuck.coordinator.errors import Damaged
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleRecord, ScheduleStatus
from unstuck.coordinator.model.tick import Tick, ticks_changed
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.tasks.protocol.keys import Keys, at_warehouse
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.report import in_short

TAKEN_AT_ONCE = 100
UNWELL = (ScheduleStatus.HALTED, ScheduleStatus.RETRYING)
# Of one schedule; for an older tick, its key and the warehouse log are read.
MAX_TICKS_KEPT = 20_000
FORGET_AFTER = 60  # seconds for which a job that leaves the store can still be read


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A change of a schedule, as a commit writes it.

    Attributes:
        id: made before the first try; it becomes the schedule's commit.
        expect: the commit that the change was judged by; empty to make the schedule.
        notices: for the outbox, as JSON.
        runs: jobs that it has submitted, each with when it did.
        due: when it is decided next; None: never again.
        due_seen: its due when it was taken.
        commanded: a user requested it.
    """

    id: str
    expect: str
    record: ScheduleRecord
    events: Iterable[Mapping[str, Any]] = ()
    runs: Mapping[str, float] | None = None
    due: float | None = None
    due_seen: str = ""
    commanded: bool = False
    notices: Sequence[str] = ()

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The ticks whose outcome or current run changed."""
        return ticks_changed(self.events)


class ScheduleStore:
    """Schedules in one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        names = (
            "take_due",
            "commit",
            "remove",
            "forget_runs",
            "repair_due",
            "note_backlog",
            "note_published",
        )
        self._scripts = {
            name: Script(client, keys, __package__, f"schedules/{name}") for name in names
        }

    def take_due(self, term: float) -> tuple[float, dict[str, str]]:
        """Take the due schedules for ``term`` seconds, and return each with its new due.

        The first value is the seconds until another schedule is due; infinite if none ever is.
        """
        now, first, *taken = self._scripts["take_due"](term=term, most=TAKEN_AT_ONCE)
        return float(first or "inf") - float(now), dict(zip(taken[::2], taken[1::2], strict=True))

    def now(self) -> float:
        """Return the time in seconds, by the clock of Redis."""
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)

    def load(self, name: str) -> ScheduleRecord | None:
        """Return the record of a schedule; None if there is none. Raises: Damaged."""
        records, damaged = self.load_all([name])
        if damaged:
            raise Damaged(damaged[name])
        return next(iter(records), None)

    def load_all(self, names: Sequence[str]) -> tuple[list[ScheduleRecord], dict[str, str]]:
        """Return the stored records of these schedules, in their order.

        Returns also the schedules whose record cannot be read, each with a message.
        """
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._keys.of_schedule(name).schedule, "record", "commit", "spec")
        records, damaged = [], {}
        for name, (text, commit, spec) in zip(
            names, cast(list[list[str | None]], pipe.execute()), strict=True
        ):
            try:
                records += (
                    [ScheduleRecord.from_json(text, commit or "", spec or "")] if text else []
                )
            except (ValueError, TypeError) as error:
                damaged[name] = (
                    f"the record of schedule {name} cannot be read, so it does not run "
                    f"({in_short(error)}); `unstuck schedule remove {name}`, and set it again from "
                    "its spec"
                )
        return records, damaged

    def last_commit(self, name: str) -> str:
        """Return the last commit of a schedule, also of an unreadable one.

        Empty if there is none.
        """
        return (
            cast(str | None, self._redis.hget(self._keys.of_schedule(name).schedule, "commit"))
            or ""
        )

    def commit(self, change: ScheduleChange) -> CommitAnswer:
        """Write a change, all or nothing, if no other commit came after the load."""
        record = change.record
        fields = {
            "name": record.name,
            "id": change.id,
            "expect": change.expect,
            "commanded": change.commanded,
            "record": record.to_json(),
            "spec": record.spec,
            "line": json.dumps(
                {
                    "name": record.name,
                    "status": record.status,
                    "over": change.due is None,
                    "failures": record.failures,
                    "problems": len(record.problems),
                    "succeeded_at": record.last_success.at if record.last_success else 0.0,
                }
            ),
            "events": [json.dumps(dict(event), separators=(",", ":")) for event in change.events],
            "notices": list(change.notices),
            "runs": dict(change.runs or {}),
            "ticks": [[repr(tick.at), tick.to_text()] for tick in change.ticks],
            "max_ticks": MAX_TICKS_KEPT,
            "due": None if change.due is None else f"{change.due:.6f}",
            "due_seen": change.due_seen,
            "follows": record.follows,
        }
        keys = vars(self._keys.of_schedule(record.name))
        return CommitAnswer(
            self._scripts["commit"](change=json.dumps(fields), after=self._keys.after(""), **keys)
        )

    def remove(
        self,
        name: str,
        expect: str,
        event: Mapping[str, Any],
        keep: float,
        notices: Sequence[str] = (),
    ) -> CommitAnswer:
        """Remove a schedule, except the jobs of its runs, if ``expect`` is its last commit.

        Args:
            event: the last event.
            keep: seconds for which its event log stays.
            notices: sent with the removal, as JSON.
        """
        keys = vars(self._keys.of_schedule(name))
        return CommitAnswer(
            self._scripts["remove"](
                name=name,
                expect=expect,
                after=self._keys.after(""),
                event=json.dumps(event, separators=(",", ":")),
                keep=int(keep),
                notices=json.dumps(list(notices)),
                **keys,
            )
        )

    def ticks(self, name: str, first: float, last: float = math.inf) -> dict[float, Tick]:
        """Return the ticks of a range that had a run or were skipped, by their instant."""
        texts = self._redis.zrangebyscore(self._keys.of_schedule(name).schedule_ticks, first, last)
        ticks = (Tick.from_text(text) for text in cast(list[str], texts))
        return {tick.at: tick for tick in ticks}

    def forget_runs(self, name: str, keep: int) -> int:
        """Remove the jobs of all but the newest ``keep`` runs, at most 100 at once.

        Returns how many.
        """
        any_job = vars(self._keys.of("\0"))
        return int(
            self._scripts["forget_runs"](
                schedule_runs=self._keys.of_schedule(name).schedule_runs,
                keep=keep,
                soon=FORGET_AFTER,
                job_keys=json.dumps([any_job.pop("job"), *any_job.values()]),
                submit_key=self._keys.submit_key("\0"),
            )
        )

    def repair(self) -> int:
        """Put schedules back into the due index that has lost them. Returns how many."""
        return int(self._scripts["repair_due"]())

    def published(self, warehouse: str, datasets: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Return the newest published version of each of these datasets, and its time."""
        return self.published_of([(warehouse, datasets)])[0]

    def published_of(
        self, follows: Sequence[tuple[str, Sequence[str]]]
    ) -> list[dict[str, tuple[int, float]]]:
        """Return `published` for each of these warehouses with datasets, in one call."""
        names = [
            at_warehouse(name, warehouse) for warehouse, datasets in follows for name in datasets
        ]
        texts = iter(
            cast(list[str | None], self._redis.hmget(self._keys.published, names)) if names else []
        )
        answers = []
        for _, datasets in follows:
            entries = {
                name: text.split() for name, text in zip(datasets, texts, strict=False) if text
            }
            answers.append(
                {name: (int(version), float(at)) for name, (version, at, *_) in entries.items()}
            )
        return answers

    def note_backlog(self, name: str, backlog: Backlog, *, notify: bool = False) -> None:
        """Store the backlog of a schedule.

        Args:
            notify: a rule concerns it, so the schedule is decided at once.
        """
        keys = vars(self._keys.of_schedule(name))
        self._scripts["note_backlog"](
            name=name, backlog=backlog.to_json(), notify=int(notify), schedule=keys["schedule"]
        )

    def backlogs(self, names: Sequence[str]) -> list[Backlog | None]:
        """Return the last backlog of each of these schedules; None if there was no look."""
        texts = (
            cast(list[str | None], self._redis.hmget(self._keys.backlogs, list(names)))
            if names
            else []
        )
        return [None if text is None else _backlog_in(text) for text in texts]

    def note_published(self, warehouse: str, dataset: str, version: int) -> None:
        """Notify schedules that follow the dataset of a version that no job has published.

        May be repeated.
        """
        field, after = at_warehouse(dataset, warehouse), self._keys.after("")
        self._scripts["note_published"](field=field, dataset=dataset, version=version, after=after)

    def names(self) -> list[str]:
        """Return the names of all schedules, in order."""
        return sorted(cast(list[str], self._redis.hkeys(self._keys.schedules)))

    def unwell(self, overdue: float, behind: float, most: int) -> list[str]:
        """Return schedules that need a look by their short lines, at most ``most`` of each kind.

        These are schedules that are HALTED, are tried again, or have an open problem, schedules
        that
        are ``overdue`` seconds late, and schedules with unread data that is ``behind`` seconds old.
        """
        now, pipe = self.now(), self._redis.pipeline(transaction=False)
        pipe.hgetall(self._keys.schedules)
        pipe.zrangebyscore(self._keys.schedules_due, "-inf", now - overdue, start=0, num=most)
        pipe.hgetall(self._keys.backlogs)
        texts, late, backlogs = pipe.execute()
        failing = sorted(name for name, line in texts.items() if _needs_a_look(line))
        unread_backlogs = {name: _backlog_in(text) for name, text in backlogs.items()}
        unread = sorted(
            name
            for name, backlog in unread_backlogs.items()
            if backlog is not None and 0 < backlog.since < now - behind
        )
        return [
            name
            for name in dict.fromkeys((*failing[:most], *late, *unread[:most]))
            if name in texts
        ]

    def due_at(self, names: Sequence[str]) -> list[float | None]:
        """Return when each of these schedules is decided next; None: never again."""
        return self._redis.zmscore(self._keys.schedules_due, list(names)) if names else []

    def runs_of(self, names: Sequence[str], most: int) -> list[list[str]]:
        """Return the newest jobs of the runs of each of these schedules.

        Args:
            most: of each schedule.
        """
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.zrevrange(self._keys.of_schedule(name).schedule_runs, 0, most - 1)
        return cast(list[list[str]], pipe.execute())

    def events(self, name: str, most: int) -> list[dict[str, Any]]:
        """Return the newest events, the oldest of them first."""
        entries: Any = self._redis.xrevrange(
            self._keys.of_schedule(name).schedule_events, count=most
        )
        return [json.loads(fields["event"]) for _, fields in reversed(entries)]


def _needs_a_look(line: str) -> bool:
    """Return whether a short line shows a problem; a damaged line does."""
    try:
        fields = json.loads(line)
        status = ScheduleStatus(fields["status"])
        failed = fields.get("failures", 0) > 0 and not status.terminal
        return status in UNWELL or failed or fields.get("problems", 0) > 0
    except (ValueError, TypeError, KeyError, AttributeError):
        return True


def _backlog_in(text: str) -> Backlog | None:
    """Return a stored backlog; None if it is unreadable, since the next look replaces it."""
    try:
        return Backlog.from_json(text)
    except ValueError:
        return None
