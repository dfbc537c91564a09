"""Pack the checkpoint of a Spark query into one file, and unpack it.

Spark notes a batch in ``offsets`` before it and in ``commits`` after it, and the files that a
source has seen in ``sources``. What is packed must be whole, since the next job goes on from it.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Collection, Iterable, Sequence

from unstuck.tasks.warehouse.files import Files


def pack(files: Files, folder: str, paths: Iterable[str], target: str) -> int:
    """Write the files ``paths`` below ``folder`` into the file ``target``. Returns its bytes.

    Raises: OSError.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in paths:
            if not path.rpartition("/")[2].startswith("."):  # Spark's temporary files and checksums
                data = files.read(path)
                entry = tarfile.TarInfo(path.removeprefix(f"{folder}/"))
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    files.write_durable(target, packed.getvalue())
    return len(packed.getvalue())


def unpack(files: Files, source: str, folder: str) -> None:
    """Write the files that are packed in ``source`` into ``folder``.

    Raises:
        FileNotFoundError: there is no such file.
        WarehouseMismatch: what stands here is not the warehouse that ``files`` was made for.
        OSError: the store failed, or the file is cut short.
    """
    data = files.read(source)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            members = archive.getmembers()
            local = files.local_path(folder)
            if local is not None:
                files.make_folder(folder)
                # The files are not synced, since this copy may be lost.
                archive.extractall(local, filter="data")
            else:
                for entry in members:
                    if (file := archive.extractfile(entry)) is not None:
                        files.write_durable(f"{folder}/{entry.name}", file.read())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise OSError(f"{files.uri(source)} cannot be unpacked: {error}") from error
    files.check()
    for entry in members:  # written while the warehouse was away, they stand elsewhere
        if files.size(f"{folder}/{entry.name}") != entry.size:
            raise OSError(
                f"{files.uri(folder)}/{entry.name} does not stand there after it was written"
            )


def newest_commit(paths: Iterable[str]) -> int:
    """Return the newest completed batch of the checkpoint with these files; -1 without one."""
    return max(_numbers(paths, "commits"), default=-1)


def what_is_lost(
    files: Files, folder: str, paths: Sequence[str], before: int, staged: Sequence[int], kept: int
) -> str:
    """Return what is missing in the checkpoint in ``folder``; empty if the next job can continue.

    Args:
        paths: its files.
        before: the newest batch that was done when the attempt began; -1: none.
        staged: the batches of the attempt, in order.
        kept: of how many batches Spark keeps its notes.

    Raises: OSError: the store failed.
    """
    offsets, commits = set(_numbers(paths, "offsets")), set(_numbers(paths, "commits"))
    newest, last = max(commits, default=-1), max(offsets, default=-1)
    first = next(iter(staged), before + 1)
    missing = next((batch for batch in staged[-kept:] if batch not in offsets & commits), None)
    problems = [
        (f"{folder}/metadata" not in paths, "its metadata is gone"),
        (first <= before, f"batch {first} was staged again"),
        (missing is not None, f"it does not know of batch {missing}, which was staged"),
        (
            newest < before or newest != last,
            f"its newest batch is {newest}, and should be {max(before, newest, last)}",
        ),
    ]
    for is_lost, what in problems:
        if is_lost:
            return what
    return _lost_source(files, folder, paths, newest) if newest >= 0 else ""


def _lost_source(files: Files, folder: str, paths: Sequence[str], batch: int) -> str:
    """Return the entry of a source that is missing before the end of ``batch``; empty if none is.

    Raises: OSError: the store failed.
    """
    existing = set(paths)
    sources = {path.removeprefix(f"{folder}/sources/").partition("/")[0] for path in paths}
    offsets = files.read(f"{folder}/offsets/{batch}").decode().splitlines()[2:]
    for source, line in enumerate(offsets):
        # Of a stream that the query reads in two places Spark has one source, and an offset for
        # each.
        if line.startswith("{") and (source == 0 or str(source) in sources):
            newest = json.loads(line).get("logOffset", -1)
            if lost := _lost_entry(existing, folder, source, newest):
                return lost
    return ""


def _lost_entry(existing: Collection[str], folder: str, source: int, newest: int) -> str:
    """Return the first missing entry of the files that a source has seen, up to ``newest``."""
    for entry in range(newest, -1, -1):
        at = f"{folder}/sources/{source}/{entry}"
        if f"{at}.compact" in existing:
            return ""
        if at not in existing:
            return f"sources/{source}/{entry} is gone"
    return ""


def _numbers(paths: Iterable[str], kind: str) -> list[int]:
    split = (path.rsplit("/", 2) for path in paths)
    return [
        int(name)
        for _, folder, name in (part for part in split if len(part) == 3)
        if folder == kind and name.isdigit()
    ]
