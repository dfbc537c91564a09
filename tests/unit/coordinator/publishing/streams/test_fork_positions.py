"""The members of a fork have read a stream together: one position follows from theirs, or nothing
is published.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.publishing.streams.fork_positions import whole_checkpoint
from unstuck.tasks.streams.arrived.position import (
    FilesPosition,
    KafkaPosition,
    read_position,
    write_position,
)
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Checkpoint

BEFORE = "_staging/before/load/1-n-c/events.position"
OLD = FilesPosition({"/in/old": "1 v"}, {"/in/old": 1})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(str(tmp_path))
    write_position(files, BEFORE, OLD)
    return files


def member(
    files: Files, n: int, *names: str, put_aside: str = "", adds_to: str = BEFORE
) -> Checkpoint:
    seen = {f"/in/{name}": "1 v" for name in (*names, put_aside) if name}
    bad = {f"/in/{put_aside}": "broken"} if put_aside else {}
    path = f"_staging/job/load.{n}/1-n-c/events.position"
    size = write_position(
        files, path, FilesPosition(seen, {f"/in/{name}": 1 for name in names}, bad)
    )
    counts = {"looked": 9, "files": len(names)}
    return Checkpoint(path, size, "/in", 1, BEFORE, "files", counts, "told", adds_to=adds_to)


def test_the_new_position_combines_the_old_one_and_the_reads_of_all_members(
    files: Files,
) -> None:
    parts = [member(files, 0, "a", "b"), member(files, 2, "c", put_aside="d")]
    made = whole_checkpoint(files, "loads", parts)
    assert made is not None
    whole = read_position(files, made.path)
    assert isinstance(whole, FilesPosition)
    assert sorted(whole.contents) == ["/in/a", "/in/b", "/in/c", "/in/d", "/in/old"]
    assert (sorted(whole.read), whole.put_aside) == (
        ["/in/a", "/in/b", "/in/c"],
        {"/in/d": "broken"},
    )
    assert (made.after, made.adds_to, made.counts) == (BEFORE, None, {"looked": 9, "files": 3})
    assert made.summary == "read by 2 members of a fork: looked 9, files 3"
    assert (files.size(made.path), whole_checkpoint(files, "loads", parts)) == (made.bytes, made)
    assert whole_checkpoint(files, "loads", parts[:1]) != made, (
        "another set of members is another position"
    )


def test_the_counts_of_all_members_are_reported_including_partial_ones(
    files: Files,
) -> None:
    first = member(files, 0, "a")
    second = replace(
        member(files, 1, "b", put_aside="c"), counts={"looked": 12, "files": 1, "put_aside": 1}
    )
    for parts in ([first, second], [second, first]):
        made = whole_checkpoint(files, "loads", parts)
        assert made is not None
        assert made.counts == {"looked": 12, "files": 2, "put_aside": 1}


def test_members_that_read_additional_streams_form_another_position(
    files: Files,
) -> None:
    """A later attempt of one member must not rewrite the position that an earlier package names."""
    first, second = member(files, 0, "a"), member(files, 1, "b")
    made = whole_checkpoint(files, "loads", [first, second])
    path = "_staging/job/load.1/2-n-c/events.position"
    again = FilesPosition({"/in/b": "1 v", "/in/c": "1 v"}, {"/in/b": 1, "/in/c": 1})
    later = replace(second, path=path, bytes=write_position(files, path, again))
    remade = whole_checkpoint(files, "loads", [first, later])
    assert made is not None
    assert remade is not None
    assert made.path != remade.path
    before, after = (read_position(files, one.path) for one in (made, remade))
    assert isinstance(before, FilesPosition)
    assert isinstance(after, FilesPosition)
    assert (len(before.contents), len(after.contents)) == (3, 4)


def test_a_new_stream_replaces_nothing_and_a_complete_position_stays(
    files: Files,
) -> None:
    made = whole_checkpoint(files, "loads", [member(files, 0, "a", adds_to="")])
    assert made is not None
    found = read_position(files, made.path)
    assert isinstance(found, FilesPosition)
    assert sorted(found.contents) == ["/in/a"]
    alone = replace(made, adds_to=None)
    assert whole_checkpoint(files, "loads", [alone]) is alone
    assert whole_checkpoint(files, "loads", []) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"after": "", "adds_to": ""}, "its members started from different positions"),
        ({"held_by": "other"}, "one member gave the position of the stream to this output"),
        ({}, "two of them have read /in/b"),
    ],
)
def test_inconsistent_members_publish_nothing(
    files: Files, change: dict[str, str], why: str
) -> None:
    parts = [member(files, 0, "a", "b"), replace(member(files, 1, "b", "c"), **change)]
    with pytest.raises(
        PublishFailed, match=f"loads was read from a stream by the members of a fork: {why}"
    ) as refused:
        whole_checkpoint(files, "loads", parts)
    assert refused.value.code == "CANNOT_RESUME"


def test_a_position_removed_by_a_vacuum_is_not_retried_forever(files: Files) -> None:
    parts = [member(files, 0, "a")]
    Path(files.uri(BEFORE)).unlink()
    with pytest.raises(PublishFailed, match="the position from which they started is gone"):
        whole_checkpoint(files, "loads", parts)


def test_partitions_of_a_topic_are_merged_and_unread_ones_keep_their_offset(
    files: Files,
) -> None:
    write_position(files, BEFORE, KafkaPosition({0: 5, 1: 5, 2: 5}, {}, "id"))
    parts = []
    for n, ends in enumerate(({0: 9}, {1: 7, 3: 2})):
        path = f"_staging/job/load.{n}/1-n-c/events.position"
        began = {one: 5 if one < 3 else 0 for one in ends}
        size = write_position(files, path, KafkaPosition(ends, began, "id"))
        parts.append(
            Checkpoint(
                path, size, "kafka://…/t", 1, BEFORE, "kafka", {"messages": 2}, adds_to=BEFORE
            )
        )
    made = whole_checkpoint(files, "loads", parts)
    assert made is not None
    assert read_position(files, made.path) == KafkaPosition(
        {0: 9, 1: 7, 2: 5, 3: 2}, {0: 5, 1: 5, 2: 5, 3: 0}, "id"
    )
    write_position(files, parts[1].path, KafkaPosition({1: 7}, {1: 5}, "other"))
    with pytest.raises(
        PublishFailed, match="the topic was deleted and made again while they read it"
    ):
        whole_checkpoint(files, "loads", parts)
