"""The checkpoint of a stream, packed: a folder of Spark's becomes one file that is written whole, and the reverse."""

from __future__ import annotations

import io
import tarfile

from unstuck.tasks.warehouse.files import Files


def pack(files: Files, folder: str, target: str) -> int:
    """Write all files below ``folder`` into the file ``target``. Returns its bytes. Raises: OSError."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in files.paths(folder):
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
        OSError: the store failed.
    """
    with tarfile.open(fileobj=io.BytesIO(files.read(source)), mode="r:gz") as archive:
        local = files.local_path(folder)
        if local is not None:
            files.make_folder(folder)
            archive.extractall(local, filter="data")  # not synced one by one: it is a copy that may be lost
            return
        for entry in archive.getmembers():
            if (file := archive.extractfile(entry)) is not None:
                files.write_durable(f"{folder}/{entry.name}", file.read())
