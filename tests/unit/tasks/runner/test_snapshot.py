"""The process snapshot, where it can be seen in the process of the test."""

from __future__ import annotations

import os

import pytest

from unstuck.tasks.runner.snapshot import Code, ProcessSnapshot


def test_a_snapshot_works_without_linux_system_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("getresuid", "getresgid", "sched_getaffinity"):  # macOS has none of them
        monkeypatch.delattr(os, name)

    before = ProcessSnapshot(Code(watched=False), others_import=False)
    before.put_back()

    assert (before.changed, before.spoiled) == ([], False)
