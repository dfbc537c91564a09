"""Streams: who may go on with one when it publishes, what each entry keeps of it, and what a vacuum
takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.failpoints import Once, armed
from tests.unit.coordinator.publishing.test_publish_outputs import FLIGHTS
from unstuck.coordinator.errors import PublishFailed, Refused
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.publishing.staging_gc import named_by
from unstuck.coordinator.publishing.streams.job_backlog import BacklogLooks
from unstuck.coordinator.publishing.streams.skip_file import skip_file
from unstuck.coordinator.publishing.streams.sources_read import SourceRead, sources_of
from unstuck.coordinator.publishing.streams.stream_positions import with_checkpoint, with_news
from unstuck.coordinator.publishing.vacuum import vacuum
from unstuck.coordinator.spec.model import JobSpec
from unstuck.tasks.errors import FileChanged
from unstuck.tasks.failpoints import Point
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.types import field
from unstuck.tasks.streams.arrived.listing import arrivals
from unstuck.tasks.streams.arrived.position import FilesPosition, read_position, write_position
from unstuck.tasks.streams.arrived.stream_look import Look
from unstuck.tasks.warehouse.compact import compact
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import SNAPSHOT_EVERY, Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry
from unstuck.tasks.warehouse.marker import (
    Checkpoint,
    DataFile,
    Marker,
    PackedState,
    StagedOutput,
    find_done_marker,
    write_marker,
)

FILE = DataFile("_staging/mine/load/1-n-c/loads/part-0.parquet", 3, 10)
CHANGE = Change("append", [FILE], [], 3, FLIGHTS)


CHANGED = StagedOutput([FILE], 0, FLIGHTS)
WIDER = json.dumps(
    {"type": "struct", "fields": [*json.loads(FLIGHTS)["fields"], field("more", "string")]}
)


def path_of(job: str) -> str:
    return f"_staging/{job}/load/1-n-c/loads.position"


def state_of(job: str) -> str:
    return f"_staging/{job}/load/1-n-c/events.state.tar.gz"


def output(job: str, after: str, generation: int = 1) -> StagedOutput:
    before, state_before = (path_of(after), state_of(after)) if after else ("", "")
    state = PackedState(state_of(job), 10)
    about = ("/landing", generation, before)
    made = Checkpoint(path_of(job), 10, *about, state=state, after_state=state_before)
    return StagedOutput([FILE], 3, FLIGHTS, checkpoint=made)


def standing(job: str, generation: int = 1) -> DatasetState:
    checkpoint = Checkpoint(path_of(job), 10, "/landing", generation, "") if job else None
    return DatasetState([FILE], FLIGHTS, 1, 1.0, "whoever", "x", checkpoint=checkpoint)


@pytest.mark.parametrize("after", ["", "before"])
@pytest.mark.parametrize("generation", [1, 2])
def test_a_job_that_continued_from_the_published_checkpoint_publishes_its_own(
    after: str, generation: int
) -> None:
    made = output("mine", after, generation)
    assert with_checkpoint("loads", CHANGE, made, standing(after)).checkpoint == made.checkpoint
    assert with_checkpoint("loads", CHANGE, made, standing(after)).added == [FILE]


def test_the_first_job_of_a_stream_starts_at_its_beginning() -> None:
    made = output("mine", "")
    assert with_checkpoint("loads", CHANGE, made, None).checkpoint == made.checkpoint


@pytest.mark.parametrize(("after", "now"), [("", "other"), ("before", "other"), ("before", "")])
def test_a_job_with_an_old_position_names_the_job_that_read_on(after: str, now: str) -> None:
    said = f"job {now} has read on" if now else "its checkpoint is not published any more"
    with pytest.raises(PublishFailed, match=f"{said}.* Submit the job again") as refused:
        with_checkpoint("loads", CHANGE, output("mine", after), standing(now))
    assert refused.value.code == ("STREAM_MOVED" if now else "CANNOT_RESUME")


def test_work_reused_by_two_jobs_is_published_once() -> None:
    change = with_checkpoint("loads", CHANGE, output("mine", "before"), standing("mine"))
    assert (change.added, change.removed, change.rows) == ([], [], 0)


def test_a_position_note_replaces_only_older_notes_of_its_stream() -> None:
    made = output("mine", "before")
    assert made.checkpoint is not None
    note = replace(made, checkpoint=replace(made.checkpoint, held_by="loads"))
    for held_by, stream, taken in (
        ("loads", "/landing", True),
        ("", "/landing", False),
        ("loads", "/else", False),
    ):
        state = standing("whoever")
        assert state.checkpoint is not None
        state = replace(state, checkpoint=replace(state.checkpoint, held_by=held_by, stream=stream))
        change = with_checkpoint("log", CHANGE, note, state)
        assert (change.checkpoint == note.checkpoint, change.added) == (taken, [FILE])
    assert with_checkpoint("log", CHANGE, note, None).checkpoint == note.checkpoint


def test_an_output_without_a_stream_is_published_as_before() -> None:
    assert (
        with_checkpoint("loads", CHANGE, StagedOutput([FILE], 3, FLIGHTS), standing("other"))
        is CHANGE
    )


IDLE = StagedOutput([FILE], 0, FLIGHTS, nothing_new="nothing new")


def test_an_output_without_arrivals_is_omitted_if_its_dataset_would_not_change() -> None:
    state = {"loads": standing("before"), "loads__rejected": standing("")}
    rejected = replace(IDLE, rejected_of="loads")
    assert with_news({"loads": IDLE, "loads__rejected": rejected}, state) == {}
    assert with_news({"loads": IDLE, "other": CHANGED}, state) == {"other": CHANGED}
    assert with_news({"loads": IDLE}, {}) == {"loads": IDLE}, "its columns are new"
    assert with_news({"loads": replace(IDLE, schema=WIDER)}, state), "as it has another column"
    first = {"loads": IDLE, "loads__rejected": rejected}
    assert with_news(first, {"loads": standing("before")}) == first, (
        "an output goes with its rejected rows"
    )


class StreamLoads:
    """A warehouse into which jobs load a stream, without Spark."""

    def __init__(self, root: str) -> None:
        self.root, self.warehouse, self.files = root, Warehouse(root), Files(root)
        self.known = self.warehouse.ensure_id()

    def publish_nothing_new(self, job: str) -> PublishResult:
        """Publish the work of a job for which nothing had arrived."""
        return self.publish(job, None, lambda path: 0, nothing_new=True)

    def publish(
        self,
        job: str,
        after: str | None,
        write: Callable[[str], int],
        *,
        nothing_new: bool = False,
        position: Checkpoint | None = None,
    ) -> PublishResult:
        """Publish three rows; ``after``: whose checkpoint they go on from, None: they come from no
        stream.
        """
        staging = f"_staging/{job}/load/1-n-c"
        path = f"{staging}/loads/part-0.parquet"
        made = StagedOutput([DataFile(path, 3, write(path))], 3, FLIGHTS)
        if after is not None:
            self.files.write_durable(path_of(job), b"x" * 10)
            self.files.write_durable(state_of(job), b"x" * 10)
            made = StagedOutput(made.files, 3, FLIGHTS, checkpoint=output(job, after).checkpoint)
        if position is not None:
            made = StagedOutput(made.files, 3, FLIGHTS, checkpoint=position)
        if nothing_new:
            made = StagedOutput([], 0, FLIGHTS, nothing_new="nothing new, looked at 2 files in /in")
        write_marker(
            self.files, staging, Marker(f"{job}/load", "same", {"loads": made}, {}, {}, 1.0)
        )
        request = PublishRequest(
            *(self.root, self.known, job, job, "load", 0, 1000.0),
            sources={"load": (staging,)},
            published_by={"load"},
            outputs={"loads": OutputSpec(mode="append")},
        )
        return publish(request)

    def bytes(self, path: str) -> int:
        self.files.write_durable(path, b"x" * 10)
        return 10

    def rows(self, path: str) -> int:
        import pyarrow as pa
        import pyarrow.parquet as pq

        place = Path(self.root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": [1, 2, 3]}), place)
        return place.stat().st_size

    def checkpoint(self, version: int | None = None) -> str:
        found = self.warehouse.dataset("loads", version).checkpoint
        assert found is not None
        return found.path


@pytest.fixture
def loads(tmp_path: Path) -> StreamLoads:
    return StreamLoads(str(tmp_path / "warehouse"))


def test_the_second_of_two_jobs_with_the_same_files_is_aborted_without_duplicates(
    loads: StreamLoads,
) -> None:
    assert loads.publish("one", "", loads.bytes).version == 1
    assert loads.publish("two", "one", loads.bytes).version == 2
    refused = loads.publish("late", "one", loads.bytes)
    assert refused.failed is not None
    assert refused.failed.code == "STREAM_MOVED"
    assert "job two has read on" in refused.failed.text
    assert loads.warehouse.existing_entry(3).kind == "abort"
    assert loads.warehouse.dataset("loads").rows == 6
    assert loads.publish("late", "one", loads.bytes) == refused, "and so on every repeat"


def test_a_job_without_arrivals_creates_no_version(loads: StreamLoads) -> None:
    loads.publish("one", "", loads.bytes)
    assert loads.publish_nothing_new("idle") == PublishResult(
        nothing_new="nothing new, looked at 2 files in /in"
    )
    assert loads.publish_nothing_new("idle").nothing_new, "and so on every repeat"
    assert loads.warehouse.head() == 1
    assert loads.publish("two", "one", loads.bytes).version == 2


def test_a_job_without_a_stream_or_a_compaction_keeps_the_checkpoint(
    loads: StreamLoads,
) -> None:
    loads.publish("one", "", loads.rows)
    loads.publish("other", None, loads.rows)
    assert loads.checkpoint() == path_of("one")
    done = compact(
        loads.warehouse, "loads", "compact-1", lambda path: False, target=1_000_000, at=1.0
    )
    assert (done.before, done.after) == (2, 1)
    assert loads.checkpoint() == path_of("one")
    assert loads.publish("two", "one", loads.rows).version == 4


def test_snapshots_contain_the_checkpoint(loads: StreamLoads) -> None:
    loads.publish("zero", None, loads.bytes)
    for n in range(SNAPSHOT_EVERY):
        loads.publish(f"job{n}", f"job{n - 1}" if n else "", loads.bytes)
    log = Path(loads.root, "_log")
    (log / "000000000002.json").unlink()  # older than the snapshot
    assert loads.checkpoint() == path_of(f"job{SNAPSHOT_EVERY - 1}")


def test_a_vacuum_removes_checkpoints_only_of_removed_versions(
    loads: StreamLoads,
) -> None:
    for job, after in (("one", ""), ("two", "one"), ("three", "two")):
        loads.publish(job, after, loads.bytes)
    done = vacuum(loads.warehouse, lambda path: False, keep=2, before=1001.0)
    assert (done.oldest, done.files) == (2, 2)
    for path in (path_of, state_of):
        assert [Path(loads.root, path(job)).exists() for job in ("one", "two", "three")] == [
            False,
            True,
            True,
        ]
    assert vacuum(loads.warehouse, lambda path: False, keep=1, before=1001.0).files == 2
    for path in (path_of, state_of):
        assert [Path(loads.root, path(job)).exists() for job in ("two", "three")] == [False, True]


def test_the_staging_collector_keeps_a_checkpoint_folder_named_in_the_log(
    loads: StreamLoads,
) -> None:
    loads.publish("one", "", loads.bytes)
    assert "_staging/one/load/1-n-c" in named_by(loads.warehouse.existing_entry(1))


@pytest.mark.parametrize("gone", [path_of, state_of])
def test_a_marker_with_a_missing_checkpoint_is_invalid(
    loads: StreamLoads, gone: Callable[[str], str]
) -> None:
    loads.publish("one", "", loads.bytes)
    assert find_done_marker(loads.files, "_staging/one/load", lambda marker: True) is not None
    loads.files.remove_file(gone("one"))
    assert find_done_marker(loads.files, "_staging/one/load", lambda marker: True) is None


class LandingFolder:
    """A folder from which jobs load a dataset, as a list of files."""

    def __init__(self, loads: StreamLoads, folder: Path) -> None:
        self.loads, self.folder = loads, folder
        folder.mkdir()

    @property
    def stream(self) -> StreamInput:
        return StreamInput(stream=str(self.folder), format="json", schema="id BIGINT")

    @property
    def position(self) -> FilesPosition:
        found = read_position(self.loads.files, self.loads.checkpoint())
        assert isinstance(found, FilesPosition)
        return found

    def load(self, job: str, after: str = "", *states: str) -> PublishResult:
        """A job publishes all files; it has gone on from the position ``after``.

        ``states``: of which job the packed state is, and of which job it takes the place of.
        """
        before = FilesPosition()
        if after:
            read = read_position(self.loads.files, after)
            assert isinstance(read, FilesPosition)
            before = read
        new = {file.path: file.content for file in arrivals(self.stream, before.contents).new}
        path = f"_staging/{job}/load/1-n-c/events.position"
        position = FilesPosition({**before.contents, **new}, dict.fromkeys(new, 3))
        size = write_position(self.loads.files, path, position)
        counts = {"looked": len(position.contents), "files": len(new)}
        checkpoint = Checkpoint(path, size, str(self.folder), 1, after, "files", counts)
        if states:
            state, *before = map(state_of, states)
            made = PackedState(state, self.loads.bytes(state))
            checkpoint = replace(checkpoint, state=made, after_state="".join(before))
        return self.loads.publish(job, "", self.loads.bytes, position=checkpoint)


@pytest.fixture
def landing(loads: StreamLoads, tmp_path: Path) -> LandingFolder:
    return LandingFolder(loads, tmp_path / "in")


def test_the_backlog_counts_stream_arrivals_since_the_last_publish(
    landing: LandingFolder,
) -> None:
    (landing.folder / "a.json").write_text("{}")
    events = {"stream": f"{landing.folder}/", "format": "json", "schema": "id BIGINT"}
    load = {
        "name": "load",
        "inputs": {"events": events},
        "steps": [{"sql": "SELECT 1 AS n", "output": "loads"}],
    }
    text = json.dumps({"name": "x", "groups": [load], "outputs": {"loads": {"mode": "append"}}})
    spec, backlog = JobSpec.from_text(text), BacklogLooks()
    assert backlog.look(spec, landing.loads.warehouse)[str(landing.folder)].new == 1
    landing.load("one")
    assert backlog.look(spec, landing.loads.warehouse) == {str(landing.folder): Look(looked=1)}


def test_a_version_lists_its_loaded_files_until_a_vacuum(
    landing: LandingFolder,
) -> None:
    (landing.folder / "a.json").write_text("{}")
    landing.load("one")
    (landing.folder / "b.json").write_text("[1]")
    landing.load("two", landing.loads.checkpoint())
    warehouse = landing.loads.warehouse
    one, two = (sources_of(warehouse, "loads", warehouse.existing_entry(n)) for n in (1, 2))
    assert one == [SourceRead(1, f"{landing.folder}/a.json", 3, 2)]
    assert two == [SourceRead(2, f"{landing.folder}/b.json", 3, 3)]
    vacuum(warehouse, lambda path: False, keep=1, before=1001.0)
    (gone,) = sources_of(warehouse, "loads", warehouse.existing_entry(1))
    assert gone.source == f"{landing.folder}: a vacuum has removed the list of files"
    assert sources_of(warehouse, "loads", warehouse.existing_entry(2)) == two


def test_each_dataset_of_a_version_lists_the_files_of_its_own_stream(loads: StreamLoads) -> None:
    made = {}
    for name in ("a", "b"):
        path = f"_staging/job/{name}/1-n-c/events.position"
        position = FilesPosition({f"/in/{name}.json": "2 v"}, {f"/in/{name}.json": 3})
        checkpoint = Checkpoint(
            path, write_position(loads.files, path, position), f"/in/{name}", 1, ""
        )
        made[name] = replace(CHANGE, checkpoint=checkpoint)
    loads.warehouse.create_entry(
        1, Entry(1, 0, "job", "package", "job", "x", 1.0, datasets={**made, "c": CHANGE})
    )
    entry = loads.warehouse.existing_entry(1)
    found = {
        name: [one.source for one in sources_of(loads.warehouse, name, entry)]
        for name in ("a", "b", "c", "d")
    }
    assert found == {"a": ["/in/a.json"], "b": ["/in/b.json"], "c": ["/in/a.json"], "d": []}


def test_the_remainder_of_a_bounded_run_counts_once_for_all_outputs(
    loads: StreamLoads,
) -> None:
    staging = "_staging/one/load/1-n-c"
    path = f"{staging}/events.position"
    size = write_position(loads.files, path, FilesPosition({"/in/a": "1 v"}, {"/in/a": 3}))
    held = Checkpoint(path, size, "/in", 1, "", counts={"looked": 5, "files": 1, "left": 4})
    outputs = {}
    for name, checkpoint in (("loads", held), ("log", replace(held, held_by="loads"))):
        file = f"{staging}/{name}/part-0.parquet"
        data = DataFile(file, 3, loads.bytes(file))
        outputs[name] = StagedOutput([data], 3, FLIGHTS, checkpoint=checkpoint)
    write_marker(loads.files, staging, Marker("one/load", "same", outputs, {}, {}, 1.0))
    request = PublishRequest(
        *(loads.root, loads.known, "one", "one", "load", 0, 1000.0),
        sources={"load": (staging,)},
        published_by={"load"},
        outputs={name: OutputSpec(mode="append") for name in outputs},
    )
    assert publish(request).left == 4


def test_a_skipped_file_counts_as_read_and_the_history_names_the_user(
    landing: LandingFolder,
) -> None:
    (landing.folder / "a.json").write_text("{}")
    landing.load("one")
    (landing.folder / "bad.json").write_text("{{")
    first, warehouse = landing.loads.checkpoint(), landing.loads.warehouse
    done = skip_file(warehouse, "loads", "bad.json", by="anna@host", reason="cut short")
    assert (done.path, done.version, done.new) == (f"{landing.folder}/bad.json", 2, True)
    assert skip_file(warehouse, "loads", f"{landing.folder}/bad.json", by="bob@host") == replace(
        done, new=False
    )
    assert arrivals(landing.stream, landing.position.contents).new == []
    (newest,) = warehouse.history("loads", 1)
    assert (newest.job_name, newest.params) == (
        "skip of a file by anna@host",
        {"file": f"{landing.folder}/bad.json", "reason": "cut short"},
    )
    (source,) = sources_of(warehouse, "loads", newest)
    assert (source.rows, source.put_aside) == (None, "skipped by anna@host: cut short")
    assert warehouse.dataset("loads").rows == 3
    late = landing.load("late", first)
    assert late.failed is not None
    assert late.failed.code == "STREAM_MOVED", (
        "a job that was reading the file meanwhile has not the last word"
    )
    (landing.folder / "bad.json").write_text("{}")
    with pytest.raises(FileChanged):
        arrivals(landing.stream, landing.position.contents)


def test_a_skip_continues_after_a_concurrent_publish(landing: LandingFolder) -> None:
    (landing.folder / "a.json").write_text("{}")
    landing.load("one")
    (landing.folder / "bad.json").write_text("{{")

    def publish() -> None:
        (landing.folder / "bad.json").rename(landing.folder / "bad.json.tmp")
        (landing.folder / "c.json").write_text("{}")
        landing.load("two", landing.loads.checkpoint())
        (landing.folder / "bad.json.tmp").rename(landing.folder / "bad.json")

    with armed(Once(publish, [Point.BEFORE_ENTRY], 0)):
        assert skip_file(landing.loads.warehouse, "loads", "bad.json", by="anna").version == 3
    assert sorted(Path(path).name for path in landing.position.contents) == [
        "a.json",
        "bad.json",
        "c.json",
    ]


def test_a_skip_keeps_the_spark_state_until_the_next_load_replaces_it(
    landing: LandingFolder,
) -> None:
    (landing.folder / "a.json").write_text("{}")
    landing.load("one", "", "one")
    (landing.folder / "bad.json").write_text("{{")
    warehouse = landing.loads.warehouse
    assert skip_file(warehouse, "loads", "bad.json", by="anna").new
    stands = warehouse.dataset("loads").checkpoint
    assert stands is not None
    assert stands.state == PackedState(state_of("one"), 10)
    vacuum(warehouse, lambda path: False, keep=1, before=2e9)
    assert Path(landing.loads.root, state_of("one")).exists()
    (landing.folder / "b.json").write_text("{}")
    landing.load("two", landing.loads.checkpoint(), "two", "one")
    vacuum(warehouse, lambda path: False, keep=1, before=2e9)
    assert [Path(landing.loads.root, state_of(job)).exists() for job in ("one", "two")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("file", "text"),
    [("gone.json", "there is no file"), ("/elsewhere/a.json", "is not in /.*/in")],
)
def test_a_file_outside_the_stream_cannot_be_skipped(
    landing: LandingFolder, file: str, text: str
) -> None:
    (landing.folder / "a.json").write_text("{}")
    landing.load("one")
    with pytest.raises(Refused, match=text):
        skip_file(landing.loads.warehouse, "loads", file, by="anna")


def test_a_dataset_without_a_file_list_has_no_files_to_skip(loads: StreamLoads) -> None:
    topic = Checkpoint(path_of("one"), 10, "kafka://broker:9092/events", 1, "", "kafka")
    loads.publish("one", "", loads.bytes, position=topic)
    with pytest.raises(Refused, match="is not loaded from files"):
        skip_file(loads.warehouse, "loads", "a.json", by="anna")
