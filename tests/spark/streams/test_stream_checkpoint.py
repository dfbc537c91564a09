"""The checkpoint of a stream as Spark writes it: what is packed is enough to go on from, and is whole or refused."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.failpoints import Once, armed
from unstuck import InputMissing, Unrecoverable
from unstuck.tasks.errors import StagingLost
from unstuck.tasks.failpoints import Point
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import found_as
from unstuck.tasks.streams.arrived.skipped import Skipped, note_skipped
from unstuck.tasks.streams.arrived.stream_look import Look, Looks
from unstuck.tasks.streams.read import structured
from unstuck.tasks.streams.read.structured import Resume, open_stream, stage_stream
from unstuck.tasks.warehouse.checkpoint import newest_commit, unpack, what_is_lost
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint, StagedOutput


class Loads:
    """Attempts that load the files of one folder."""

    def __init__(self, session: Any, home: Path) -> None:
        self.session, self.landing, self.files = session, home / "landing", Files(str(home / "warehouse"))
        self.landing.mkdir()
        self.attempts = 0
        self.options: dict[str, str] = {}

    def arrive(self, *ids: int) -> None:
        name = f"{len([*self.landing.iterdir()])}.json"
        (written := self.landing / f".{name}").write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))
        written.rename(self.landing / name)

    @property
    def folder(self) -> str:
        """Of the newest attempt."""
        return f"_staging/job/load/{self.attempts}-n-c"

    @property
    def stream(self) -> StreamInput:
        return StreamInput(
            stream=str(self.landing), format="json", schema="id BIGINT", options=self.options, state=True
        )

    def load(self, published: Checkpoint | None = None, generation: int = 1) -> StagedOutput:
        """Stage the ids that no attempt has met before, as far as the state in the checkpoint tells."""
        self.attempts += 1
        frame = open_stream(self.session, "events", self.stream).dropDuplicates(["id"])
        resume = Resume("job", f"{self.folder}/loads.checkpoint", published, str(self.landing), generation)
        return stage_stream(self.files, f"{self.folder}/loads", frame, (), resume)

    def ids(self, staged: StagedOutput) -> list[int]:
        return sorted(row["id"] for f in staged.files for row in pq.read_table(self.files.uri(f.path)).to_pylist())


@pytest.fixture
def loads(session: Any, tmp_path: Path) -> Loads:
    return Loads(session, tmp_path)


def test_the_state_of_a_query_is_a_part_of_its_checkpoint(loads: Loads) -> None:
    loads.arrive(1, 1, 2)
    first = loads.load()
    assert loads.ids(first) == [1, 2]
    loads.arrive(2, 3)
    second = loads.load(first.checkpoint)
    assert loads.ids(second) == [3]
    assert second.checkpoint is not None
    assert first.checkpoint is not None
    assert second.checkpoint.after == first.checkpoint.path
    again = loads.load(first.checkpoint)
    assert loads.ids(again) == [3], "the attempt before has changed nothing that is published"


def test_a_file_that_a_person_skipped_before_the_first_load_is_not_read_in_spite_of_that(loads: Loads) -> None:
    loads.arrive(1)
    path = loads.landing / "0.json"
    note_skipped(loads.files, "loads", Skipped(str(path), found_as(str(path)), "skipped by ann: it is wrong"))
    with pytest.raises(Unrecoverable, match=r"0\.json was skipped by ann: it is wrong, and with state: true"):
        loads.load()
    path.unlink()
    loads.arrive(2)
    assert loads.ids(loads.load()) == [2]


def test_a_look_without_spark_finds_what_spark_would_read(loads: Loads) -> None:
    looks = Looks()

    def look(checkpoint: Checkpoint | None) -> Look:
        datasets = {"loads": DatasetState([], "{}", 1, 1.0, "job", "x", checkpoint=checkpoint), "other": None}
        return looks.look(loads.stream, datasets, loads.files)

    loads.arrive(1)
    (loads.landing / "0.json").rename(loads.landing / "ü b%20[1].json")
    (deep := loads.landing / "deep").mkdir()
    (deep / "in.json").write_text('{"id": 9}')
    assert look(None).new == 2
    first = loads.load()
    assert loads.ids(first) == [1, 9]
    assert [look(first.checkpoint).arrived for _ in range(2)] == [False, False]
    loads.arrive(2)
    assert look(first.checkpoint).new == 1
    second = loads.load(first.checkpoint)
    assert loads.ids(second) == [2]
    assert not look(second.checkpoint).arrived


def test_a_checkpoint_of_more_batches_than_spark_remembers_is_whole(loads: Loads) -> None:
    loads.options = {"maxFilesPerTrigger": "1"}
    loads.session.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        for n in range(6):
            loads.arrive(n)
        first = loads.load()
    finally:
        loads.session.conf.unset("spark.sql.streaming.minBatchesToRetain")
    assert loads.ids(first) == [*range(6)]
    loads.arrive(6)
    assert loads.ids(loads.load(first.checkpoint)) == [6]


def test_a_checkpoint_that_lost_a_commit_is_refused_and_the_next_attempt_stages_all(loads: Loads) -> None:
    loads.options = {"maxFilesPerTrigger": "1"}
    loads.arrive(1)
    loads.arrive(2)

    def lose() -> None:
        """As while the warehouse is away: what Spark writes then stands elsewhere."""
        loads.files.remove_file(f"{loads.folder}/loads.checkpoint/commits/0")

    with armed(Once(lose, [Point.AFTER_BATCH], 1)), pytest.raises(StagingLost, match="does not know of batch 0"):
        loads.load()
    assert loads.ids(loads.load()) == [1, 2]


def test_a_published_checkpoint_that_is_gone_is_named(loads: Loads) -> None:
    with pytest.raises(InputMissing, match=r"the checkpoint of a stream is gone: .*/gone\.tar\.gz"):
        loads.load(Checkpoint("_staging/gone.tar.gz", 1, str(loads.landing), 1, ""))


def test_a_stream_goes_on_or_begins_again_and_never_goes_back(loads: Loads) -> None:
    loads.arrive(1)
    second = loads.load(generation=2).checkpoint
    with pytest.raises(
        Unrecoverable, match=r"at generation 2 already, and this job has generation 1, .* say generation: 2"
    ):
        loads.load(second)
    assert loads.ids(loads.load(second, generation=3)) == [1]


def test_a_checkpoint_of_another_folder_is_refused(loads: Loads) -> None:
    loads.arrive(1)
    first = loads.load().checkpoint
    assert first is not None
    with pytest.raises(Unrecoverable, match=r"was loaded from /elsewhere before, .* or say generation: 2"):
        loads.load(replace(first, stream="/elsewhere"))


def test_files_are_read_however_old_they_are(loads: Loads) -> None:
    """Spark passes over files that are a week older than the newest one, unless it is told otherwise."""
    loads.arrive(1)
    (first,) = loads.landing.iterdir()
    os.utime(first, (time.time() + 86400 * 365,) * 2)
    before = loads.load()
    loads.arrive(2)
    os.utime(loads.landing / "1.json", (86400, 86400))
    assert loads.ids(loads.load(before.checkpoint)) == [2]


@pytest.mark.parametrize("lost", ["metadata", "sources/0/0", "commits/0", "offsets/0"])
def test_a_checkpoint_that_is_not_whole_is_never_packed(loads: Loads, lost: str) -> None:
    """Also where nothing has arrived, so that no batch was staged."""
    loads.arrive(1)
    first = loads.load().checkpoint
    assert first is not None
    folder = f"{loads.folder}/loads.checkpoint"
    unpack(loads.files, first.path, folder)
    paths = loads.files.paths(folder)
    assert what_is_lost(loads.files, folder, paths, 0, [], 100) == ""
    assert what_is_lost(loads.files, folder, paths, -1, [0], 100) == ""
    paths.remove(f"{folder}/{lost}")
    assert what_is_lost(loads.files, folder, paths, 0, [], 100)


def test_a_batch_that_was_published_is_not_staged_again(loads: Loads) -> None:
    """As where the files of the published checkpoint were written while the warehouse was away."""
    loads.arrive(1)
    first = loads.load().checkpoint
    assert first is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structured, "newest_commit", lambda paths: _then_empty(loads, paths))
        with pytest.raises(StagingLost, match="batch 0 was staged again"):
            loads.load(first)


def _then_empty(loads: Loads, paths: list[str]) -> int:
    """The newest commit; afterwards the folder is empty."""
    newest = newest_commit(paths)
    loads.files.remove_tree(f"{loads.folder}/loads.checkpoint")
    return newest
