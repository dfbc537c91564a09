"""``unstuck doctor``: what is wrong with Redis, the fleet, the warehouse and this machine, and what to do about it.

Everything is looked at side by side, and what has not answered in time is itself a finding: a person, or a check of an
orchestrator, has the answer within five seconds.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

import redis
import typer
from rich.text import Text

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.options import AsJson
from unstuck.coordinator.cli.render.terminal import count_of, emit, one_line, stdout, table
from unstuck.coordinator.doctor import checks, fleet_checks
from unstuck.coordinator.doctor.finding import Finding, Level, ok, problem, warning
from unstuck.coordinator.doctor.host_facts import PlaceSeen, java_seen, packages_seen, place_seen
from unstuck.coordinator.doctor.redis_facts import JobPlace, records_of, server_of
from unstuck.coordinator.doctor.tested import TESTED
from unstuck.coordinator.errors import Unreachable
from unstuck.coordinator.spec.problems import suggestion
from unstuck.coordinator.views.fleet import FleetView, RunsOn
from unstuck.tasks.host import JAVA, java_version
from unstuck.tasks.identity import release_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.settings import NO_SPARK, Settings

PATIENCE = 3.5  # seconds for all of it; starting Python and printing take the rest of the five
BESIDES = ("debug", "arm")  # UNSTUCK_…: read, and no settings of a fleet
STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@dataclass(slots=True)
class _Look:
    """One part of the examination, in a thread of its own. What it found until now counts, even if it hangs then."""

    work: Callable[[list[Finding]], None]
    found: list[Finding] = field(default_factory=list)
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.work(self.found)
        except Exception as error:  # noqa: BLE001 - raised again where somebody waits
            self.error = error

    def ended(self, until: float) -> bool:
        """Wait for it, until ``until`` by the monotonic clock. Raises what it raised."""
        self.thread.join(max(0.0, until - time.monotonic()))
        if self.error is not None:
            raise self.error
        return not self.thread.is_alive()


@dataclass(slots=True)
class _Seen:
    """What one part saw and another needs."""

    place: PlaceSeen | None = None
    jobs: tuple[JobPlace, ...] | None = None
    fleet: FleetView | None = None


def doctor(as_json: AsJson = False) -> None:
    """Examine Redis, the fleet, the settings, the warehouse and this machine. Changes nothing.

    Exits with 0 if there is no problem (there may be warnings), 1 if there is one, 5 if Redis cannot be reached.
    """
    until = time.monotonic() + PATIENCE
    settings = settings_here()
    seen = _Seen()
    fleet = _Look(lambda found: _look_at_redis(settings, seen, found))
    warehouse = _Look(lambda found: _look_at_warehouse(settings, seen, found))
    machine = _Look(lambda found: _look_at_machine(settings, found))

    if not fleet.ended(until):
        place = without_password(settings.redis_url)
        text = f"the Redis at {place} has not answered everything within {PATIENCE:g}s"
        fleet.found.append(problem("REDIS_UNREACHABLE", text, "See whether its host is overloaded or frozen."))
    reached = not any(one.code in ("REDIS_UNREACHABLE", "REDIS_REFUSES") for one in fleet.found)
    if not warehouse.ended(until):
        text = f"the warehouse {settings.warehouse} has not answered within {PATIENCE:g}s; a file _doctor-… may be left"
        warehouse.found.append(problem("WAREHOUSE", text, "See whether it is mounted here, and its server up."))
    if not machine.ended(until):
        text = f"java has not said its version within {PATIENCE:g}s"
        machine.found.append(warning("JAVA", text, "Ask it yourself: java -version"))
    findings = [*fleet.found, *checks.of_settings(settings), *of_names(os.environ), *warehouse.found]
    if seen.place is not None and seen.jobs is not None:
        findings += checks.of_place_and_jobs(seen.place, seen.jobs)
    if seen.place is not None and seen.fleet is not None:
        findings += checks.of_place_and_fleet(seen.place, seen.fleet)
    findings += machine.found

    counts = {level: sum(one.level is level for one in findings) for level in Level}
    if as_json:
        emit(
            {
                "redis": without_password(settings.redis_url),
                "problems": counts[Level.PROBLEM],
                "warnings": counts[Level.WARNING],
                "findings": [asdict(one) for one in findings],
            }
        )
    else:
        _show(findings)
        parts = [count_of(counts[level], str(level)) for level in (Level.PROBLEM, Level.WARNING)]
        stdout.print(f"\n{', '.join(parts)}, {counts[Level.OK]} ok", soft_wrap=True)
    if not reached:
        raise typer.Exit(ExitCode.UNREACHABLE)
    if counts[Level.PROBLEM]:
        raise typer.Exit(ExitCode.NOT_WELL)


def of_names(environ: Iterable[str]) -> list[Finding]:
    """Variables that look like settings of ours and are none; nobody reads them. Pure."""
    known = [f"UNSTUCK_{name.upper()}" for name in Settings.model_fields]
    found: list[Finding] = []
    for name in sorted(environ):
        prefix, _, rest = name.lower().partition("_")
        if prefix == "unstuck" and rest not in (*Settings.model_fields, *BESIDES):
            text = f"{name} is set and is no setting, so nobody reads it{suggestion(name.upper(), known)}"
            cure = "Correct its name or unset it; docs/settings.md has the names. Look at the other processes' as well."
            found.append(warning("SETTINGS", text, cure))
    return found


def _look_at_redis(settings: Settings, seen: _Seen, found: list[Finding]) -> None:
    place = without_password(settings.redis_url)
    try:
        with connected(settings) as connection:
            found.append(ok("REDIS", f"answers at {place}"))
            server = server_of(connection.redis)
            found.extend(checks.of_server(server, settings))
            if server.cluster:
                return  # its records cannot be read at once, and none can be written
            records = records_of(connection.redis, Keys(settings.prefix))
            seen.jobs = records.places
            found.extend(checks.of_records(records, settings))
            seen.fleet = connection.client.fleet()
            found.extend(fleet_checks.of_fleet(seen.fleet, place, records.open, settings.deaf_after))
            found.extend(fleet_checks.of_versions(seen.fleet, RunsOn(**release_here())))
    except Unreachable as error:
        found.append(_unreachable(error))


def _unreachable(error: Exception) -> Finding:
    cause = error.__cause__
    refused = isinstance(cause, redis.AuthenticationError | redis.exceptions.NoPermissionError) or (
        cause is not None and "NOAUTH" in str(cause)
    )
    cure = "The checks of the fleet need it; those below did without."
    return problem("REDIS_REFUSES" if refused else "REDIS_UNREACHABLE", str(error), cure)


def _look_at_warehouse(settings: Settings, seen: _Seen, found: list[Finding]) -> None:
    seen.place = place_seen(settings.warehouse, secrets.token_hex(8))
    found.extend(checks.of_place(seen.place))


def _look_at_machine(settings: Settings, found: list[Finding]) -> None:
    found.extend(checks.of_packages(packages_seen(TESTED)))
    if settings.spark_master == NO_SPARK:
        found.append(ok("JAVA", f"not looked at: no Spark is to run here (UNSTUCK_SPARK_MASTER={NO_SPARK})"))
        return
    found.extend(checks.of_java(java_seen(java_version), JAVA))


def _show(findings: list[Finding]) -> None:
    """A table on a terminal; elsewhere a line for each, that a script can cut."""
    if not stdout.is_terminal:
        for one in findings:
            cure = f" → {one.cure}" if one.cure else ""
            stdout.print(f"{one.level:<8} {one.code}: {one_line(one.text + cure)}", soft_wrap=True)
        return
    shown = table("", "CHECK", "FOUND")
    for one in findings:
        text = Text(one_line(one.text))
        if one.cure:
            text.append(f"\n→ {one_line(one.cure)}", "bold")
        shown.add_row(Text(str(one.level), STYLES[one.level]), one.code, text)
    stdout.print(shown)
