"""The catalogue of Redis keys, each with its type and what it holds. No other module spells a key.

All keys of a job share the hash tag ``{JOB}``, but the scripts also touch keys of no job: Unstuck
does not run on Redis Cluster (nor does Celery's broker).
"""

from __future__ import annotations

import re

CONTROL_QUEUE = "control"  # the queue of Celery on which coordinators listen


class JobKeys:
    """The keys of one job."""

    def __init__(self, prefix: str, job: str) -> None:
        base = f"{prefix}:{{{job}}}"
        # hash: the record: spec, long texts, intent, commit, …; ``fields``: which it has.
        self.job = f"{base}:job"
        self.plans = f"{base}:plans"  # hash: group → GroupPlan; written at submit, read by runners
        self.forks = f"{base}:forks"  # hash: dynamic fork → its values, once known
        self.groups = f"{base}:groups"  # hash: group id → GroupRecord; absent means WAITING
        # hash: group, and member of a fork → FrozenInputs, from the first QUEUED on.
        self.inputs = f"{base}:inputs"
        # hash: group id → the live attempt; dropped when its outcome is applied.
        self.attempts = f"{base}:attempts"
        # hash: group id → JSON: where its step stands; lives for a minute or so.
        self.stacks = f"{base}:stacks"
        # hash: python, spark → the minor version of its first claim
        self.versions = f"{base}:versions"
        self.turns = f"{base}:turns"  # hash: lane → the turn of the offer that was added last
        self.events = f"{base}:events"  # stream: what happened, bounded
        self.lock = f"{base}:lock"  # string: owner of the job's lock; lives LOCK_TTL at most
        # string: somebody met the lock busy: decide once more before letting go.
        self.dirty = f"{base}:dirty"


