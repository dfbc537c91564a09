"""Which warehouse a process sees: told without ever waiting for it, also where its mount hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.machine import Limit
from tests.support.servers import wait_until
from unstuck.tasks.protocol.process_info import WarehouseSeen
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.probe import ANSWERS_WITHIN, EVERY, EVERY_NONE, WarehouseProbe

AT = 5000.0  # by the clock of the store


class ProbeClock:
    """Monotonic seconds, as the test sets them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def settled(probe: WarehouseProbe) -> WarehouseSeen:
    def told() -> WarehouseSeen | None:
        seen = probe.seen(AT)
        return seen if seen.id is not None or seen.trouble else None

    return wait_until(told, 10, "the first look")


def test_the_warehouse_id_is_reported_and_rechecked_periodically(tmp_path: Path) -> None:
    clock = ProbeClock()
    probe = WarehouseProbe(Settings(warehouse=str(tmp_path)), clock)
    first = Warehouse(str(tmp_path)).ensure_id()
    assert settled(probe).id == first
    (tmp_path / "_warehouse_id").write_text("another")
    clock.now += EVERY - 1
    seen = probe.seen(AT)
    assert (seen.id, seen.looked_at) == (first, AT - (EVERY - 1))
    clock.now += 1
    wait_until(lambda: probe.seen(AT).id == "another", 10, "the next look")


def test_a_missing_warehouse_is_checked_again_soon(tmp_path: Path) -> None:
    clock = ProbeClock()
    probe = WarehouseProbe(Settings(warehouse=str(tmp_path)), clock)
    assert settled(probe).id == "", "there is none"
    known = Warehouse(str(tmp_path)).ensure_id()
    clock.now += EVERY_NONE - 1
    assert probe.seen(AT).id == ""
    clock.now += 1
    wait_until(lambda: probe.seen(AT).id == known, 10, "the next look")
    assert probe.seen(AT).looked_at == AT


def test_a_process_without_a_warehouse_folder_makes_no_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("UNSTUCK_WAREHOUSE", raising=False)
    assert WarehouseProbe(Settings()).seen(AT) == WarehouseSeen()
    assert WarehouseProbe(Settings(warehouse="s3://bucket/w")).seen(AT) == WarehouseSeen(
        "s3://bucket/w"
    )
    monkeypatch.setenv("UNSTUCK_WAREHOUSE", "/mnt/w")
    assert WarehouseProbe(Settings()).seen(AT).uri == "/mnt/w"


def test_an_unreadable_folder_is_reported_with_the_error(tmp_path: Path) -> None:
    (tmp_path / "_warehouse_id").mkdir()
    assert "IsADirectoryError" in settled(WarehouseProbe(Settings(warehouse=str(tmp_path)))).trouble


def test_a_hanging_mount_delays_nothing_and_is_reported_until_it_responds(tmp_path: Path) -> None:
    hung = tmp_path / "_warehouse_id"
    os.mkfifo(hung)  # who reads it waits, as on a mount whose server is gone
    clock = ProbeClock()
    probe = WarehouseProbe(Settings(warehouse=str(tmp_path)), clock)
    limit = Limit(5.0)
    probe.seen(AT)
    clock.now += ANSWERS_WITHIN + 2
    assert probe.seen(AT) == WarehouseSeen(str(tmp_path), trouble="no answer for 12s")
    assert limit.kept, limit
    hung.write_text("id7")
    wait_until(lambda: probe.seen(AT).id == "id7", 10, "the look to end")
