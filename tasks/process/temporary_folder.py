"""A folder for all temporary files of one process and of what it starts, so that they can be removed together."""

from __future__ import annotations

import os
import tempfile


def use_own_folder() -> str:
    """Make a folder, and let `tempfile` and the processes that this one starts use it (``TMPDIR``). Returns its path.

    Raises:
        OSError: it cannot be made.
    """
    folder = tempfile.mkdtemp(prefix="unstuck-runner-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    return folder