class ScheduleKeys:
    """The keys of one schedule."""

    def __init__(self, prefix: str, schedule: str) -> None:
        base = f"{prefix}:schedule:{schedule}"
        # hash: its record, the spec that it repeats, the ids of its last commit and command.
        self.schedule = base
        self.schedule_events = f"{base}:events"  # stream: what happened, bounded
        self.schedule_runs = f"{base}:runs"  # zset: job of a run → when it was submitted
        # zset: tick, outcome and current run → the tick in seconds
        self.schedule_ticks = f"{base}:ticks"


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str = "unstuck") -> None:
        self.prefix = prefix
        # hash: schedule → one line of JSON for ``schedule list``
        self.schedules = f"{prefix}:schedules"
        # zset: schedule → when it must be decided again
        self.schedules_due = f"{prefix}:schedules:due"
        # hash: schedule → JSON: what its streams have unread, by the last look.
        self.backlogs = f"{prefix}:backlogs"
        # hash: name of jobs → JSON: the rules ``late`` by which one is expected.
        self.expected = f"{prefix}:expected"
        # hash: such a name → JSON: what was judged and told of it
        self.expected_state = f"{prefix}:expected:state"
        # hash: ``dataset@warehouse`` → newest version of a job, when, all rows.
        self.published = f"{prefix}:published"
        # zset: job → when it must be decided again; every non-terminal job is here.
        self.due = f"{prefix}:due"
        self.jobs = f"{prefix}:jobs"  # zset: job → submit time
        self.ended = f"{prefix}:ended"  # zset: job → when it may be forgotten (retention)
        # zset: job that has ended → when its staging is looked at next
        self.staging_index = f"{prefix}:staging"
        # hash: job → JSON: where its staging lies, when it is forgotten
        self.staged = f"{prefix}:staged"
        self.failed = f"{prefix}:failed"  # hash: name → job that FAILED, until one is submitted
        # hash: retry → the job that it retries, until it is forgotten
        self.retries = f"{prefix}:retries"
        self.summary = f"{prefix}:summary"  # hash: job → one line of JSON for ``list``
        # stream: reports of workers; consumer group ``coordinators``
        self.reports = f"{prefix}:reports"
        # stream: reports nobody can apply, with the reason and the raw fields
        self.dead = f"{prefix}:dead"
        # hash: ``at``: last tick of the sweep; ``grace_until``: no takeover before.
        self.alive = f"{prefix}:alive"
        # string: written after what must be durable, and waited for
        self.durable = f"{prefix}:durable"
        # hash: reports by what they came to; attempts that ended, by how
        self.counters = f"{prefix}:counters"
        # hash: ``job NAME``, ``publishing`` → JSON: how many ended, and their times.
        self.totals = f"{prefix}:totals"
        # zset: name of a job that is counted by itself → its last end
        self.totals_names = f"{prefix}:totals:names"
        # hash: runner or coordinator → JSON: its ProcessInfo
        self.processes = f"{prefix}:processes"
        # zset: host:pid → when that worker or coordinator found that it had stalled.
        self.stalled = f"{prefix}:stalled"
        # zset: warehouse id → the oldest version that a vacuum wished to keep.
        self.vacuums = f"{prefix}:vacuums"
        # hash: what reads an old version and is no job → warehouse id, version, until.
        self.holds = f"{prefix}:holds"
        self.outbox = f"{prefix}:outbox"  # stream: notices to send, written with what they tell
        # hash: target → JSON: who sends to it, how often that failed, and why.
        self.notices = f"{prefix}:notices"
        # zset: target for which notices wait → when it is tried next
        self.notices_due = f"{prefix}:notices:due"
        # stream: what was sent, to whom and when; the newest 1,000 or so.
        self.notices_sent = f"{prefix}:notices:sent"
        # zset: ended job → when its trace was sent; of the last two hours
        self.traced = f"{prefix}:traced"
        self.trace_sender = f"{prefix}:trace_sender"  # string: the coordinator that sends traces
        # list: never exists; LPUSHX on it fails if Redis refuses writes
        self.nothing = f"{prefix}:nothing"
        # What kombu puts before every key and channel of its own, so that no fleet takes the
        # messages of another.
        self.broker = f"{prefix}:celery:"
        self.turn = f"{prefix}:turn"  # hash: queue → the turn of the offer that was taken last
        # hash: runner → when it last polled; below 0: since when it sleeps
        self.polled = f"{prefix}:polled"
        # zset: lanes (``queue``, ``queue@pool``) in which offers stand; all score 0.
        self.lanes = f"{prefix}:ready"
        self.pools = f"{prefix}:pools"  # hash: pool → its slots, where a person has set them
        self.acknowledged = f"{prefix}:acknowledged"  # hash: problem → who acknowledged it, and why
        # zset: ``pool/offer`` of each attempt that holds one; all have the score 0.
        self.pool_slots = f"{prefix}:slots"
        self.beat = f"{prefix}:beat:"  # what RedBeat puts before every key of its own

    def of(self, job: str) -> JobKeys:
        return JobKeys(self.prefix, job)

    def of_schedule(self, schedule: str) -> ScheduleKeys:
        return ScheduleKeys(self.prefix, schedule)

    def status(self, status: str) -> str:
        return f"{self.prefix}:status:{status}"  # zset: job → submit time, per status

    def after(self, dataset: str) -> str:
        return f"{self.prefix}:after:{dataset}"  # set: schedules that run after a new version of it

    def submit_key(self, key: str) -> str:
        return f"{self.prefix}:key:{key}"  # hash: job, its last retry, fingerprints of their specs

    def notices_for(self, target: str) -> str:
        # zset: problem → when the first of its notices is tried next.
        return f"{self.prefix}:notices:for:{target}"

    def notices_of(self, target: str, problem: str) -> str:
        # list: notices that wait, in their order.
        return f"{self.prefix}:notices:for:{target}:{problem}"

    def dead_letter(self, entry: str) -> str:
        # string: what became of a dead letter that was replayed or dropped.
        return f"{self.prefix}:dead:{entry}"

    def ready(self, lane: str) -> str:
        return f"{self.prefix}:ready:{lane}"  # zset: offer → its turn; the lowest is taken first

    def notify(self, queue: str) -> str:
        # list: one entry for each polling runner that is to look once more.
        return f"{self.prefix}:notify:{queue}"

    def answer(self, caller: str) -> str:
        # hash: the last answer to a finish or a take, for its repeats.
        return f"{self.prefix}:answer:{caller}"

    def queue(self, queue: str) -> str:
        # list: messages of a Celery queue: pushed on the left, taken on the right.
        return f"{self.broker}{queue}"

    def cancel(self, job: str) -> str:
        # pub/sub: tells watchdogs at once to renew, which brings the instruction.
        return f"{self.prefix}:cancel:{job}"


def at_warehouse(dataset: str, warehouse: str) -> str:
    """The field of ``Keys.published`` for a dataset."""
    return f"{dataset}@{warehouse}"


# Lanes: the ready sets of one queue. Attempts that take a slot of a pool stand in a lane of their
# own. So an offer whose pool is full does not stand before offers that may go.


def lane_of(queue: str, pool: str | None) -> str:
    """The lane in which offers of ``pool`` stand on ``queue``; the queue itself without a pool."""
    return f"{queue}@{pool}" if pool else queue


def queue_of(lane: str) -> str:
    return lane.partition("@")[0]


def pool_of(lane: str) -> str:
    """The pool of a lane; empty for offers without one."""
    return lane.partition("@")[2].partition("#")[0]


def versions_of(lane: str) -> dict[str, str]:
    """Return the versions in the name of a lane, such as ``queue@pool#python3.11,spark4.3``.

    See take.lua. Empty stands for any version of Spark.

    Empty is the version of a Spark that may be any.
    """
    versions = lane.partition("@")[2].partition("#")[2]
    return dict(re.findall(r"([a-z]+)([0-9.]*)", versions))


def members_of(pool: str) -> tuple[str, str]:
    """The range of ``Keys.pool_slots`` in which the attempts stand that hold a slot of ``pool``."""
    return f"[{pool}/", f"({pool}0"  # 0 comes after /
