"""Steps that leave a process behind, each in a way of its own.

Every process writes a file that is named by its pid.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

_KEPT: list[Any] = []  # as a module that keeps its pool


def _note(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()


def _until_noted(folder: str, processes: int) -> None:
    while len([*Path(folder).iterdir()]) < processes:
        time.sleep(0.001)


def _stay(folder: str, seconds: float = 600) -> None:
    _note(folder)
    time.sleep(seconds)


def _stay_and_end(folder: str) -> NoReturn:
    _stay(folder)
    os._exit(0)


_STAY = (
    "import os, sys, time; open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close(); "
    "time.sleep(600)"
)


def _program(folder: str, code: str = _STAY, **options: Any) -> None:
    process = subprocess.Popen([sys.executable, "-c", code, folder], **options)
    (Path(folder) / str(process.pid)).touch()  # it may not live to do so itself
    _KEPT.append(process)


def _shell(folder: str, line: str) -> None:
    """``line`` with ``STAY`` for a command that stays."""
    stay = f"sh -c 'touch {folder}/$$; exec sleep 600'"
    subprocess.run(["sh", "-c", line.replace("STAY", stay)], check=True)


def _forked(*calls: Callable[[], object]) -> None:
    """A child that makes the calls, does not come back, and is not waited for."""
    if os.fork() == 0:
        try:
            for call in calls:
                call()
        finally:
            os._exit(0)


def _daemon(folder: str, forks: int = 2) -> None:
    """The classic daemon: each parent ends, so that the last child belongs to nobody."""
    if os.fork():
        return
    os.setsid()
    for _ in range(forks - 1):
        if os.fork():
            os._exit(0)
    _stay_and_end(folder)


def _relay(folder: str) -> None:
    """A process that hands over to its child every 50 ms and ends."""
    if os.fork():
        return
    for _ in range(12_000):
        _note(folder)
        time.sleep(0.05)
        if os.fork():
            os._exit(0)


def _comes_back(folder: str, after: float = 0.0) -> None:
    if os.fork() == 0:
        _stay(folder, after)


def _comes_back_raising(folder: str) -> None:
    if os.fork() == 0:
        _note(folder)
        raise RuntimeError("the child fails")


def _comes_back_leaving(folder: str) -> None:
    if os.fork() == 0:
        _note(folder)
        sys.exit(3)


def _late(folder: str, after: float, **options: Any) -> None:
    thread = threading.Timer(after, partial(_program, folder, **options))
    thread.daemon = True
    thread.start()


def _process(folder: str, *, daemon: bool = True) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_stay, args=(folder,), daemon=daemon
    )
    process.start()
    _KEPT.append(process)


def _pool(folder: str) -> None:
    """It starts a worker again when one dies."""
    pool = multiprocessing.get_context("fork").Pool(2)
    pool.map_async(_stay, [folder, folder])
    _KEPT.append(pool)


def _executor(folder: str) -> None:
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
    pool.submit(_stay, folder)
    _KEPT.append(pool)


def _ignores_signals(folder: str) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _stay(folder)


def _stopped(folder: str) -> None:
    _note(folder)
    os.kill(os.getpid(), signal.SIGSTOP)


def _parent_ends_later(folder: str) -> None:
    """A daemon whose parent ends when the attempt is over."""
    _forked(os.setsid, partial(_daemon, folder), partial(time.sleep, 1))


LATER = "a thread that starts a program later"
WAYS: dict[str, Callable[[str], object]] = {
    "a program": _program,
    "a program in a session of its own": partial(_program, start_new_session=True),
    "a program in a group of its own": partial(_program, process_group=0),
    "a program with a daemon of its own": partial(
        _program, code=f"import os\nif os.fork(): os.setsid()\n{_STAY}"
    ),
    "a shell in the background": partial(_shell, line="STAY &"),
    "nohup": partial(_shell, line="nohup STAY >/dev/null 2>&1 &"),
    "setsid and nohup": partial(_shell, line="setsid nohup STAY >/dev/null 2>&1 &"),
    "a daemon": _daemon,
    "a daemon of three forks": partial(_daemon, forks=3),
    "a daemon whose parent ends later": _parent_ends_later,
    "a relay": _relay,
    "a fork that stays": lambda folder: _forked(partial(_stay, folder)),
    "a fork in a session of its own": lambda folder: _forked(os.setsid, partial(_stay, folder)),
    "a fork that hears no signal": lambda folder: _forked(partial(_ignores_signals, folder)),
    "a fork that is stopped": lambda folder: _forked(partial(_stopped, folder)),
    "a fork that comes back": _comes_back,
    "a fork that comes back later": partial(_comes_back, after=1.0),
    "a fork that raises": _comes_back_raising,
    "a fork that exits": _comes_back_leaving,
    "multiprocessing, a daemon": _process,
    "multiprocessing, no daemon": partial(_process, daemon=False),
    "multiprocessing, a pool": _pool,
    "an executor": _executor,
    LATER: partial(_late, after=1.0, start_new_session=True),
}


def leave(spark: Any, ctx: Any, way: str, folder: str) -> None:
    """Leaves what ``way`` says; ends once the first process is there, where one is to come during
    the attempt.
    """
    # Celery's children may have none of their own by multiprocessing, and this is how its users get
    # round that.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # noqa: SLF001
    WAYS[way](folder)
    if way != LATER:
        _until_noted(folder, 1)


def last(spark: Any, ctx: Any, ends: str) -> None:
    """Notes that somebody came to the end of the attempt."""
    with open(ends, "a") as file:
        file.write(ctx.token.rpartition("/")[0] + "\n")


def start_and_die(spark: Any, ctx: Any, folder: str) -> None:
    """Its runner is killed, by the kernel for want of memory say, with daemons that nobody has seen
    yet.
    """
    _program(folder, start_new_session=True)
    _daemon(folder)
    _until_noted(folder, 2)
    os.kill(os.getpid(), signal.SIGKILL)


def codes(spark: Any, ctx: Any, folder: str) -> None:
    """What a parent hears from children that come back from their step."""
    for name, come_back in {
        "returns": _comes_back,
        "raises": _comes_back_raising,
        "exits": _comes_back_leaving,
    }.items():
        parent = os.getpid()
        come_back(folder)
        if os.getpid() != parent:
            return
        ctx.result(name, os.waitstatus_to_exitcode(os.wait()[1]))
