"""Processes that are forked from one that has imported Celery and all, since that takes 0.4 s of a
core.

The fork server is that of ``multiprocessing``. All its processes have one seed for hashes, and none
runs the code of an interpreter's start: where that matters, a test starts a program by
``subprocess``.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.support.failpoints import arm_this_process

_context = multiprocessing.get_context("forkserver")
# Nothing that reads the settings: each process has its own.
_context.set_forkserver_preload(
    [
        "celery.apps.worker",
        "celery.bin.celery",
        "celery.concurrency.prefork",
        "celery.worker.consumer",
        "kombu.transport.redis",
        "unstuck.cli.control",
        "unstuck.cli.jobs.look",
        "unstuck.cli.specs.submit",
        "unstuck.coordinator.publishing.background_tries",
        "unstuck.coordinator.publishing.staging_gc",
        "unstuck.coordinator.reconcile.heartbeat",
        "unstuck.tasks.runner.attempt",
        "unstuck.tasks.runner.runner",
        "unstuck.tasks.transport.stall_detector",
        "tests.support.programs.frozen_heap",
    ]
)


class Forked:
    """A process, with those methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; negative: the signal that ended it. Raises:
        subprocess.TimeoutExpired.
        """
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    main: Callable[..., None],
    *arguments: object,
    folder: Path,
    environ: Mapping[str, str],
    out: Path,
    err: Path,
) -> Forked:
    """A process that calls ``main`` as the program of a session of its own, in ``folder``, with
    this environment alone.

    What it says is added to ``out`` and ``err``.
    """
    for stream in (out, err):
        stream.touch()
    process = _context.Process(
        name="MainProcess", target=_enter, args=(main, arguments, folder, dict(environ), (out, err))
    )
    process.start()
    return Forked(process)


def celery(arguments: Sequence[str]) -> None:
    """What ``python -m celery`` does with these arguments."""
    sys.argv = ["celery", *arguments]
    sys.path.insert(0, os.getcwd())
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


def _enter(
    main: Callable[..., None],
    arguments: tuple[object, ...],
    folder: Path,
    environ: dict[str, str],
    streams: tuple[Path, Path],
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:0] = environ["PYTHONPATH"].split(os.pathsep)
    for number, path in enumerate((os.devnull, *streams)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace")
    multiprocessing.set_start_method(None, force=True)
    if "UNSTUCK_ARM" in environ:
        arm_this_process(environ["UNSTUCK_ARM"])
    try:
        main(*arguments)
    except Exception:
        traceback.print_exc()  # first: a handler may hang
        raise
    finally:  # as an interpreter does; multiprocessing leaves by os._exit
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
