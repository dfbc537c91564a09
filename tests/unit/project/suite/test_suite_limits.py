"""The suite itself: it ends whatever a test does, says which one it was, and leaves no process
behind.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.programs.processes import lives
from tests.support.servers import wait_until

pytestmark = pytest.mark.long

# As `make test` has them, but for the number of test processes.
OPTIONS = re.findall(
    r"^PYTEST_OPTIONS := -n \d+ (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
)[0]
TWO, THREE, FIVE = (["-n", number, *OPTIONS.split()] for number in "235")
# A fleet as tests have them: it ignores SIGTERM, in sessions of its own.
HEAD = """
import ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
import psutil
import pytest

LIBC = ctypes.PyDLL(None)
FLEET = '''
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
name = "main" if os.fork() else "child"
os.setsid() if name == "child" else None
Path(sys.argv[1], f"{name}-{os.getpid()}").touch()
time.sleep(1000)
'''

@pytest.fixture(scope="module")
def fleet(request):
    folder = Path(os.environ["STARTED"], Path(request.module.__file__).stem)
    folder.mkdir()
    process = subprocess.Popen([sys.executable, "-c", FLEET, str(folder)], start_new_session=True)
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    yield process
    for one in psutil.Process(process.pid).children():
        one.kill()
    process.kill()
    process.wait()

"""
# Starts the fleet, which is no part of the second that the next test has.
BEFORE = "def test_before(fleet): ...\n\n"


class Suite:
    """A folder of tests, run as ``make test`` runs ours: by pytest with the same settings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, folder / "started"
        self.started.mkdir()
        self.out = folder / "out.txt"

    def file(self, name: str, text: str) -> None:
        (self.folder / f"test_{name}.py").write_text(HEAD + text)

    def run(self, *options: str, **settings: float) -> int:
        """In the background of a shell that runs a script and ignores SIGHUP, as `nohup` does; its
        exit code.
        """
        pytest = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
        pytest += [
            *("-p", "tests.support.suite.suite_limits"),
            *("-p", "xdist.plugin"),
            *("-p", "pytest_timeout"),
        ]
        # Else it would remove the temporary folders of earlier suites, which may take minutes.
        told = ["-p", "no:cacheprovider", "--basetemp", str(self.folder / "temp")]
        told += [*(part for name in settings for part in ("-o", f"{name}={settings[name]}"))]
        with self.out.open("wb") as out:
            return subprocess.run(
                [
                    "sh",
                    "-c",
                    'trap "" HUP; "$@" & wait $!',
                    "sh",
                    *pytest,
                    *told,
                    *options,
                    str(self.folder),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "STARTED": str(self.started),
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                },
                stdout=out,
                stderr=out,
            ).returncode

    @property
    def text(self) -> str:
        return self.out.read_text()

    def left(self) -> list[psutil.Process]:
        """What still lives of all fleets."""
        found = []
        for path in self.started.rglob("*-*"):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(path.name.rpartition("-")[2])))
        return [process for process in found if lives(process)]

    def nothing_is_left(self) -> None:
        assert list(self.started.rglob("child-*")), self.text
        wait_until(lambda: not self.left(), 10, "the fleets of the suite to be gone")


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    made = Suite(tmp_path)
    yield made
    for process in made.left():
        process.kill()


@pytest.mark.parametrize("processes", [(), TWO], ids=len)
def test_a_keyboard_signal_reaches_test_processes_of_a_suite_started_by_a_script(
    suite: Suite, processes: Sequence[str]
) -> None:
    suite.file(
        "signals",
        """
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_ends(number):
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    assert subprocess.run([sys.executable, "-c", code], stderr=-3).returncode == -number
""",
    )
    assert suite.run(*processes) == 0, suite.text


@pytest.mark.parametrize("processes", [(), THREE], ids=len)
def test_a_test_that_times_out_fails_with_its_fleet_and_others_continue(
    suite: Suite, processes: Sequence[str]
) -> None:
    for name in "abc":
        suite.file(
            name,
            BEFORE
            + """
@pytest.mark.timeout(1)
def test_hangs(fleet):
    threading.Event().wait()

def test_after(fleet): ...
""",
        )
    assert suite.run(*processes) == 1
    assert "3 failed, 6 passed" in suite.text
    assert (
        len(re.findall(r"^FAILED .*::test_hangs - Failed: Timeout", suite.text, re.MULTILINE)) == 3
    )
    suite.nothing_is_left()


# What pytest-timeout cannot interrupt.
ENDS = {
    # A mutex that the thread itself holds, waited for with the lock of the interpreter.
    "stuck in C code": (
        "mutex = ctypes.create_string_buffer(64); [LIBC.pthread_mutex_lock(mutex) "
        "for _ in range(2)]"
    ),
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "ignores its timeout": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(1000)"
    ),
}


def test_dying_or_hanging_test_processes_end_with_their_fleets(
    suite: Suite,
) -> None:
    for name, how in zip("abc", ENDS.values(), strict=True):
        suite.file(name, f"{BEFORE}@pytest.mark.timeout(1)\ndef test_bad(fleet):\n    {how}\n")
    for name in "de":
        suite.file(name, "def test_good(): ...\n")
    assert suite.run(*FIVE, grace_after_timeout=3) == 1
    for name in "abc":
        found = re.search(
            rf"worker '\w+' crashed while running '.*test_{name}.py::test_bad'", suite.text
        )
        assert found, suite.text
    assert "3 failed, 5 passed" in suite.text
    suite.nothing_is_left()


@pytest.mark.parametrize("how", ["stuck in C code", "killed"])
def test_the_only_test_process_ends_with_its_fleet_if_it_dies_or_hangs(
    suite: Suite, how: str
) -> None:
    suite.file("bad", f"{BEFORE}@pytest.mark.timeout(1)\ndef test_bad(fleet):\n    {ENDS[how]}\n")
    assert suite.run(grace_after_timeout=3) != 0
    suite.nothing_is_left()


def test_a_frozen_test_process_is_ended_after_a_long_silence(
    suite: Suite,
) -> None:
    suite.file(
        "bad",
        (
            "@pytest.mark.timeout(10)\ndef test_bad(fleet):\n    os.kill(os.getpid(), "
            "signal.SIGSTOP)\n"
        ),
    )
    suite.file("good", "def test_good(): ...\n")
    assert suite.run(*TWO, timeout=1, grace_after_timeout=1, longest_silence=15) == 1
    suite.nothing_is_left()


def test_killing_the_controller_ends_test_processes_and_their_fleets(
    suite: Suite,
) -> None:
    suite.file(
        "bad",
        "def test_bad(fleet):\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(1000)\n",
    )
    assert suite.run(*TWO) != 0
    suite.nothing_is_left()


def test_an_endless_thread_does_not_block_the_end_of_the_suite(suite: Suite) -> None:
    suite.file(
        "thread",
        "def test_thread():\n    threading.Thread(target=time.sleep, args=(1000,)).start()\n",
    )
    assert suite.run(grace_at_end=5) == 1
    assert "1 passed" in suite.text


def test_a_test_timeout_longer_than_the_run_timeout_is_refused(suite: Suite) -> None:
    suite.file("long", "@pytest.mark.timeout(850)\ndef test_long(): ...\n")
    assert suite.run() == pytest.ExitCode.USAGE_ERROR
    assert (
        "test_long may take 910 s with its grace; the run is ended after 900 s without news"
        in suite.text
    )
