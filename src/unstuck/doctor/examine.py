"""The doctor examines Redis, the fleet, the settings, the warehouse and this machine.

All checks run in parallel, and a check that does not answer in time is itself a finding. So a user
or a probe gets the answer within five seconds.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from importlib.util import find_spec
from typing import Any, TypeVar

import redis

from unstuck.coordinator.errors import Unreachable
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.problems.detect import detect
from unstuck.coordinator.spec.problems import suggestion
from unstuck.coordinator.unreachable import answering
from unstuck.doctor import fleet_checks
from unstuck.doctor import installation_checks as checks
from unstuck.doctor.finding import Finding, Level, ok, problem, warning
from unstuck.doctor.host_facts import (
    java_facts,
    lacks_connector,
    small_files,
    staged_jobs,
    stale_views,
    warehouse_facts,
)
from unstuck.doctor.notice_checks import notice_facts, of_notices
from unstuck.doctor.redis_facts import (
    JobWarehouse,
    jobs_with_tables,
    record_facts,
    server_facts,
    unknown_jobs,
)
from unstuck.tasks.errors import SettingsInvalid, UnstuckError
from unstuck.tasks.identity import NO_SPARK, release_here
from unstuck.tasks.process.call_deadlines import call_in_thread
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.table_formats.registry import TABLE_FORMATS
from unstuck.tasks.spec.table_formats.table_format import TableFormat
from unstuck.tasks.transport.refusals import may_not, refusal
from unstuck.tasks.transport.rights import DOCTOR, lacking_rights
from unstuck.tasks.warehouse.object_store import lacking_keys
from unstuck.views.installation import limits_of, read_state

T = TypeVar("T")

TIMEOUT = 3.5  # seconds for all of it; starting Python and printing take the rest of the five
NO_SETTINGS = ("debug", "arm")  # UNSTUCK_…: read, and no settings of a fleet
UNREACHED = ("REDIS_UNREACHABLE", "REDIS_REFUSES", "REDIS_RIGHTS")


class Doctor:
    """Examines one installation, any number of times.

    A check that hangs is not started again before it has ended.
    """

    def __init__(self, settings: Settings, timeout: float = TIMEOUT) -> None:
        """Create the doctor. ``timeout``: seconds for one examination."""
        self._settings, self._timeout = settings, timeout
        self._mutex = threading.Lock()
        self._hanging: dict[str, Future[Any]] = {}
        self._of_redis: list[Finding] = []  # of the running or last check of Redis
        self._last: list[Finding] = []
        self._at = 0.0

    def examine(self, max_age: float = 0.0) -> list[Finding]:
        """Examine everything, and return findings, good and bad. Changes nothing.

        Args:
            max_age: seconds; findings that are no older are given again.
        """
        with self._mutex:
            if not self._last or time.monotonic() - self._at > max_age:
                self._last, self._at = self._findings(), time.monotonic()
            return self._last

    def _findings(self) -> list[Finding]:
        settings = self._settings
        fleet = self._begun("redis", self._examine_redis)
        warehouse = self._begun(
            "warehouse", lambda: warehouse_facts(settings.warehouse, secrets.token_hex(8))
        )
        java = self._begun("java", lambda: _examine_java(settings))
        jobs_lost = self._begun("jobs", lambda: _examine_jobs(settings))
        files = self._begun("files", lambda: _examine_files(settings))
        calls: list[Future[Any]] = [fleet, warehouse, java, jobs_lost, files]
        wait(calls, self._timeout)

        place, within = without_password(settings.redis_url), f"{self._timeout:g}s"
        jobs, view = fleet.result() if fleet.done() else (None, None)
        findings = [*self._of_redis]  # a thread that still hangs must not add to it
        if not fleet.done():
            text = f"the Redis at {place} has not answered everything within {within}"
            findings.append(
                problem("REDIS_UNREACHABLE", text, "See whether its host is overloaded or frozen.")
            )
        findings += [*checks.of_settings(settings), *of_names(os.environ), *_of_notify(settings)]
        if warehouse.done():
            facts = warehouse.result()
            findings += [checks.of_warehouse(facts), *checks.of_disk(facts)]
            findings += [] if jobs is None else checks.of_warehouse_and_jobs(facts, jobs)
            findings += [] if view is None else checks.of_warehouse_and_fleet(facts, view)
        else:
            text = (
                f"the warehouse {settings.warehouse} has not answered within {within}; a file "
                "_doctor-… may be left"
            )
            cure = (
                f"{lacking_keys(settings.warehouse, os.environ)} See whether it is mounted "
                "here, and its server up."
            )
            findings.append(problem("WAREHOUSE", text, cure.strip()))
        findings += jobs_lost.result() if jobs_lost.done() else []
        findings += files.result() if files.done() else []
        if java.done():
            findings += java.result()
        else:
            text = f"java has not printed its version within {within}"
            findings.append(warning("JAVA", text, "Ask it yourself: java -version"))
        return findings

    def _begun(self, name: str, check: Callable[[], T]) -> Future[T]:
        """Return the check of this name that still hangs, or else start a new one."""
        if name not in self._hanging or self._hanging[name].done():
            self._hanging[name] = call_in_thread(check, name)
        return self._hanging[name]

    def _examine_redis(self) -> tuple[tuple[JobWarehouse, ...] | None, FleetInfo | None]:
        """Examine Redis. Findings are kept at once, so they count even if Redis hangs later.

        Return the facts that other checks need.
        """
        settings, keys = self._settings, Keys(self._settings.prefix)
        place = without_password(settings.redis_url)
        findings = self._of_redis = []
        try:
            with answering(settings.redis_url) as client:
                findings.append(ok("REDIS", f"answers at {place}"))
                if lacks := lacking_rights(client, keys, DOCTOR):
                    cure = (
                        "docs/operate.md has the line of ACL for all of them; these checks "
                        "need "
                        "it as well."
                    )
                    findings.append(
                        problem("REDIS_RIGHTS", may_not(settings.redis_url, lacks), cure)
                    )
                    return None, None
                findings.append(
                    ok("REDIS_RIGHTS", "the user of the address has each right that a fleet needs")
                )
                server = server_facts(client)
                findings.extend(checks.of_server(server, settings))
                if server.info.get("cluster_enabled"):
                    return None, None  # its records cannot be read at once, and none can be written
                refused = checks.refused_writes(server)
                records = record_facts(client, keys)
                findings.extend(checks.of_silence(checks.of_records(records, settings), refused))
                lacking = [kind for kind in TABLE_FORMATS.values() if not _is_here(kind)]
                if lacking:
                    findings.extend(checks.of_tables(lacking, jobs_with_tables(client, keys)))
                state = read_state(client, keys, settings, thorough=True)
                view, problems = state.fleet, detect(state, limits_of(settings))
                of_fleet = fleet_checks.of_problems(problems, view)
                findings.extend(checks.of_silence(of_fleet, refused))
                findings.extend(fleet_checks.of_versions(view, release_here()))
                findings.extend(of_notices(notice_facts(client, keys), view))
                return records.warehouses, view
        except Unreachable as error:
            findings.append(_unreachable(error))
            return None, None


def reached(findings: Iterable[Finding]) -> bool:
    """Return whether Redis could be queried."""
    return not any(
        finding.code in UNREACHED and finding.level is Level.PROBLEM for finding in findings
    )


def _of_notify(settings: Settings) -> list[Finding]:
    """Check UNSTUCK_NOTIFY of this process, if it is set."""
    if settings.notify is None:
        return []
    from unstuck.coordinator.notices.setting import notify_setting  # with all channels

    try:
        notify_setting(settings)
    except SettingsInvalid as error:
        return [
            problem(
                "NOTICES", str(error), "Correct it: a coordinator with this setting does not start."
            )
        ]
    return []


def of_names(environ: Iterable[str]) -> list[Finding]:
    """Find variables that look like settings of Unstuck but are none. Pure."""
    variables = [f"UNSTUCK_{name.upper()}" for name in Settings.model_fields]
    findings: list[Finding] = []
    for name in sorted(environ):
        prefix, _, rest = name.lower().partition("_")
        if prefix == "unstuck" and rest not in (*Settings.model_fields, *NO_SETTINGS):
            text = (
                f"{name} is set and is no setting, so nobody reads "
                f"it{suggestion(name.upper(), variables)}"
            )
            cure = (
                "Correct its name or unset it; docs/settings.md has the names. Look at the "
                "other processes' as well."
            )
            findings.append(warning("SETTINGS", text, cure))
    return findings


def _examine_jobs(settings: Settings) -> list[Finding]:
    """Check staged jobs. Nothing if the warehouse or Redis is away: other findings report this."""
    try:
        staged = staged_jobs(settings.warehouse, time.time() - settings.retention)
        with answering(settings.redis_url) as client:
            unknown = unknown_jobs(client, Keys(settings.prefix), staged)
    except (OSError, ValueError, UnstuckError):
        return []
    return [checks.of_jobs(staged, unknown, settings)] if staged else []


def _examine_files(settings: Settings) -> list[Finding]:
    """Check the files of datasets. Nothing if the log is unreadable: other findings report this."""
    try:
        place = settings.warehouse
        return [*checks.of_small_files(small_files(place)), *checks.of_views(stale_views(place))]
    except (OSError, ValueError, UnstuckError):
        return []


def _is_here(kind: TableFormat) -> bool:
    return find_spec(kind.package) is not None


def _unreachable(error: Exception) -> Finding:
    refused = isinstance(error.__cause__, redis.RedisError) and refusal("", error.__cause__)
    cure = "The checks of the fleet need it; those below did without."
    return problem("REDIS_REFUSES" if refused else "REDIS_UNREACHABLE", str(error), cure)


def _examine_java(settings: Settings) -> list[Finding]:
    if settings.spark_master == NO_SPARK:
        return [
            ok(
                "JAVA",
                f"not looked at: this machine runs no Spark (UNSTUCK_SPARK_MASTER={NO_SPARK})",
            )
        ]
    lacking = lacks_connector(settings.warehouse, settings.spark_conf)
    return checks.of_java(*java_facts(), lacks_connector=lacking)
