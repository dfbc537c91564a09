"""List files for Spark in the format of its streaming file sink."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from unstuck.tasks.frames.spark import hadoop_uri


def file_list(files: Mapping[str, int]) -> bytes:
    """Return the list of ``files``, with their sizes.

    All have one modification time, so Spark takes none of them for too old.
    """
    common = {
        "isDir": False,
        "modificationTime": 0,
        "blockReplication": 1,
        "blockSize": 2**27,
        "action": "add",
    }
    lines = ({"path": _encoded(uri), "size": size, **common} for uri, size in files.items())
    return "\n".join(["v1", *map(json.dumps, lines)]).encode()


def _encoded(uri: str) -> str:
    scheme, _, path = ("file", "", uri) if uri.startswith("/") else hadoop_uri(uri).partition("://")
    return f"{scheme}://{quote(path, safe='/@:')}"  # as in abfss://container@account/…
