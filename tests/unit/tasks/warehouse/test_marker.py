"""The marker: what an attempt finished with, believed only while its files stand."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from unstuck.tasks.errors import (
    MarkerFailed,
    OutputInvalid,
    StagingLost,
    Unrecoverable,
    WarehouseMismatch,
)
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import (
    MARKER,
    DataFile,
    Marker,
    StagedOutput,
    find_done_marker,
    read_marker,
    write_marker,
)

GROUP = "_staging/job-1/clean"
SCHEMA = '{"type":"struct","fields":[]}'


def no_wait(_: float) -> None: ...


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


def stage(
    files: Files, attempt: str, fingerprint: str = "same", content: bytes = b"rows"
) -> Marker:
    """The data file of an attempt, and the marker that names it (not yet written)."""
    path = f"{GROUP}/{attempt}/flights/part-0.parquet"
    files.write_durable(path, content)
    output = StagedOutput([DataFile(path, 4, len(content))], 4, SCHEMA)
    return Marker(
        f"job-1/clean/{attempt}",
        fingerprint,
        {"flights": output},
        {"flights.month": [1, 2]},
        {"k": "v"},
        1.5,
    )


def test_a_written_marker_is_read_back_unchanged(files: Files) -> None:
    marker = stage(files, "1-n-c")
    write_marker(files, f"{GROUP}/1-n-c", marker)
    assert read_marker(files, f"{GROUP}/1-n-c") == marker


def test_a_group_without_outputs_also_has_a_marker(files: Files) -> None:
    marker = Marker("job-1/clean/1/n/c", "same", {}, {}, {}, 1.0)
    write_marker(files, f"{GROUP}/1-n-c", marker)
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "same") == (
        f"{GROUP}/1-n-c",
        marker,
    )


def test_a_missing_marker_is_read_as_none(files: Files) -> None:
    assert read_marker(files, f"{GROUP}/1-n-c") is None
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "same") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"token": "t"}', b'{"token": 1, "fingerprint": []}'],
    ids=["empty", "cut", "list", "bytes", "half", "types"],
)
def test_a_damaged_marker_counts_as_absent_and_is_logged(
    files: Files, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files.write_durable(f"{GROUP}/1-n-c/{MARKER}", content)
    with caplog.at_level(logging.WARNING):
        assert read_marker(files, f"{GROUP}/1-n-c") is None
    assert f"{GROUP}/1-n-c/{MARKER}" in caplog.text


def test_a_marker_of_a_newer_release_is_not_trusted(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    write_marker(files, f"{GROUP}/1-n-c", stage(files, "1-n-c"))
    newer = files.read(f"{GROUP}/1-n-c/{MARKER}").replace(b'"version":1', b'"version":2')
    files.write_durable(f"{GROUP}/1-n-c/{MARKER}", newer)
    assert read_marker(files, f"{GROUP}/1-n-c") is None
    assert "version: Input should be 1" in caplog.text


def test_an_unreachable_store_is_an_error_and_not_an_absent_marker(
    files: Files, tmp_path: Path
) -> None:
    (tmp_path / GROUP / "1-n-c" / MARKER).mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        read_marker(files, f"{GROUP}/1-n-c")


def test_a_marker_is_trusted_only_with_its_files_at_their_size(files: Files) -> None:
    marker = stage(files, "1-n-c")
    write_marker(files, f"{GROUP}/1-n-c", marker)
    path = marker.outputs["flights"].files[0].path
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "same") is not None
    files.write_durable(path, b"cut")
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "same") is None
    files.remove_tree(f"{GROUP}/1-n-c/flights")
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "same") is None


def test_the_newest_valid_marker_is_found_by_epoch_and_not_by_name(files: Files) -> None:
    for attempt in ("2-b-c", "10-a-c"):
        write_marker(files, f"{GROUP}/{attempt}", stage(files, attempt))
    write_marker(files, f"{GROUP}/11-a-c", stage(files, "11-a-c", fingerprint="another"))
    gone = stage(files, "12-a-c")
    write_marker(files, f"{GROUP}/12-a-c", gone)
    files.remove_tree(f"{GROUP}/12-a-c/flights")
    stage(files, "13-a-c")  # died before its marker
    files.write_durable(f"{GROUP}/13-a-c.log", b"an attempt's log lives beside its folder")

    found = find_done_marker(files, GROUP, lambda one: one.fingerprint == "same")

    assert found is not None
    assert found[0] == f"{GROUP}/10-a-c"
    assert found[1].token == "job-1/clean/10-a-c"
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "third") is None


def test_a_marker_write_is_retried_after_a_transient_store_error(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waits = os.replace, []
    marker = stage(files, "1-n-c")

    def stumble(*paths: Path) -> None:
        if len(waits) < 2:
            raise OSError(5, "Input/output error")
        real(*paths)

    monkeypatch.setattr(os, "replace", stumble)
    write_marker(files, f"{GROUP}/1-n-c", marker, sleep=waits.append)

    assert len(waits) == 2
    assert sum(waits) < 2
    assert read_marker(files, f"{GROUP}/1-n-c") == marker


def test_a_failed_marker_write_raises_and_leaves_no_valid_marker(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = stage(files, "1-n-c")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        MarkerFailed, match=r"job-1/clean/1-n-c.*No space left on device"
    ) as failure:
        write_marker(files, f"{GROUP}/1-n-c", marker, sleep=no_wait)

    assert failure.value.code == "MARKER_FAILED"
    assert not isinstance(failure.value, Unrecoverable), (
        "the disk may have space again when the group is retried"
    )
    assert isinstance(failure.value.__cause__, OSError)
    assert find_done_marker(files, GROUP, lambda one: one.fingerprint == "same") is None
    assert files.names(f"{GROUP}/1-n-c") == ["flights"], "no temporary file is left"


def test_a_marker_never_lists_a_missing_file(files: Files) -> None:
    marker = stage(files, "1-n-c")
    files.remove_tree(f"{GROUP}/1-n-c/flights")
    with pytest.raises(StagingLost, match=r"part-0\.parquet.*job-1/clean/1-n-c.*runs again"):
        write_marker(files, f"{GROUP}/1-n-c", marker, sleep=no_wait)
    assert read_marker(files, f"{GROUP}/1-n-c") is None


def test_a_marker_is_never_written_beside_files_in_a_wrong_folder(tmp_path: Path) -> None:
    """Spark writes data files by itself, and makes every folder that is missing on the way."""
    root = str(tmp_path / "warehouse")
    known = Warehouse(root).ensure_id()
    (tmp_path / "warehouse").rename(tmp_path / "away")
    marker = stage(Files(root), "1-n-c")

    with pytest.raises(WarehouseMismatch, match="no warehouse at"):
        write_marker(Warehouse(root, known).storage, f"{GROUP}/1-n-c", marker, sleep=no_wait)

    assert read_marker(Files(root), f"{GROUP}/1-n-c") is None


def test_a_marker_waits_briefly_for_a_missing_warehouse(tmp_path: Path) -> None:
    here, away = tmp_path / "warehouse", tmp_path / "away"
    known = Warehouse(str(here)).ensure_id()
    marker = stage(Files(str(here)), "1-n-c")
    here.rename(away)

    files = Warehouse(str(here), known).storage
    write_marker(
        files,
        f"{GROUP}/1-n-c",
        marker,
        sleep=lambda _: None if here.exists() else void(away.rename(here)),
    )

    assert read_marker(files, f"{GROUP}/1-n-c") == marker


def void(_: object) -> None: ...


def test_results_that_are_not_json_fail_the_writer_of_the_marker(
    files: Files,
) -> None:
    marker = replace(stage(files, "1-n-c"), results={"lock": threading.Lock()})
    with pytest.raises(OutputInvalid, match=r"job-1/clean/1-n-c.*JSON.*serialize"):
        write_marker(files, f"{GROUP}/1-n-c", marker, sleep=no_wait)


def test_files_are_synced_before_the_marker_that_lists_them(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(
            os.readlink(f"/proc/self/fd/{descriptor}") if os.path.exists("/proc/self/fd") else "?"
        )
        real(descriptor)

    marker = stage(files, "1-n-c")
    monkeypatch.setattr(os, "fsync", note)
    write_marker(files, f"{GROUP}/1-n-c", marker)

    names = [os.path.relpath(path, tmp_path / GROUP / "1-n-c") for path in synced]
    data, folder = names.index("flights/part-0.parquet"), names.index("flights")
    temp = next(i for i, name in enumerate(names) if name.startswith(f".{MARKER}"))
    assert data < temp
    assert folder < temp
    assert names[temp + 1 :] == [".", "..", "../.."], (
        "the names of the marker and of its folders are on disk"
    )


def test_creating_a_log_folder_costs_one_sync_per_job(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    files.make_folder("_staging/job-1/a.0")
    monkeypatch.setattr(os, "fsync", synced.append)
    for n in range(1, 4):
        files.make_folder(f"_staging/job-1/a.{n}")
    assert synced == []
    files.make_folder("_staging/job-2/a.0")
    assert len(synced) == 1, "the name of the new job"


def test_on_an_object_store_a_marker_is_created_and_never_replaced(bucket: str) -> None:
    files = Files(f"{bucket}/w")
    first = stage(files, "1-n-c")
    write_marker(files, f"{GROUP}/1-n-c", first)
    other = replace(first, fingerprint="other")
    with pytest.raises(
        MarkerFailed, match=r'another marker than that of job-1/clean/1-n-c.*"fingerprint":"same"'
    ):
        write_marker(files, f"{GROUP}/1-n-c", other, sleep=no_wait)
    assert read_marker(files, f"{GROUP}/1-n-c") == first


@pytest.mark.parametrize("told", ["an error", "that it stands"])
def test_a_marker_whose_reply_was_lost_is_recognized_as_own(
    bucket: str, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    files, real, calls = Files(f"{bucket}/w"), Files.create, list[str]()

    def reply_lost(self: Files, path: str, data: bytes) -> bool:
        calls.append(path)
        made = real(self, path, data)
        if len(calls) > 1:
            return made
        if told == "an error":
            raise OSError("the connection was reset")
        return real(self, path, data)  # the library has sent the request again

    marker = stage(files, "1-n-c")
    monkeypatch.setattr(Files, "create", reply_lost)
    write_marker(files, f"{GROUP}/1-n-c", marker, sleep=no_wait)
    assert read_marker(files, f"{GROUP}/1-n-c") == marker
    assert len(calls) == (2 if told == "an error" else 1)


def test_one_of_many_writers_of_a_marker_in_an_object_store_wins(bucket: str) -> None:
    """A request that was given up may reach the store after a later one."""
    files = Files(f"{bucket}/w")
    first = stage(files, "1-n-c")
    refused: list[Marker] = []

    def write(marker: Marker) -> None:
        try:
            write_marker(files, f"{GROUP}/1-n-c", marker, sleep=no_wait)
        except MarkerFailed:
            refused.append(marker)

    markers = [replace(first, fingerprint=str(n)) for n in range(4)]
    writers = [threading.Thread(target=write, args=(marker,)) for marker in markers]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [marker for marker in markers if marker not in refused] == [
        read_marker(files, f"{GROUP}/1-n-c")
    ]
