"""Schedules: what became of each tick and of each file that was fed. Judging is pure;
``gather_schedules`` reads.
"""

# Lost: a schedule, a run or its package is not there; a tick has neither a run nor an event that
# says why; a version was not followed; a file was neither read nor put aside. Doubled: two runs of
# one tick, two runs at once, a tick or a row that is published twice, a file that was read and put
# aside. Stuck: a schedule or a run that has not ended.

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow.parquet

from tests.chaos.driver.fleet import ChaosFleet
from tests.chaos.driver.schedules import (
    ARRIVES,
    FOLLOWS,
    HELD,
    NAMES,
    PAST,
    TICKS,
    Schedules,
    explained,
)
from unstuck import Status, UnstuckError, published_files
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.trigger import ticks
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.read_model.job import JobInfo
from unstuck.read_model.job_list import JobList
from unstuck.tasks.warehouse.log import Warehouse

_SPAN = re.compile(r"(\S+?Z)(?: to (\S+?Z))?: ")
Rows = Sequence[Mapping[str, Any]]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """What stood of one schedule in the end.

    Attributes:
        runs: its jobs, those that are in the store.
        packages: job id → its entries in the warehouse log.
        rows: those of its dataset.
        waits: what it waits for, in words.
        let_go: the ticks whose run was not submitted yet when it was stopped.
    """

    name: str
    record: ScheduleRecord | None
    runs: Sequence[JobInfo] = ()
    events: Sequence[Mapping[str, Any]] = ()
    packages: Mapping[str, int] = field(default_factory=dict)
    rows: Rows = ()
    waits: str = ""
    let_go: frozenset[float] = frozenset()


@dataclass(slots=True)
class Repeated:
    """The account of the schedules: a sentence for each that was lost, doubled or is stuck, or was
    not as asked for.
    """

    runs: int = 0
    skipped: int = 0
    files: int = 0
    aside: int = 0
    pauses: int = 0
    backfilled: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    disobeyed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        files = f"{self.files} files were fed, {self.aside} of them put aside"
        asked = f"{self.pauses} pauses, {self.backfilled} runs of a backfill"
        return f"{self.runs} runs; {self.skipped} ticks were told as skipped; {asked}; {files}"


def judge_schedules(
    found: Sequence[FoundSchedule], fed: Mapping[str, Collection[int]], aside: Sequence[str]
) -> Repeated:
    """The account. Pure.

    Args:
        fed: the path of each file → the ids in it; none of a file that is broken.
        aside: the path of each file that was put aside, as often as it was.
    """
    account = Repeated(files=len(fed), aside=len(aside))
    by_name = {one.name: one for one in found}
    for one in found:
        if one.record is None:
            account.lost.append(
                f"schedule {one.name}: its set was acknowledged, and it is not in the store"
            )
            continue
        if not one.record.status.terminal or one.record.going_on:
            account.stuck.append(
                f"schedule {one.name} is {one.record.status}: {one.waits or 'nobody knows why'}"
            )
        _judge_runs(account, one)
        if policy_of(one.record.policy).every:
            _judge_ticks(account, one, one.record)
    for name in (TICKS, FOLLOWS, HELD, PAST):
        _judge_tick_rows(account, by_name[name])
    last = max((row["seen"] for row in by_name[FOLLOWS].rows), default=0)
    if last < len(by_name[TICKS].rows):
        account.lost.append(
            f"{FOLLOWS} has seen {last} of {len(by_name[TICKS].rows)} rows of {TICKS}"
        )
    _judge_files(account, by_name[ARRIVES].rows, fed, aside)
    return account


def _judge_runs(account: Repeated, one: FoundSchedule) -> None:
    """Each run has ended, is in the event log once, has its package, and none began before another
    was over.
    """
    account.runs += len(one.runs)
    submitted = Counter(
        str(event["job"]) for event in one.events if event["kind"] == "RUN_SUBMITTED"
    )
    stands = {run.id for run in one.runs}
    account.lost += [
        f"{one.name}: job {job} was submitted, and is not in the store"
        for job in submitted
        if job not in stands
    ]
    ticks_run = Counter(run.tick for run in one.runs if run.status is Status.FINISHED)
    account.doubled += [
        f"{one.name}: {n} runs of {tick} are FINISHED" for tick, n in ticks_run.items() if n > 1
    ]
    for run in one.runs:
        named = f"{run.key} ({run.id})"
        if not run.status.terminal:
            account.stuck.append(f"{named} is {run.status}")
            continue
        kind = f"{'BACKFILL_' if run.backfill else ''}RUN_{run.status}"
        ends = [
            event for event in one.events if event["kind"] == kind and event.get("job") == run.id
        ]
        for told, times in (("RUN_SUBMITTED", submitted[run.id]), (kind, len(ends))):
            if times != 1:
                words = account.doubled if times else account.lost
                words.append(f"{named} has {times} {told} in the event log of its schedule")
        packages = one.packages.get(run.id, 0)
        wanted = {0, 1} if one.name == ARRIVES else {1}  # no version without rows
        if run.status is Status.FINISHED and packages not in wanted:
            words = account.doubled if packages else account.lost
            words.append(f"{named} is FINISHED with {packages} entries in the warehouse log")
    if one.record is not None and policy_of(one.record.policy).overlap == "allow":
        return
    in_order = sorted(
        (run for run in one.runs if not run.backfill), key=lambda run: run.submitted_at
    )
    for before, run in pairwise(in_order):
        if before.ended_at == 0 or run.submitted_at < before.ended_at:
            account.doubled.append(f"{run.key} began while {before.key} went on")


