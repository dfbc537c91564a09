"""A command in a process of its own that need not import anything first: forked from a server that has done so.

Importing is most of what a command costs, and the tests give hundreds. The process has its own folder, environment,
standard streams and exit code, as one from a shell has; ``Cli.start`` makes it the long way round.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["unstuck.coordinator.cli.app"])


def run(arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``unstuck ARGUMENTS``, to its end. It is killed when the test that waits for it runs out of time."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _server.Process(target=_command, args=(arguments, cwd, dict(env), out, err))
        process.start()
        try:
            process.join()
        finally:
            process.kill()
            process.join()
        code = process.exitcode
        assert code is not None
        process.close()
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def _command(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], out: Path, err: Path) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT),
        (2, err, os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww"))
    sys.argv = ["unstuck", *arguments]
    from unstuck.coordinator.cli import main

    main()
