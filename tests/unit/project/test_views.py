"""What leaves the client holds documented fields alone: no token, nonce, commit or record of what
stands in Redis.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from unstuck import Client, JobHandle
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.notices.outbox import Notices
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.pool_store import Pools
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo

ROOMS = [Client, JobHandle, ScheduleClient, Pools, Notices, DeadLetters]
# What fences and stores, which a user has no use for.
INTERNAL = re.compile(
    r"nonce|token|epoch|commit|claimant|lease|fingerprint|.*record|texts|staging|requests|told|cursor|decided_to"
)


def named(kind: Any) -> Iterator[type]:
    """The classes of ours in an annotation."""
    if inspect.isclass(kind) and kind.__module__.startswith("unstuck."):
        yield kind
    for part in typing.get_args(kind):
        yield from named(part)


def answers(room: type) -> Iterator[tuple[str, type]]:
    for name, method in inspect.getmembers(room, inspect.isfunction):
        if not name.startswith("_"):
            hints = typing.get_type_hints(
                method, vars(inspect.getmodule(method)) | {"Client": Client}
            )
            yield from ((f"{room.__name__}.{name}", one) for one in named(hints.get("return")))


def fields_within(kind: type, path: str, seen: set[type]) -> Iterator[tuple[str, str, type]]:
    """Each field of ``kind``, and of what it holds."""
    if kind in seen or issubclass(kind, Enum) or not dataclasses.is_dataclass(kind):
        return
    seen.add(kind)
    processes = {"RunnerInfo": RunnerInfo, "CoordinatorInfo": CoordinatorInfo}
    hints = typing.get_type_hints(
        kind, vars(inspect.getmodule(kind)) | {"Explanation": object, "Stack": object} | processes
    )
    for one in dataclasses.fields(kind):
        yield f"{path}.{one.name}", one.name, kind
        for held in named(hints[one.name]):
            yield from fields_within(held, f"{path}.{one.name}", seen)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_no_client_answer_contains_an_internal_field(room: type) -> None:
    seen: set[type] = set()
    found = [
        (path, kind.__name__)
        for name, answer in answers(room)
        for path, field, kind in fields_within(answer, name, seen)
        if INTERNAL.fullmatch(field) or field.startswith("_")
    ]
    assert found == []
    assert [kind.__name__ for kind in seen if kind.__name__.endswith("Record")] == []
    assert seen or room is JobHandle
