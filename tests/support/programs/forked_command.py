"""A command in a process of its own that need not import anything first.

Importing is most of what a command costs, and the tests give hundreds. ``Cli.start`` makes it the
long way round.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.programs import forked


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """``unstuck ARGUMENTS``, to its end.

    It is killed when the test that waits for it runs out of time.
    """
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = forked.start(command, arguments, folder=cwd, environ=env, out=out, err=err)
        try:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def command(arguments: Sequence[str]) -> None:
    sys.argv = ["unstuck", *arguments]
    from unstuck.cli import main

    main()
