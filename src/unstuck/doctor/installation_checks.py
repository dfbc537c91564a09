"""Judges Redis, the records, the settings, this machine and the warehouse (pure).

``redis_facts`` and ``host_facts`` read the facts; ``fleet_checks`` judges the processes and their
queues. Every code has its cure in docs/troubleshooting.md.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from unstuck.coordinator.explain.explanation import longest_gap
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.problems.queues import some
from unstuck.doctor.finding import Finding, Level, ok, problem, warning
from unstuck.doctor.host_facts import WarehouseFacts
from unstuck.doctor.redis_facts import JobWarehouse, RecordFacts, ServerFacts
from unstuck.tasks.duration import format_duration
from unstuck.tasks.host import JAVA, SPARKS, how_to_install
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.protocol.process_info import WarehouseSeen
from unstuck.tasks.settings import LAST_STEPS, Settings
from unstuck.tasks.spec.table_formats.table_format import TableFormat
from unstuck.views.words import count_of

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (8, 0)
FULL, NEARLY_FULL = 0.9, 0.75  # of the memory that Redis may take; of a disk, FULL alone
SKEW = 2.0  # seconds that two clocks may differ
# Seconds that a report may wait, or a job may be overdue, while sweeps are frequent.
LATE, TOO_LATE = (10.0, 60.0)
# Seconds after a warehouse was made in which a process may still say that there is none.
FRESH = 10.0
STOP_TIMEOUT = 40.0  # seconds; what the how-to lets supervisors wait before they kill a worker
MAKE_ROOM = (
    "Make room: unstuck vacuum --dry-run, or a shorter UNSTUCK_RETENTION "
    "(docs/operate.md, "
    "free the disk)."
)
# Checks of what processes wrote to Redis.
_SILENT = ("COORDINATORS", "WORKERS", "SILENT", "SWEEP", "JOBS_OVERDUE", "REPORTS")
# Fields of INFO.
_WRITES = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")


def of_server(server: ServerFacts, settings: Settings) -> Iterator[Finding]:
    """Check that the Redis server loses nothing."""
    info = server.info
    name = "Valkey" if info.get("valkey_version") else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (
        OLDEST_VALKEY if name == "Valkey" else OLDEST_REDIS
    ):
        cure = "Use Redis 7.0 or newer, or Valkey 8 or newer."
        yield problem("REDIS_VERSION", f"{name} {version} is too old", cure)
    else:
        yield ok("REDIS_VERSION", f"{name} {version}")
    cluster, replica = info.get("cluster_enabled"), info.get("role") == "slave"
    if cluster:
        text = "This Redis runs as a Cluster, in which neither Celery's broker nor our scripts work"
        cure = "Use a server that is not a Cluster, with replicas if need be."
        yield problem("REDIS_CLUSTER", text, cure)
    if replica:
        text = (
            "This Redis is a read-only replica: nothing can be submitted, claimed or decided here"
        )
        cure = (
            "Set UNSTUCK_REDIS_URL to the primary; after a failover, to the address that "
            "follows it."
        )
        yield problem("REDIS_READ_ONLY", text, cure)
    if not cluster and not replica:
        yield ok("REDIS_READ_ONLY", "it is a primary and can be written to")
    yield _persistence(server, settings)
    policy = info.get("maxmemory_policy", "unknown")
    if policy != "noeviction":
        text = (
            f"maxmemory-policy is {policy}: a full Redis would drop records, and a dropped "
            "record is a lost job"
        )
        yield problem(
            "REDIS_EVICTION", text, "Set `maxmemory-policy noeviction` in its configuration."
        )
    else:
        yield ok("REDIS_EVICTION", "maxmemory-policy is noeviction")
    yield _memory(server)
    yield _clock(server)


def refused_writes(server: ServerFacts) -> str:
    """Return the code of the finding that explains why Redis refuses writes; empty if none."""
    info = server.info
    if info.get("role") == "slave":
        return "REDIS_READ_ONLY"
    if 0 < info.get("maxmemory", 0) < info.get("used_memory", 0):
        return "REDIS_MEMORY"
    return "REDIS_PERSISTENCE" if any(info.get(name, "ok") != "ok" for name in _WRITES) else ""


def of_silence(findings: Iterable[Finding], refused: str) -> Iterator[Finding]:
    """Add to findings about silent processes that ``refused`` must be fixed first, if set.

    While Redis refuses writes, no process can note that it is there, or what it has done.
    """
    for finding in findings:
        silent = refused and finding.code in _SILENT and finding.level is not Level.OK
        first = (
            f"First fix {refused}: while Redis refuses writes, no process can report that it is "
            "there. "
        )
        yield (
            replace(finding, cure=f"{first}If it remains: {finding.cure}") if silent else finding
        )


def _persistence(server: ServerFacts, settings: Settings) -> Finding:
    code = "REDIS_PERSISTENCE"
    if errors := [
        f"{name} is {server.info[name]}" for name in _WRITES if server.info.get(name, "ok") != "ok"
    ]:
        cure = (
            "Look at the server's log and disk. Until it can write, it refuses writes or loses "
            "them."
        )
        return problem(code, f"its last write to disk went wrong: {', '.join(errors)}", cure)
    if not server.info.get("aof_enabled"):
        cure = (
            "Set `appendonly yes` and `appendfsync everysec` in its configuration (CONFIG SET, "
            "then CONFIG REWRITE)."
        )
        return problem(
            code, "it has no append-only file, so a restart forgets jobs that were taken", cure
        )
    if server.fsync == "no":
        cure = "Set `appendfsync everysec`, or `always`."
        return problem(
            code, "its append-only file is flushed only by the kernel (appendfsync no)", cure
        )
    if settings.durability == "replica" and not server.info.get("connected_slaves"):
        cure = "Attach a replica, or set UNSTUCK_DURABILITY=fsync."
        return problem(
            code, "UNSTUCK_DURABILITY=replica, and it has no replica: every submit would fail", cure
        )
    return ok(
        code, f"append-only file, appendfsync {server.fsync or 'unknown (no right to read it)'}"
    )


def _memory(server: ServerFacts) -> Finding:
    memory, limit, host = (
        server.info.get(name, 0) for name in ("used_memory", "maxmemory", "total_system_memory")
    )
    used = f"{_size(memory)} used"
    if not (limit or host):
        return ok("REDIS_MEMORY", f"{used}, no limit known")
    share = memory / (limit or host)
    text = (
        f"{used} of {_size(limit or host)} ({share:.0%}, "
        f"{'maxmemory' if limit else 'all that its host has'})"
    )
    cure = (
        "Give it more memory, shorten UNSTUCK_RETENTION, or find out who else fills it. Full, "
        "it refuses all writes."
    )
    if share >= FULL:
        return problem("REDIS_MEMORY", text, cure)
    return warning("REDIS_MEMORY", text, cure) if share >= NEARLY_FULL else ok("REDIS_MEMORY", text)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _clock(server: ServerFacts) -> Finding:
    off = abs(server.ahead)
    if off > SKEW + server.unsure:
        text = (
            f"the clock of this machine is {off:.1f}s "
            f"{'ahead of' if server.ahead > 0 else 'behind'} that of Redis"
        )
        cure = (
            "Let NTP set both. Nothing is decided by the clock of this machine, but times that "
            "people see are wrong."
        )
        return warning("CLOCK", text, cure)
    return ok(
        "CLOCK",
        f"this machine and Redis agree on the time within {max(off, server.unsure, 0.1):.1f}s",
    )


def of_records(records: RecordFacts, settings: Settings) -> Iterator[Finding]:
    """Check that processes handle what waits in Redis."""
    yield _reports(records, settings)
    # As the fleet is set, which need not be as this process is.
    gap = longest_gap(settings.sweep_every if records.period is None else records.period)
    late = max(LATE, gap)
    if records.overdue is not None and records.overdue > late:
        text = (
            f"job {records.overdue_job} should have been decided "
            f"{format_duration(records.overdue)} ago, and was not"
        )
        cure = (
            f"Start a coordinator. If one is running, search its log for {records.overdue_job} "
            "in it."
        )
        yield (problem if records.overdue > max(TOO_LATE, 2 * late) else warning)(
            "JOBS_OVERDUE", text, cure
        )
    else:
        yield ok("JOBS_OVERDUE", f"{count_of(records.open, 'open job')}, none overdue")
    if records.newer:
        text = (
            f"a newer release than this one has stored {some(list(records.newer))}: coordinators "
            "of this one leave them"
        )
        cure = (
            "End the upgrade: run coordinators of the release that stored them; no other "
            "decides them."
        )
        yield warning("JOBS_NEWER", text, cure)
    yield _sweep(records, gap)
    if records.stray:
        count = count_of(records.stray, "message")
        text = f"{count} for a coordinator, sent without a prefix to a queue that no fleet reads"
        option = (
            f'broker_transport_options={{"global_keyprefix": "{Keys(settings.prefix).broker}"}}'
        )
        cure = (
            f"Give the Celery app that sends {option}, send again, and remove the list: "
            f"redis-cli DEL {CONTROL_QUEUE}"
        )
        yield problem("STRAY_MESSAGES", text, cure)


def _reports(records: RecordFacts, settings: Settings) -> Finding:
    code, cure = (
        "REPORTS",
        "Start a coordinator, or look at the log of those that run: unstuck fleet",
    )
    if records.unread_age is not None and records.unread_age > LATE:
        count = "" if records.lag is None else f" ({records.lag:,} unread)"
        text = (
            "the oldest report that no coordinator has read waits for "
            f"{format_duration(records.unread_age)}{count}"
        )
        return (problem if records.unread_age > TOO_LATE else warning)(code, text, cure)
    if records.pending_age is not None and records.pending_age > LATE + 2 * settings.report_idle:
        waits = format_duration(records.pending_age)
        text = (
            f"{count_of(records.pending, 'report')} read and not finished, the oldest for {waits}"
        )
        return (problem if records.pending_age > 2 * TOO_LATE else warning)(code, text, cure)
    return ok(code, f"{records.lag or 0:,} unread, {records.pending:,} being applied")


def _sweep(records: RecordFacts, gap: float) -> Finding:
    cure = (
        "Start a coordinator (celery -A unstuck.coordinator worker -P threads) and a beat "
        "(celery -A unstuck.coordinator beat)."
    )
    if records.swept_age is None:
        return (problem if records.open else warning)("SWEEP", "no sweep has run yet", cure)
    text = f"the last sweep was {format_duration(max(0.0, records.swept_age))} ago"
    if records.swept_age > gap:
        return (problem if records.open else warning)("SWEEP", text, cure)
    if not records.beat:
        text += "; no beat is running, so coordinators sweep by themselves, half as often"
        return warning("SWEEP", text, "Start a beat: celery -A unstuck.coordinator beat")
    return ok("SWEEP", f"{text}, and a beat is running")


def of_settings(settings: Settings) -> list[Finding]:
    """Check that the timing settings fit each other, as this process sees them.

    Every process of a fleet should have the same settings.
    """
    s = settings
    lease = (s.lease_ttl, "UNSTUCK_LEASE_TTL")
    lock, idle = (s.lock_ttl, "UNSTUCK_LOCK_TTL"), s.report_idle + s.sweep_every
    grace, deadline = (
        (s.cancel_grace, "UNSTUCK_CANCEL_GRACE"),
        (s.cancel_deadline, "UNSTUCK_CANCEL_DEADLINE"),
    )
    sweep, timeout = (
        (s.sweep_every, "UNSTUCK_SWEEP_EVERY"),
        (s.dispatch_timeout, "UNSTUCK_DISPATCH_TIMEOUT"),
    )
    last = (s.lease_ttl + s.cancel_grace, "UNSTUCK_LEASE_TTL + UNSTUCK_CANCEL_GRACE")
    rules = [
        ((3 * s.lease_renew, "3 × UNSTUCK_LEASE_RENEW"), lease, "two lost renewals lose a lease"),
        (
            lock,
            (idle, "UNSTUCK_REPORT_IDLE + UNSTUCK_SWEEP_EVERY"),
            "the reports of a dead coordinator meet its lock",
        ),
        (grace, deadline, "a job is CANCELED before its runners were told to go"),
        (
            (3 * s.sweep_every, "3 × UNSTUCK_SWEEP_EVERY"),
            lease,
            "the sweep, and not its lease, finds a dead worker",
        ),
        (sweep, timeout, "lost offers are made again late"),
        (
            last,
            (s.retention, "UNSTUCK_RETENTION"),
            "a job is forgotten while a worker may still hold it",
        ),
    ]
    broken = [
        problem(
            "SETTINGS",
            f"{name} ({short:g}s) must be below {limit} ({long:g}s), or {otherwise}",
            "Change one of them, in every process of the fleet alike.",
        )
        for (short, name), (long, limit), otherwise in rules
        if short >= long
    ]
    stops = s.stop_within() + LAST_STEPS
    if stops > STOP_TIMEOUT:
        text = (
            f"a worker may take {stops:g}s to stop (UNSTUCK_DRAIN_GRACE {s.drain_grace:g}s + "
            f"UNSTUCK_CANCEL_GRACE {s.cancel_grace:g}s + 10s), longer than the {STOP_TIMEOUT:g}s "
            "that a supervisor was advised to wait"
        )
        wait = (
            f"Let its supervisor wait {stops:g}s before it kills (TimeoutStopSec and the "
            "like), "
            "or shorten one."
        )
        broken.append(warning("SETTINGS", text, wait))
    if not s.stalled_after:
        text = (
            "UNSTUCK_STALLED_AFTER is 0: a process in which Celery has stalled stays so until "
            "somebody restarts it"
        )
        broken.append(
            warning(
                "SETTINGS", text, "Set UNSTUCK_STALLED_AFTER to a minute or more, for all of them."
            )
        )
    return broken or [ok("SETTINGS", "the terms fit each other, as this process is set")]


def of_java(java: int, spark: str | None, *, lacks_connector: bool = False) -> list[Finding]:
    """Check that this machine can run Spark, by ``java_facts`` and ``lacks_connector``."""
    if spark is None:
        return [ok("JAVA", "not looked at: no worker is installed here (no PySpark)")]
    spark_finding = ok("SPARK", f"PySpark {spark}")
    if not spark.startswith(tuple(f"{version}." for version in SPARKS)):
        text = (
            f"PySpark {spark} is here, with which Unstuck is not tested; it is with "
            f"{', '.join(SPARKS)}"
        )
        spark_finding = warning("SPARK", text, "Install one of these versions on all workers.")
    if lacks_connector:
        text = (
            f"PySpark {spark} has no connector for S3, where the warehouse is: groups that use "
            "Spark would fail"
        )
        cure = (
            "Set spark.jars.packages in UNSTUCK_SPARK_CONF of the workers (SPARK_LACKS_STORE), "
            "or use spark: false."
        )
        spark_finding = warning("SPARK", text, cure)
    if java >= JAVA:
        return [ok("JAVA", f"Java {java}"), spark_finding]
    what = f"Java {java} is too old" if java else "Java is not installed"
    cure = (
        f"Install Java {JAVA} or newer, on the PATH or in JAVA_HOME. It matters only where a "
        "worker is to run."
    )
    return [problem("JAVA", f"{what} for Spark on this machine", cure), spark_finding]


def of_tables(
    lacking: Iterable[TableFormat], jobs: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Warn of open jobs whose tables cannot be written on this machine.

    Args:
        lacking: the formats whose package is not installed.
        jobs: by the table format of their outputs.
    """
    for kind in lacking:
        if jobs[kind.name]:
            yield _of_table_format(kind, jobs[kind.name])


