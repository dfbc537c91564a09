"""Arming: a process of a test fleet that is killed, frozen or fails when it reaches a trigger point.

``UNSTUCK_ARM`` names a folder. A file in it is an order for one shot: its name is ``POINT@JOB`` or, for any job,
``POINT``; its text is what to do there. The first process that reaches the point takes the order by renaming the file
to ``NAME.reached-by-PID``, so one order strikes once, whoever else passes and whoever is started anew; then it obeys.

Runners, watchdogs and coordinators look at the variable when they start, and nobody else does. It must never come
about by itself: it takes the variable, a folder that this user owns and nobody else can write to, and a file for each
shot; and an armed process says so, loudly, before it does anything else.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import redis

from unstuck.tasks import failpoints as points
from unstuck.tasks.failpoints import Point

log = logging.getLogger(__name__)

VARIABLE = "UNSTUCK_ARM"


class Deed(StrEnum):
    """What an armed process does to itself at a point."""

    KILL = "kill"  # SIGKILL: gone, and nothing of ours runs after it
    FREEZE = "freeze"  # SIGSTOP: stands still until somebody sends SIGCONT, and then goes on from here
    RAISE = "raise"  # an error that nobody expects
    PASS = "pass"  # nothing, so that a test learns who came by
    LOSE = "lose"  # the error of redis-py when a reply is lost: what was asked of the store was done all the same


class Armed(RuntimeError):
    """The error that ``raise`` raises."""


def arm_this_process(environ: Mapping[str, str]) -> bool:
    """Arm this process if ``UNSTUCK_ARM`` names a folder that may be believed. Returns whether it is armed now.

    A folder that may not be believed is refused in the log, and the process works on, unarmed.
    """
    named = environ.get(VARIABLE)
    if not named:
        return False
    folder = Path(named)
    if (why := _against(folder)) is not None:
        log.error("%s=%s is ignored, and nothing is armed: %s", VARIABLE, named, why)
        return False
    points.arm(lambda point, job: _reached(folder, point, job))
    log.critical(
        "ARMED: %s is set, so this process (%d) kills, freezes or fails itself as the files in %s say. That is for "
        "tests only. If this fleet does real work, unset %s and start it again",
        *(VARIABLE, os.getpid(), folder, VARIABLE),
    )
    return True


def order(folder: Path, point: Point, deed: Deed, job: str = "") -> Path:
    """Order one shot, and return its file; from the moment it is there, whoever reaches the point obeys."""
    file = folder / (f"{point}@{job}" if job else str(point))
    # Whole or absent, as everything: an armed process may look at any moment.
    written = folder / f".{file.name}.tmp"
    written.write_text(deed)
    return written.rename(file)


def reached_by(order: Path) -> list[int]:
    """The ids of the processes that took this order, each time that it was given."""
    return [int(file.name.rpartition("-")[2]) for file in order.parent.glob(f"{order.name}.reached-by-*")]


def _against(folder: Path) -> str | None:
    """Why ``folder`` is not believed; None if it is."""
    try:
        seen = folder.stat()
    except OSError as error:
        return f"a folder was expected there ({error.strerror})"
    if not stat.S_ISDIR(seen.st_mode):
        return "a folder was expected there, not a file"
    if seen.st_uid != os.geteuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "the folder must belong to the user of this process, and nobody else may write to it (chmod go-w)"
    return None


def _reached(folder: Path, point: Point, job: str) -> None:
    for name in (f"{point}@{job}", str(point)):
        try:
            text = (folder / name).read_text().strip()
        except FileNotFoundError:
            continue
        try:
            deed = Deed(text)
        except ValueError:
            log.error("%s is no order: %r was found, one of %s was expected", folder / name, text, ", ".join(Deed))
            continue
        try:
            os.rename(folder / name, folder / f"{name}.reached-by-{os.getpid()}")
        except FileNotFoundError:
            continue  # another process was here first
        log.critical("ARMED: at %s, job %s: %s (ordered by %s)", point, job, deed, folder / name)
        _do(deed, point)
        return


def _do(deed: Deed, point: Point) -> None:
    match deed:
        case Deed.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Deed.FREEZE:
            # To this thread, not to the process: the kernel may hand the latter to another thread first, and this one
            # would go on past the point for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case Deed.PASS:
            return
        case Deed.RAISE:
            raise Armed(f"this process was armed to fail at {point}")
        case Deed.LOSE:
            raise redis.ConnectionError(f"this process was armed to lose a reply at {point}")
