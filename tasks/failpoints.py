"""Failpoints: the named moments at which a test can make this process die, freeze, fail or wait.

Between two steps of the protocol lies the moment in which a process may be lost. Unarmed, which is always so in
production, a failpoint costs a call and one comparison (docs/failpoints.md).
"""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLE = "UNSTUCK_ARM"


class Point(StrEnum):
    """A moment, and what is true at it."""

    def __new__(cls, value: str, sentence: str) -> Point:
        made = str.__new__(cls, value)
        made._value_ = value
        made.sentence = sentence
        return made

    sentence: str

    # In a runner, in the order of an attempt.
    AFTER_CLAIM = "after-claim", "the store has given the attempt to this runner, which has not heard of it"
    AFTER_OUTPUT = "after-output", "a step has staged an output and goes on"
    BEFORE_MARKER = "before-marker", "all steps are done and all files staged; nothing vouches for them"
    AFTER_MARKER = "after-marker", "the marker stands; there is no outcome"
    BEFORE_FINISH = "before-finish", "the outcome is known to the runner alone"
    AFTER_FINISH = "after-finish", "outcome and report are in the store; who sent them has not heard of it"

    # In a watchdog.
    BEFORE_LOSS_REPORT = "before-loss-report", "the runner is dead, and its watchdog alone knows"

    # In a coordinator, in the order of a pass.
    AFTER_READ = "after-read", "reports were read from the stream; none was applied or acked"
    AFTER_LOCK = "after-lock", "the job is locked and its due pushed away; nothing was read of it"
    BEFORE_COMMIT = "before-commit", "it is decided what to write; nothing is written"
    AFTER_COMMIT = "after-commit", "the store has answered the commit; the coordinator has not heard of it"
    BEFORE_HINT = "before-hint", "groups stand QUEUED, and the lock is free; no hint was sent"
    AFTER_HINT = "after-hint", "the hints are with the broker"
    BEFORE_PACKAGE = "before-package", "the job is publishing; no marker was read"
    BEFORE_ENTRY = "before-entry", "the entry of the warehouse log is made up; its slot is free"
    AFTER_ENTRY = "after-entry", "the entry stands and readers see it; its author has not heard of it"
    AFTER_PUBLISH = "after-publish", "the publisher knows what became of the package; the record does not"

    # In whoever submits or gives a command.
    AFTER_SUBMIT = "after-submit", "the job is in the store; who submitted it has not heard of it"
    AFTER_COMMAND = "after-command", "the command is on the record; who gave it has not heard of it"


Act = Callable[[Point, str], None]
_act: Act | None = None


def reach(point: Point, job: str) -> None:
    """This process is at ``point``, at work on ``job``. Returns at once, unless a test has armed this process."""
    if _act is not None:
        _act(point, job)


def arm(act: Act | None) -> Act | None:
    """From now on ``act`` is called at every point, in the thread that reached it; None disarms. For tests.

    Returns: what was armed before.
    """
    global _act
    before, _act = _act, act
    return before


class Strike(StrEnum):
    """What an armed process does to itself at a failpoint."""

    KILL = "kill"  # SIGKILL: gone, and nothing of ours runs after it
    FREEZE = "freeze"  # SIGSTOP: stands still until somebody sends SIGCONT, and then goes on from here
    RAISE = "raise"  # an error that nobody expects
    PASS = "pass"  # nothing, so that a test learns who came by
    LOSE = "lose"  # the error of redis-py when a reply is lost: what was asked of the store was done all the same


class Armed(RuntimeError):
    """The error that ``raise`` raises."""


def arm_this_process(environ: Mapping[str, str]) -> bool:
    """Arm this process if ``UNSTUCK_ARM`` names a folder that may be believed. Returns whether it is armed now.

    A file in that folder is an order for one shot: its name is ``POINT@JOB`` or, for any job, ``POINT``; its text is
    the strike. The first process that reaches the point takes the order by renaming the file to
    ``NAME.reached-by-PID``, so one order strikes once. A folder that may not be believed is refused in the log, and the
    process works on, unarmed.
    """
    named = environ.get(VARIABLE)
    if not named:
        return False
    folder = Path(named)
    if (why := _against(folder)) is not None:
        log.error("%s=%s is ignored, and nothing is armed: %s", VARIABLE, named, why)
        return False
    arm(lambda point, job: _reached(folder, point, job))
    log.critical(
        "ARMED: %s is set, so this process (%d) kills, freezes or fails itself as the files in %s say. That is for "
        "tests only. If this fleet does real work, unset %s and start it again",
        *(VARIABLE, os.getpid(), folder, VARIABLE),
    )
    return True


def order(folder: Path, point: Point, strike: Strike, job: str = "") -> Path:
    """Order one shot, and return its file; from the moment it is there, whoever reaches the point obeys."""
    file = folder / (f"{point}@{job}" if job else str(point))
    # Whole or absent, as everything: an armed process may look at any moment.
    written = folder / f".{file.name}.tmp"
    written.write_text(strike)
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
            strike = Strike(text)
        except ValueError:
            log.error("%s is no order: %r was found, one of %s was expected", folder / name, text, ", ".join(Strike))
            continue
        try:
            os.rename(folder / name, folder / f"{name}.reached-by-{os.getpid()}")
        except FileNotFoundError:
            continue  # another process was here first
        log.critical("ARMED: at %s, job %s: %s (ordered by %s)", point, job, strike, folder / name)
        _do(strike, point)
        return


def _do(strike: Strike, point: Point) -> None:
    match strike:
        case Strike.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Strike.FREEZE:
            # To this thread, not to the process: the kernel may hand the latter to another thread first, and this one
            # would go on past the point for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case Strike.PASS:
            return
        case Strike.RAISE:
            raise Armed(f"this process was armed to fail at {point}")
        case Strike.LOSE:
            import redis  # not above: who only reads a warehouse needs none

            raise redis.ConnectionError(f"this process was armed to lose a reply at {point}")
