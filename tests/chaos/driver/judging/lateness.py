"""Lateness: how long after its tick each run was submitted, and whether anything that was broken
explains it.
"""

# A schedule that is due is left to the coordinator that took it for half the term of a lock, and so
# is a run to the coordinator that submits it. So if that coordinator dies, another one that is up
# submits the run after that time, and two sweep periods: the sweep that runs at that moment may
# have passed the schedule already. The machine adds what it kept plain timers and reads waiting in
# that time, and what a submit takes by itself in the same minutes: its median.

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from tests.chaos.driver.judging.repeated import FoundSchedule, first_tries
from tests.chaos.driver.person import Act
from tests.chaos.driver.uptime import Uptime
from unstuck import Settings
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.reconcile.heartbeat import EVERY
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.trigger import ticks


@dataclass(slots=True)
class LatenessReport:
    """What became of the ticks. ``late`` has a sentence for each run that nothing explains.

    Attributes:
        term: seconds within which the run of a tick is submitted, without what the machine adds.
        judged: ticks around which Redis and a coordinator were up; ``worst`` of their runs,
            ``allowed`` to it.
        others: ticks around which they were not, or not for long enough; ``worst_other`` of their
            runs.
        held: ticks whose run a pause has held up.
    """

    term: float
    judged: int = 0
    worst: float = 0.0
    allowed: float = 0.0
    others: int = 0
    worst_other: float = 0.0
    held: int = 0
    late: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        judged = (
            f"{self.judged} ticks were judged: the latest run came after {self.worst:.2f} of "
            f"{self.allowed:.2f} s"
        )
        others = f"{self.others} ticks were near an outage (the latest {self.worst_other:.2f} s)"
        return f"{judged}; {others}; {self.held} were held by a pause"


def term_of(settings: Settings) -> float:
    """Seconds within which the run of a tick is submitted, by the settings alone."""
    return settings.lock_term + 2 * settings.sweep_every


def judge_lateness(
    one: FoundSchedule, acts: list[Act], uptime: Uptime, settings: Settings, submit: float
) -> LatenessReport:
    """The account of a schedule whose ``overlap`` is ``allow``: no tick waits for a run. Pure.

    Args:
        submit: seconds that a submit takes by itself.
    """
    if one.record is None:
        return LatenessReport(0.0)  # which is judged by others
    policy = policy_of(one.record.policy)
    account = LatenessReport(term_of(settings))
    submitted = {tick: run.submitted_at for tick, run in first_tries(one).items()}
    gap = EVERY + settings.sweep_every
    stops = (float(event["at"]) for event in one.events if event["kind"] == "USER_STOP")
    acts = [*acts, *(Act("pause", at, at) for at in stops)]  # it lets go of a run as a pause does
    begin, end = (_at(at) for at in (one.record.made_at, one.record.cursor))
    for tick in (found.timestamp() for found in ticks(policy, begin, end)):
        bound = account.term + submit + uptime.lateness(tick, tick + account.term)
        took = submitted[tick] - tick if tick in submitted else None
        in_time = took is not None and took <= bound
        if not in_time and (_held(acts, tick, bound) or tick in one.let_go):
            account.held += 1
            continue
        if not uptime.up(tick - account.term, tick + bound, gap):
            account.others += 1
            account.worst_other = max(account.worst_other, took or 0.0)
            continue
        account.judged += 1
        if took is not None and took >= account.worst:
            account.worst, account.allowed = took, bound
        if not in_time:
            came = "never" if took is None else f"{took:.2f} s after its tick"
            account.late.append(
                f"{one.name}: the run of {tick_text(tick)} was submitted {came}, and {bound:.2f} s "
                "were allowed"
            )
    return account


def _held(acts: list[Act], tick: float, bound: float) -> bool:
    """Whether a pause may have kept the run of this tick, which may have been asked for before the
    run was due.
    """
    pause: Act | None = None
    for act in acts:
        if act.what == "pause":
            pause = pause or act
        elif pause is not None:
            if pause.asked - bound <= tick <= act.answered:
                return True
            pause = None
    return pause is not None and pause.asked - bound <= tick


def _at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
