"""The file system of a warehouse: whole content or none, and one winner per file."""

from __future__ import annotations

import errno
import os
import re
import resource
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from unstuck.tasks.errors import WarehouseUnsupported
from unstuck.tasks.warehouse.files import Files


@pytest.fixture(params=["folder", "file-uri", "memory", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "memory":
        return Files(f"memory://{uuid.uuid4().hex}")
    if request.param == "s3":
        return Files(f"{request.getfixturevalue('bucket')}/a prefix/w")
    return Files(str(tmp_path / "w h") if request.param == "folder" else (tmp_path / "w").as_uri())


def test_a_written_file_is_read_back_and_replaced_as_a_whole(files: Files) -> None:
    files.write_durable("a/b/c.json", b"one")
    files.write_durable("a/b/c.json", b"second")

    assert files.read("a/b/c.json") == b"second"
    assert files.size("a/b/c.json") == 6
    assert files.names("a/b") == ["c.json"], "no temporary file is left"
    assert files.names("a") == ["b"]


def test_a_write_to_a_full_disk_names_the_file(tmp_path: Path) -> None:
    files, before = Files(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for write in (files.write_durable, files.create):
            with pytest.raises(OSError, match=re.escape(f"File too large: '{tmp_path}/part'")):
                write("part", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files.names("") == []


def test_an_absent_file_is_distinguished_from_an_empty_one(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.read("nothing")
    assert files.size("nothing") is None
    assert files.names("no/such/folder") == []


@pytest.mark.parametrize("write", [Files.write_durable, Files.create])
@pytest.mark.parametrize(
    "mount_point", [False, True], ids=["nothing there", "an empty mount point"]
)
def test_a_write_during_which_the_warehouse_disappears_does_not_succeed(
    tmp_path: Path, write: Callable[[Files, str, bytes], object], mount_point: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "sign").touch()

    def check() -> None:
        if not (here / "sign").exists():
            raise LookupError("this is not the place")
        here.rename(tmp_path / "away")  # at once after the look
        if mount_point:
            here.mkdir()

    with pytest.raises((LookupError, FileNotFoundError)):
        write(Files(str(here), check), "a/b", b"lost")

    assert here.exists() == mount_point, "the root is never made"
    assert os.listdir(tmp_path / "away") == ["sign"]


def test_nothing_is_created_in_a_wrong_place(tmp_path: Path) -> None:
    def check() -> None:
        raise LookupError("this is not the place")

    files = Files(str(tmp_path / "here"), check)
    for act in (
        lambda: files.write_durable("a/b", b""),
        lambda: files.create("a/b", b""),
        lambda: files.make_folder("a"),
    ):
        with pytest.raises(LookupError):
            act()
    assert not os.listdir(tmp_path)


def test_create_makes_a_file_once_and_never_overwrites_it(files: Files) -> None:
    assert files.create("log/1", b"first")
    assert not files.create("log/1", b"second")
    assert files.read("log/1") == b"first"
    assert files.names("log") == ["1"]


def test_exactly_one_of_many_creators_wins_with_complete_content(files: Files) -> None:
    callers = 8
    start = Barrier(callers)

    def attempt(i: int, name: str) -> tuple[bool, bytes]:
        content = b"%d" % i * 20_000
        start.wait()
        made = files.create(name, content)
        return made, content

    with ThreadPoolExecutor(callers) as pool:
        for round_ in range(10):
            name = f"slots/{round_}"
            results = list(pool.map(attempt, range(callers), [name] * callers))
            winners = [content for made, content in results if made]
            assert len(winners) == 1
            assert files.read(name) == winners[0]


def test_removing_a_folder_is_recursive_and_idempotent(files: Files) -> None:
    files.write_durable("s/job/group/1/part", b"x")
    files.write_durable("s/other", b"y")

    files.remove_tree("s/job")
    files.remove_tree("s/job")

    assert files.names("s") == ["other"]


def test_removing_a_file_touches_nothing_else_and_is_idempotent(files: Files) -> None:
    files.write_durable("s/job/1.log", b"x")
    files.write_durable("s/job/1/part", b"y")

    files.remove_tree("s/job/1.log")
    files.remove_tree("s/job/1.log")

    assert files.names("s/job") == ["1"]


def test_a_removal_follows_no_link_out_of_the_warehouse(tmp_path: Path) -> None:
    # Given a folder outside, and links to it in a warehouse that is itself reached by a link
    (tmp_path / "precious").mkdir()
    kept = tmp_path / "precious/file"
    kept.write_text("precious")
    (tmp_path / "real/s").mkdir(parents=True)
    (tmp_path / "warehouse").symlink_to(tmp_path / "real")
    files = Files(str(tmp_path / "warehouse"))
    files.write_durable("s/job/1", b"ours")
    (tmp_path / "real/s/away").symlink_to(tmp_path / "precious")
    # Then nothing below such a link is removed
    for remove in (files.remove_file, files.remove_tree):
        with pytest.raises(
            OSError, match=r"s/away/file is not removed: .*/precious, where it really is"
        ):
            remove("s/away/file")
    # And the link itself goes alone, as does a folder with a link in it; what is the warehouse's
    # own goes as ever
    (tmp_path / "real/s/job/away").symlink_to(tmp_path / "precious")
    files.remove_tree("s/away")
    files.remove_tree("s/job")
    assert list((tmp_path / "real/s").iterdir()) == []
    assert kept.read_text() == "precious"


@pytest.mark.parametrize("folder", ["", "/"])
def test_the_warehouse_itself_is_never_removed(files: Files, folder: str) -> None:
    with pytest.raises(ValueError, match="whole warehouse"):
        files.remove_tree(folder)


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "a/../../b", "a/./b", "a//b"])
def test_a_path_from_a_damaged_file_does_not_lead_out_of_the_warehouse(
    files: Files, path: str
) -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        files.read(path)


def test_a_file_written_by_spark_is_synced_and_a_missing_one_is_reported(files: Files) -> None:
    files.write_durable("d/part", b"x")
    files.sync(["d/part"])
    with pytest.raises(FileNotFoundError):
        files.sync(["d/part", "d/other"])


def test_a_local_warehouse_returns_plain_absolute_paths(tmp_path: Path) -> None:
    for uri in (str(tmp_path), str(tmp_path) + "/", f"file://{tmp_path}", f"file:{tmp_path}"):
        files = Files(uri)
        assert files.uri("a/b.parquet") == f"{tmp_path}/a/b.parquet"
        assert files.local_path("a") == tmp_path / "a"


def test_a_warehouse_in_an_object_store_returns_uris() -> None:
    files = Files("memory://w")
    assert files.uri("a/b.parquet") == "memory://w/a/b.parquet"
    assert files.local_path("a") is None


@pytest.mark.parametrize("uri", ["warehouse", "./warehouse", "/data/w[1]", "/data/*"])
def test_an_address_that_hosts_or_spark_would_misread_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"absolute|choose another"):
        Files(uri)


def test_a_store_without_create_if_absent_is_refused_and_not_emulated() -> None:
    with pytest.raises(WarehouseUnsupported, match="only if it is absent"):
        Files("hdfs://namenode/w")


def test_a_folder_without_hard_links_is_refused_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(WarehouseUnsupported, match="hard links"):
        Files(str(tmp_path)).create("_log/1", b"x")
    assert list((tmp_path / "_log").iterdir()) == []


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Files(str(tmp_path)).create("_log/1", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "_log/1").stat().st_mode & 0o777 == 0o644


def test_a_file_and_its_folder_entries_are_synced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    Files(str(tmp_path)).create("folder/log.json", b"entry")
    assert len(flushed) >= 3
