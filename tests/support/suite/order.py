"""The order of the test files: those that took longest come first, so that no test process is left
with a long one.

``make test ARGS=--write-durations`` writes down what each file took, in ``tests/durations.txt``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.paths import ROOT

TABLE = ROOT / "tests" / "durations.txt"
WORTH_A_LINE = 2.0  # seconds


def durations() -> dict[str, float]:
    """Seconds by file, from the table."""
    return {
        name: float(seconds) for seconds, name in map(str.split, TABLE.read_text().splitlines())
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help=f"write what each file took to {TABLE.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = durations()
    items.sort(key=lambda item: -known.get(item.nodeid.partition("::")[0], 0.0))


class Writer:
    """Adds up what the tests of each file took, with their fixtures."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        found = {
            name: seconds
            for name, seconds in (durations() | self._seconds).items()
            if (ROOT / name).is_file()
        }
        lines = [
            f"{found[name]:6.1f} {name}"
            for name in sorted(found, key=lambda name: (-found[name], name))
        ]
        TABLE.write_text(
            "\n".join(line for line in lines if float(line.split()[0]) >= WORTH_A_LINE) + "\n"
        )
