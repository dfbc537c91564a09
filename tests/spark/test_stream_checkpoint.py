"""The checkpoint of a stream as Spark writes it: what is packed is enough to go on from, and is whole or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.failpoints import Once, armed
from tests.support.spark.jvm import end_jvm
from unstuck.tasks.errors import InputMissing, StagingLost
from unstuck.tasks.failpoints import Point
from unstuck.tasks.runner.driver import Driver
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.steps.stream import Resume, open_stream, stage_stream
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Checkpoint, StagedOutput


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    driver = Driver(Settings(spark_master="local[2]"))
    with driver.attempt("job/group/1/n/c", {"spark.sql.shuffle.partitions": "1"}) as session:
        yield session
    driver.stop()
    end_jvm()


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

    def load(self, published: Checkpoint | None = None) -> StagedOutput:
        """Stage the ids that no attempt has met before, as far as the state in the checkpoint tells."""
        self.attempts += 1
        stream = StreamInput(stream=str(self.landing), format="json", schema="id BIGINT", options=self.options)
        frame = open_stream(self.session, "events", stream).dropDuplicates(["id"])
        resume = Resume("job", f"{self.folder}/loads.checkpoint", published, 1)
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
        loads.load(Checkpoint("_staging/gone.tar.gz", 1, 1, ""))