def _of_table_format(kind: TableFormat, jobs: Sequence[str]) -> Finding:
    text = (
        f"this machine lacks the package {kind.package}, so no coordinator here can publish "
        f"{count_of(len(jobs), 'open job')} with outputs of format: {kind.name}: {some([*jobs])}"
    )
    cure = f"If coordinators run here, install it and restart them. {how_to_install(kind.extra)}"
    return warning("TABLE_FORMAT", text, cure)


def of_warehouse(warehouse: WarehouseFacts) -> Finding:
    """Check that the warehouse can be published to."""
    cure = "Mount it here under the same path as everywhere, or set UNSTUCK_WAREHOUSE."
    if "://" in warehouse.uri:
        cure = (
            "Look at the bucket, its region and endpoint, and the credentials: "
            "docs/operate.md, "
            "object store."
        )
    if (install := how_to_install("s3")) in warehouse.trouble:
        cure = install
    if any(os.strerror(full) in warehouse.trouble for full in (errno.ENOSPC, errno.EDQUOT)):
        cure = MAKE_ROOM
    if warehouse.trouble:
        return problem(
            "WAREHOUSE",
            f"the warehouse {warehouse.uri} cannot be used from here: {warehouse.trouble}",
            cure,
        )
    if not warehouse.exists:
        text = f"there is no warehouse at {warehouse.uri} yet; the first submit makes one"
        return warning("WAREHOUSE", text, f"Nothing, if this is a new installation. {cure}")
    if not warehouse.creates_once:
        text = (
            f"{warehouse.uri} does not create a file only if it is absent: two publishers would "
            "overwrite each other"
        )
        cure = (
            "Put the warehouse elsewhere, or upgrade the object store. Jobs are refused there: "
            "WAREHOUSE_UNSAFE."
        )
        return problem("WAREHOUSE", text, cure)
    return ok(
        "WAREHOUSE", f"{warehouse.uri} can be written, and creates a file only if it is absent"
    )


