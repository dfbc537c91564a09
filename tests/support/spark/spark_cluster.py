"""Spark as people have it: a standalone cluster and a Spark Connect server, real processes of the
installed pyspark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from tests.support.paths import PYTHONPATH, ROOT
from tests.support.programs.processes import below, command_line, lives
from tests.support.servers import wait_until

HOME = Path(next(iter(pyspark.__path__)))
_HOST = "127.0.0.1"


class SparkProcess:
    """One process of Spark's, started from ``bin/``, with its log."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self.log = folder / f"{name}.log"
        folder.mkdir(parents=True, exist_ok=True)
        environ = {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(ROOT)]),
        }
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(HOME / "bin" / command[0]), *command[1:]],
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def says(self, pattern: str, times: int = 1) -> str:
        """Wait until the log has ``pattern``; answers its group."""

        def found() -> list[str]:
            assert self.process.poll() is None, self.log.read_text()
            every: list[str] = re.findall(pattern, self.log.read_text(errors="replace"))
            return every if len(every) >= times else []

        return wait_until(found, 120, f"{self.log.name} to say {pattern}")[0]

    @property
    def executors(self) -> list[psutil.Process]:
        """Those that this worker of the cluster runs."""
        every = below(psutil.Process(self.process.pid)) if self.process.poll() is None else []
        return [one for one in every if "CoarseGrainedExecutorBackend" in command_line(one)]

    def kill(self) -> None:
        """With all that it started."""
        started = below(psutil.Process(self.process.pid)) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for one in started:
            if lives(one):
                one.kill()


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[tuple[str, Sequence[SparkProcess]]]:
    """A master and workers of one core each. Gives the address of the master, and the workers."""
    deploy = "org.apache.spark.deploy"
    web = ("--webui-port", "0")
    started = [
        SparkProcess(
            folder, "master", "spark-class", f"{deploy}.master.Master", "-h", _HOST, "-p", "0", *web
        )
    ]
    try:
        url = started[0].says(r"Starting Spark master at (spark://\S+)")
        for n in range(workers):
            room = ("-c", "1", "-m", "1g", "-d", str(folder / f"work-{n}"), *web)
            name, command = f"worker-{n}", (f"{deploy}.worker.Worker", "-h", _HOST, *room, url)
            started.append(SparkProcess(folder, name, "spark-class", *command))
        started[0].says("(Registering worker)", workers)
        yield url, started[1:]
    finally:
        for one in started:
            one.kill()


@contextmanager
def connect_server(folder: Path, *conf: str) -> Iterator[str]:
    """A Spark Connect server on local cores. Gives its address."""
    options = [
        f"--conf={one}"
        for one in ("spark.connect.grpc.binding.port=0", "spark.ui.enabled=false", *conf)
    ]
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = SparkProcess(
        folder,
        "connect",
        "spark-submit",
        "--master",
        "local[2]",
        "--class",
        name,
        *options,
        "spark-internal",
    )
    try:
        port = server.says(r"Spark Connect server started at: .*:(\d+)")
        yield f"sc://{_HOST}:{port}"
    finally:
        server.kill()
