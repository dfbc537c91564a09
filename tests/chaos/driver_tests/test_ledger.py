"""The ledger finds what it is there to find: each way to lose, double or hang, planted into an
account in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.driver.judging.ledger import Found, Ledger, judge
from tests.chaos.driver.load import SubmittedJob, asked
from unstuck import Status
from unstuck.tasks.warehouse.log_entry import Entry

JOBS = {f"job{n}": asked(n, random.Random(n), Path("ran")) for n in range(1, 6)}
Plant = Callable[[Found], Found]


def in_order() -> Found:
    """Every job ran once, and published what it made."""
    tokens = [
        f"{job}/{group}/1/n{n}/c"
        for n, (job, one) in enumerate(JOBS.items())
        for group in one.groups
    ]
    return Found(
        {job: (one.name, Status.FINISHED) for job, one in JOBS.items()},
        [
            Entry(n, n - 1, job, "package", job, one.name, 0.0)
            for n, (job, one) in enumerate(JOBS.items(), 1)
        ],
        {one.dataset: list(range(one.rows)) for one in JOBS.values()},
        [f"{what} {token}" for token in tokens for what in ("begun", "done")],
        {
            job: [{"kind": "SUCCEEDED", "group": group} for group in one.groups]
            for job, one in JOBS.items()
        },
        {"APPLIED": 10},
    )


def test_a_correct_ledger_has_no_findings() -> None:
    ledger = judge(JOBS, in_order())
    assert ledger.kept, ledger.lines()
    assert (ledger.submitted, ledger.finished, ledger.published) == (5, 5, 5)
    assert ledger.attempts == sum(len(one.groups) for one in JOBS.values())


def status(to: Status) -> Plant:
    return lambda found: replace(found, jobs={**found.jobs, "job1": (JOBS["job1"].name, to)})


def rows(change: Callable[[list[int]], list[int]]) -> Plant:
    dataset = JOBS["job1"].dataset
    return lambda found: replace(
        found, rows={**found.rows, dataset: change(list(found.rows[dataset]))}
    )


FIRST = Entry(6, 5, "job1", "package", "job1", JOBS["job1"].name, 0.0)
EVENT = {"kind": "SUCCEEDED", "group": JOBS["job1"].groups[0]}


@pytest.mark.parametrize(
    ("word", "plant"),
    [
        (
            "lost",
            lambda found: replace(found, jobs={k: v for k, v in found.jobs.items() if k != "job1"}),
        ),
        ("lost", status(Status.FAILED)),
        ("lost", lambda found: replace(found, entries=found.entries[1:])),
        ("lost", rows(lambda all_of_them: all_of_them[1:])),
        (
            "lost",
            lambda found: replace(
                found, ran=[line for line in found.ran if line.startswith("begun")]
            ),
        ),
        (
            "lost",
            lambda found: replace(found, events={**found.events, "job1": found.events["job1"][1:]}),
        ),
        ("stuck", status(Status.RUNNING)),
        ("doubled", lambda found: replace(found, entries=[*found.entries, FIRST])),
        (
            "doubled",
            lambda found: replace(found, entries=[*found.entries, replace(FIRST, job="stranger")]),
        ),
        (
            "doubled",
            lambda found: replace(
                found, jobs={**found.jobs, "again": (JOBS["job1"].name, Status.FINISHED)}
            ),
        ),
        ("doubled", rows(lambda all_of_them: [*all_of_them, all_of_them[0]])),
        ("doubled", lambda found: replace(found, ran=[*found.ran, f"{found.ran[0]}-another"])),
        (
            "doubled",
            lambda found: replace(
                found, events={**found.events, "job1": [*found.events["job1"], EVENT]}
            ),
        ),
    ],
)
def test_injected_errors_are_reported(word: str, plant: Plant) -> None:
    ledger = judge(JOBS, plant(in_order()))
    assert getattr(ledger, word), ledger.lines()
    assert not ledger.kept
    assert any(line.strip().startswith(f"{word.upper()}: ") for line in ledger.lines())


def test_the_report_of_a_stuck_job_names_what_it_waits_for() -> None:
    found = replace(
        status(Status.RETRYING)(in_order()), waits={"job1": "first: QUEUED, nobody listens"}
    )
    (sentence,) = judge(JOBS, found).stuck
    assert sentence.endswith("is RETRYING: first: QUEUED, nobody listens")


def test_the_same_seed_generates_the_same_jobs() -> None:
    def all_of(seed: int) -> list[SubmittedJob]:
        rng = random.Random(seed)
        return [asked(n, rng, Path("ran")) for n in range(20)]

    assert all_of(1) == all_of(1) != all_of(2)


def test_the_report_is_machine_readable() -> None:
    ledger = judge(JOBS, replace(in_order(), entries=[]))
    assert isinstance(ledger, Ledger)
    told = ledger.to_dict()
    assert (told["lost"], told["doubled"], told["stuck"], told["kept"]) == (5, 0, 0, False)
    assert len(told["sentences"]["lost"]) == 5
