"""The account of schedules finds each way to lose, double or hang a tick or a file, planted into
one in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.driver.judging.repeated import FoundSchedule, judge_schedules
from tests.chaos.driver.schedules import ARRIVES, FOLLOWS, HELD, PAST, TICKS, specs
from unstuck import JobSpec, Status
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Quiet,
    Run,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.model.tick import tick_text
from unstuck.read_model.job import JobInfo

BEGAN = 1_800_000_000.0  # a tick of every three seconds, and of every two
WANTED = [BEGAN // 86400 * 86400 - 86400, BEGAN // 86400 * 86400]  # of the past
FED = {"/in/a.json": (0, 1), "/in/b.json": (2, 3), "/in/broken.json": ()}
POLICIES = {
    spec["name"]: json.dumps(json.loads(JobSpec.of(spec, {}, scheduled=True).to_json())["schedule"])
    for spec in specs(Path("ran"), Path("/in"))
}


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "at": BEGAN, **more}


def found(
    name: str, ticks: list[float], cursor: float, rows: list[dict[str, Any]], backfill: str = ""
) -> FoundSchedule:
    """A schedule that was stopped, with a run of each of ``ticks``, each over before the next."""
    runs, events, end = [], [], "BACKFILL_RUN_FINISHED" if backfill else "RUN_FINISHED"
    for tick in ticks:
        run = Run(tick)
        job = run.job_id(name)
        runs.append(
            JobInfo(
                id=job,
                name=name,
                status=Status.FINISHED,
                submitted_at=tick + 0.1,
                started_at=tick + 0.2,
                ended_at=tick + 1,
                version=1,
                key=run.key(name),
                schedule=name,
                backfill=backfill,
            )
        )
        events += [event("RUN_SUBMITTED", job=job, tick=tick_text(tick)), event(end, job=job)]
    record = ScheduleRecord(
        name,
        "c",
        "",
        POLICIES[name],
        "/w",
        ScheduleStatus.STOPPED,
        ScheduleIntent.STOP,
        made_at=BEGAN - 0.5,
        cursor=cursor,
    )
    return FoundSchedule(name, record, runs, events, {run.id: 1 for run in runs}, rows)


def in_order() -> dict[str, FoundSchedule]:
    """Four ticks, one of them skipped; two versions followed; three files, one of them broken; a
    pause; a backfill.
    """
    at = [BEGAN, BEGAN + 3, BEGAN + 9]
    ticks = found(TICKS, at, BEGAN + 9, [{"tick": tick_text(one)} for one in at])
    skipped = event(
        "SKIPPED",
        code="OVERLAP",
        text=f"1 tick skipped, {tick_text(BEGAN + 6)}: the run was not over",
    )
    follows = [
        {"tick": tick_text(BEGAN + 2.125), "seen": 1},
        {"tick": tick_text(BEGAN + 10.25), "seen": 3},
    ]
    arrives = found(ARRIVES, [BEGAN, BEGAN + 4], BEGAN + 8, [{"id": n} for n in range(4)])
    assert arrives.record is not None
    quiet = event(
        "RUN_SUBMITTED",
        job=arrives.runs[1].id,
        text=f"before it, 1 tick skipped, {tick_text(BEGAN + 2)}: nothing new lay there",
    )
    # Paused from before its third tick to after its fifth, and stopped while it went on.
    going_on = [BEGAN, BEGAN + 2, BEGAN + 10]
    held = found(HELD, going_on, BEGAN + 10, [{"tick": tick_text(one)} for one in going_on])
    span = f"{tick_text(BEGAN + 4)} to {tick_text(BEGAN + 8)}"
    told = [
        event("USER_PAUSE"),
        event("USER_RESUME"),
        event("SKIPPED", code="PAUSED", text=f"3 ticks skipped, {span}: paused"),
        event("USER_STOP", was="WAITING", at=BEGAN + 29),
    ]
    past = found(
        PAST, WANTED, BEGAN, [{"tick": tick_text(one)} for one in WANTED], tick_text(BEGAN)
    )
    backfill = Backfill(
        WANTED[0], WANTED[-1], 2, BEGAN, "anna", None, POLICIES[PAST], passed=2, ended_at=BEGAN + 9
    )
    return {
        TICKS: replace(ticks, events=[*ticks.events, skipped]),
        FOLLOWS: found(FOLLOWS, [BEGAN + 2.125, BEGAN + 10.25], 0.0, follows),
        ARRIVES: replace(
            arrives,
            record=replace(arrives.record, quiet=Quiet(BEGAN + 6, BEGAN + 8, 2, BEGAN + 8)),
            events=[*arrives.events[:2], quiet, arrives.events[3]],
        ),
        HELD: replace(held, events=[*held.events, *told]),
        PAST: record(backfill=backfill)(past),
    }


Plant = Callable[[FoundSchedule], FoundSchedule]


def record(**changed: Any) -> Plant:
    def plant(one: FoundSchedule) -> FoundSchedule:
        assert one.record is not None
        return replace(one, record=replace(one.record, **changed))

    return plant


def run(**changed: Any) -> Plant:
    """The second run is otherwise."""
    return lambda one: replace(
        one, runs=[one.runs[0], replace(one.runs[1], **changed), *one.runs[2:]]
    )


def without(kind: str) -> Plant:
    return lambda one: replace(one, events=[event for event in one.events if event["kind"] != kind])


def test_a_correct_ledger_has_no_findings() -> None:
    account = judge_schedules([*in_order().values()], FED, ["/in/broken.json"])
    assert not account.lost + account.doubled + account.stuck
    assert (account.runs, account.skipped, account.files, account.aside) == (12, 4, 3, 1)


def again(one: FoundSchedule) -> FoundSchedule:
    """The second run is there twice, as two jobs."""
    twin = replace(one.runs[1], id="twin", submitted_at=BEGAN + 20, ended_at=BEGAN + 21)
    told = [event("RUN_SUBMITTED", job="twin"), event("RUN_FINISHED", job="twin")]
    return replace(
        one,
        runs=[*one.runs, twin],
        events=[*one.events, *told],
        packages={**one.packages, "twin": 1},
    )


@pytest.mark.parametrize(
    ("word", "name", "plant"),
    [
        ("lost", TICKS, lambda one: replace(one, record=None)),
        ("lost", TICKS, without("SKIPPED")),
        ("lost", TICKS, record(cursor=BEGAN + 12)),
        ("lost", TICKS, lambda one: replace(one, rows=one.rows[1:])),
        ("lost", TICKS, lambda one: replace(one, packages={})),
        ("lost", TICKS, lambda one: replace(one, runs=one.runs[:2])),
        ("lost", TICKS, without("RUN_FINISHED")),
        ("lost", TICKS, run(status=Status.FAILED)),
        ("lost", FOLLOWS, lambda one: replace(one, rows=[{**row, "seen": 2} for row in one.rows])),
        ("lost", ARRIVES, record(quiet=None)),
        ("lost", ARRIVES, lambda one: replace(one, rows=one.rows[:3])),
        ("doubled", TICKS, again),
        ("doubled", TICKS, lambda one: replace(one, rows=[*one.rows, one.rows[0]])),
        (
            "doubled",
            TICKS,
            lambda one: replace(one, rows=[*one.rows, {"tick": tick_text(BEGAN + 6)}]),
        ),
        ("doubled", TICKS, lambda one: replace(one, packages=dict.fromkeys(one.packages, 2))),
        ("doubled", TICKS, lambda one: replace(one, events=[*one.events, one.events[0]])),
        ("doubled", TICKS, run(submitted_at=BEGAN + 0.5)),
        ("doubled", FOLLOWS, lambda one: replace(one, rows=[*one.rows, one.rows[0]])),
        ("doubled", ARRIVES, lambda one: replace(one, rows=[*one.rows, {"id": 3}])),
        ("doubled", ARRIVES, lambda one: replace(one, rows=[*one.rows, {"id": 99}])),
        ("stuck", TICKS, run(status=Status.RUNNING)),
        ("stuck", FOLLOWS, record(status=ScheduleStatus.RETRYING)),
        ("stuck", ARRIVES, record(runs=(Run(BEGAN + 8),))),
        ("lost", HELD, without("SKIPPED")),
        ("lost", HELD, lambda one: replace(one, runs=[*one.runs[:1], *one.runs[2:]])),
        ("doubled", PAST, lambda one: replace(one, rows=[*one.rows, one.rows[0]])),
        ("lost", PAST, without("BACKFILL_RUN_FINISHED")),
    ],
)
def test_injected_errors_are_reported(word: str, name: str, plant: Plant) -> None:
    planted = in_order()
    planted[name] = plant(planted[name])
    account = judge_schedules([*planted.values()], FED, ["/in/broken.json"])
    assert getattr(account, word), account


def test_a_stop_excuses_only_the_tick_whose_run_was_not_submitted() -> None:
    stopped = in_order()
    stop = event("USER_STOP")
    stopped[TICKS] = record(cursor=BEGAN + 12)(
        replace(stopped[TICKS], events=[*stopped[TICKS].events, stop])
    )
    assert judge_schedules([*stopped.values()], FED, ["/in/broken.json"]).lost == []
    stopped[TICKS] = record(cursor=BEGAN + 15)(stopped[TICKS])
    (sentence,) = judge_schedules([*stopped.values()], FED, ["/in/broken.json"]).lost
    assert tick_text(BEGAN + 12) in sentence


@pytest.mark.parametrize(
    ("word", "aside"),
    [
        ("lost", []),
        ("doubled", ["/in/broken.json"] * 2),
        ("doubled", ["/in/broken.json", "/in/a.json"]),
    ],
)
def test_lost_files_and_files_rejected_twice_are_reported(word: str, aside: list[str]) -> None:
    (sentence,) = getattr(judge_schedules([*in_order().values()], FED, aside), word)
    assert "/in/" in sentence
