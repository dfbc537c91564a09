"""What must hold of the notices of schedules: each change that a rule names is told, once, and of
committed states.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tests.simulation.rules.broken import FORGOTTEN, ONE, SHOWN
from tests.simulation.schedules.store import ModelSchedules
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.trigger import previous_tick
from unstuck.coordinator.store.schedule_store import ScheduleChange

UNTOLD = f"{SHOWN}: a change that a rule names is told by its commit, and nothing else is"
TOLD_TWICE = f"{ONE}: a problem is told once, with one id"
UNWELL = f"{SHOWN}: that a schedule is well again is told when a run has ended well"
LATE_NOTICE = (
    f"{FORGOTTEN}: a deadline, and what holds for a time, is told within a sweep and a term"
)

AGAIN = 20.0  # seconds; half an hour outside of histories
RETRYING_FOR = 15.0
DAY = 86400.0
_FAILING = ("failed", "halted", "retrying_for")


def rules_of(seed: int, name: str, start: float) -> list[dict[str, Any]]:
    """The rules of a schedule, for half of them: its deadline is one of the next minutes."""
    dice = random.Random(f"told {seed} {name}")
    if dice.random() < 0.5:
        return []
    by = datetime.datetime.fromtimestamp(start + dice.choice((60, 120, 180)), datetime.UTC)
    late = {"late": f"{by:%H:%M} UTC"}
    return [
        {
            "on": [
                "failed",
                "halted",
                "finished",
                "recovered",
                {"retrying_for": RETRYING_FOR},
                late,
            ],
            "to": ["ops"],
        }
    ]


class ToldRules:
    """Told of every commit. ``broken`` raises."""

    def __init__(self, core: ModelSchedules, broken: Callable[[str, str], None]) -> None:
        self._core, self._broken = core, broken

    def committed(
        self, before: ScheduleRecord, after: ScheduleRecord, change: ScheduleChange
    ) -> None:
        notices = [Notice.from_json(text) for text in change.notices]
        # Of a backfill others are told, and it has problems of its own.
        words = [notice.event for notice in notices if not notice.text.startswith("its backfill")]
        ids = [json.loads(text)["id"] for text in self._core.outbox]
        if (
            len(ids) != len(set(ids)) and not self._core.jumped
        ):  # by a clock that was ahead, a deadline may come twice
            self._broken(
                TOLD_TWICE,
                f"{after.name}: {[notice.id for notice in notices]} of {words} stands twice",
            )
        for notice in notices:
            canceled = notice.text.startswith("its backfill is CANCELED")
            status = "CANCELED" if canceled else after.status
            if (notice.status, notice.name) != (status, after.name):
                self._broken(UNTOLD, f"{after.name} is {after.status}, and {notice} is told")
        if not json.loads(after.spec).get("notify"):
            if notices:
                self._broken(UNTOLD, f"nobody asked, and {words} are told of {after.name}")
            return
        if change.commanded:
            return
        events = [dict(event) for event in change.events]
        kinds = [str(event["kind"]) for event in events]
        done = [str(event["job"]) for event in events if event["kind"] == "RUN_FINISHED"]
        finished = [notice.job for notice in notices if notice.event == "finished"]
        if done != finished[: len(done)]:
            self._broken(UNTOLD, f"{after.name}: {done} have ended well, and {finished} are told")
        told = self._core.told.setdefault(after.name, [])
        at = next(
            (
                float(event["at"])
                for event in events
                if event["kind"] == "RUN_FAILED" and "tick" in event
            ),
            0.0,
        )
        well = "RUN_FINISHED" in kinds and not after.failures and after.halted is None
        standing = self._standing(after.name)
        told_so = {"failed", "halted"}.intersection((*words, *standing))
        if at and not after.status.terminal and self._may("failed", after.name, at) and not told_so:
            self._broken(UNTOLD, f"{after.name} has failed, and {words} are told")
        if "failed" in words and "failed" in standing:
            self._broken(TOLD_TWICE, f"{after.name} fails, as was told, and is told again")
        if (
            before.halted is None
            and after.halted is not None
            and "halted" not in words
            and not after.status.terminal
        ):
            self._broken(UNTOLD, f"{after.name} is halted, and {words} are told")
        late = "late" in words or self._is_late(after.name)
        halted = after.backfill is not None and after.backfill.halted is not None
        if (
            halted
            and before.backfill is not None
            and before.backfill.halted is None
            and len(notices) == len(words)
        ):
            self._broken(UNTOLD, f"the backfill of {after.name} is halted, and {words} are told")
        if "recovered" in words and not well and not late and after.status != "STOPPED":
            self._broken(UNWELL, f"{after.name} is told to be well by {kinds}")
        # Ended by a person, its problems end with it; a backfill that is halted stands.
        if (
            well
            and not (late or halted or after.status.terminal)
            and standing.intersection(_FAILING)
            and not {"recovered", "retrying_for"}.intersection(
                words
            )  # a problem that begins now stands
        ):
            self._broken(
                UNTOLD,
                f"{after.name} is well again, and {words} are told; {standing} were told before",
            )
        told += [
            (one.event, one.at, one.since)
            for one in notices
            if not one.text.startswith("its backfill")
        ]
        if well:
            told.append(("well", self._core.now, 0.0))

    def waits(self, record: ScheduleRecord) -> Iterator[str]:
        """The notices that somebody should send at once."""
        rules, now = json.loads(record.spec).get("notify"), self._core.now
        if not rules or record.status.terminal:
            return
        deadline, counts_from, asks_for = _deadline(rules[0]["on"][-1]["late"], record, now)
        done = record.last_success is not None and record.last_success.tick > counts_from
        told = self._core.told.get(record.name, [])
        if (
            not done
            and asks_for > record.made_at
            and ("late", deadline) not in {(word, of) for word, _, of in told}
        ):
            yield f"the notice that it is late at {deadline:.0f}"
        halted = "halted" in self._standing(record.name)
        if record.failures and self._may("failed", record.name, now) and not halted:
            yield "the notice of its failure"
        error = record.first_error
        tried = record.status == "RETRYING" and error is not None and error.at + RETRYING_FOR <= now
        if tried and self._may("retrying_for", record.name, now):
            yield "the notice that it is being tried again"

    def _is_late(self, name: str) -> bool:
        """Whether a notice ``late`` is open: a success alone does not end it."""
        words = [
            word for word, *_ in self._core.told.get(name, []) if word in ("late", "recovered")
        ]
        return words[-1:] == ["late"]

    def _standing(self, name: str) -> set[str]:
        """The problems that were told since the schedule was well."""
        told = self._core.told.get(name, [])
        begin = max((n for n, (word, *_) in enumerate(told) if word == "well"), default=-1)
        return {word for word, *_ in told[begin + 1 :]} - {"finished", "recovered"}

    def _may(self, word: str, name: str, now: float) -> bool:
        """Whether a problem is to be told: none stands, and none was told a short while ago."""
        # The newest, which is not the latest where the clock was set back.
        last = next(
            (at for one, at, _ in reversed(self._core.told.get(name, [])) if one == word), None
        )
        return word not in self._standing(name) and (last is None or not last <= now < last + AGAIN)


def _deadline(text: str, record: ScheduleRecord, now: float) -> tuple[float, float, float]:
    """The last deadline, after which tick a run counts for it, and the last tick before it."""
    hour, minute = (int(part) for part in text.split()[0].split(":"))
    of_day = hour * 3600.0 + minute * 60.0
    deadline = ((now - of_day) // DAY) * DAY + of_day
    tick = _tick_before(record.policy, deadline)
    if tick is None:
        return deadline, deadline - DAY, deadline
    at = tick.timestamp()
    return deadline, deadline - DAY if at > deadline - DAY else at - 1e-6, at


@lru_cache(maxsize=1024)
def _tick_before(policy: str, at: float) -> datetime.datetime | None:
    return previous_tick(policy_of(policy), datetime.datetime.fromtimestamp(at, datetime.UTC))
