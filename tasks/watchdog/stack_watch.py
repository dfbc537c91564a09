"""The stack of a step that runs long: asked for, and cut to the lines that its author knows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import psutil

from unstuck.tasks.identity import LIBRARIES
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.process.stack_dump import RawFrame, StackDump
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.step_stack import Frame
from unstuck.tasks.watchdog.runner_state import RunnerState

SHOWN = 8  # frames
MAX_TEXT = 200  # characters of a name or a line
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
# Below the last of these stands the step's own code: below the others what we do for it.
_CALLERS = (f"{_OURS}steps/execute.py", f"{_OURS}runner/snapshot.py", f"{_OURS}runner/attempt.py")
_NAMED = 4  # libraries
_READ_WITHIN = 0.5  # seconds for lines of files, whose server may be gone


class StackWatch:
    """Asks a runner for its stack every ``every`` seconds of an attempt."""

    def __init__(
        self, runner: psutil.Process, dump: StackDump, every: float, also_ask: Callable[[str], None]
    ) -> None:
        """``also_ask``: called with the token whenever the stack is asked for."""
        self._runner, self._dump, self._every, self._also_ask = runner, dump, every, also_ask
        self._token: str | None = None
        self._next = 0.0
        self._asked_at = self._stands_since = 0.0
        self._raw: list[RawFrame] = []
        self._sources: dict[tuple[str, int], str] = {}
        self._secrets = Secrets()

    def look(self, held: RunnerState) -> tuple[tuple[Frame, ...], float, float] | None:
        """Ask when it is time, and take the answer to the question before.

        Returns: the frames, and when they were seen and have stood since (monotonic seconds); None:
        nothing new.
        """
        now, answer = time.monotonic(), self._dump.answer()
        if held.token != self._token:
            self._token, self._next = held.token, now + self._every
            self._raw, self._sources = [], {}
            return None
        if held.token is None:
            return None
        observation = None
        if answer and held.secrets is not None:
            observation = self._observed(answer, held, held.secrets)
        if now >= self._next:
            self._dump.ask(self._runner)
            self._also_ask(held.token)
            self._asked_at, self._next = now, now + self._every
        return observation

    def _observed(
        self, answer: Sequence[RawFrame], held: RunnerState, secrets: Mapping[str, str]
    ) -> tuple[tuple[Frame, ...], float, float]:
        stood = [frame for frame in answer if is_users(frame.file, held.code)] or [*answer]
        if stood != self._raw:
            self._raw, self._stands_since = stood, self._asked_at
        return self._shown(answer, held, secrets), self._asked_at, self._stands_since

    def _shown(
        self, answer: Sequence[RawFrame], held: RunnerState, secrets: Mapping[str, str]
    ) -> tuple[Frame, ...]:
        if secrets != self._secrets.values:
            self._secrets = Secrets.of(secrets)
        here = f"{self._folder()}{os.sep}"
        shown = chosen(answer, held.code)
        own = [raw for raw, _ in shown if is_users(raw.file, held.code)]
        self._read_sources(own, held.since)

        def clean(text: str) -> str:  # before it is cut: a secret that is cut is found no more
            return self._secrets.clean(text)

        frames = []
        for raw, skipped in shown:
            source = clean(self._sources.get((raw.file, raw.line), "")) if raw in own else ""
            name = clean(_short(raw.file, here))
            libraries = list(dict.fromkeys(library_of(frame.file) for frame in skipped))
            more = f", {len(libraries) - _NAMED} more" if len(libraries) > _NAMED else ""
            frames.append(
                Frame(
                    name[-MAX_TEXT:],
                    raw.line,
                    clean(raw.function)[:MAX_TEXT],
                    raw in own,
                    source[:MAX_TEXT],
                    len(skipped),
                    clean(", ".join(libraries[:_NAMED]))[:MAX_TEXT] + more,
                )
            )
        return tuple(frames)

    def _folder(self) -> str:
        with suppress(psutil.Error, OSError):
            return self._runner.cwd()
        return os.curdir

    def _read_sources(self, frames: Iterable[RawFrame], before: float) -> None:
        """Read the lines that are not known yet. A file that does not come is asked for once."""
        if unknown := [
            (frame.file, frame.line)
            for frame in frames
            if (frame.file, frame.line) not in self._sources
        ]:
            self._sources.update(dict.fromkeys(unknown, ""))
            run_with_deadline(_read_lines, self._sources, unknown, before, seconds=_READ_WITHIN)


def _read_lines(
    sources: dict[tuple[str, int], str], places: Iterable[tuple[str, int]], before: float
) -> None:
    """Store the lines at ``places`` in ``sources``, except of files changed since ``before``."""
    for file, line in places:
        with suppress(OSError, ValueError), open(file, encoding="utf-8", errors="replace") as lines:
            status = os.fstat(lines.fileno())
            if line and max(status.st_mtime, status.st_ctime) < before:
                sources[file, line] = next(islice(lines, line - 1, None), "").strip()


def chosen(
    innermost_first: Sequence[RawFrame], packages: Collection[str]
) -> list[tuple[RawFrame, list[RawFrame]]]:
    """The frames to show, the innermost last, each with those before it that are left out.

    Shown are the user's own and the innermost one; of a stack without the user's, also the last of
    ours.

    Args:
        packages: those of steps; they are the user's own wherever they are installed.
    """
    frames = _within_the_step([*reversed(innermost_first)])
    indexes = [n for n, frame in enumerate(frames) if is_users(frame.file, packages)]
    if not indexes:
        indexes = [n for n, frame in enumerate(frames) if frame.file.startswith(_OURS)][-1:]
    if len(indexes) >= SHOWN:  # the step itself, and the innermost of the others
        indexes = [indexes[0], *indexes[2 - SHOWN :]]
    indexes = sorted({*indexes, len(frames) - 1})
    return [
        (frames[n], frames[before + 1 : n])
        for before, n in zip([-1, *indexes], indexes, strict=False)
    ]


def _within_the_step(frames: list[RawFrame]) -> list[RawFrame]:
    """Return the frames below the caller of the step, or else the innermost one."""
    files = [frame.file for frame in frames]
    for caller in _CALLERS:
        if caller in files:
            inside = len(files) - files[::-1].index(caller)
            return frames[inside:] or frames[-1:]
    return frames


def is_users(file: str, packages: Collection[str]) -> bool:
    """Whether ``file`` is code of the user's: none of ours, of Python or of a library."""
    if file.startswith((_OURS, "<frozen ")):
        return False
    return not file.startswith(LIBRARIES) or library_of(file) in packages


def library_of(file: str) -> str:
    """The package or the module that ``file`` belongs to."""
    if file.startswith(_OURS):
        return "unstuck"
    if file.startswith("<"):
        return file.strip("<>").removeprefix("frozen ").partition(".")[0]
    return (_short(file, "").partition(os.sep)[0] or Path(file).name).removesuffix(".py")


def _short(file: str, here: str) -> str:
    """``file`` without the folder of its library, or the working folder of the runner."""
    if file.startswith(_OURS):
        return f"unstuck/tasks/{file.removeprefix(_OURS)}"
    folders = [folder for folder in (here, *LIBRARIES) if folder and file.startswith(folder)]
    return file.removeprefix(max(folders, key=len, default=""))