def _judge_ticks(account: Repeated, one: FoundSchedule, record: ScheduleRecord) -> None:
    """Each tick up to the cursor has a run that ended well, or an event that says why not; never
    both.
    """
    runs: dict[str, list[JobInfo]] = {}
    for run in one.runs:
        runs.setdefault(run.tick, []).append(run)
    skipped, quiet = list(_spans(one.events, "SKIPPED")), list(_spans(one.events, "RUN_SUBMITTED"))
    if record.quiet is not None:
        quiet.append((record.quiet.first, record.quiet.last))
    # A stop lets go of a run that was not submitted yet; USER_STOP says so.
    stopped = any(event["kind"] == "USER_STOP" for event in one.events)
    for tick in ticks(policy_of(record.policy), _at(record.made_at), _at(record.cursor)):
        at, name = tick.timestamp(), tick_text(tick.timestamp())
        mine, of_skip = runs.get(name, []), any(first <= at <= last for first, last in skipped)
        well = [run for run in mine if run.status is Status.FINISHED]
        account.skipped += of_skip
        if mine and of_skip:
            account.doubled.append(f"{one.name}: the tick {name} is told as skipped, and has a run")
        if mine and not well:
            last = max(mine, key=lambda run: run.submitted_at)
            if last.status.terminal and not (last.reason and last.reason.text):
                account.lost.append(
                    f"{one.name}: the run of {name} ended {last.status}, and nobody says why"
                )
        in_quiet = any(first <= at <= last for first, last in quiet)
        let_go = at in one.let_go or (stopped and at == record.cursor)
        if not mine and not of_skip and not in_quiet and not let_go:
            account.lost.append(f"{one.name}: the tick {name} has no run, and no event says why")


def _judge_tick_rows(account: Repeated, one: FoundSchedule) -> None:
    """A row for each run that ended well."""
    well = {run.tick for run in one.runs if run.status is Status.FINISHED}
    rows = Counter(
        tick_text(datetime.datetime.fromisoformat(row["tick"]).timestamp()) for row in one.rows
    )
    account.lost += [
        f"{one.name}: {tick} is FINISHED, and its row is not published"
        for tick in sorted(well - set(rows))
    ]
    account.doubled += [
        f"{one.name}: the tick {tick} is published {n} times" for tick, n in rows.items() if n > 1
    ]
    account.doubled += [
        f"{one.name}: {tick} is published, and no run of it is FINISHED"
        for tick in sorted(set(rows) - well)
    ]


def _judge_files(
    account: Repeated, rows: Rows, fed: Mapping[str, Collection[int]], aside: Sequence[str]
) -> None:
    """Each file was read once or, if it is broken, put aside once."""
    read, put = Counter(row["id"] for row in rows), Counter(aside)
    for path, ids in fed.items():
        times = [read.pop(one, 0) for one in ids] if ids else [put.pop(path, 0)]
        word = "read" if ids else "put aside"
        if min(times) == 0:
            account.lost.append(
                f"file {path} was fed, and of its rows {times.count(0)} were not {word}"
            )
        if max(times) > 1:
            account.doubled.append(f"file {path} was {word} {max(times)} times")
    account.doubled += [f"{ARRIVES} has the row {one}, which nobody fed" for one in read]
    account.doubled += [f"file {path} was put aside, and is whole" for path in put]


def first_tries(one: FoundSchedule) -> dict[float, JobInfo]:
    """Tick → its first run."""
    tries = (run for run in one.runs if "/" not in run.key)
    return {datetime.datetime.fromisoformat(run.tick).timestamp(): run for run in tries}


def _spans(events: Sequence[Mapping[str, Any]], kind: str) -> Iterator[Span]:
    """From which tick to which each event of this kind says that ticks were skipped."""
    for event in events:
        if event["kind"] == kind and (span := _SPAN.search(str(event.get("text", "")))):
            first, last = span[1], span[2] or span[1]
            yield (
                datetime.datetime.fromisoformat(first).timestamp(),
                datetime.datetime.fromisoformat(last).timestamp(),
            )


def _at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def gather_schedules(
    fleet: ChaosFleet, schedules: Schedules
) -> tuple[list[FoundSchedule], list[str]]:
    """Read what there is to judge; also the path of each file that was put aside. Raises:
    redis.RedisError.
    """
    warehouse, jobs = (
        Warehouse(str(fleet.warehouse)),
        JobList(fleet.patient_queries).jobs(limit=None),
    )
    entries = [
        entry for n in range(1, warehouse.head() + 1) if (entry := warehouse.entry(n)) is not None
    ]
    packages = Counter(entry.job for entry in entries if entry.kind == "package")
    store = ScheduleStore(fleet.patient, fleet.keys)
    found = [
        FoundSchedule(
            name,
            store.load(name),
            [job for job in jobs if job.schedule == name],
            store.events(name, 100_000),
            packages,
            _rows(warehouse, name),
            explained(fleet, name),
            schedules.let_go.get(name, frozenset()),
        )
        for name in NAMES
    ]
    return found, [row["_file"] for row in _rows(warehouse, f"{ARRIVES}__rejected")]


def _rows(warehouse: Warehouse, dataset: str) -> list[dict[str, Any]]:
    try:
        files = published_files(warehouse, dataset)
    except UnstuckError:
        return []  # it was not published, which is judged by the runs
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
