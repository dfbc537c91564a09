"""Record ``unstuck watch`` in a terminal while a runner is killed, and draw the recording as
docs/images/watch.svg.

Needs ``pyte``, a terminal in Python: ``pip install -e '.[docs]'``. FOLDER is made, used and
removed; the picture shows its name.

    python -m scripts.record_watch FOLDER
"""

# Everything in the picture happens: a local fleet with an embedded Valkey, a job with slow Spark
# steps, a terminal of the operating system, and SIGKILL.

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyte

from scripts.terminal_svg import Frame, animated
from unstuck import Client, Settings

OUTPUT = Path(__file__).parents[1] / "docs" / "images" / "watch.svg"
COLUMNS, ROWS = 100, 12
STEPS = """\
import time

def orders(spark, ctx, rows):
    return spark.range(rows).selectExpr("id", "id % 97 AS amount")

def region(spark, ctx, region):
    for second in range(10):
        ctx.progress(second, 10)
        time.sleep(1)
    return ctx.input("orders").where(f"id % 4 = {region}").selectExpr("count(*) AS orders", "sum(amount) AS amount")

def report(spark, ctx):
    return ctx.input("by_region").selectExpr("sum(orders) AS orders", "sum(amount) AS amount")
"""
SPEC = """\
name: sales
params: {rows: 100000}
groups:
  - name: orders
    steps: [{python: "steps:orders", output: orders}]
  - name: by_region
    needs: [orders]
    for_each: {region: [0, 1, 2, 3]}
    steps: [{python: "steps:region", output: by_region}]
  - name: report
    needs: [by_region]
    steps: [{python: "steps:report", output: report}]
"""
HALF = 5.0  # seconds; half of what a member takes
T = TypeVar("T")


class Victim(NamedTuple):
    """The runner that will be killed, and when its step was first seen to run."""

    pid: int
    group: str
    at: float


def until(what: str, question: Callable[[], T | None], timeout: float = 180) -> T:
    """The first answer that is not None or False. Raises: TimeoutError."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.1)
    raise TimeoutError(f"{what}: not within {timeout:.0f} s")


class Terminal:
    """A program in a pseudo-terminal, and what its screen shows.

    Attributes:
        frames: every screen that differed from the one before, with its time and the caption of
            that time.
        caption: a line below the screen, such as the command that was given in another terminal.
    """

    def __init__(self, words: list[str], env: Mapping[str, str], folder: Path) -> None:
        self.frames: list[Frame] = []
        self.caption = ""
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._began = time.monotonic()
        mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._fd = mine
        self._program = subprocess.Popen(
            words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "xterm-256color"},
            cwd=folder,
        )
        os.close(theirs)

    def look(self) -> bool:
        """Take in what the program wrote, and keep the screen if it changed.

        False once the program has ended.
        """
        ended = self._program.poll() is not None
        while select.select([self._fd], [], [], 0.1)[0]:
            try:
                written = os.read(self._fd, 65536)
            except OSError:  # Linux says EIO when the last writer has gone
                break
            if not written:
                break
            self._stream.feed(written)
        screen = tuple(
            tuple(self._screen.buffer[row][column] for column in range(COLUMNS))
            for row in range(ROWS)
        )
        if not self.frames or (screen, self.caption) != (
            self.frames[-1].screen,
            self.frames[-1].caption,
        ):
            self.frames.append(Frame(time.monotonic() - self._began, screen, self.caption))
        return not ended


def record(folder: Path) -> list[Frame]:
    """Run the job in ``folder``, kill the first runner that is half through a member, and answer
    what was seen.
    """
    (folder / "steps.py").write_text(STEPS)
    (folder / "sales.yaml").write_text(SPEC)
    env = {name: value for name, value in os.environ.items() if not name.startswith("UNSTUCK_")}
    env |= {
        "PYTHONPATH": str(folder),
        "UNSTUCK_SPARK_MASTER": "local[1]",
        "UNSTUCK_SPARK_PREWARM": "true",
        "COLUMNS": str(COLUMNS),
    }
    unstuck = [sys.executable, "-m", "unstuck.cli"]
    with (folder / "up.log").open("wb") as log:
        fleet = subprocess.Popen(
            [*unstuck, "up", "--workers", "2", "--light", "0"],
            cwd=folder,
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        url = until("the address of Redis", lambda: _text(folder / ".unstuck" / "redis.url"))
        until("the fleet", lambda: "Ready" in (_text(folder / "up.log") or ""))
        said = subprocess.run(
            [*unstuck, "submit", "sales.yaml", "--json"],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        job = str(json.loads(said.stdout)["id"])
        terminal = Terminal([*unstuck, "watch", job], env, folder)
        settings = Settings(redis_url=url)
        killed = False
        victim: Victim | None = None
        with Client(settings) as client:
            while terminal.look():
                victim = victim or _at_work(client)
                if victim and not killed and time.monotonic() > victim.at + HALF:
                    os.kill(victim.pid, signal.SIGKILL)
                    killed = True
                    terminal.caption = f"$ kill -9 {victim.pid}      # the runner of {victim.group}"
            if (status := str(client.show(job).status)) != "FINISHED" or not killed:
                raise RuntimeError(f"the job is {status}, killed: {killed}; see {folder}")
        return terminal.frames
    finally:
        fleet.send_signal(signal.SIGINT)
        fleet.wait(120)


def _text(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def _at_work(client: Client) -> Victim | None:
    """A runner in the middle of a member of the fork."""
    for runner in client.fleet().runners:
        if runner.group and runner.group.startswith("by_region") and runner.step:
            return Victim(runner.pid, runner.group, time.monotonic())
    return None


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir()
    try:
        frames = record(folder)
    finally:
        shutil.rmtree(folder)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(
        animated(frames, "unstuck watch, while a runner is killed", "$ unstuck watch last")
    )
    sys.stderr.write(
        f"{len(frames)} screens in {frames[-1].at:.0f} s, {OUTPUT.stat().st_size // 1024} KiB\n"
    )
