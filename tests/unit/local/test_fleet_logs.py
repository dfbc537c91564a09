"""Rotation of a log: the newest part is kept beside it, and the copy has a limit."""

from __future__ import annotations

from pathlib import Path

from unstuck.local.fleet_logs import rotate


def test_only_the_newest_part_of_an_oversized_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"old\n" * 100_000 + b"new\n" * 250)
    with log.open("ab") as writer:
        rotate(log, 1000)
        writer.write(b"later\n")
    assert (tmp_path / "worker.log.1").read_bytes() == b"new\n" * 250
    assert log.read_bytes() == b"later\n"


def test_a_log_below_the_limit_stays_unchanged(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"x" * 1000)
    rotate(log, 1000)
    assert log.stat().st_size == 1000
    assert not (tmp_path / "worker.log.1").exists()
