"""The doctor judges Redis, the records, the settings, this machine and the warehouse (pure: facts in, findings out).

``redis_facts`` and ``host_facts`` read the facts; ``fleet_checks`` judges the processes and their queues. Every code
has its cure in docs/troubleshooting.md.
"""

from __future__ import annotations

from unstuck.coordinator.doctor.finding import Finding, count_of, ok, problem, warning
from unstuck.coordinator.doctor.host_facts import JavaFacts, WarehouseFacts
from unstuck.coordinator.doctor.redis_facts import JobWarehouse, RecordFacts, ServerFacts
from unstuck.coordinator.explain.explanation import longest_gap
from unstuck.coordinator.views.fleet import FleetView
from unstuck.coordinator.views.queues import some
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.protocol.processes import WarehouseSeen
from unstuck.tasks.settings import LAST_STEPS, Settings

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (8, 0)
FULL, NEARLY_FULL = 0.9, 0.75  # of the memory that Redis may take
SKEW = 2.0  # seconds that two clocks may differ
LATE, TOO_LATE = 10.0, 60.0  # seconds that a report may wait, or a job be overdue where sweeps come often
FRESH = 10.0  # seconds after a warehouse was made in which somebody may still say that there is none
PATIENCE = 40.0  # seconds; what the how-to lets supervisors wait before they kill a worker


# ---- Redis itself --------------------------------------------------------------------------------------


def of_server(seen: ServerFacts, settings: Settings) -> list[Finding]:
    """Is this a Redis that loses nothing?"""
    return [_version(seen), *_role(seen), _persistence(seen, settings), _eviction(seen), _memory(seen), _clock(seen)]


def _version(seen: ServerFacts) -> Finding:
    what = f"{seen.name.capitalize()} {seen.version}"
    oldest = OLDEST_VALKEY if seen.name == "valkey" else OLDEST_REDIS
    if _numbers(seen.version) < oldest:
        return problem("REDIS_VERSION", f"{what} is too old", "Use Redis 7.0 or newer, or Valkey 8 or newer.")
    return ok("REDIS_VERSION", what)


