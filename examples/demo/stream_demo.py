"""Load files with a schedule as they arrive, and count the rows (``--stream``)."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from examples.demo.checkout import CHECKOUT, published_rows
from unstuck.cli.connection import connected
from unstuck.cli.render.terminal import stderr, stdout, table
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.errors import FleetFailed
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.exits import ExitCode
from unstuck.local.local_fleet import LocalFleet
from unstuck.read_model.schedule import ScheduleInfo
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.views.words import count_of

SPECS = Path("examples/arriving")
LOAD, REPORT = "departures", "by_hour"
CUT = "2013-01-02T16.csv"  # the file that is sent cut short, about in the middle
EVERY = 0.5  # seconds from one file to the next
LOOK_EVERY = 0.5  # seconds between two looks
LIMIT = 120.0  # seconds within which what was fed must be published
_IN_SPEC = "/data/landing/flights"


def run_stream(fleet: LocalFleet, settings: Settings) -> ExitCode:
    """Feed files, let a schedule load them, fix broken ones, and compare files with rows."""
    os.environ["UNSTUCK_REDIS_URL"] = fleet.redis_url  # for the commands below
    folder = fleet.home.path / "arriving"
    folder.mkdir()
    strange = folder / "error.csv"
    specs = {
        spec.stem: _placed(spec, folder, fleet.home.path)
        for spec in sorted((CHECKOUT / SPECS).glob("*.yaml"))
    }
    _command("submit", specs["weather"], "--wait")
    _command("schedule", "set", specs[LOAD], specs[REPORT], "--reason", "files arrive")
    stdout.print(
        f"\nFlights arrive in {folder}, a file for each hour; {CUT} comes cut short.",
        soft_wrap=True,
    )
    feeder = subprocess.Popen(
        _feeder(folder, "--every", str(EVERY), "--cut", CUT), start_new_session=True
    )
    try:
        with connected(settings.model_copy(update={"redis_url": fleet.redis_url})) as connection:
            progress = _Progress(folder, settings.warehouse, connection.client.schedules)
            progress.until("the halt", progress.halted)
            well = progress.schedule().last_success
            _command("schedule", "why", LOAD)
            stdout.print(
                f"\nFiles go on arriving, and wait. The system that sends them sends {CUT} again, "
                "and whole:"
            )
            subprocess.run(_feeder(folder, "--only", CUT), check=True)
            _command("schedule", "resume", LOAD, "--reason", f"{CUT} was sent again")
            progress.until("a run that ends well", lambda: progress.schedule().last_success != well)
            stdout.print(
                f"\nNow {strange} comes, which has no flights and never will. The stream is to "
                "pass over it:"
            )
            strange.write_text("503 Service Unavailable\n")
            progress.until("the halt", progress.halted)
            _command("stream", "skip", LOAD, str(strange), "--reason", "an error page")
            _command("schedule", "resume", LOAD, "--reason", f"{strange.name} is passed over")
            progress.until("the last file", lambda: feeder.poll() is not None)
            if feeder.returncode:
                raise FleetFailed(
                    f"The feeder ended with {feeder.returncode}, so not all files have come"
                )
            progress.until(
                "the last flight",
                lambda: _loaded(settings.warehouse).total() >= _fed(folder).total(),
            )
            progress.until(
                "the last report",
                lambda: _reported(settings.warehouse).total() >= _fed(folder).total(),
            )
    finally:
        feeder.kill()
        feeder.wait()
    return compared(folder, settings.warehouse)


def _placed(spec: Path, folder: Path, home: Path) -> str:
    """Return a copy of ``spec`` whose stream is ``folder``."""
    copy = home / spec.name
    copy.write_text(spec.read_text().replace(_IN_SPEC, str(folder)))
    return str(copy)


def _feeder(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "examples.arriving.feeder", str(folder), *options]


def _command(*words: str) -> None:
    """Run a command of ``unstuck`` as a user would in another terminal."""
    stdout.print(f"\n$ unstuck {shlex.join(words)}", style="bold", soft_wrap=True)
    subprocess.run([sys.executable, "-m", "unstuck.cli", *words], check=True)


class _Progress:
    """The progress of feeding and loading, printed as a line when it changes."""

    def __init__(self, folder: Path, warehouse: str, schedules: ScheduleClient) -> None:
        self._folder, self._warehouse, self._schedules = folder, Warehouse(warehouse), schedules
        self._last = ""

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for ``what``. Raises: FleetFailed: it did not happen in time."""
        deadline = time.monotonic() + LIMIT
        while not holds():
            self._tell()
            if time.monotonic() > deadline:
                raise FleetFailed(f"After {LIMIT:g} s, {what} has not come; {self._last}")
            time.sleep(LOOK_EVERY)

    def schedule(self) -> ScheduleInfo:
        return self._schedules.show(LOAD)

    def halted(self) -> bool:
        return self.schedule().status is ScheduleStatus.HALTED

    def _tell(self) -> None:
        state = self._warehouse.state()
        rows, version = (state[LOAD].rows, state[LOAD].changed) if LOAD in state else (0, 0)
        report = f", report of version {state[REPORT].changed}" if REPORT in state else ""
        line = f"{LOAD} {self.schedule().status}: {rows:,} flights in version {version}{report}"
        if line != self._last:
            stdout.print(
                f"  {count_of(len(list(self._folder.glob('*.csv'))), 'file')} came; {line}",
                soft_wrap=True,
            )
        self._last = line


def _fed(folder: Path) -> Counter[datetime]:
    """Return the flights of each hour, as counted in the files."""
    counts: Counter[datetime] = Counter()
    for path in folder.glob("*.csv"):
        with path.open(newline="") as file:
            counts.update(datetime.fromisoformat(row["time_hour"]) for row in csv.DictReader(file))
    return counts


def _loaded(warehouse: str) -> Counter[datetime]:
    return Counter(row["time_hour"] for row in published_rows(warehouse, LOAD))


def _reported(warehouse: str) -> Counter[datetime]:
    return Counter({row["time_hour"]: row["flights"] for row in published_rows(warehouse, REPORT)})


def compared(folder: Path, warehouse: str) -> ExitCode:
    """Report whether each hour has as many flights in dataset and report as in the files."""
    fed, loaded, reported = _fed(folder), _loaded(warehouse), _reported(warehouse)
    shown = table("", "HOURS", "FLIGHTS")
    for name, counts in (
        ("fed", fed),
        (f"published as {LOAD}", loaded),
        (f"counted by {REPORT}", reported),
    ):
        shown.add_row(name, f"{len(counts):,}", f"{counts.total():,}")
    stdout.print()
    stdout.print(shown)
    if fed == loaded == reported:
        stdout.print(f"Each of the {fed.total():,} flights was published once.")
        return ExitCode.FINE
    differing = sorted(
        hour for hour in fed | loaded | reported if not fed[hour] == loaded[hour] == reported[hour]
    )
    stderr.print(
        f"Published rows differ from the files, in {len(differing):,} hours; the first is "
        f"{differing[0]}."
    )
    return ExitCode.NOT_WELL
