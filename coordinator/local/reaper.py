"""The guard: a small process that ends a local fleet whose foreground process was killed with SIGKILL.

Every process of the fleet leads a session of its own, and everything it starts stays in that session or descends
from it, whatever process groups it makes. The foreground process names each session to the guard through a pipe
before the process may go on. When the pipe ends without a farewell, the guard ends those sessions and leaves.
It must never end a process outside the sessions it was told of.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

RETRY_DELAY = 0.5  # seconds, after a guard could not be started
FAREWELL = "farewell"
FORGET = "forget"


class Session:
    """All that one process of the fleet started, even where the process itself is dead by now.

    The kernel gives a session's number to nobody else while the session has a member. So if a process of that
    number exists and is not the leader we saw, then our session is empty and the number somebody else's.
    """

    def __init__(self, leader: int) -> None:
        self.number = leader
        self._leader: psutil.Process | None = None
        with suppress(psutil.NoSuchProcess):
            self._leader = psutil.Process(leader)

    @property
    def ours(self) -> bool:
        led = self._leader is not None and self._leader.is_running()
        return led or not psutil.pid_exists(self.number)


def members(sessions: Iterable[Session]) -> list[psutil.Process]:
    """Every living process of these sessions and every descendant of one, from one look at the process table."""
    numbers = {session.number for session in sessions if session.ours}
    children: dict[int, list[psutil.Process]] = {}
    todo: list[psutil.Process] = []
    for process in psutil.process_iter(["ppid", "status"]):
        children.setdefault(process.info["ppid"], []).append(process)
        try:
            if os.getsid(process.pid) in numbers:
                todo.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    found: dict[int, psutil.Process] = {}
    while todo:
        process = todo.pop()
        if process.pid not in found and process.pid != os.getpid():
            found[process.pid] = process
            # A watchdog leads a session of its own, but descends from its runner.
            todo += children.get(process.pid, [])
    return [process for process in found.values() if process.info["status"] != psutil.STATUS_ZOMBIE]


def end(sessions: Iterable[Session], timeout: float = 10.0) -> list[psutil.Process]:
    """SIGKILL to every member, again until none is left; returns those left after ``timeout`` seconds."""
    sessions = list(sessions)
    deadline = time.monotonic() + timeout
    while left := members(sessions):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if time.monotonic() > deadline:
            return left
        # Nobody tells us about the end of processes that are not our children: look again.
        time.sleep(0.05)
    return []


class Guard:
    """The foreground process's side: keeps one guard alive and tells it what to end.

    Args:
        lock: file descriptor of the home's lock, held by the guard too until it has cleared everything away.
        log: where the guard writes if something goes wrong.
        say: takes one line for the person at the terminal; must not raise.
    """

    def __init__(self, lock: int, log: Path, say: Callable[[str], None] | None = None) -> None:
        self._lock, self._log, self._say = lock, log, say
        self._told: list[Session] = []
        self._mutex = threading.Lock()
        self._dismissed = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="guard-keeper", daemon=True)
        self._keeper.start()

    def _start(self) -> subprocess.Popen[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                # By its file (-P: and without its folder on the path), so that it needs psutil and nothing of ours.
                [sys.executable, "-P", __file__, *(str(session.number) for session in self._told)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
                pass_fds=(self._lock,),
            )

    def _keep(self) -> None:
        """A guard that is killed is replaced; its successor is born knowing everything."""
        failing = False
        while True:
            self._process.wait()
            if self._dismissed.wait(RETRY_DELAY if failing else 0.2):
                return
            try:
                with self._mutex:
                    self._close()
                    self._told = [session for session in self._told if members([session])]
                    self._process = self._start()
                failing = False
            except (OSError, psutil.Error) as error:
                if self._say is not None and not failing:
                    self._say(
                        f"The guard of this fleet could not be started ({error}); it is tried again every "
                        f"{RETRY_DELAY:g} s. Until then a kill -9 of this process leaves the others behind."
                    )
                failing = True

    def watch(self, leader: int) -> Session:
        """Name one more session. Once this returns, the death of the caller means the end of that session."""
        session = Session(leader)
        with self._mutex:
            self._told.append(session)
            self._tell(str(leader))
        return session

    def forget(self, sessions: list[Session]) -> None:
        """Nothing lives in these sessions any more: whoever has their numbers next is a stranger."""
        with self._mutex:
            for session in sessions:
                self._told = [told for told in self._told if told is not session]
                # The number may be that of another child by now, which was named since.
                if all(told.number != session.number for told in self._told):
                    self._tell(f"{FORGET} {session.number}")

    def dismiss(self) -> None:
        """Everything has been ended in order: the guard leaves and touches nothing."""
        self._dismissed.set()
        with self._mutex:
            self._tell(FAREWELL)
            self._close()
        self._keeper.join()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # ValueError: its pipe is closed, and no other could be started yet
            return  # the guard is dead; the keeper starts another one, which knows everything

    def _close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return


def main() -> int:
    """The guard's side: read session numbers (after those of its arguments) until the pipe ends."""
    sessions = {int(number): Session(int(number)) for number in sys.argv[1:]}
    for line in sys.stdin:
        match line.split():
            case [word] if word == FAREWELL:
                return 0
            case [word, number] if word == FORGET:
                sessions.pop(int(number), None)
            case [number]:
                sessions[int(number)] = Session(int(number))
    left = end(sessions.values())
    for process in left:
        sys.stderr.write(f"guard: pid {process.pid} of a killed fleet could not be ended\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