def of_disk(warehouse: WarehouseFacts) -> list[Finding]:
    """Check the free space of the warehouse. Nothing if it is not a folder, or unusable."""
    if warehouse.free is None or not warehouse.disk:
        return []
    share = 1 - warehouse.free / warehouse.disk
    text = (
        f"the disk of the warehouse {warehouse.uri} has {_size(warehouse.free)} "
        f"of {_size(warehouse.disk)} free ({share:.0%} full)"
    )
    return [warning("DISK", text, MAKE_ROOM) if share >= FULL else ok("DISK", text)]


def of_warehouse_and_jobs(
    warehouse: WarehouseFacts, jobs: tuple[JobWarehouse, ...]
) -> list[Finding]:
    """Check that open jobs use this warehouse. Nothing if it is unusable."""
    if warehouse.trouble:
        return []
    here = [job for job in jobs if job.warehouse == warehouse.uri]
    if differing := [f"{job.job} ({job.id})" for job in here if job.id != warehouse.id]:
        what = (
            f"has the id {warehouse.id} here" if warehouse.id else "is not there, as seen from here"
        )
        text = (
            f"the warehouse {warehouse.uri} {what}, and {count_of(len(differing), 'open job')} "
            f"submitted to another under that path: {some(differing)}"
        )
        cure = "Share one folder between all hosts, mounted under one path. See WAREHOUSE_MISMATCH."
        return [problem("WAREHOUSE_ID", text, cure)]
    text = f"{warehouse.id or 'none yet'}; the same for {count_of(len(here), 'open job')} looked at"
    if away := len(jobs) - len(here):
        text = (
            f"{count_of(away, 'open job')} with another warehouse than {warehouse.uri}, which was "
            "not looked at"
        )
    return [ok("WAREHOUSE_ID", text)]


