"""The ledger: what was submitted, and what became of it. Judging is pure; ``gather`` reads what
there is to judge.
"""

# Lost: a job whose submit was acknowledged is not in the store, did not end FINISHED, or published
# too little. Doubled: two jobs for one key, two entries in the warehouse log for one job, a group
# that succeeded twice, an attempt that began twice, or rows that appear twice. Stuck: a job that
# has not ended within the stated time after the faults. Overfull: more attempts of a pool held at
# once than it has slots (``pools``). Disobeyed: a schedule is not as a person asked last
# (``asked``). Late: a run that nothing explains came too long after its tick (``lateness``).

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet

from tests.chaos.driver.fleet import ChaosFleet
from tests.chaos.driver.load import SubmittedJob
from tests.chaos.driver.watch import Recovery, stated
from unstuck import Status, UnstuckError, published_files
from unstuck.coordinator.model.status import GroupState
from unstuck.read_model.job_list import JobList
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry

Events = Sequence[Mapping[str, Any]]
WORDS = ("lost", "doubled", "stuck", "overfull", "disobeyed", "late")


@dataclass(frozen=True, slots=True)
class Found:
    """What stood in the end, in the store and beside it.

    Attributes:
        jobs: job id → name and status, of all that are in the store.
        entries: of the warehouse log.
        rows: dataset → the numbers published in it.
        ran: each line that a step wrote: ``begun TOKEN`` or ``done TOKEN``.
        events: job id → its event log.
        counters: what reports came to.
        waits: job id → what it waits for, of those that are not terminal.
    """

    jobs: Mapping[str, tuple[str, Status]]
    entries: Sequence[Entry]
    rows: Mapping[str, Sequence[int]]
    ran: Sequence[str]
    events: Mapping[str, Events]
    counters: Mapping[str, int]
    waits: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Ledger:
    """The closing account. ``kept`` is what the exit code says."""

    submitted: int = 0
    finished: int = 0
    published: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    overfull: list[str] = field(default_factory=list)
    disobeyed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    pools: str = ""
    schedules: str = ""
    lateness: str = ""
    attempts: int = 0
    takeovers: int = 0
    relaunched: int = 0
    stale: int = 0
    duplicates: int = 0
    submits_repeated: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)
    settled: float = 0.0

    @property
    def kept(self) -> bool:
        return not any(getattr(self, word) for word in WORDS)

    @property
    def slowest(self) -> Recovery | None:
        return max(self.recoveries, key=lambda one: one.took, default=None)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: numbers first, sentences after them."""
        whole = asdict(self)
        sentences = {name: whole.pop(name) for name in WORDS}
        whole["recoveries"] = {
            name: round(one.took, 2) for name, one in stated(self.recoveries).items()
        }
        counts = {name: len(found) for name, found in sentences.items()}
        return {**whole, **counts, "kept": self.kept, "sentences": sentences}

    def lines(self) -> list[str]:
        """For people."""
        numbers = [
            (
                "submitted",
                (
                    f"{self.submitted} jobs were acknowledged ({self.submits_repeated} submits had "
                    "to be repeated)"
                ),
            ),
            ("finished", f"{self.finished}"),
            ("published", f"{self.published} packages, read back row by row"),
            ("lost", f"{len(self.lost)}"),
            ("doubled", f"{len(self.doubled)}"),
            (
                "stuck",
                f"{len(self.stuck)} (all had ended {self.settled:.1f} s after the last fault)"
                if not self.stuck
                else f"{len(self.stuck)}, {self.settled:.0f} s after the last fault",
            ),
            ("overfull", f"{len(self.overfull)}"),
            ("disobeyed", f"{len(self.disobeyed)}"),
            ("late", f"{len(self.late)}"),
            ("pools", self.pools),
            ("schedules", self.schedules),
            ("lateness", self.lateness),
            (
                "attempts",
                (
                    f"{self.attempts} began; {self.relaunched} ended without an outcome that "
                    "counts and ran again"
                ),
            ),
            ("takeovers", f"{self.takeovers} leases lapsed"),
            ("stale", f"{self.stale} reports of attempts that no longer counted, refused"),
            ("duplicates", f"{self.duplicates} reports that said nothing new, absorbed"),
            (
                "faults",
                f"{sum(self.faults.values())}: "
                + ", ".join(f"{n} {name}" for name, n in sorted(self.faults.items())),
            ),
        ]
        told = [f"  {name:<11} {text}" for name, text in numbers]
        if self.slowest is not None:
            told.append(
                f"  {'slowest':<11} recovery {self.slowest.took:.1f} s: {self.slowest.fault}, "
                f"{self.slowest.victim}"
            )
            rest = ", ".join(
                f"{name} {one.took:.1f}" for name, one in stated(self.recoveries).items()
            )
            told.append(f"  {'per fault':<11} {rest} (seconds, the slowest of each)")
        for word in WORDS:
            sentences = getattr(self, word)
            told += [f"  {word.upper()}: {sentence}" for sentence in sentences]
        return told


def judge(accepted: Mapping[str, SubmittedJob], found: Found) -> Ledger:
    """The account of these jobs. Pure."""
    ledger = Ledger(
        submitted=len(accepted), published=sum(one.kind == "package" for one in found.entries)
    )
    published = Counter(entry.job for entry in found.entries)
    for job, asked in accepted.items():
        if job not in found.jobs:
            ledger.lost.append(
                f"{asked.name} ({job}): its submit was acknowledged, and it is not in the store"
            )
            continue
        _, status = found.jobs[job]
        if not status.terminal:
            ledger.stuck.append(
                f"{asked.name} ({job}) is {status}: {found.waits.get(job, 'for no known reason')}"
            )
            continue
        if status is not Status.FINISHED:
            ledger.lost.append(f"{asked.name} ({job}) ended {status}")
            continue
        ledger.finished += 1
        if published[job] != 1:
            words = ledger.doubled if published[job] else ledger.lost
            words.append(
                f"{asked.name} ({job}) is FINISHED with {published[job]} entries in the warehouse "
                "log"
            )
        _judge_rows(ledger, asked, job, found.rows.get(asked.dataset, ()))
        _judge_groups(ledger, asked, job, found)
    names = Counter(name for name, _ in found.jobs.values())
    ledger.doubled += [
        f"{n} jobs were made of one submit, {name}" for name, n in names.items() if n > 1
    ]
    strangers = {entry.job for entry in found.entries} - set(accepted)
    ledger.doubled += [
        f"job {job} published, and nobody was told that it exists" for job in strangers
    ]
    begun = Counter(_attempt(line) for line in found.ran if line.startswith("begun "))
    ledger.doubled += [
        f"attempt {attempt} began {n} times" for attempt, n in begun.items() if n > 1
    ]
    ledger.attempts = len(begun)
    events = [event for events in found.events.values() for event in events]
    back = [event for event in events if event["kind"] == GroupState.BACKOFF]
    ledger.relaunched = len(back)
    ledger.takeovers = sum(event.get("code") == "LEASE_LAPSED" for event in back)
    ledger.stale = found.counters.get("STALE", 0) + found.counters.get("TERMINAL", 0)
    ledger.duplicates = found.counters.get("DUPLICATE", 0)
    return ledger


def _judge_rows(ledger: Ledger, asked: SubmittedJob, job: str, rows: Sequence[int]) -> None:
    """Every number once."""
    counted, wanted = Counter(rows), set(range(asked.rows))
    missing, extra = wanted - set(counted), sum(counted.values()) - len(wanted & set(counted))
    if missing:
        ledger.lost.append(
            f"{asked.name} ({job}) published {asked.dataset} without {len(missing)} of "
            f"{asked.rows} rows"
        )
    if extra:
        ledger.doubled.append(
            f"{asked.name} ({job}) published {extra} rows more than it made in {asked.dataset}"
        )


def _judge_groups(ledger: Ledger, asked: SubmittedJob, job: str, found: Found) -> None:
    """Each group succeeded once, and somebody did its work."""
    succeeded = Counter(
        event["group"]
        for event in found.events.get(job, ())
        if event["kind"] == GroupState.SUCCEEDED
    )
    done = {_attempt(line).rsplit("/", 2)[0] for line in found.ran if line.startswith("done ")}
    for group in asked.groups:
        if succeeded[group] != 1:
            words = ledger.doubled if succeeded[group] else ledger.lost
            words.append(
                f"{asked.name} ({job}): {group} has {succeeded[group]} SUCCEEDED in its event log"
            )
        if f"{job}/{group}" not in done:
            ledger.lost.append(
                f"{asked.name} ({job}): {group} is SUCCEEDED, and no attempt did its work"
            )


def _attempt(line: str) -> str:
    """``job/group/epoch/nonce`` of a line that a step wrote; the claimant is left out, since an
    offer has one.
    """
    return line.split(" ", 1)[1].rsplit("/", 1)[0]


def gather(fleet: ChaosFleet, accepted: Mapping[str, SubmittedJob]) -> Found:
    """Read all that ``judge`` wants; not of runs of schedules, which have an account of their own
    (``repeated``).

    Raises: redis.RedisError.
    """
    warehouse, queries = Warehouse(str(fleet.warehouse)), fleet.patient_queries
    jobs = JobList(queries).jobs(limit=None)
    runs = {job.id for job in jobs if job.schedule}
    entries = [
        entry for n in range(1, warehouse.head() + 1) if (entry := warehouse.entry(n)) is not None
    ]
    return Found(
        {job.id: (job.name, job.status) for job in jobs if job.id not in runs},
        [entry for entry in entries if entry.job not in runs],
        {asked.dataset: _numbers(warehouse, asked.dataset) for asked in accepted.values()},
        fleet.ran.read_text().splitlines(),
        {job: [event for _, event in queries.events(job)] for job in accepted},
        queries.counters(),
        {job.id: _waits(fleet, job.id) for job in jobs if not job.status.terminal},
    )


def _waits(fleet: ChaosFleet, job: str) -> str:
    return "; ".join(f"{one.subject} {one.state}, {one.what}" for one in fleet.client.explain(job))


def _numbers(warehouse: Warehouse, dataset: str) -> list[int]:
    try:
        files = published_files(warehouse, dataset)
    except UnstuckError:
        return []  # it was not published, which is judged by the log
    return [
        n
        for file in files
        for n in pyarrow.parquet.read_table(file, columns=["n"]).column("n").to_pylist()
    ]


def write_json(ledger: Ledger, path: Path) -> None:
    path.write_text(json.dumps(ledger.to_dict(), indent=1) + "\n")
