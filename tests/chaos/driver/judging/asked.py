"""What a person asked of schedules: whether each pause held until its resume, and each tick of a
backfill ran once.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tests.chaos.driver.judging.repeated import FoundSchedule, Repeated
from tests.chaos.driver.person import Act
from unstuck import Status
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.model.tick import tick_text


def judge_pauses(account: Repeated, one: FoundSchedule, acts: Sequence[Act]) -> None:
    """Each pause and resume is on record once; between them no tick got a run, and none was
    submitted. Pure.

    It has ended by a stop, which tells in which status it was: as the person left it.
    """
    for what in ("pause", "resume"):
        asked = sum(act.what == what for act in acts)
        told = sum(event["kind"] == f"USER_{what.upper()}" for event in one.events)
        if asked != told:
            account.disobeyed.append(
                f"{one.name}: {asked} times {what} was answered, and {told} are in the event log"
            )
    account.lost += [
        f"{one.name} runs all its ticks but those of a pause: {event['code']}, {event['text']}"
        for event in one.events
        if event["kind"] == "SKIPPED" and event["code"] != "PAUSED"
    ]
    account.pauses += sum(act.what == "pause" for act in acts)
    for begin, end in pauses(acts):
        span = (
            f"from {tick_text(round(begin, 3))} to "
            f"{'the end' if end is None else tick_text(round(end, 3))}"
        )
        until = float("inf") if end is None else end
        for run in one.runs:
            tick = datetime.datetime.fromisoformat(run.tick).timestamp()
            if begin < tick < until:
                account.disobeyed.append(
                    f"{one.name} was paused {span}, and its tick {run.tick} got {run.key}"
                )
            elif begin < run.submitted_at < until:
                at = tick_text(round(run.submitted_at, 3))
                account.disobeyed.append(
                    f"{one.name} was paused {span}, and {run.key} was submitted at {at}"
                )
    paused = bool(acts) and acts[-1].what == "pause"
    stop = next((event for event in one.events if event["kind"] == "USER_STOP"), None)
    if stop is not None and (stop.get("was") == ScheduleStatus.PAUSED) != paused:
        last = acts[-1].what if acts else "nothing"
        account.disobeyed.append(
            f"{one.name} was {stop.get('was')} in the end, and a person had last asked for {last}"
        )


def pauses(acts: Sequence[Act]) -> Iterator[tuple[float, float | None]]:
    """From when on it is certainly paused, to when it is certainly still so; None: to the end."""
    for act, following in zip_longest(acts, acts[1:]):
        if act.what == "pause":
            yield act.answered, None if following is None else following.asked


def judge_backfill(
    account: Repeated, one: FoundSchedule, wanted: Sequence[float], parallel: int
) -> None:
    """It has ended; each of its ticks has one run, which ended well; and no more went on at once
    than were wanted.
    """
    backfill = None if one.record is None else one.record.backfill
    if backfill is None:
        account.lost.append(f"{one.name}: its backfill was answered, and is not on its record")
        return
    if not backfill.over:
        account.stuck.append(
            f"the backfill of {one.name} is {backfill.status}: {backfill.progress}"
        )
    mine = [run for run in one.runs if run.backfill]
    account.backfilled += len(mine)
    had, well = (
        Counter(run.tick for run in mine),
        Counter(run.tick for run in mine if run.status is Status.FINISHED),
    )
    for tick in map(tick_text, wanted):
        if not well[tick]:
            account.lost.append(
                f"{one.name}: the tick {tick} of the backfill has no run that ended well"
            )
        if well[tick] > 1:
            account.doubled.append(
                f"{one.name}: the tick {tick} of the backfill has {well[tick]} runs that ended well"
            )
    strangers = sorted(set(had) - set(map(tick_text, wanted)))
    account.doubled += [
        f"{one.name}: nobody asked for the tick {tick}, and it was backfilled" for tick in strangers
    ]
    moves = sorted(
        [(run.ended_at, -1) for run in mine if run.ended_at]
        + [(run.submitted_at, 1) for run in mine]
    )
    at_once = most = 0
    for _, move in moves:
        at_once += move
        most = max(most, at_once)
    if most > parallel:
        account.doubled.append(
            f"{one.name}: {most} runs of the backfill went on at once, and {parallel} were wanted"
        )
