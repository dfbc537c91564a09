"""A peer: another system that does the same work, in an environment of its own, on the same Redis
server.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil

from bench.measure import Sample, measured

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".environments"
ANSWERS_WITHIN = 600.0  # seconds; one that has lost a task would wait for ever


class NotInstalled(RuntimeError):
    """A peer's environment cannot be made on this machine."""


class Peer:
    """The program ``peers/NAME_peer.py``, started once and asked as often as there are rounds.

    Between two commands all its processes are stopped (SIGSTOP), so that what it does when idle
    changes no figure.

    Raises:
        NotInstalled: its environment cannot be made.
        RuntimeError: the program ended; the sentence names its log.
    """

    def __init__(self, name: str, url: str, folder: Path, *, slots: int = 2) -> None:
        self.name = name
        path = os.pathsep.join(str(HERE / name) for name in ("peers", "steps"))
        self._log = folder / f"{name}.log"
        self._process = subprocess.Popen(
            [str(environment(name)), str(HERE / "peers" / f"{name}_peer.py")],
            env={
                **os.environ,
                "BENCH_REDIS_URL": url,
                "BENCH_SLOTS": str(slots),
                "PYTHONPATH": path,
            },
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("wb"),
            text=True,
        )
        self._answer()
        self._signal(signal.SIGSTOP)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def run(self, what: str, n: int, beside: dict[str, psutil.Process]) -> Sample:
        """Let it do ``n`` of ``what``. The seconds are by its own clock; ``beside``: whose CPU time
        counts, too.
        """
        self._signal(signal.SIGCONT)
        with measured({self.name: self.process, **beside}, n) as sample:
            seconds = self._ask(what, n)
        sample.seconds = seconds
        self._signal(signal.SIGSTOP)
        return sample

    def _signal(self, number: signal.Signals) -> None:
        for process in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _ask(self, what: str, n: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, "n": n}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        # It answers in whole lines, one for each command, so nothing waits in the buffer.
        if not select.select([self._process.stdout], [], [], ANSWERS_WITHIN)[0]:
            raise RuntimeError(
                f"the peer {self.name} has not answered for {ANSWERS_WITHIN:g} s, see {self._log}"
            )
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the peer {self.name} ended with code {self._process.wait()}, see {self._log}"
            )
        return dict(json.loads(line))

    def close(self) -> None:
        if self._process.poll() is None:
            self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:  # as a warm shutdown of Celery does now and then
            self._signal(signal.SIGKILL)
            self._process.wait()


def environment(name: str) -> Path:
    """The Python of a virtual environment with ``requirements-NAME.txt``, made on first use and
    after a change.

    A peer without such a file is a program on what Unstuck itself needs, and runs where the
    benchmark runs.

    Raises:
        NotInstalled: a package cannot be installed; the sentence says which.
    """
    requirements = HERE / f"requirements-{name}.txt"
    if not requirements.exists():
        return Path(sys.executable)
    folder = ENVIRONMENTS / f"{name}-{sha256(requirements.read_bytes()).hexdigest()[:8]}"
    try:
        return installed(folder, "-r", str(requirements))
    except subprocess.CalledProcessError as failed:
        error = next(
            (line for line in failed.stderr.splitlines() if line.startswith("ERROR")), "pip failed"
        )
        raise NotInstalled(
            f"{name} cannot be installed: {error.replace(f'{HERE}/', '')}"
        ) from failed


def installed(folder: Path, *wanted: str) -> Path:
    """The Python of the virtual environment ``folder`` with what ``pip install`` is told; made if
    it is not complete.

    Raises: subprocess.CalledProcessError: it cannot be made; ``stderr`` is what pip has said.
    """
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *wanted],
        ):
            subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
        (folder / "complete").touch()
    return python
