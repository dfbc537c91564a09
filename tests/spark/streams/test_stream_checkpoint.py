"""The state of a stream as Spark writes it: what is packed is enough to go on from, and is whole or
refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import expr

from tests.support.failpoints import Once, armed
from unstuck import InputMissing, OutputInvalid, Quality, Unrecoverable
from unstuck.tasks.errors import StagingLost
from unstuck.tasks.failpoints import Point
from unstuck.tasks.formats.rows import Parts
from unstuck.tasks.frames.parquet_stream import stream_parquet
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.outputs import Checks
from unstuck.tasks.streams.read import files_read, structured
from unstuck.tasks.streams.read.arriving_files import ArrivingFiles
from unstuck.tasks.streams.read.group_stream import GroupStream, Reader
from unstuck.tasks.streams.read.structured import stage_stream
from unstuck.tasks.warehouse.checkpoint import newest_commit, unpack, what_is_lost
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint, PackedState, StagedOutput

pytestmark = pytest.mark.variant


class Published:
    """Datasets, as they are published."""

    def __init__(self, checkpoints: Mapping[str, Checkpoint | None]) -> None:
        self.checkpoints = checkpoints

    def standing(self, dataset: str) -> DatasetState | None:
        found = self.checkpoints.get(dataset)
        return found and DatasetState([], "{}", 1, 1.0, "job", "x", checkpoint=found)

    def checkpoint(self, dataset: str) -> Checkpoint | None:
        return self.checkpoints.get(dataset)


class Attempt:
    """An attempt that loads the files of one folder."""

    def __init__(
        self, session: Any, files: Files, stream: StreamInput, number: int, published: Published
    ) -> None:
        self.files, self.published = files, published
        self.staging = f"_staging/job/load/{number}-n-c"
        source = ArrivingFiles(stream, Reader(session, files, f"{self.staging}/_events.arrived"))
        self.stream = GroupStream(
            "_events", source, files, self.staging, ["loads", "others"], published
        )

    def write(self, name: str, frame: Any, checks: Checks | None = None) -> StagedOutput:
        folder, resume = f"{self.staging}/{name}", self.stream.resume(name, "job")
        arriving = partial(stage_stream, resume=resume)
        made = stage_checked(
            self.files, folder, frame, checks or Checks(), (), frame.sparkSession, arriving
        )
        made = self.stream.noted(folder, made, ())
        return made[folder]

    def arrived(self) -> Any:
        return self.stream.batch.frame


class CheckpointLoads:
    """Attempts that load the files of one folder."""

    def __init__(self, session: Any, home: Path) -> None:
        self.session, self.landing, self.files = (
            session,
            home / "landing",
            Files(str(home / "warehouse")),
        )
        self.landing.mkdir()
        self.attempts = 0

    def arrive(self, *ids: int) -> None:
        name = f"{len([*self.landing.iterdir()])}.json"
        (written := self.landing / f".{name}").write_text(
            "".join(json.dumps({"id": n}) + "\n" for n in ids)
        )
        written.rename(self.landing / name)

    @property
    def folder(self) -> str:
        """Of Spark's checkpoint in the newest attempt."""
        return f"_staging/job/load/{self.attempts}-n-c/_events.state"

    def attempt(self, published: Checkpoint | None = None, generation: int = 1) -> Attempt:
        self.attempts += 1
        stream = StreamInput(
            stream=str(self.landing),
            format="json",
            schema="id BIGINT",
            generation=generation,
            state=True,
        )
        return Attempt(
            self.session, self.files, stream, self.attempts, Published({"loads": published})
        )

    def load(
        self, published: Checkpoint | None = None, generation: int = 1, checks: Checks | None = None
    ) -> StagedOutput:
        """Stage the ids that no attempt has met before, as far as the state tells."""
        attempt = self.attempt(published, generation)
        return attempt.write("loads", attempt.arrived().dropDuplicates(["id"]), checks)

    def loaded(self, published: Checkpoint | None = None) -> Checkpoint:
        made = self.load(published).checkpoint
        assert made is not None
        return made

    def ids(self, staged: StagedOutput) -> list[int]:
        return sorted(
            row["id"]
            for f in staged.files
            for row in pq.read_table(self.files.uri(f.path)).to_pylist()
        )


