"""The suite ends, whatever a test does, and leaves no process behind; however the suite was
started.
"""

# A test that runs out of time fails by pytest-timeout, which raises in the main thread, so that its
# fixtures end what they started. A test that cannot be interrupted so, a test process that cannot
# end, and a controller of pytest-xdist that hears nothing any more are ended by an alarm outside of
# Python. A reaper then ends what they had started. All limits are seconds of an idle machine; a
# machine that is busy at the start of the suite has more of them.

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.machine import SLOWNESS, slowness

GRACE = "grace_after_timeout"
END = "grace_at_end"
SILENCE = "longest_silence"
LONGEST = pytest.StashKey[float]()
MARK = "TEST_PROCESS"  # in the environment of all that a test process starts, see reaper.py

# A shell starts what it puts into the background with SIGINT and SIGQUIT ignored, and children
# inherit that; a test sends both signals to its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_runtest_setup() -> None:
    # `nohup` ignores SIGHUP, and a test sends it to its children. The process above those that run
    # tests keeps its own.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        GRACE, "seconds that a test has after its timeout, until its process is ended", default="60"
    )
    parser.addini(
        END, "seconds that a process has for its end, when all tests have ended", default="60"
    )
    parser.addini(
        SILENCE, "seconds without news of any test, until the whole run is ended", default="900"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Limits(config))
    start_reaper()


def start_reaper() -> None:
    """From here on whatever this process starts ends with it."""
    value = str(uuid4())
    reaper = [
        sys.executable,
        "-I",
        str(Path(__file__).with_name("reaper.py")),
        str(os.getpid()),
        MARK,
        value,
    ]
    devnull = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    # The reaper of an outer test process must not end this one before its work is done.
    unmarked = {name: each for name, each in os.environ.items() if name != MARK}
    os.posix_spawn(reaper[0], reaper, unmarked, file_actions=devnull, setsid=True)
    os.environ[MARK] = value


class Limits:
    """One alarm, which is set again at every step of the run; when it goes off, all stacks are
    written to stderr.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._grace, self._end, self._silence = (
            float(config.getini(name)) for name in (GRACE, END, SILENCE)
        )
        self._default = float(config.getoption("timeout") or config.getini("timeout"))
        self._config = config
        if SLOWNESS not in os.environ:  # the test processes have it from their controller
            os.environ[SLOWNESS] = str(slowness())
        self._slowness = float(os.environ[SLOWNESS])
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self._stderr = os.dup(2)

    def _alarm(self, seconds: float) -> None:
        """This process ends with exit code 1 after ``seconds``, also where Python does not run any
        more.
        """
        faulthandler.dump_traceback_later(seconds * self._slowness, exit=True, file=self._stderr)

    def _limit(self, item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0] if marker else self._default)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            longest = self._limit(item) + self._grace
            if longest >= self._silence:
                raise pytest.UsageError(
                    f"{item.nodeid} may take {longest:g} s with its grace; "
                    f"the run is ended after {self._silence:g} s without news ({SILENCE})"
                )
            item.stash[LONGEST] = longest
            item.add_marker(pytest.mark.timeout(self._limit(item) * self._slowness), append=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._alarm(item.stash[LONGEST])
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def pytest_runtest_logstart(self) -> None:
        self._news()

    def pytest_runtest_logfinish(self) -> None:
        self._news()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self) -> None:
        self._news()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._news()

    def pytest_enter_pdb(self) -> None:
        faulthandler.cancel_dump_traceback_later()

    def _news(self) -> None:
        if self._config.pluginmanager.hasplugin(
            "dsession"
        ):  # the controller of pytest-xdist runs no test itself
            self._alarm(self._silence)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        self._news()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if not hasattr(
            self._config, "workerinput"
        ):  # a worker of pytest-xdist waits for the others before it ends
            self._alarm(self._grace + self._end)  # the summary is still to be written

    def pytest_unconfigure(self) -> None:
        if not hasattr(self._config, "workerinput"):
            self._alarm(self._end)
