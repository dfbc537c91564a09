"""The position of a stream in one attempt: which output holds it, from where it goes on, and what
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from unstuck.tasks.errors import InputMissing, OutputInvalid, Unrecoverable
from unstuck.tasks.streams.arrived.position import FilesPosition, KafkaPosition, read_position
from unstuck.tasks.streams.read.group_stream import GroupStream, StreamBatch
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint, DataFile, PackedState, StagedOutput

ROWS = StagedOutput([DataFile("_staging/job/load/1-n-c/loads/part-0.parquet", 2, 10)], 2, "{}")
NO_ROWS = StagedOutput([DataFile("_staging/job/load/1-n-c/loads/part-0.parquet", 0, 10)], 0, "{}")


@dataclass
class Numbers:
    """A stream of numbered files; each take reads all that have arrived."""

    arrived: int
    generation: int = 1
    identity: str = "/in"
    kind: Literal["files"] = "files"
    state: bool = False

    @property
    def spec(self) -> Numbers:
        return self

    def take(self, position: FilesPosition | KafkaPosition | None) -> StreamBatch:
        before = position if isinstance(position, FilesPosition) else FilesPosition()
        new = {f"/in/{n}": "1 v" for n in range(self.arrived) if f"/in/{n}" not in before.contents}
        after = FilesPosition({**before.contents, **new}, dict.fromkeys(new, None)) if new else None
        return StreamBatch([*new], after, {"files": len(new)}, f"{len(new)} files")


@dataclass
class Datasets:
    """What is published, and which datasets were noted as read."""

    checkpoints: Mapping[str, Checkpoint | None]
    noted: list[str] = field(default_factory=list)

    def standing(self, dataset: str) -> DatasetState | None:
        if dataset not in self.checkpoints:
            return None
        return DatasetState([], "{}", 1, 1.0, "job", "x", checkpoint=self.checkpoints[dataset])

    def checkpoint(self, dataset: str) -> Checkpoint | None:
        self.noted.append(dataset)
        return self.checkpoints.get(dataset)


def noted(stream: GroupStream, name: str, output: StagedOutput) -> StagedOutput:
    return stream.noted(name, {name: output}, ())[name]


class Attempts:
    def __init__(self, files: Files) -> None:
        self.files, self.count = files, 0

    def stream(self, source: Numbers, *appended: str) -> Callable[[Datasets], GroupStream]:
        self.count += 1
        return partial(
            GroupStream,
            "events",
            source,
            self.files,
            f"_staging/job/load/{self.count}-n-c",
            appended or ("loads",),
        )

    def load(self, arrived: int, **published: Checkpoint | None) -> Checkpoint:
        """Read what has arrived into ``loads``. Returns the checkpoint."""
        begin, datasets = self.stream(Numbers(arrived)), Datasets(published)
        stream = begin(datasets)
        made = noted(stream, "loads", ROWS).checkpoint
        assert made is not None
        return made


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(Files(str(tmp_path)))


def test_an_attempt_continues_at_the_published_position_and_records_it(
    attempts: Attempts,
) -> None:
    first = attempts.load(2)
    assert (first.stream, first.generation, first.after, first.kind) == ("/in", 1, "", "files")
    second = attempts.load(3, loads=first)
    assert second.after == first.path
    position = read_position(attempts.files, second.path)
    assert isinstance(position, FilesPosition)
    assert (sorted(position.contents), [*position.read]) == (["/in/0", "/in/1", "/in/2"], ["/in/2"])
    again = attempts.load(3, loads=first)
    assert read_position(attempts.files, again.path) == position, (
        "a dead attempt has changed nothing"
    )


def test_without_new_files_no_output_has_a_position_and_an_empty_one_says_so(
    attempts: Attempts,
) -> None:
    first = attempts.load(2)
    begin, datasets = attempts.stream(Numbers(2)), Datasets({"loads": first})
    stream = begin(datasets)
    assert stream.batch.frame == []
    assert noted(stream, "loads", NO_ROWS) == replace(NO_ROWS, nothing_new="0 files")
    rejected = replace(NO_ROWS, rejected_of="loads")
    both = stream.noted("loads", {"loads": NO_ROWS, "loads__rejected": rejected}, ())
    assert [one.nothing_new for one in both.values()] == ["0 files", "0 files"]
    assert noted(stream, "loads", ROWS) == ROWS, "rows from elsewhere are published as always"
    assert noted(stream, "other", NO_ROWS) == NO_ROWS, "it is not appended"
    stream.check(["other"])


def test_only_the_output_that_holds_the_position_must_be_written(
    attempts: Attempts,
) -> None:
    first = attempts.load(1)
    begin, datasets = (
        attempts.stream(Numbers(2), "log", "loads"),
        Datasets({"log": None, "loads": first}),
    )
    stream = begin(datasets)
    note = noted(stream, "log", ROWS).checkpoint
    assert note is not None
    assert note.held_by == "loads"
    with pytest.raises(
        OutputInvalid, match="wrote log, but not loads, whose dataset holds the position"
    ):
        stream.check(["log"])
    made = noted(stream, "loads", NO_ROWS).checkpoint
    assert made is not None
    assert made.after == first.path
    assert made == replace(note, held_by="")
    stream.check(["log", "loads"])
    assert datasets.noted == ["loads"], "what is published into log meanwhile is no matter"


def test_the_first_written_append_output_gets_the_position_but_not_its_rejected_rows(
    attempts: Attempts,
) -> None:
    begin, datasets = attempts.stream(Numbers(2), "a", "b"), Datasets({})
    stream = begin(datasets)
    assert noted(stream, "elsewhere", ROWS).checkpoint is None
    with pytest.raises(
        OutputInvalid,
        match=r"none can hold the position .* outputs: \{elsewhere: \{mode: append\}\}",
    ):
        stream.check(["elsewhere"])
    both = stream.noted("b", {"b": ROWS, "b__rejected": replace(ROWS, rejected_of="b")}, ())
    assert [one.checkpoint is None for one in both.values()] == [False, True]
    note = noted(stream, "a", ROWS).checkpoint
    assert note is not None
    assert note.held_by == "b"
    stream.check(["b", "a"])


def test_an_output_loaded_alone_later_continues_at_its_position(
    attempts: Attempts,
) -> None:
    begin, datasets = attempts.stream(Numbers(2), "a", "b"), Datasets({})
    stream = begin(datasets)
    held, note = (noted(stream, name, ROWS).checkpoint for name in ("a", "b"))
    assert note is not None
    alone = attempts.stream(Numbers(3), "b")(Datasets({"b": note}))
    assert alone.batch.frame == ["/in/2"]
    made = noted(alone, "b", ROWS).checkpoint
    assert made is not None
    assert (made.after, made.held_by) == (note.path, "")
    both = attempts.stream(Numbers(3), "b", "a")(Datasets({"a": held, "b": note}))
    assert both.batch.frame == ["/in/2"]


def test_a_position_note_of_another_stream_does_not_interfere(attempts: Attempts) -> None:
    note = replace(attempts.load(1), stream="/else", held_by="loads2")
    begin, datasets = attempts.stream(Numbers(1), "log"), Datasets({"log": note})
    stream = begin(datasets)
    made = noted(stream, "log", ROWS).checkpoint
    assert made is not None
    assert (made.held_by, made.after) == ("", note.path)


def test_a_group_that_wrote_nothing_has_read_nothing(attempts: Attempts) -> None:
    attempts.stream(Numbers(2))(Datasets({})).check([])


def test_a_dataset_of_another_stream_generation_or_reader_is_refused(
    attempts: Attempts,
) -> None:
    first = attempts.load(1)

    def opened(published: Checkpoint, source: Numbers) -> StreamBatch:
        return attempts.stream(source)(Datasets({"loads": published})).batch

    with pytest.raises(
        Unrecoverable, match=r"loaded from /in before, and this job reads /else.* generation: 2"
    ):
        opened(first, Numbers(1, identity="/else"))
    assert opened(first, Numbers(1, identity="/else", generation=2)).frame == ["/in/0"]
    with pytest.raises(
        Unrecoverable, match=r"at generation 2 already, and this job has generation 1"
    ):
        opened(replace(first, generation=2), Numbers(1))
    assert opened(first, Numbers(1, generation=2)).frame == ["/in/0"], (
        "a higher one reads all again"
    )
    with pytest.raises(Unrecoverable, match=r"loaded from /in with state: true before"):
        opened(replace(first, state=PackedState("_staging/x.state.tar.gz", 1)), Numbers(1))
    with pytest.raises(InputMissing, match=r"the position of a stream is gone: .*/gone\.position"):
        opened(replace(first, path="_staging/gone.position"), Numbers(1))


def test_a_dataset_loaded_by_several_streams_holds_the_position_of_one(
    attempts: Attempts,
) -> None:
    other = replace(attempts.load(1), stream="/else")
    begin, datasets = attempts.stream(Numbers(1), "log", "loads"), Datasets({"log": other})
    stream = begin(datasets)
    assert noted(stream, "log", ROWS).checkpoint is None
    assert noted(stream, "loads", ROWS).checkpoint is not None


def test_one_group_cannot_load_two_datasets_with_positions_of_one_stream(
    attempts: Attempts,
) -> None:
    one, two = attempts.load(1), attempts.load(2)
    datasets = Datasets({"a": one, "b": two})
    with pytest.raises(OutputInvalid, match=r"both a and b hold a position of /in.* generation: 2"):
        attempts.stream(Numbers(3), "a", "b")(datasets)
    assert attempts.stream(Numbers(3, generation=2), "a", "b")(datasets).batch.frame == [
        "/in/0",
        "/in/1",
        "/in/2",
    ]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_newest_generation_of_two_positions_of_a_stream_counts(
    attempts: Attempts, names: tuple[str, str]
) -> None:
    old, new = attempts.load(1), replace(attempts.load(2), generation=2)
    published = {"a": old, "b": new}
    begin, datasets = attempts.stream(Numbers(3, generation=2), *names), Datasets(published)
    stream = begin(datasets)
    assert stream.batch.frame == ["/in/2"]
    made = noted(stream, "b", ROWS).checkpoint
    assert made is not None
    assert (made.after, made.held_by) == (new.path, "")


def test_a_truncated_position_is_a_store_error(attempts: Attempts) -> None:
    first = attempts.load(100)
    attempts.files.write_durable(first.path, attempts.files.read(first.path)[:-10])
    with pytest.raises(OSError, match="is no position of a stream"):
        attempts.load(101, loads=first)


def test_a_kafka_position_is_kept_unchanged(attempts: Attempts) -> None:
    from unstuck.tasks.streams.arrived.position import write_position

    position = KafkaPosition({0: 7, 1: 2**40}, {0: 1, 1: 2}, "id")
    write_position(attempts.files, "_staging/k.position", position)
    assert read_position(attempts.files, "_staging/k.position") == position