@pytest.fixture
def loads(session: Any, tmp_path: Path) -> CheckpointLoads:
    return CheckpointLoads(session, tmp_path)


def test_query_state_continues_from_the_state_published_with_the_position(
    loads: CheckpointLoads,
) -> None:
    loads.arrive(1, 1, 2)
    first = loads.load()
    assert loads.ids(first) == [1, 2]
    before = first.checkpoint
    assert before is not None
    assert before.state is not None
    assert before.state == PackedState(before.state.path, loads.files.size(before.state.path) or 0)
    assert [file.path for file in first.written[-2:]] == [before.path, before.state.path]
    loads.arrive(2, 3)
    second = loads.load(before)
    assert loads.ids(second) == [3]
    assert second.checkpoint is not None
    assert (second.checkpoint.after, second.checkpoint.after_state) == (
        before.path,
        before.state.path,
    )
    assert loads.ids(loads.load(before)) == [3], (
        "the attempt before has changed nothing that is published"
    )
    with_rules = Checks(quality=Quality(rules={"small": "id < 3"}, max_rejected_ratio=1.0))
    third = loads.load(before, checks=with_rules)
    assert third.checkpoint is not None
    assert third.checkpoint.state is not None, (
        "rules hold for all that has arrived, and the state is kept"
    )


def test_without_arrivals_position_and_state_stay_and_empty_files_advance_both(
    loads: CheckpointLoads,
) -> None:
    first = loads.load()
    assert (first.rows, first.checkpoint, first.nothing_new[:11]) == (0, None, "nothing new")
    loads.arrive()
    before = loads.loaded()
    assert (before.state is not None, before.counts["files"]) == (True, 1)
    loads.arrive(1)
    before = loads.loaded(before)
    again = loads.load(before)
    assert (again.rows, again.checkpoint, again.nothing_new[:11]) == (0, None, "nothing new")
    loads.arrive()
    moved = loads.loaded(before)
    loads.arrive(1, 2)
    assert loads.ids(loads.load(moved)) == [2]


def test_duplicate_files_written_by_spark_are_read_once(loads: CheckpointLoads) -> None:
    """Each task writes into a folder of its own, and the one that answered first counts."""
    loads.arrive(1)
    attempt = loads.attempt()
    frame = attempt.arrived()
    (part,) = (Path(loads.files.uri(attempt.staging)) / "_events.arrived").rglob("*.parquet")
    (twin := part.parent.parent / "twin").mkdir()
    (twin / part.name).write_bytes(part.read_bytes())
    loads.session.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true")
    frame = stream_parquet(
        loads.session,
        frame.schema.json(),
        {str(part): part.stat().st_size},
        loads.files,
        f"{attempt.staging}/_events.arrived",
    )
    assert loads.ids(attempt.write("loads", frame)) == [1]


