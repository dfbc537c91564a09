"""``unstuck up``: a fleet of one's own, found from the folder it was started in."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import ROOT, Cli
from tests.support.machine import seconds
from tests.support.programs.processes import lives
from tests.support.servers import wait_until


@pytest.fixture
def alone(tmp_path: Path) -> Cli:
    """No Redis is named: what is used is what is found."""
    return Cli(None, tmp_path)


@contextmanager
def running(cli: Cli, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The command with its output in a file; at the end nothing that it started is left."""
    out = cli.folder / "out.txt"
    family: set[psutil.Process] = set()
    with out.open("w") as file:
        process = cli.start(*arguments, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process, out
        family.update(below(process.pid))
    finally:
        if process.poll() is None:
            family.update(below(process.pid))
            process.send_signal(signal.SIGINT)
        try:
            process.wait(seconds(30))
        except subprocess.TimeoutExpired:
            process.kill()  # the kernel ends the rest
            process.wait()
    wait_until(lambda: not [p for p in family if lives(p)], 20, "all that it started to end")


def below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def says(process: subprocess.Popen[str], out: Path, pattern: str, timeout: float) -> re.Match[str]:
    """Wait until the output fits ``pattern``; fails at once if the command ends without."""

    def found() -> re.Match[str] | None:
        ended = process.poll() is not None
        match = re.search(pattern, out.read_text(), re.MULTILINE)
        assert match or not ended, f"ended without {pattern!r}:\n{out.read_text()}"
        return match

    match = wait_until(found, timeout, f"{pattern!r}", every=0.1)
    assert match is not None
    return match


@pytest.mark.variant
@pytest.mark.timeout(400)
def test_up_starts_a_fleet_for_its_folder_and_ctrl_c_ends_it(alone: Cli) -> None:
    alone.env["JAVA_HOME"] = "/nowhere"  # a fleet without Spark workers needs none
    with running(alone, "up", "--workers", "0", "--light", "1") as (process, out):
        says(process, out, r"^Ready: ", 100)
        page = says(
            process,
            out,
            r"^  page +(http://127\.0\.0\.1:\d+/) +\(this file logs you in: file://(.*)\)$",
            10,
        )
        token = alone.folder / ".unstuck" / "web.token"
        for private in (token, Path(page[2])):
            assert private.stat().st_mode & 0o077 == 0, "any account of this host reaches the page"
        assert f"#{token.read_text().strip()}" in Path(page[2]).read_text()
        assert token.read_text().strip() not in out.read_text()
        bearer = {"Authorization": f"Bearer {token.read_text().strip()}"}
        with urllib.request.urlopen(urllib.request.Request(page[1], headers=bearer)) as answer:
            assert b"All is well." in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page[1])
        done = alone("submit", ROOT / "examples" / "wide.yaml", "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^wide \S+ FINISHED after", done.stdout, re.MULTILINE)
        fleet = alone.json("fleet")
        assert [runner["queues"] for runner in fleet["runners"]] == [["light"], ["light"]]
        wait_until(
            lambda: any(one["claimed_at"] for one in alone.json("fleet")["runners"]),
            10,
            "a claim to be shown",
        )
        (coordinator,) = fleet["coordinators"]
        assert coordinator["read_at"]
        assert not coordinator["silent"]
        assert {"name": "light", "length": 0, "listeners": 2, "oldest_since": None} in fleet[
            "queues"
        ]
        second = alone("up", "--workers", "0")
        assert second.returncode == 4
        assert str(process.pid) in second.stderr
    assert process.returncode == 0


@pytest.mark.variant
def test_up_without_java_fails_with_a_message_and_starts_nothing(alone: Cli) -> None:
    done = alone("up", JAVA_HOME="/nowhere")
    assert done.returncode == 2
    assert "Java is not installed in JAVA_HOME, /nowhere: Spark needs Java 17" in done.stderr
    assert "unstuck up --workers 0" in done.stderr
    assert not (alone.folder / ".unstuck").exists()


def test_up_with_an_unreachable_redis_exits_with_5_and_starts_nothing(alone: Cli) -> None:
    done = alone("up", UNSTUCK_REDIS_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 5
    assert "unset UNSTUCK_REDIS_URL" in done.stderr
    assert "Start a local fleet" not in done.stderr  # that is what was tried
    assert not (alone.folder / ".unstuck").exists()