def of_jobs(staged: Sequence[str], unknown: Sequence[str], settings: Settings) -> Finding:
    """Check that the store has the jobs with work in the warehouse.

    Args:
        staged: jobs with work in the warehouse, submitted within the retention; ``unknown``: those
            the store knows not.
    """
    code, recent = "LOST_JOBS", f"the last {format_duration(settings.retention)}"
    if not unknown:
        return ok(
            code,
            f"the store knows {count_of(len(staged), 'job')} of {recent} that the warehouse knows",
        )
    text = (
        f"the warehouse {settings.warehouse} has work of {count_of(len(unknown), 'job')} of "
        f"{recent} that this Redis does not know: {some(list(unknown))}. It was emptied "
        "(FLUSHALL), or restored from an older copy, or it is another Redis"
    )
    cure = (
        "Restore the Redis that had them, or submit those again that are not published (`unstuck "
        "datasets`). Nothing, if another fleet uses this warehouse as well, or forgets jobs sooner "
        "(UNSTUCK_RETENTION)."
    )
    return warning(code, text, cure)


def of_small_files(file_counts: Mapping[str, int]) -> list[Finding]:
    """Check whether readers of a dataset open many files for few rows.

    Args:
        file_counts: the number of small files by dataset.
    """
    if not file_counts:
        return []
    which = some([f"{dataset} ({files:,})" for dataset, files in file_counts.items()])
    cure = (
        f"unstuck compact {next(iter(file_counts))}. A job can do it each night (docs/operate.md)."
    )
    return [
        warning(
            "SMALL_FILES", f"datasets of many small files, which slow their readers: {which}", cure
        )
    ]