def _numbers(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return int(major) if major.isdecimal() else 0, int(minor) if minor.isdecimal() else 0


def _role(seen: ServerFacts) -> list[Finding]:
    found = []
    if seen.cluster:
        text = "This Redis runs as a Cluster, in which neither Celery's broker nor our scripts work"
        found.append(problem("REDIS_CLUSTER", text, "Use a server that is not a Cluster, with replicas if need be."))
    if seen.replica:
        text = "This Redis is a read-only replica: nothing can be submitted, claimed or decided here"
        cure = "Set UNSTUCK_REDIS_URL to the primary; after a failover, to the address that follows it."
        found.append(problem("REDIS_READ_ONLY", text, cure))
    return found or [ok("REDIS_READ_ONLY", "it is a primary and can be written to")]


def _persistence(seen: ServerFacts, settings: Settings) -> Finding:
    code = "REDIS_PERSISTENCE"
    if seen.trouble:
        cure = "Look at the server's log and disk. Until it can write, it refuses writes or loses them."
        return problem(code, f"its last write to disk went wrong: {', '.join(seen.trouble)}", cure)
    if not seen.aof:
        cure = "Set `appendonly yes` and `appendfsync everysec` in its configuration (CONFIG SET, then CONFIG REWRITE)."
        return problem(code, "it has no append-only file, so a restart forgets jobs that were taken", cure)
    if seen.fsync == "no":
        cure = "Set `appendfsync everysec`, or `always`."
        return problem(code, "its append-only file is written whenever the kernel likes (appendfsync no)", cure)
    if settings.durability == "replica" and not seen.replicas:
        cure = "Attach a replica, or set UNSTUCK_DURABILITY=fsync."
        return problem(code, "UNSTUCK_DURABILITY=replica, and it has no replica: every submit would fail", cure)
    return ok(code, f"append-only file, appendfsync {seen.fsync or 'not known (we may not ask)'}")


def _eviction(seen: ServerFacts) -> Finding:
    if seen.policy != "noeviction":
        text = f"maxmemory-policy is {seen.policy}: a full Redis would drop records, and a dropped record is a lost job"
        return problem("REDIS_EVICTION", text, "Set `maxmemory-policy noeviction` in its configuration.")
    return ok("REDIS_EVICTION", "maxmemory-policy is noeviction")


def _memory(seen: ServerFacts) -> Finding:
    room = seen.limit or seen.machine
    used = f"{_size(seen.memory)} used"
    if not room:
        return ok("REDIS_MEMORY", f"{used}, no limit known")
    share = seen.memory / room
    text = f"{used} of {_size(room)} ({share:.0%}, {'maxmemory' if seen.limit else 'all that its host has'})"
    cure = "Give it more memory, shorten UNSTUCK_RETENTION, or find out who else fills it. Full, it refuses all writes."
    if share >= FULL:
        return problem("REDIS_MEMORY", text, cure)
    return warning("REDIS_MEMORY", text, cure) if share >= NEARLY_FULL else ok("REDIS_MEMORY", text)


def _clock(seen: ServerFacts) -> Finding:
    off = abs(seen.ahead)
    if off > SKEW + seen.unsure:
        text = f"the clock of this machine is {off:.1f}s {'ahead of' if seen.ahead > 0 else 'behind'} that of Redis"
        cure = "Let NTP set both. Nothing is decided by the clock of this machine, but times that people see are wrong."
        return warning("CLOCK", text, cure)
    return ok("CLOCK", f"this machine and Redis agree on the time within {max(off, seen.unsure, 0.1):.1f}s")


# ---- the records of the fleet --------------------------------------------------------------------------


def of_records(seen: RecordFacts, settings: Settings) -> list[Finding]:
    """Does anybody take what waits?"""
    return [
        *(_reports(seen, settings), _parked(seen), *_newer(seen)),
        *(_overdue(seen, settings), _sweep(seen, settings), *_astray(seen, settings)),
    ]


def _reports(seen: RecordFacts, settings: Settings) -> Finding:
    code, cure = "REPORTS", "Start a coordinator, or look at the log of those that run: unstuck fleet"
    if seen.unread_age is not None and seen.unread_age > LATE:
        count = "" if seen.lag is None else f" ({seen.lag:,} unread)"
        text = f"the oldest report that no coordinator has read waits for {format_duration(seen.unread_age)}{count}"
        return (problem if seen.unread_age > TOO_LATE else warning)(code, text, cure)
    if seen.pending_age is not None and seen.pending_age > LATE + 2 * settings.report_idle:
        waits = format_duration(seen.pending_age)
        text = f"{count_of(seen.pending, 'report')} read and not finished, the oldest for {waits}"
        return (problem if seen.pending_age > 2 * TOO_LATE else warning)(code, text, cure)
    return ok(code, f"{seen.lag or 0:,} unread, {seen.pending:,} being applied")


def _parked(seen: RecordFacts) -> Finding:
    if seen.parked:
        cure = "Look at them with `unstuck dead list`; then `unstuck dead replay` or `unstuck dead drop`."
        return warning("REPORTS_PARKED", f"{count_of(seen.parked, 'report')} that nobody could apply, parked", cure)
    return ok("REPORTS_PARKED", "no report is parked")


def _newer(seen: RecordFacts) -> list[Finding]:
    if not seen.newer:
        return []
    told = ", ".join(f"{count:,} of schema {version}" for version, count in sorted(seen.newer.items()))
    cure = "Upgrade all coordinators to the release of the newest worker."
    return [warning("REPORTS_NEWER", f"reports of a newer release wait for a newer coordinator: {told}", cure)]


def _astray(seen: RecordFacts, settings: Settings) -> list[Finding]:
    if not seen.astray:
        return []
    text = f"{count_of(seen.astray, 'message')} for a coordinator, sent without a prefix to a queue that no fleet reads"
    option = f'broker_transport_options={{"global_keyprefix": "{Keys(settings.prefix).broker}"}}'
    cure = f"Give the Celery app that sends {option}, send again, and remove the list: redis-cli DEL {CONTROL_QUEUE}"
    return [problem("STRAY_MESSAGES", text, cure)]


def _gap(seen: RecordFacts, settings: Settings) -> float:
    """Seconds that may lie between two sweeps: as the fleet is set, which need not be as this process is."""
    return longest_gap(settings.sweep_every if seen.period is None else seen.period)


def _overdue(seen: RecordFacts, settings: Settings) -> Finding:
    late = max(LATE, _gap(seen, settings))
    if seen.overdue is not None and seen.overdue > late:
        ago = format_duration(seen.overdue)
        text = f"job {seen.overdue_job} should have been decided {ago} ago, and nobody did"
        cure = f"Start a coordinator. If one runs, its log says why: look for {seen.overdue_job} in it."
        return (problem if seen.overdue > max(TOO_LATE, 2 * late) else warning)("JOBS_OVERDUE", text, cure)
    return ok("JOBS_OVERDUE", f"{count_of(seen.open, 'open job')}, none overdue")


def _sweep(seen: RecordFacts, settings: Settings) -> Finding:
    cure = (
        "Start a coordinator (celery -A unstuck.coordinator worker -P threads) and a beat "
        "(celery -A unstuck.coordinator beat)."
    )
    if seen.swept_age is None:
        return (problem if seen.open else warning)("SWEEP", "nobody has ever swept here", cure)
    ago = f"{format_duration(max(0.0, seen.swept_age))} ago"
    if seen.swept_age > _gap(seen, settings):
        return (problem if seen.open else warning)("SWEEP", f"the last sweep was {ago}", cure)
    if not seen.beat:
        text = f"the last sweep was {ago}; no beat is there, so coordinators sweep by themselves, half as often"
        return warning("SWEEP", text, "Start a beat: celery -A unstuck.coordinator beat")
    return ok("SWEEP", f"the last sweep was {ago}, and a beat is there")


# ---- settings, this machine, the warehouse -------------------------------------------------------------


def of_settings(settings: Settings) -> list[Finding]:
    """Do the terms fit each other? As this process sees them: every process of a fleet should have the same."""
    s = settings
    rules = [
        (
            3 * s.lease_renew < s.lease_ttl,
            f"3 × UNSTUCK_LEASE_RENEW ({3 * s.lease_renew:g}s) must be below UNSTUCK_LEASE_TTL ({s.lease_ttl:g}s), "
            "or two lost renewals lose a lease",
        ),
        (
            s.lock_ttl < s.report_idle + s.sweep_every,
            f"UNSTUCK_LOCK_TTL ({s.lock_ttl:g}s) must be below UNSTUCK_REPORT_IDLE + UNSTUCK_SWEEP_EVERY "
            f"({s.report_idle + s.sweep_every:g}s), or the reports of a coordinator that died meet its lock",
        ),
        (
            s.cancel_grace < s.cancel_deadline,
            f"UNSTUCK_CANCEL_GRACE ({s.cancel_grace:g}s) must be below UNSTUCK_CANCEL_DEADLINE ({s.cancel_deadline:g}s)"
            ", or a job is CANCELED before its runners were told to go",
        ),
        (
            3 * s.sweep_every < s.lease_ttl,
            f"3 × UNSTUCK_SWEEP_EVERY ({3 * s.sweep_every:g}s) must be below UNSTUCK_LEASE_TTL ({s.lease_ttl:g}s), "
            "or a dead worker is found by the sweep and not by its lease",
        ),
        (
            s.sweep_every < s.dispatch_timeout,
            f"UNSTUCK_SWEEP_EVERY ({s.sweep_every:g}s) must be below UNSTUCK_DISPATCH_TIMEOUT "
            f"({s.dispatch_timeout:g}s), or lost hints are sent again late",
        ),
        (
            s.lease_ttl + s.cancel_grace < s.retention,
            f"UNSTUCK_RETENTION ({s.retention:g}s) must be above UNSTUCK_LEASE_TTL + UNSTUCK_CANCEL_GRACE "
            f"({s.lease_ttl + s.cancel_grace:g}s), or a job is forgotten while a worker may still hold it",
        ),
    ]
    cure = "Change one of them, in every process of the fleet alike."
    broken = [problem("SETTINGS", text, cure) for fits, text in rules if not fits]
    stops = s.stop_within() + LAST_STEPS
    if stops > PATIENCE:
        text = (
            f"a worker may take {stops:g}s to stop (UNSTUCK_DRAIN_GRACE {s.drain_grace:g}s + UNSTUCK_CANCEL_GRACE "
            f"{s.cancel_grace:g}s + 10s), longer than the {PATIENCE:g}s that a supervisor was advised to wait"
        )
        wait = f"Let its supervisor wait {stops:g}s before it kills (TimeoutStopSec and the like), or shorten one."
        broken.append(warning("SETTINGS", text, wait))
    if not s.stalled_after:
        text = "UNSTUCK_STALLED_AFTER is 0: a process in which Celery has stalled stays so until somebody restarts it"
        broken.append(warning("SETTINGS", text, "Set UNSTUCK_STALLED_AFTER to a minute or more, for all of them."))
    return broken or [ok("SETTINGS", "the terms fit each other, as this process is set")]


def of_java(seen: JavaFacts, oldest: int) -> list[Finding]:
    """Can this machine run Spark, with Java ``oldest`` or newer? Asked only where a worker is installed."""
    if seen.spark is None:
        return [ok("JAVA", "not looked at: no worker is installed here (no PySpark)")]
    spark = ok("SPARK", f"PySpark {seen.spark}")
    if seen.java >= oldest:
        return [ok("JAVA", f"Java {seen.java}"), spark]
    what = f"Java {seen.java} is too old" if seen.java else "Java is not installed"
    cure = f"Install Java {oldest} or newer, on the PATH or in JAVA_HOME. It matters only where a worker is to run."
    return [problem("JAVA", f"{what} for Spark on this machine", cure), spark]


def of_warehouse(seen: WarehouseFacts) -> list[Finding]:
    """Can the warehouse be published to?"""
    cure = "Mount it here under the same path as everywhere, or set UNSTUCK_WAREHOUSE."
    if seen.trouble:
        return [problem("WAREHOUSE", f"the warehouse {seen.uri} cannot be used from here: {seen.trouble}", cure)]
    if not seen.there:
        text = f"there is no warehouse at {seen.uri} yet; the first submit makes one"
        return [warning("WAREHOUSE", text, f"Nothing, if this is a new installation. {cure}")]
    if not seen.creates_once:
        text = f"{seen.uri} does not create a file only if it is absent: two publishers could overwrite each other"
        return [problem("WAREHOUSE", text, "Put the warehouse on another file system, or on an object store like S3.")]
    return [ok("WAREHOUSE", f"{seen.uri} can be written, and creates a file only if it is absent")]


def of_warehouse_and_jobs(seen: WarehouseFacts, jobs: tuple[JobWarehouse, ...]) -> list[Finding]:
    """Is the warehouse here the one that the open jobs were submitted to? Nobody knows of one that cannot be used."""
    if seen.trouble:
        return []
    here = [job for job in jobs if job.warehouse == seen.uri]
    strange = [job for job in here if job.id != seen.id]
    if strange:
        what = f"has the id {seen.id} here" if seen.id else "is not there, as seen from here"
        text = (
            f"the warehouse {seen.uri} {what}, and {count_of(len(strange), 'open job')} submitted to another under "
            f"that path: {some([f'{job.job} ({job.id})' for job in strange])}"
        )
        cure = "Share one folder between all hosts, mounted under one path. See WAREHOUSE_MISMATCH."
        return [problem("WAREHOUSE_ID", text, cure)]
    away = len(jobs) - len(here)
    if away:
        text = f"{count_of(away, 'open job')} with another warehouse than {seen.uri}, which was not looked at"
        return [ok("WAREHOUSE_ID", text)]
    return [ok("WAREHOUSE_ID", f"{seen.id or 'none yet'}; the same for {count_of(len(here), 'open job')} looked at")]


def of_warehouse_and_fleet(seen: WarehouseFacts, view: FleetView) -> list[Finding]:
    """Is the warehouse here the one that runners and coordinators see? Each looks from its own host, now and then."""
    code = "WAREHOUSE_SHARED"
    fleet = [*view.coordinators, *view.runners]
    there = [(f"{one.host}:{one.pid}", one.warehouse) for one in fleet if not one.silent]
    same = [
        (who, what)
        for who, what in there
        if what.uri == seen.uri and (what.id is not None or what.trouble) and not _before(seen, what)
    ]
    known, where = seen.id, "here"
    if known is None:
        known, where = next(((what.id, f"for {who}") for who, what in same if what.id), ("", "here"))
    strange = [f"{who} ({what.trouble or what.id or 'none'})" for who, what in same if what.id != known]
    other = [f"{who} ({what.uri})" for who, what in there if what.uri not in (None, seen.uri)]
    found = []
    if strange:
        text = f"at {seen.uri} stands {known or 'no warehouse'} {where}, and something else for: {some(strange)}"
        cure = "Mount the same folder at that path on their hosts. Until then their attempts fail: WAREHOUSE_MISMATCH."
        found.append(problem(code, text, cure))
    if other:
        text = f"runners and coordinators that are set to another warehouse than {seen.uri}: {some(other)}"
        cure = "If it is the same one, mount it everywhere under one path, set as UNSTUCK_WAREHOUSE. Else nothing."
        found.append(warning(code, text, cure))
    if found:
        return found
    silent = len(there) - len(same)
    text = f"{len(same):,} of {len(there):,} runners and coordinators say that they see the same there"
    why = (
        f"; {silent:,} cannot say (UNSTUCK_WAREHOUSE is not set for them, or names no folder, or they have not "
        "looked since it was made)"
    )
    return [ok(code, text + (why if silent else ""))]


def _before(seen: WarehouseFacts, what: WarehouseSeen) -> bool:
    """Did that process look before the warehouse was made, or about then? That it saw none says nothing.

    Every process of a new fleet has looked before the first submit makes the warehouse. It looks again within seconds.
    """
    if what.id != "" or what.looked_at is None or seen.made_at is None:
        return False
    return what.looked_at < seen.made_at + FRESH


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
