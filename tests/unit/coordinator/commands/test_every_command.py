"""Every command in every status of a job, as one table to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.jobs.state_space import LOOK, SmallWorld, Step
from unstuck.coordinator.command_table import COMMANDS, Order, TargetKind
from unstuck.coordinator.commands.alter import alter
from unstuck.coordinator.commands.group_commands import rerun, skip
from unstuck.coordinator.commands.job_commands import (
    GROUPS_LEGAL,
    INTENTS,
    RETRY_LEGAL,
    Commanded,
    command,
)
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, Status

COLUMNS = (
    "pause",
    "resume",
    "stop",
    "cancel",
    "force-stop",
    "skip",
    "rerun",
    "alter of policy",
    "alter of code",
)
# D: done, A: already so or asked for before, -: refused. In the order of COLUMNS; and the intent
# that the status has.
TABLE = """
    PENDING    run         D A D D D - - D -
    RUNNING    run         D A D D D - - D -
    RETRYING   run         D - D D D D D D D
    PAUSING    pause       A D D D D - - D -
    PAUSED     pause       A D D D D D D D D
    HALTED     run         - D D D D D D D D
    HALTED     pause       - D D D D D D D D
    HALTED     cancel      - - - A D - - D D
    STOPPING   stop        - - A D D - - D -
    CANCELING  cancel      - - - A D - - D -
    CANCELING  force_stop  - - - - A - - D -
    STOPPED    stop        - - A - - - - - -
    CANCELED   cancel      - - - A A - - - -
    FINISHED   run         - - - - - - - - -
    FAILED     run         - - - - - - - - -
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
CASES = [
    (Status(status), Intent(intent), given, answer)
    for status, intent, *answers in ROWS
    for given, answer in zip(COLUMNS, answers, strict=True)
]


@pytest.fixture(scope="module")
def failed_once() -> SmallWorld:
    """A job whose group ``a`` has failed once, so that there is something to skip and to run
    again.
    """
    return SmallWorld("chain").play(LOOK, Step("claim", "a"), Step("finish", "a", "failed"), LOOK)


def standing(world: SmallWorld, status: Status, intent: Intent) -> JobState:
    state = world.fork().state()
    halted = Reason("UNDECIDABLE", "a bug") if status is Status.HALTED else None
    ended_at = world.now if status.terminal else 0.0
    state.job = replace(state.job, status=status, intent=intent, halted=halted, ended_at=ended_at)
    return state


@pytest.mark.parametrize(("status", "intent", "given", "wanted"), CASES)
def test_every_command_has_its_documented_effect_in_every_status(
    failed_once: SmallWorld, status: Status, intent: Intent, given: str, wanted: str
) -> None:
    state = standing(failed_once, status, intent)
    others: dict[str, Callable[[], Commanded]] = {
        "skip": lambda: skip(state, Order(), "a"),
        "rerun": lambda: rerun(state, Order(word="w"), "a"),
        "alter of policy": lambda: alter(state, Order("anna", at=1.0), {"groups.a.timeout": "2h"}),
        "alter of code": lambda: alter(
            state, Order("anna", at=1.0), {"groups.a.conf.spark.x": "1"}
        ),
    }
    result = others[given]() if given in others else command(state.job, given)
    assert {"DONE": "D", "ALREADY": "A", "REFUSED": "-"}[result.answer] == wanted, result.text
    if wanted == "-":
        assert (result.job, str(status) in result.text) == (state.job, True)


def test_the_command_table_lists_every_status_as_the_code_does() -> None:
    assert {Status(row[0]) for row in ROWS} == set(Status)
    assert set(COLUMNS[:5]) == {str(given) for given in INTENTS}
    done = {(status, given) for status, _, given, answer in CASES if answer == "D"}
    for given in INTENTS:
        assert {status for status, what in done if what == given} <= COMMANDS[TargetKind.JOB][
            given
        ].legal
    assert {status for status, what in done if what == "skip"} == GROUPS_LEGAL
    assert {Status.FAILED, Status.CANCELED, Status.STOPPED} == RETRY_LEGAL