def of_views(behind: Mapping[str, tuple[int, int]]) -> list[Finding]:
    """Check that each kept view file is current. ``behind``: its and the newest version."""
    cure = (
        "unstuck datasets --export-views {} --keep. The log of the publisher says why it could "
        "not write it."
    )
    return [
        warning(
            "VIEWS_STALE",
            f"{path} shows version {max(at, 0)} of the warehouse, of which {head} is the newest",
            cure.format(PurePath(path).stem),
        )
        for path, (at, head) in behind.items()
    ]


def of_warehouse_and_fleet(warehouse: WarehouseFacts, view: FleetInfo) -> list[Finding]:
    """Check that runners and coordinators see the same warehouse as this process.

    Each process looks from its own host, now and then.
    """
    reports = [
        (f"{process.host}:{process.pid}", process.warehouse)
        for process in [*view.coordinators, *view.runners]
        if not process.silent
    ]
    looks = [(who, report) for who, report in reports if _says_something(warehouse, report)]
    findings = [*_differing_looks(warehouse, looks), *_other_addresses(warehouse, reports)]
    text = (
        f"{len(looks):,} of {len(reports):,} runners and coordinators say that they see the same "
        "there"
    )
    if silent := len(reports) - len(looks):
        text += (
            f"; {silent:,} cannot say (UNSTUCK_WAREHOUSE is not set for them, or names no folder, "
            "or they have not looked since it was made)"
        )
    return findings or [ok("WAREHOUSE_SHARED", text)]


