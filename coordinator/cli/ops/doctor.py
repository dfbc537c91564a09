"""``unstuck doctor``: what is wrong with Redis, the fleet, the warehouse and this machine, and what to do about it.

Everything is looked at side by side, and what has not answered in time is itself a finding: a person, or a check of an
orchestrator, has the answer within five seconds.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import redis
import typer
from rich.text import Text

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.options import AsJson
from unstuck.coordinator.cli.render.terminal import count_of, emit, one_line, stdout, table
from unstuck.coordinator.doctor import fleet_checks
from unstuck.coordinator.doctor import installation_checks as checks
from unstuck.coordinator.doctor.finding import Finding, Level, ok, problem, warning
from unstuck.coordinator.doctor.host_facts import (
    java_facts,
    lacks_connector,
    small_files,
    staged_jobs,
    stale_views,
    warehouse_facts,
)
from unstuck.coordinator.doctor.notice_checks import notice_facts, of_notices
from unstuck.coordinator.doctor.redis_facts import (
    JobWarehouse,
    jobs_with_tables,
    record_facts,
    server_facts,
    unknown_jobs,
)
from unstuck.coordinator.errors import Unreachable
from unstuck.coordinator.spec.problems import suggestion
from unstuck.coordinator.views.fleet_view import FleetView
from unstuck.tasks.errors import SettingsInvalid, UnstuckError
from unstuck.tasks.identity import release_here
from unstuck.tasks.process.call_deadlines import call_in_thread
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.settings import NO_SPARK, Settings
from unstuck.tasks.transport.refusals import may_not, refusal
from unstuck.tasks.transport.rights import DOCTOR, lacking_rights
from unstuck.tasks.warehouse.object_store import lacking_keys

TIMEOUT = 3.5  # seconds for all of it; starting Python and printing take the rest of the five
NO_SETTINGS = ("debug", "arm")  # UNSTUCK_…: read, and no settings of a fleet
STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Examine Redis, the fleet, the settings, the warehouse and this machine. Changes nothing.

    Exits with 0 if there is no problem (there may be warnings), 1 if there is one, 5 if Redis cannot be reached.
    """
    settings = settings_here()
    place = without_password(settings.redis_url)
    findings: list[Finding] = []
    fleet = call_in_thread(lambda: _examine_redis(settings, findings), "redis")
    warehouse = call_in_thread(lambda: warehouse_facts(settings.warehouse, secrets.token_hex(8)), "warehouse")
    java = call_in_thread(lambda: _examine_java(settings), "java")
    jobs_lost = call_in_thread(lambda: _examine_jobs(settings), "jobs")
    files = call_in_thread(lambda: _examine_files(settings), "files")
    threads: list[Future[Any]] = [fleet, warehouse, java, jobs_lost, files]
    wait(threads, TIMEOUT)

    jobs, view = fleet.result() if fleet.done() else (None, None)
    findings = [*findings]  # a thread that still hangs must not add to it
    if not fleet.done():
        text = f"the Redis at {place} has not answered everything within {TIMEOUT:g}s"
        findings.append(problem("REDIS_UNREACHABLE", text, "See whether its host is overloaded or frozen."))
    unreached = ("REDIS_UNREACHABLE", "REDIS_REFUSES", "REDIS_RIGHTS")
    reached = not any(one.code in unreached and one.level is Level.PROBLEM for one in findings)
    findings += [*checks.of_settings(settings), *of_names(os.environ), *_of_notify(settings)]
    if warehouse.done():
        seen = warehouse.result()
        findings.append(checks.of_warehouse(seen))
        findings += [] if jobs is None else checks.of_warehouse_and_jobs(seen, jobs)
        findings += [] if view is None else checks.of_warehouse_and_fleet(seen, view)
    else:
        text = f"the warehouse {settings.warehouse} has not answered within {TIMEOUT:g}s; a file _doctor-… may be left"
        cure = f"{lacking_keys(settings.warehouse, os.environ)} See whether it is mounted here, and its server up."
        findings.append(problem("WAREHOUSE", text, cure.strip()))
    findings += jobs_lost.result() if jobs_lost.done() else []
    findings += files.result() if files.done() else []
    if java.done():
        findings += java.result()
    else:
        text = f"java has not said its version within {TIMEOUT:g}s"
        findings.append(warning("JAVA", text, "Ask it yourself: java -version"))

    counts = {level: sum(one.level is level for one in findings) for level in Level}
    if as_json:
        emit(
            {
                "redis": place,
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


def _of_notify(settings: Settings) -> list[Finding]:
    """The setting of this process, where it is set."""
    if settings.notify is None:
        return []
    from unstuck.coordinator.notices.setting import notify_setting  # with all channels

    try:
        notify_setting(settings)
    except SettingsInvalid as error:
        return [problem("NOTICES", str(error), "Correct it: a coordinator with this setting does not start.")]
    return []


def of_names(environ: Iterable[str]) -> list[Finding]:
    """Variables that look like settings of ours and are none; nobody reads them. Pure."""
    known = [f"UNSTUCK_{name.upper()}" for name in Settings.model_fields]
    found: list[Finding] = []
    for name in sorted(environ):
        prefix, _, rest = name.lower().partition("_")
        if prefix == "unstuck" and rest not in (*Settings.model_fields, *NO_SETTINGS):
            text = f"{name} is set and is no setting, so nobody reads it{suggestion(name.upper(), known)}"
            cure = "Correct its name or unset it; docs/settings.md has the names. Look at the other processes' as well."
            found.append(warning("SETTINGS", text, cure))
    return found


def _examine_redis(
    settings: Settings, found: list[Finding]
) -> tuple[tuple[JobWarehouse, ...] | None, FleetView | None]:
    """Adds to ``found``, so that what was found counts even if Redis hangs then. Returns what others need of it."""
    place = without_password(settings.redis_url)
    try:
        with connected(settings) as connection:
            found.append(ok("REDIS", f"answers at {place}"))
            if lacks := lacking_rights(connection.redis, Keys(settings.prefix), DOCTOR):
                cure = "docs/operate.md has the line of ACL for all of them; the checks of the fleet need it as well."
                found.append(problem("REDIS_RIGHTS", may_not(settings.redis_url, lacks), cure))
                return None, None
            found.append(ok("REDIS_RIGHTS", "the user of the address has each right that a fleet needs"))
            server = server_facts(connection.redis)
            found.extend(checks.of_server(server, settings))
            if server.info.get("cluster_enabled"):
                return None, None  # its records cannot be read at once, and none can be written
            records = record_facts(connection.redis, Keys(settings.prefix))
            found.extend(checks.of_records(records, settings))
            if find_spec("deltalake") is None:
                found.extend(checks.of_delta(jobs_with_tables(connection.redis, Keys(settings.prefix))))
            view = connection.client.fleet()
            found.extend(fleet_checks.of_fleet(view, place, records.open, settings.stalled_after))
            found.extend(fleet_checks.of_versions(view, release_here()))
            found.extend(of_notices(notice_facts(connection.redis, Keys(settings.prefix)), view))
            return records.warehouses, view
    except Unreachable as error:
        found.append(_unreachable(error))
        return None, None


def _examine_jobs(settings: Settings) -> list[Finding]:
    """Nothing, where the warehouse or Redis cannot be asked: other findings say so."""
    try:
        staged = staged_jobs(settings.warehouse, time.time() - settings.retention)
        with connected(settings) as connection:
            unknown = unknown_jobs(connection.redis, Keys(settings.prefix), staged)
    except (OSError, ValueError, UnstuckError):
        return []
    return [checks.of_jobs(staged, unknown, settings)] if staged else []


def _examine_files(settings: Settings) -> list[Finding]:
    """Nothing, where the log of the warehouse cannot be read: other findings say so."""
    try:
        place = settings.warehouse
        return [*checks.of_small_files(small_files(place)), *checks.of_views(stale_views(place))]
    except (OSError, ValueError, UnstuckError):
        return []


def _unreachable(error: Exception) -> Finding:
    refused = isinstance(error.__cause__, redis.RedisError) and refusal("", error.__cause__)
    cure = "The checks of the fleet need it; those below did without."
    return problem("REDIS_REFUSES" if refused else "REDIS_UNREACHABLE", str(error), cure)


def _examine_java(settings: Settings) -> list[Finding]:
    if settings.spark_master == NO_SPARK:
        return [ok("JAVA", f"not looked at: no Spark is to run here (UNSTUCK_SPARK_MASTER={NO_SPARK})")]
    lacking = lacks_connector(settings.warehouse, settings.spark_conf)
    return checks.of_java(*java_facts(), lacks_connector=lacking)


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
