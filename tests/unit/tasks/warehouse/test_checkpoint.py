"""A packed checkpoint is unpacked as it was, from a folder and from an object store."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from unstuck.tasks.warehouse.checkpoint import pack, unpack
from unstuck.tasks.warehouse.files import Files


@pytest.fixture(params=["folder", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(
        str(tmp_path / "w") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"
    )


def test_an_unpacked_checkpoint_equals_the_packed_one_without_temporary_files(
    files: Files,
) -> None:
    for path in (
        "a/metadata",
        "a/offsets/0",
        "a/offsets/.0.crc",
        "a/sources/0/.1.tmp",
        "ab/metadata",
    ):
        files.write_durable(f"_staging/{path}", path.encode() * 100)
    assert pack(files, "_staging/a", files.paths("_staging/a"), "_staging/a.tar.gz") == files.size(
        "_staging/a.tar.gz"
    )
    unpack(files, "_staging/a.tar.gz", "_staging/b")
    assert files.paths("_staging/b") == ["_staging/b/metadata", "_staging/b/offsets/0"]
    assert files.read("_staging/b/offsets/0") == b"a/offsets/0" * 100


def test_a_missing_checkpoint_is_reported(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        unpack(files, "_staging/a.tar.gz", "_staging/b")


def test_a_truncated_checkpoint_is_reported(files: Files) -> None:
    files.write_durable("_staging/a/metadata", b"metadata" * 100)
    pack(files, "_staging/a", files.paths("_staging/a"), "_staging/a.tar.gz")
    files.write_durable("_staging/short.tar.gz", files.read("_staging/a.tar.gz")[:-20])
    with pytest.raises(OSError, match=r"short\.tar\.gz cannot be unpacked"):
        unpack(files, "_staging/short.tar.gz", "_staging/b")
