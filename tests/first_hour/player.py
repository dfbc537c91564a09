"""Does what a page says in an empty folder, with an environment that has the wheel alone, and takes
the time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.first_hour.page import Change, Command, Save, match, read, renamed
from tests.support.machine import Limit
from tests.support.paths import ROOT
from tests.support.servers import wait_until
from tests.support.wheel import built, linked

PAGE = ROOT / "docs" / "first-hour.md"
LOOKS = ("unstuck show ", "unstuck why ")


@dataclass
class Played:
    """What was done, and how long each command took."""

    files: list[str] = field(default_factory=list)
    changes: int = 0
    commands: list[tuple[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.commands)

    def table(self) -> str:
        rows = [
            f"{number:3}  {seconds:6.1f} s  {line}"
            for number, (line, seconds) in enumerate(self.commands, 1)
        ]
        files = f"{len(self.files)} files, {self.changes} changes to them"
        return "\n".join(
            [*rows, "", f"{len(self.commands)} commands, {self.seconds:.0f} s; {files}"]
        )


class Player:
    """A newcomer with a shell in ``folder``."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder, self._python = folder, python
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("UNSTUCK_", "PYTHON"))
        }
        self._env = {
            **kept,
            "PATH": f"{python.parent}:{kept['PATH']}",
            "HOME": str(folder.parent),
            "COLUMNS": "160",
        }
        self._names: dict[str, str] = {}
        self.played = Played()

    def play(self, page: Path = PAGE) -> Played:
        """All of the page, from top to bottom; Ctrl-C ends what stays in its terminal."""
        with ExitStack() as terminals:
            for todo in read(page):
                if isinstance(todo, Save):
                    (self._folder / todo.name).write_text(todo.text)
                    self.played.files.append(todo.name)
                elif isinstance(todo, Change):
                    file = self._folder / todo.name
                    file.write_text(todo.made(file.read_text()))
                    self.played.changes += 1
                elif not todo.line.startswith("pip install"):
                    self._time(todo, terminals)
        return self.played

    def _time(self, command: Command, terminals: ExitStack) -> None:
        began = time.monotonic()
        if command.stays:
            self._start(command, terminals)
        else:
            self._type(command)
        self.played.commands.append((" ".join(command.line.split()), time.monotonic() - began))

    def _type(self, command: Command) -> None:
        words = ["bash", "-c", renamed(command.line, self._names)]
        if "\n" in command.line:
            words = [str(self._python), "-c", command.line]
        said = ""

        def fits() -> bool:
            nonlocal said
            done = subprocess.run(
                words, cwd=self._folder, env=self._env, capture_output=True, text=True
            )
            said = done.stdout + done.stderr
            assert done.returncode == command.code, (
                f"{command.line}: exit code {done.returncode}\n{said}"
            )
            names = match(command.shown, said)
            self._names |= names or {}
            return names is not None

        looks = command.line.startswith(LOOKS)
        limit = Limit(20)
        while not (fit := fits()) and looks and limit.kept:  # as a person looks again
            time.sleep(0.1)
        assert fit, f"{command.line} shows\n{said}\nnot\n{command.shown}"

    def _start(self, command: Command, terminals: ExitStack) -> None:
        log = self._folder.parent / "up.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                command.line.split(),
                cwd=self._folder,
                env=self._env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        terminals.callback(process.wait)
        terminals.callback(process.send_signal, signal.SIGINT)
        wait_until(
            lambda: match(command.shown, log.read_text()) is not None or process.poll() is not None,
            100,
            command.line,
        )
        assert process.poll() is None, log.read_text()


def play(folder: Path) -> Played:
    """The page with a wheel of this checkout. ``folder`` is empty."""
    python = linked(folder / "environment", built(folder), "worker,embedded", "pytest", "duckdb")
    (folder / "shop").mkdir()
    return Player(folder / "shop", python).play()
