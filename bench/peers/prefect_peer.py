"""Prefect: one flow that calls N tasks that do nothing, one after the other, with a local server
(SQLite).

Run in an environment that has ``requirements-prefect.txt``. It reads one JSON command a line and
answers with the seconds it took.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path


def main(folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    quiet = {
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    os.environ.update(PREFECT_HOME=folder, PREFECT_API_URL=url, **quiet)
    program = [
        str(Path(sys.executable).with_name("prefect")),
        "server",
        "start",
        "--port",
        str(port),
    ]
    server = subprocess.Popen(program, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    try:
        wait_for(f"{url}/health", server)
        serve()
    finally:
        server.terminate()
        server.wait()


def wait_for(url: str, server: subprocess.Popen) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server of Prefect ended with code {server.returncode}")


def serve() -> None:
    from prefect import flow, task  # reads the settings above

    @task
    def hop() -> None:
        """One hop of a chain."""

    @flow
    def chain(n: int) -> None:
        for _ in range(n):
            hop()

    chain(2)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["what"] != "chain":
            raise ValueError(f"unknown command {command}")
        started = time.perf_counter()
        chain(command["n"])
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        main(folder)
