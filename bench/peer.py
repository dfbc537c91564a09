"""A peer: another system that does the same work, in an environment of its own, on the same Redis server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import psutil

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".environments"


class Peer:
    """The program ``peers/NAME_peer.py``, started once and asked as often as there are rounds.

    Raises:
        RuntimeError: the environment cannot be made, or the program ended; the sentence names its log.
    """

    def __init__(self, name: str, url: str, folder: Path, *, slots: int = 2) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._process = subprocess.Popen(
            [str(environment(name)), str(HERE / "peers" / f"{name}_peer.py")],
            env={**os.environ, "BENCH_REDIS_URL": url, "BENCH_SLOTS": str(slots), "PYTHONPATH": str(HERE / "peers")},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("wb"),
            text=True,
        )
        self._answer()

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def run(self, what: str, n: int) -> float:
        """The seconds that it took, by its own clock."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, "n": n}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer {self.name} ended with code {self._process.wait()}, see {self._log}")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def environment(name: str) -> Path:
    """The Python of a virtual environment with ``requirements-NAME.txt``, made on first use and after a change."""
    requirements = HERE / f"requirements-{name}.txt"
    folder = ENVIRONMENTS / f"{name}-{sha256(requirements.read_bytes()).hexdigest()[:8]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)], check=True)
        (folder / "complete").touch()
    return python
