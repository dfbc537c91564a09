"""The backlog of a schedule is what its streams have unread, whatever the schedule does; nobody
waits for a mount.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Coordinator
from unstuck.coordinator.errors import Damaged
from unstuck.coordinator.model.backlog import Backlog
from unstuck.doctor.notice_checks import notice_facts


def spec(folder: Path, **schedule: Any) -> dict[str, Any]:
    events = {"stream": str(folder), "format": "json", "schema": "id BIGINT"}
    load = {
        "name": "load",
        "inputs": {"events": events},
        "steps": [{"sql": "SELECT 1 AS n", "output": "loads"}],
    }
    return {
        "name": "loads",
        "groups": [load],
        "outputs": {"loads": {"mode": "append"}},
        "schedule": schedule,
    }


def look(coordinator: Coordinator) -> Backlog | None:
    coordinator.redis.zadd(coordinator.keys.schedules_due, {"loads": 0})
    coordinator.schedules.run()
    return coordinator.client.schedules.show("loads").backlog


def test_show_and_why_print_the_backlog_while_paused_or_without_the_folder(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}')
    os.utime(folder / "a.json", (1e9, 1e9))
    schedules = coordinator.client.schedules
    schedules.set(spec(folder, every="1d"))
    schedules.pause("loads")
    found = look(coordinator)
    assert found is not None
    (stream,) = found.streams.values()
    assert (stream.new, stream.bytes, found.since) == (1, 9, 1e9)
    facts = {fact.what: fact.text for fact in schedules.why("loads").facts}
    assert facts["backlog"].startswith(f"{folder}: 1 unread file, 0.0 MB, the oldest for ")
    assert facts["position"] == f"{folder}: 0 of 1 files are read"
    due = coordinator.redis.zscore(coordinator.keys.schedules_due, "loads")
    assert due is not None
    assert due < time.time() + 90, "it is looked at again, though it is paused"
    shutil.rmtree(folder)
    backlog = schedules.show("loads").backlog
    assert backlog == found, "a command asks what was seen, and no folder"
    coordinator.redis.hdel(coordinator.keys.backlogs, "loads")  # as if a minute had passed
    gone = look(coordinator)
    assert gone is not None
    assert str(folder) in next(iter(gone.streams.values())).trouble


def test_the_user_and_reason_of_a_schedule_removal_are_recorded(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    schedules = coordinator.client.schedules
    (tmp_path / "in").mkdir()
    schedules.set(spec(tmp_path / "in", every="1d"))
    look(coordinator)
    schedules.remove("loads", reason="we load it by hand", by="anna")
    assert coordinator.redis.hlen(coordinator.keys.backlogs) == 0
    assert (
        0
        < coordinator.redis.ttl(coordinator.keys.of_schedule("loads").schedule_events)
        <= 7 * 86400
    )
    last = schedules.events("loads")[-1]
    assert (last["kind"], last["by"], last["text"]) == ("USER_REMOVE", "anna", "we load it by hand")
    schedules.set(spec(tmp_path / "in", every="1d"))
    assert [event["kind"] for event in schedules.events("loads")][-2:] == ["USER_REMOVE", "SET"]
    assert coordinator.redis.ttl(coordinator.keys.of_schedule("loads").schedule_events) == -1


def test_a_schedule_with_a_damaged_record_is_named_and_hides_no_other(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    schedules = coordinator.client.schedules
    (tmp_path / "in").mkdir()
    schedules.set(spec(tmp_path / "in", every="1d"))
    schedules.set({**spec(tmp_path / "in", every="1d"), "name": "torn"})
    coordinator.redis.hset(
        coordinator.keys.of_schedule("torn").schedule, "record", '{"name": "torn", "policy"'
    )
    views, damaged = schedules.all_and_unreadable()
    assert [info.name for info in views] == ["loads"]
    (text,) = damaged.values()
    assert text.startswith("the record of schedule torn cannot be read, so it does not run (")
    with pytest.raises(Damaged, match="schedule torn cannot be read"):
        schedules.show("torn")
    assert list(notice_facts(coordinator.redis, coordinator.keys).named) == [], (
        "the doctor examines the others"
    )
    assert coordinator.redis.zadd(coordinator.keys.schedules_due, {"torn": 0, "loads": 0}) == 0
    coordinator.schedules.run()
    assert schedules.show("loads").backlog is not None, "the others go on"
    schedules.remove("torn")
    schedules.set({**spec(tmp_path / "in", every="1d"), "name": "torn"})
    assert schedules.all_and_unreadable()[1] == {}
