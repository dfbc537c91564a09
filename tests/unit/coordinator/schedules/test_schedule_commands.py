"""The commands that are legal for a schedule: one that is offered changes it, and no other does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.coordinator.schedules.test_decide_schedule import FAILED, Play, record
from unstuck.coordinator.command_table import COMMANDS, Answer, TargetKind
from unstuck.coordinator.schedules.decide_schedule import settled
from unstuck.coordinator.schedules.schedule_commands import JUDGES, command


def waiting() -> Play:
    play = Play(record(every="60s", overlap="allow", retry={"max": 1}))
    play.at(0)
    return play


def running() -> Play:
    play = waiting()
    play.at(60)
    return play


def retrying() -> Play:
    play = running()
    play.fails(61)
    return play


def halted() -> Play:
    play = retrying()
    play.record = settled(replace(play.record, halted=FAILED), play.now)
    return play


def commanded(made: Callable[[], Play], given: str) -> Play:
    play = made()
    play.command(given)
    return play


STATES: dict[str, Callable[[], Play]] = {
    "WAITING": waiting,
    "RUNNING": running,
    "RETRYING": retrying,
    "HALTED": halted,
    "PAUSED": lambda: commanded(waiting, "pause"),
    "of one that ran: PAUSED": lambda: commanded(running, "pause"),
    "STOPPED": lambda: commanded(waiting, "stop"),
    "of one that ran: STOPPED": lambda: commanded(running, "stop"),
}


@pytest.mark.parametrize("state", STATES)
def test_only_commands_that_change_a_schedule_are_offered(state: str) -> None:
    play = STATES[state]()
    assert state.endswith(str(play.record.status))
    change = {one for one in JUDGES if command(play.record, one, play.now).answer is Answer.DONE}
    legal = {
        word
        for word, declared in COMMANDS[TargetKind.SCHEDULE].items()
        if word in JUDGES and play.record.status in declared.legal
    }
    assert legal == change