@pytest.mark.parametrize("gone", ["*/part-00001.parquet", "_spark_metadata/0"])
def test_rows_removed_before_spark_plans_its_batch_do_not_count_as_read(
    loads: CheckpointLoads, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the warehouse is away: Spark passes over what it does not find, and counts it as
    read.
    """
    # Each file of the landing folder makes one part.
    monkeypatch.setattr(files_read, "Parts", partial(Parts, part_bytes=0))
    loads.arrive(1)
    loads.arrive(2)
    attempt = loads.attempt()
    frame = attempt.arrived()
    (part,) = Path(loads.files.uri(attempt.staging), "_events.arrived").glob(gone)
    part.unlink()
    with pytest.raises(StagingLost, match=r"_events\.arrived"):
        attempt.write("loads", frame)
    assert loads.ids(loads.load()) == [1, 2]


def test_a_query_that_reads_its_stream_twice_continues(loads: CheckpointLoads) -> None:
    """Spark has one source for both places, and an offset for each."""
    before = None
    for number in (1, 2):
        loads.arrive(number)
        attempt = loads.attempt(before)
        frame = attempt.arrived()
        others = frame.withColumnRenamed("id", "other")
        made = attempt.write("loads", frame.join(others, expr("id = other")))
        assert [
            row["id"]
            for f in made.files
            for row in pq.read_table(loads.files.uri(f.path)).to_pylist()
        ] == [number]
        before = made.checkpoint


def test_a_group_can_write_only_one_output_from_a_stream_with_state(loads: CheckpointLoads) -> None:
    loads.arrive(1)
    attempt = loads.attempt()
    frame = attempt.arrived()
    attempt.write("others", frame)
    with pytest.raises(
        OutputInvalid, match=r"loads cannot be written .*: others has the state .*output:"
    ):
        attempt.write("loads", frame)
    attempt.stream.check(["others"])
    attempt = loads.attempt()
    attempt.arrived()
    with pytest.raises(
        OutputInvalid, match="wrote loads, but none of them from the frame of the stream"
    ):
        attempt.stream.check(["loads"])


def test_a_checkpoint_without_its_commit_is_refused_and_the_next_attempt_stages_everything(
    loads: CheckpointLoads,
) -> None:
    loads.arrive(1)
    before = loads.loaded()
    loads.arrive(2)

    def lose() -> None:
        """As while the warehouse is away: what Spark writes then stands elsewhere."""
        loads.files.remove_file(f"{loads.folder}/offsets/1")

    with (
        armed(Once(lose, [Point.AFTER_BATCH], 0)),
        pytest.raises(StagingLost, match="does not know of batch 1"),
    ):
        loads.load(before)
    assert loads.ids(loads.load(before)) == [2]


def test_a_missing_published_state_is_named(loads: CheckpointLoads) -> None:
    loads.arrive(1)
    before = loads.loaded()
    loads.arrive(2)
    with pytest.raises(InputMissing, match=r"the state of a stream is gone: .*/gone\.tar\.gz"):
        loads.load(replace(before, state=PackedState("_staging/gone.tar.gz", 1)))


def test_a_higher_generation_starts_without_state_and_dropping_state_is_refused(
    loads: CheckpointLoads,
) -> None:
    loads.arrive(1)
    before = loads.loaded()
    assert loads.ids(loads.load(before, generation=2)) == [1]
    with pytest.raises(Unrecoverable, match=r"was loaded from .* without state: true before"):
        loads.load(replace(before, state=None))


@pytest.mark.parametrize("lost", ["metadata", "sources/0/0", "commits/0", "offsets/0"])
def test_an_incomplete_checkpoint_is_never_packed(loads: CheckpointLoads, lost: str) -> None:
    """Also where nothing has arrived, so that no batch was staged."""
    loads.arrive(1)
    first = loads.loaded()
    assert first.state is not None
    folder = loads.folder
    unpack(loads.files, first.state.path, folder)
    paths = loads.files.paths(folder)
    assert what_is_lost(loads.files, folder, paths, 0, [], 100) == ""
    assert what_is_lost(loads.files, folder, paths, -1, [0], 100) == ""
    paths.remove(f"{folder}/{lost}")
    assert what_is_lost(loads.files, folder, paths, 0, [], 100)


def test_a_published_batch_is_not_staged_again(loads: CheckpointLoads) -> None:
    """As where the files of the published checkpoint were written while the warehouse was away."""
    loads.arrive(1)
    first = loads.loaded()
    loads.arrive(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structured, "newest_commit", lambda paths: _then_empty(loads, paths))
        with pytest.raises(StagingLost, match="batch 0 was staged again"):
            loads.load(first)


def _then_empty(loads: CheckpointLoads, paths: list[str]) -> int:
    """The newest commit; afterwards the folder is empty."""
    newest = newest_commit(paths)
    loads.files.remove_tree(loads.folder)
    return newest