def _differing_looks(
    warehouse: WarehouseFacts, looks: Sequence[tuple[str, WarehouseSeen]]
) -> Iterator[Finding]:
    """Report the processes that see another warehouse at this address, or cannot use it.

    Where this process sees no warehouse id, the first id that a process reported is expected.
    """
    expected, where = warehouse.id, "here"
    if expected is None:
        expected, where = next(
            ((look.id, f"for {who}") for who, look in looks if look.id), ("", "here")
        )
    if differing := [
        f"{who} ({look.trouble or look.id or 'none'})" for who, look in looks if look.id != expected
    ]:
        text = (
            f"at {warehouse.uri} stands {expected or 'no warehouse'} {where}, and something "
            f"else for: {some(differing)}"
        )
        cure = (
            "Mount the same folder at that path on their hosts. Until then their attempts fail: "
            "WAREHOUSE_MISMATCH."
        )
        yield problem("WAREHOUSE_SHARED", text, cure)


def _other_addresses(
    warehouse: WarehouseFacts, reports: Sequence[tuple[str, WarehouseSeen]]
) -> Iterator[Finding]:
    """Report the processes that use another address for their warehouse."""
    if elsewhere := [
        f"{who} ({report.uri})"
        for who, report in reports
        if report.uri not in (None, warehouse.uri)
    ]:
        text = (
            f"runners and coordinators that are set to another warehouse than {warehouse.uri}: "
            f"{some(elsewhere)}"
        )
        cure = (
            "If it is the same one, mount it everywhere under one path, set as "
            "UNSTUCK_WAREHOUSE. Else nothing."
        )
        yield warning("WAREHOUSE_SHARED", text, cure)


def _says_something(warehouse: WarehouseFacts, report: WarehouseSeen) -> bool:
    """Return whether a process has a result for the address of ``warehouse``."""
    if report.uri != warehouse.uri or (report.id is None and not report.trouble):
        return False
    return not _saw_too_early(warehouse, report)


def _saw_too_early(warehouse: WarehouseFacts, report: WarehouseSeen) -> bool:
    """Return whether a process saw no warehouse at or before the time when it was made.

    Such a report says nothing. Every process of a new fleet has looked before the first submit
    makes the warehouse. It looks again within seconds.
    """
    if report.id != "" or report.looked_at is None or warehouse.made_at is None:
        return False
    return report.looked_at < warehouse.made_at + FRESH
