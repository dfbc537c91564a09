"""Each command of the table has a typed method with the declared arguments, and a form everywhere."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from unstuck import Client
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.command_table import COMMANDS, Command, TargetKind
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.pool_store import Pools
from unstuck.documents.command_answers import ANSWERS
from unstuck.web.api.command_routes import PATHS

ROOMS: dict[TargetKind, Any] = {
    TargetKind.SCHEDULE: ScheduleClient,
    TargetKind.BACKFILL: ScheduleClient,
    TargetKind.POOL: Pools,
    TargetKind.DEAD_LETTER: DeadLetters,
}
ALL = [
    pytest.param(command, id=" ".join(command.words[1:]))
    for commands in COMMANDS.values()
    for command in commands.values()
]


@pytest.mark.parametrize("command", ALL)
def test_the_method_of_a_command_accepts_its_arguments(command: Command) -> None:
    method = getattr(ROOMS.get(command.target, Client), command.method)
    _, _target, *parameters = inspect.signature(method).parameters.values()
    assert {parameter.name: parameter.default for parameter in parameters} == {
        argument.name: argument.default for argument in command.arguments
    }


@pytest.mark.parametrize("command", ALL)
def test_the_method_of_a_command_has_its_help_text(command: Command) -> None:
    method = getattr(ROOMS.get(command.target, Client), command.method)
    assert command.help.split()[:4] == str(inspect.getdoc(method)).split()[:4]
    assert command.help.endswith((".", ":"))
    assert all(argument.about.help.endswith(".") for argument in command.arguments)


def test_each_kind_of_target_has_a_route_and_an_answer() -> None:
    assert set(PATHS) == set(ANSWERS) == set(TargetKind)
