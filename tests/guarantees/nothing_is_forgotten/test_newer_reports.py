"""Reports of a newer release wait for a coordinator that can read them, and come back: each once, and none is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.support.coordinator import Coordinator, group
from unstuck import Status
from unstuck.coordinator.store import reports
from unstuck.coordinator.store.reports import DEAD_KEPT, ReportStream

COUNT = 1200


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From this call on the coordinators of this process read schema 2."""
    return lambda: monkeypatch.setattr("unstuck.tasks.protocol.report.SCHEMA_VERSION", 2)


def left(coordinator: Coordinator) -> str:
    return coordinator.keys.newer_reports("2")


def leave(coordinator: Coordinator, count: int) -> None:
    """As an older coordinator does with reports of schema 2."""
    with coordinator.redis.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.xadd(coordinator.keys.reports, {"v": 2, "id": f"event{number}"})
        pipe.execute()
    while entries := coordinator.stream.read(500, 0.001):
        coordinator.stream.leave_for_newer(entries, 2)
    assert coordinator.redis.xlen(left(coordinator)) >= count


def came_back(coordinator: Coordinator) -> list[str]:
    """Events of all reports that wait to be read."""
    return [entry.fields["id"] for entry in all_unread(coordinator)]


def all_unread(coordinator: Coordinator) -> Iterator[reports.StreamEntry]:
    while entries := coordinator.stream.read(500, 0.001):
        yield from entries


def test_an_upgraded_coordinator_applies_what_an_older_one_had_left(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch, upgraded: Callable[[], None]
) -> None:
    older = make_coordinator()
    job = older.submit(group("only"))
    older.read()
    monkeypatch.setattr("unstuck.tasks.transport.lease.SCHEMA_VERSION", 2)  # the workers are upgraded first
    (offer,) = older.offers()
    older.work(offer)
    older.read()
    assert older.status(job) is not Status.FINISHED, "nobody could read that it was done"
    assert older.redis.xlen(left(older)) == 2

    upgraded()
    newer = make_coordinator()
    newer.read()
    assert newer.status(job) is Status.FINISHED
    assert not newer.redis.exists(left(newer)), "nothing waits any more"
    assert newer.client.queries.counters()["READMITTED"] == 2


def test_a_coordinator_that_cannot_read_them_leaves_them_where_they_are(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    older = make_coordinator()
    leave(older, 3)
    make_coordinator()
    older.stream.readmit()
    assert older.redis.xlen(left(older)) == 3
    assert came_back(older) == []


def test_what_an_older_one_leaves_beside_a_newer_one_comes_back_without_a_restart(
    coordinator: Coordinator, upgraded: Callable[[], None]
) -> None:
    upgraded()
    coordinator.stream.open()
    leave(coordinator, 3)
    coordinator.consumer.step()  # the first round of a consumer tidies up
    assert not coordinator.redis.exists(left(coordinator))


def test_two_that_open_at_once_bring_each_report_back_once(
    coordinator: Coordinator, upgraded: Callable[[], None]
) -> None:
    leave(coordinator, COUNT)
    upgraded()
    streams = [ReportStream(coordinator.redis, coordinator.keys, f"host:{n}:x") for n in range(2)]
    threads = [threading.Thread(target=one.open) for one in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came_back(coordinator)) == sorted(f"event{n}" for n in range(COUNT))


def test_one_that_dies_in_the_middle_is_followed_by_one_that_brings_the_rest(
    coordinator: Coordinator, upgraded: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(coordinator, COUNT)
    upgraded()
    monkeypatch.setattr(reports, "READMITTED_AT_ONCE", 100)
    first = ReportStream(coordinator.redis, coordinator.keys, "host:1:x")
    whole, steps = first._readmit, iter(range(3))

    def dies(**given: Any) -> Any:
        answer = whole(**given)
        if next(steps) == 2:
            raise redis.ConnectionError("it was done, and its author never heard of it")
        return answer

    monkeypatch.setattr(first, "_readmit", dies)
    with pytest.raises(redis.ConnectionError):
        first.open()
    assert coordinator.redis.xlen(left(coordinator)) == COUNT - 300
    ReportStream(coordinator.redis, coordinator.keys, "host:2:x").open()
    assert sorted(came_back(coordinator)) == sorted(f"event{n}" for n in range(COUNT))


def test_what_is_no_report_is_made_a_dead_letter_and_keeps_no_coordinator_from_opening(
    coordinator: Coordinator, upgraded: Callable[[], None]
) -> None:
    for text in ("{}", "not JSON", "[1, 2]", "7", '{"hello": "world"}'):
        coordinator.redis.xadd(left(coordinator), {"reason": "written by hand", "report": text})
    coordinator.redis.xadd(left(coordinator), {"hello": "world"})
    leave(coordinator, 1)
    upgraded()
    coordinator.stream.open()
    assert not coordinator.redis.exists(left(coordinator))
    entries = list(all_unread(coordinator))
    assert [entry.fields["id"] for entry in entries if "id" in entry.fields] == ["event0"]
    coordinator.consumer.apply(entry for entry in entries if "id" not in entry.fields)
    assert [dead.reason.split(":")[0] for dead in coordinator.stream.dead_letters()] == ["UNREADABLE"] * 6


def test_no_number_of_them_pushes_an_older_one_out(coordinator: Coordinator) -> None:
    with coordinator.redis.pipeline(transaction=False) as pipe:
        for number in range(2 * DEAD_KEPT):
            pipe.xadd(left(coordinator), {"reason": "newer", "report": f'{{"id": "{number}"}}'})
        pipe.execute()
    leave(coordinator, 1)
    assert coordinator.redis.xlen(left(coordinator)) == 2 * DEAD_KEPT + 1


def test_a_foreign_entry_of_thousands_of_fields_keeps_no_coordinator_from_starting(
    coordinator: Coordinator, upgraded: Callable[[], None]
) -> None:
    foreign = json.dumps({f"field{number}": number for number in range(9_000)})
    coordinator.redis.xadd(left(coordinator), {"reason": "newer", "report": foreign})
    leave(coordinator, 1)
    upgraded()
    coordinator.stream.open()
    assert "event0" in [entry.fields.get("id") for entry in all_unread(coordinator)]
