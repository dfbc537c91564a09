"""How much of what has arrived one job reads, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from unstuck.tasks.errors import SourceUnavailable
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.fork_share import Share
from unstuck.tasks.streams.arrived.position import FilesPosition, joined
from unstuck.tasks.streams.read import arriving_files
from unstuck.tasks.streams.read.arriving_files import BYTES_WITHOUT_SPARK, ArrivingFiles
from unstuck.tasks.streams.read.files_read import read_files
from unstuck.tasks.streams.read.group_stream import Reader, StreamBatch
from unstuck.tasks.warehouse.files import Files


def arrive(folder: Path, *lines: str) -> None:
    """Files with a line each, written one a second; those that come later sort before."""
    (folder / "in").mkdir(exist_ok=True)
    for n, line in enumerate(lines):
        (file := folder / "in" / f"{999 - n}.txt").write_text(line)
        os.utime(file, ns=(n * 10**9, n * 10**9))


def takes(folder: Path, without_spark: int = BYTES_WITHOUT_SPARK, **more: Any) -> list[StreamBatch]:
    """All that one job after the other takes, until nothing is left."""
    spec = StreamInput.model_validate(
        {"stream": f"{folder}/in", "format": "text", "schema": "value STRING", **more}
    )
    source = ArrivingFiles(
        spec, Reader(None, Files(str(folder / "warehouse")), "arrived"), without_spark
    )
    found, position = list[StreamBatch](), FilesPosition()
    while (taken := source.take(position)).position is not None:
        assert isinstance(taken.position, FilesPosition)
        found.append(taken)
        position = taken.position
    return found


def rows(taken: StreamBatch) -> list[str]:
    return list(taken.frame.column("value").to_pylist())


@pytest.mark.parametrize(
    ("bound", "read"),
    [
        ({}, [["a", "bb", "c", "dddd", "e"]]),
        ({"max_files_per_run": 2}, [["a", "bb"], ["c", "dddd"], ["e"]]),
        ({"max_bytes_per_run": 3}, [["a", "bb"], ["c"], ["dddd"], ["e"]]),
        (
            {"max_files_per_run": 1, "max_bytes_per_run": 100},
            [["a"], ["bb"], ["c"], ["dddd"], ["e"]],
        ),
    ],
)
def test_each_job_reads_the_oldest_unread_files_within_its_limits(
    tmp_path: Path, bound: dict[str, int], read: list[list[str]]
) -> None:
    arrive(tmp_path, "a", "bb", "c", "dddd", "e")
    found = takes(tmp_path, **bound)
    assert [rows(taken) for taken in found] == read
    left = [taken.counts.get("left", 0) for taken in found]
    assert left == [sum(map(len, read[n + 1 :])) for n in range(len(read))]
    assert all(
        (": 1 file" in one.summary) == (one.counts.get("left") == 1)
        for one in found
        if "left for" in one.summary
    )


def test_a_job_without_spark_holds_a_bounded_part_of_a_full_folder_in_memory(
    tmp_path: Path,
) -> None:
    arrive(tmp_path, "a", "bb", "c")
    assert [rows(taken) for taken in takes(tmp_path, 3)] == [["a", "bb"], ["c"]]
    assert [rows(taken) for taken in takes(tmp_path, 3, max_bytes_per_run=10)] == [["a", "bb", "c"]]


def test_each_new_file_is_read_by_exactly_one_member_of_a_fork(
    tmp_path: Path,
) -> None:
    arrive(tmp_path, *map(str, range(40)))
    spec = StreamInput.model_validate(
        {"stream": f"{tmp_path}/in", "format": "text", "schema": "value STRING"}
    )
    files, of = Files(str(tmp_path / "warehouse")), 3

    def member(number: int, position: FilesPosition | None = None) -> StreamBatch:
        return ArrivingFiles(spec, Reader(None, files, "arrived", Share(number, of))).take(position)

    first = [member(0), member(1)]
    for n in range(40, 50):
        (tmp_path / "in" / f"{n}.txt").write_text(str(n))
    first.append(member(2))
    shares = [one.position for one in first if isinstance(one.position, FilesPosition)]
    assert [len(one.contents) for one in shares] == [one.counts["files"] for one in first], (
        "its own alone"
    )
    whole = joined(None, shares)
    assert isinstance(whole, FilesPosition)
    second = [member(n, whole) for n in range(of)]
    found = [row for one in (*first, *second) if one.frame is not None for row in rows(one)]
    assert sorted(map(int, found)) == [*range(50)]
    assert "of other members of the fork" in first[0].summary
    after = joined(whole, [one.position for one in second if one.position is not None])
    assert isinstance(after, FilesPosition)
    assert (len(after.contents), sum(len(one.contents) for one in shares) < 50) == (50, True)
    of = 2  # a later job may have another number of members
    assert [member(n, after).position for n in range(of)] == [None, None]


def test_a_bad_file_within_the_limit_does_not_block_the_next_job(tmp_path: Path) -> None:
    arrive(tmp_path, "a", "bb")
    (tmp_path / "in" / "999.txt").write_bytes(b"\xff")
    os.utime(tmp_path / "in" / "999.txt", ns=(0, 0))
    first, second = takes(tmp_path, max_files_per_run=1, on_bad_file="skip")
    assert ([one.line for one in first.put_aside], first.counts["left"], rows(second)) == (
        [1],
        1,
        ["bb"],
    )


def test_a_fork_member_counts_only_files_of_its_own_share_as_left(tmp_path: Path) -> None:
    arrive(tmp_path, *map(str, range(20)))
    spec = StreamInput.model_validate(
        {
            "stream": f"{tmp_path}/in",
            "format": "text",
            "schema": "value STRING",
            "max_files_per_run": 3,
        }
    )
    files = Files(str(tmp_path / "warehouse"))
    taken = [
        ArrivingFiles(spec, Reader(None, files, "arrived", Share(n, 2))).take(None)
        for n in range(2)
    ]
    assert [one.counts["files"] for one in taken] == [3, 3]
    assert sum(one.counts["left"] for one in taken) == 20 - 6


def test_a_file_that_disappears_before_it_is_read_is_neither_read_nor_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(tmp_path, "a", "b", "c")
    (tmp_path / "in" / "997.txt").write_bytes(b"\xff")
    listed = arriving_files.arrivals

    def lists_and_loses_one(*arguments: Any) -> Any:
        found = listed(*arguments)
        (tmp_path / "in" / "998.txt").unlink()
        return found

    monkeypatch.setattr(arriving_files, "arrivals", lists_and_loses_one)
    spec = StreamInput.model_validate(
        {
            "stream": f"{tmp_path}/in",
            "format": "text",
            "schema": "value STRING",
            "on_bad_file": "skip",
        }
    )
    taken = ArrivingFiles(spec, Reader(None, Files(str(tmp_path / "warehouse")), "arrived")).take(
        None
    )
    position = taken.position
    assert isinstance(position, FilesPosition)
    assert sorted(Path(path).name for path in position.contents) == ["997.txt", "999.txt"]
    assert [Path(path).name for path in position.put_aside] == ["997.txt"]
    assert {
        name: taken.counts[name] for name in ("files", "put_aside", "unsettled")
    } == dict.fromkeys(("files", "put_aside", "unsettled"), 1)


def test_a_file_without_read_permission_is_a_source_error_and_never_quarantined(
    guest: Path,
) -> None:
    arrive(guest, "a", "bb")
    (closed := guest / "in" / "999.txt").chmod(0)
    for on_bad_file in ("fail", "skip"):
        with pytest.raises(
            SourceUnavailable, match=rf"{closed} cannot be read by this worker: Permission denied"
        ):
            takes(guest, on_bad_file=on_bad_file)
    closed.chmod(0o644)
    assert [rows(taken) for taken in takes(guest, on_bad_file="skip")] == [["a", "bb"]]


@pytest.mark.parametrize(
    ("identity", "read"), [("path", ["a", "b", "a", "a"]), ("content", ["a", "b"])]
)
def test_a_copy_is_reported_and_read_only_if_files_are_identified_by_path(
    tmp_path: Path, identity: str, read: list[str]
) -> None:
    arrive(tmp_path, "a", "b", "a", "", "")
    spec = StreamInput.model_validate(
        {
            "stream": f"{tmp_path}/in",
            "format": "text",
            "schema": "value STRING",
            "identity": identity,
        }
    )
    source = ArrivingFiles(spec, Reader(None, Files(str(tmp_path / "warehouse")), "arrived"))
    first = source.take(None)
    (tmp_path / "in" / "999.txt").rename(tmp_path / "in" / "renamed.txt")
    second = source.take(first.position)
    assert rows(first) + rows(second) == read
    assert second.counts["duplicates"] == 1
    assert f"{tmp_path}/in/renamed.txt is {tmp_path}/in/999.txt" in second.summary
    assert source.take(second.position).position is None, (
        "a copy that is passed over counts as read"
    )


def test_a_copy_of_an_unreadable_file_is_left_for_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(tmp_path, "a", "a")
    spec = StreamInput.model_validate(
        {
            "stream": f"{tmp_path}/in",
            "format": "text",
            "schema": "value STRING",
            "identity": "content",
            "on_bad_file": "skip",
        }
    )
    source = ArrivingFiles(spec, Reader(None, Files(str(tmp_path / "warehouse")), "arrived"))

    def removes(*arguments: Any) -> Any:
        (tmp_path / "in" / "999.txt").unlink()
        return read_files(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(arriving_files, "read_files", removes)
        first = source.take(None)
    assert (first.position, first.counts["unsettled"]) == (None, 1)
    assert rows(source.take(None)) == ["a"]
