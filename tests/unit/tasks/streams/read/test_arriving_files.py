"""How much of what has arrived one job reads, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.fork_share import Share
from unstuck.tasks.streams.arrived.position import FilesPosition, joined
from unstuck.tasks.streams.read import arriving_files
from unstuck.tasks.streams.read.arriving_files import ArrivingFiles
from unstuck.tasks.streams.read.group_stream import Reader, Taken
from unstuck.tasks.warehouse.files import Files


def arrive(folder: Path, *lines: str) -> None:
    """Files with a line each, written one a second; those that come later sort before."""
    (folder / "in").mkdir(exist_ok=True)
    for n, line in enumerate(lines):
        (file := folder / "in" / f"{999 - n}.txt").write_text(line)
        os.utime(file, ns=(n * 10**9, n * 10**9))


def takes(folder: Path, **more: Any) -> list[Taken]:
    """All that one job after the other takes, until nothing is left."""
    spec = StreamInput.model_validate({"stream": f"{folder}/in", "format": "text", "schema": "value STRING", **more})
    source = ArrivingFiles(spec, Reader(None, Files(str(folder / "warehouse")), "arrived"))
    found, position = list[Taken](), FilesPosition()
    while (taken := source.take(position)).position is not None:
        assert isinstance(taken.position, FilesPosition)
        found.append(taken)
        position = taken.position
    return found


def rows(taken: Taken) -> list[str]:
    return list(taken.frame.column("value").to_pylist())


@pytest.mark.parametrize(
    ("bound", "read"),
    [
        ({}, [["a", "bb", "c", "dddd", "e"]]),
        ({"max_files_per_run": 2}, [["a", "bb"], ["c", "dddd"], ["e"]]),
        ({"max_bytes_per_run": 3}, [["a", "bb"], ["c"], ["dddd"], ["e"]]),
        ({"max_files_per_run": 1, "max_bytes_per_run": 100}, [["a"], ["bb"], ["c"], ["dddd"], ["e"]]),
    ],
)
def test_each_job_reads_the_oldest_files_within_the_bounds_until_all_are_read_once(
    tmp_path: Path, bound: dict[str, int], read: list[list[str]]
) -> None:
    arrive(tmp_path, "a", "bb", "c", "dddd", "e")
    found = takes(tmp_path, **bound)
    assert [rows(taken) for taken in found] == read
    left = [taken.counts.get("left", 0) for taken in found]
    assert left == [sum(map(len, read[n + 1 :])) for n in range(len(read))]
    assert all((": 1 file" in one.told) == (one.counts.get("left") == 1) for one in found if "left for" in one.told)


def test_a_job_without_spark_holds_a_bounded_part_of_a_full_folder_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_files, "_WITHOUT_SPARK", 3)
    arrive(tmp_path, "a", "bb", "c")
    assert [rows(taken) for taken in takes(tmp_path)] == [["a", "bb"], ["c"]]
    assert [rows(taken) for taken in takes(tmp_path, max_bytes_per_run=10)] == [["a", "bb", "c"]]


def test_each_new_file_is_read_by_one_member_of_a_fork_whenever_the_members_look(tmp_path: Path) -> None:
    arrive(tmp_path, *map(str, range(40)))
    spec = StreamInput.model_validate({"stream": f"{tmp_path}/in", "format": "text", "schema": "value STRING"})
    files, of = Files(str(tmp_path / "warehouse")), 3

    def member(number: int, position: FilesPosition | None = None) -> Taken:
        return ArrivingFiles(spec, Reader(None, files, "arrived", Share(number, of))).take(position)

    first = [member(0), member(1)]
    for n in range(40, 50):
        (tmp_path / "in" / f"{n}.txt").write_text(str(n))
    first.append(member(2))
    shares = [one.position for one in first if isinstance(one.position, FilesPosition)]
    assert [len(one.seen) for one in shares] == [one.counts["files"] for one in first], "its own alone"
    whole = joined(None, shares)
    assert isinstance(whole, FilesPosition)
    second = [member(n, whole) for n in range(of)]
    found = [row for one in (*first, *second) if one.frame is not None for row in rows(one)]
    assert sorted(map(int, found)) == [*range(50)]
    assert "of other members of the fork" in first[0].told
    after = joined(whole, [one.position for one in second if one.position is not None])
    assert isinstance(after, FilesPosition)
    assert (len(after.seen), sum(len(one.seen) for one in shares) < 50) == (50, True)
    of = 2  # a later job may have another number of members
    assert [member(n, after).position for n in range(of)] == [None, None]


def test_a_bad_file_within_the_bound_does_not_hold_up_the_next_job(tmp_path: Path) -> None:
    arrive(tmp_path, "a", "bb")
    (tmp_path / "in" / "999.txt").write_bytes(b"\xff")
    os.utime(tmp_path / "in" / "999.txt", ns=(0, 0))
    first, second = takes(tmp_path, max_files_per_run=1, on_bad_file="skip")
    assert ([one.line for one in first.put_aside], first.counts["left"], rows(second)) == ([1], 1, ["bb"])
