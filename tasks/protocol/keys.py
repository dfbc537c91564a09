"""The key catalogue: every Redis key of Unstuck. No other module spells a key.

====================================  ======  ===========================================================
key                                   type    what it holds
====================================  ======  ===========================================================
``P:{JOB}:job``                       hash    the job record: spec and its long texts, intent, status, commit, …
``P:{JOB}:plans``                     hash    group → GroupPlan; written at submit, read by runners
``P:{JOB}:forks``                     hash    dynamic fork → its values, once known
``P:{JOB}:groups``                    hash    group id → GroupRecord; absent means WAITING
``P:{JOB}:inputs``                    hash    group, and member of a fork → FrozenInputs, from the first QUEUED on
``P:{JOB}:attempts``                  hash    group id → the live attempt; dropped when its outcome is folded in
``P:{JOB}:events``                    stream  what happened, bounded
``P:{JOB}:lock``                      string  owner of the job's lock; lives LOCK_TTL at most
``P:{JOB}:dirty``                     string  somebody met the lock busy: decide once more before letting go
``P:due``                             zset    job → when it must be decided again; every non-terminal job is here
``P:jobs``                            zset    job → submit time
``P:ended``                           zset    job → when it may be forgotten (retention)
``P:sweepable``                       zset    job that has ended → when its staging is looked at next
``P:staged``                          hash    job → JSON: where its staging lies, when it is forgotten
``P:retries``                         hash    retry → the job that it retries, until it is forgotten
``P:status:STATUS``                   zset    job → submit time, per status
``P:summary``                         hash    job → one line of JSON for ``list``
``P:key:KEY``                         hash    job that was submitted under this key, fingerprint of its spec
``P:reports``                         stream  reports of workers; consumer group ``coordinators``
``P:reports:vN``                      stream  reports of a newer schema, until a newer coordinator puts them back
``P:dead``                            stream  reports nobody can apply, with the reason and the raw fields
``P:dead:ENTRY``                      string  what became of a parked report that was replayed or dropped
``P:alive``                           hash    ``at``: last tick of the sweep; ``grace_until``: no takeover before
``P:counters``                        hash    how many reports were APPLIED, DUPLICATE, STALE, …
``P:resent:QUEUE``                    string  hints sent again in this dispatch_timeout, by all coordinators
``P:processes``                       hash    runner or coordinator → JSON: what it is and does, when it said so
``P:finish:TOKEN:EVENT``              string  what was answered to a finish, since it may be repeated
``P:stalled``                         zset    host:pid → when that worker or coordinator found that it had stalled
``P:nothing``                         list    never there: pushing onto it if it is there asks whether writes are taken
``P:celery:QUEUE``                    list    a queue of Celery's; with ``P:celery:unacked`` … all that kombu keeps
``P:cancel:JOB``                      pub/sub tells watchdogs at once of an order; the next renewal brings it too
====================================  ======  ===========================================================

All keys of a job share the hash tag ``{JOB}``. The scripts also touch the due index and the report stream, which
live elsewhere: Unstuck does not run on Redis Cluster (nor does Celery's broker).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job."""

    job: str
    plans: str
    forks: str
    groups: str
    inputs: str
    attempts: str
    events: str
    lock: str
    dirty: str


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix."""

    prefix: str = "unstuck"

    def of(self, job: str) -> JobKeys:
        base = f"{self.prefix}:{{{job}}}"
        return JobKeys(
            f"{base}:job",
            f"{base}:plans",
            f"{base}:forks",
            f"{base}:groups",
            f"{base}:inputs",
            f"{base}:attempts",
            f"{base}:events",
            f"{base}:lock",
            f"{base}:dirty",
        )

    def name(self, *parts: str) -> str:
        return ":".join((self.prefix, *parts))

    @property
    def due(self) -> str:
        return self.name("due")

    @property
    def jobs(self) -> str:
        return self.name("jobs")

    @property
    def ended(self) -> str:
        return self.name("ended")

    @property
    def sweepable(self) -> str:
        return self.name("sweepable")

    @property
    def staged(self) -> str:
        return self.name("staged")

    @property
    def retries(self) -> str:
        return self.name("retries")

    def status(self, status: str) -> str:
        return self.name("status", status)

    @property
    def summary(self) -> str:
        return self.name("summary")

    def submit_key(self, key: str) -> str:
        return self.name("key", key)

    @property
    def reports(self) -> str:
        return self.name("reports")

    @property
    def dead(self) -> str:
        return self.name("dead")

    def parked(self, entry: str) -> str:
        return self.name("dead", entry)

    @property
    def alive(self) -> str:
        return self.name("alive")

    @property
    def counters(self) -> str:
        return self.name("counters")

    def resent(self, queue: str) -> str:
        return self.name("resent", queue)

    @property
    def processes(self) -> str:
        return self.name("processes")

    def finish(self, token: str, event: str) -> str:
        return self.name("finish", token, event)

    @property
    def stalled(self) -> str:
        return self.name("stalled")

    @property
    def broker(self) -> str:
        """What kombu puts before every key and channel of its own, so that one fleet's messages are never another's."""
        return self.name("celery", "")

    def queue(self, name: str) -> str:
        """The messages of a Celery queue, as kombu keeps them: pushed on the left, taken on the right."""
        return f"{self.broker}{name}"

    @property
    def nothing(self) -> str:
        return self.name("nothing")

    def cancel(self, job: str) -> str:
        return self.name("cancel", job)
