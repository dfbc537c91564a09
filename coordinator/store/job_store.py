"""Stores jobs in Redis, with one named call for each transition.

Every write is one Lua script (``coordinator/store/lua``) that validates before it writes and may be
repeated, since redis-py repeats a command whose reply was lost. ``tasks.protocol.keys`` lists the
keys.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from statistics import median
from types import MappingProxyType
from typing import Any, cast

import redis

from unstuck.coordinator.errors import Damaged
from unstuck.coordinator.model.decision import Acks, Decision
from unstuck.coordinator.model.loading import bare_state, state_of
from unstuck.coordinator.model.records import (
    JOB_SCHEMA,
    AttemptRecord,
    GroupRecord,
    JobRecord,
    Reason,
    compact,
)
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import TERMINAL, Intent, Status
from unstuck.coordinator.store.answers import (
    BeginAnswer,
    Begun,
    CommitAnswer,
    EndAnswer,
)
from unstuck.coordinator.store.failed_jobs import reported_as
from unstuck.coordinator.store.runner_wake_ups import idle_runner, served, share_wake_ups
from unstuck.coordinator.store.staging_index import staging_record
from unstuck.coordinator.store.totals import ended_as
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.protocol.keys import Keys, at_warehouse, members_of, pool_of, queue_of
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.settings import Settings

REPORT_GROUP = "coordinators"
NO_OFFERS: Mapping[Offer, str] = MappingProxyType({})
READ_AT_ONCE = 1000  # attempts, by the script that takes the lock
SLOTS_LOOKED_AT = 500  # in one call
HALTED_LOOK = 600.0  # seconds between looks at a job that waits for a person
USUAL_OF = 10  # runs whose median is the usual duration; three at least
USUAL_AMONG = 1000  # of the newest jobs that have FINISHED

_ENDED_EARLY = TERMINAL - {Status.FINISHED}  # running attempts are notified of such an end


class Store:
    """Jobs in one Redis. ``client`` must decode responses."""

    def __init__(self, settings: Settings, client: redis.Redis) -> None:
        self._redis = client
        self._keys = keys = Keys(settings.prefix)
        self._processes = ProcessRegistry(client, keys)
        self._lock_ms = max(1, round(settings.lock_term * 1000))
        self._lease_ttl = settings.lease_ttl
        self._retention = settings.retention
        # Seconds until no worker can hold an attempt of a job that has ended.
        self._released_after = settings.lease_ttl + settings.cancel_grace
        of_passes = (
            "jobs/lock_job",
            "jobs/unlock_or_again",
            "jobs/commit",
            "reports/acknowledge_reports",
        )
        names = (*of_passes, "jobs/command", "note_sweep", "free_slots", "forget_failed")
        self._scripts = {
            name.rpartition("/")[2]: Script(client, keys, __package__, name) for name in names
        }

    # ---- one pass over one job
    # -----------------------------------------------------------------------

    def begin(self, job: str, owner: str, groups: Sequence[str] = ()) -> Begun:
        """Take the job's lock, and move its due to the end of the lock's term.

        Args:
            groups: their attempts are read, unless they are too many.
        """
        names = list(dict.fromkeys(groups)) if len(groups) <= READ_AT_ONCE else []
        answer = self._scripts["lock_job"](
            job, owner=owner, lock_ms=self._lock_ms, groups=json.dumps(names)
        )
        kind, now = BeginAnswer(answer[0]), float(answer[1])
        if kind is not BeginAnswer.LOCKED:
            return Begun(kind, now)
        begun = Begun(kind, now, str(answer[2]), float(answer[3]), float(answer[4]))
        if not names:
            return begun
        (commit, status, schema), texts = answer[5:]
        ended = status in TERMINAL and schema == str(JOB_SCHEMA)
        return replace(
            begun, ended=ended, commit=commit, attempts=dict(zip(names, texts, strict=True))
        )

    def end(self, job: str, owner: str, *, anyway: bool = False) -> EndAnswer:
        """Release the lock, unless another pass met it busy meanwhile.

        With ``anyway`` it is released even then, and the job is due at once instead.
        """
        return EndAnswer(
            self._scripts["unlock_or_again"](
                job, owner=owner, lock_ms=self._lock_ms, anyway=int(anyway)
            )
        )

    def load(
        self,
        job: str,
        cached: JobState | None = None,
        changed: Sequence[str] | None = None,
        begun: Begun | None = None,
        *,
        bare: bool = False,
    ) -> JobState | None:
        """Return the state of a job; None if there is no such job.

        Args:
            cached: an earlier state; used again if no commit came after it.
            changed: groups whose attempts are read afresh; None for all active groups.
            begun: what was read when the pass began is not read again.
            bare: the job alone, as if no group had begun.

        Raises: NewerJob; Damaged, unless ``bare``.
        """
        keys = self._keys.of(job)
        if bare:
            job_fields = cast(dict[str, str], self._redis.hgetall(keys.job))
            return bare_state(job, job_fields) if job_fields else None
        if cached is not None and self._refresh(job, cached, changed, begun):
            return cached
        pipe = self._redis.pipeline(transaction=True)
        for key in (keys.job, keys.groups, keys.forks, keys.attempts):
            pipe.hgetall(key)
        pipe.hkeys(keys.inputs)
        pipe.hlen(keys.plans)
        fields, groups, forks, attempts, frozen, plans = pipe.execute()
        if not fields:
            return None
        state = state_of(job, fields, groups, forks, attempts, frozen)
        if state.damage:
            raise Damaged(state.damage)
        state.plans = plans
        return state

    def _refresh(
        self, job: str, cached: JobState, changed: Sequence[str] | None, begun: Begun | None
    ) -> bool:
        """Read the attempts of a cached state afresh. Returns False if a commit came after it."""
        if begun is not None and begun.attempts is not None and changed is not None:
            commit, read = begun.commit, dict(begun.attempts)
        else:
            groups = list(cached.active if changed is None else changed)
            commit, read = self._glance(job, cached, groups)
        if commit != cached.job.commit:
            return False
        for name, text in read.items():
            if text is None:
                cached.attempts.pop(name, None)
            elif name not in cached.attempts or cached.attempts[name].stored != text:
                cached.attempts[name] = AttemptRecord.from_json(text)
        return True

    def _glance(
        self, job: str, cached: JobState, groups: Sequence[str]
    ) -> tuple[str | None, dict[str, str | None]]:
        """Return the job's commit, and the stored attempts of ``groups``.

        There is no commit if plans or inputs were lost since.
        """
        keys = self._keys.of(job)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(keys.job, "commit")
        pipe.hlen(keys.plans)
        pipe.hlen(keys.inputs)
        if groups:
            pipe.hmget(keys.attempts, groups)
        commit, plans, frozen, *texts = pipe.execute()
        intact = (plans, frozen) == (cached.plans, len(cached.frozen))
        return commit if intact else None, dict(zip(groups, texts[0] if texts else (), strict=True))

    def commit(
        self, decision: Decision, commit_id: str, due_seen: str, acks: Acks, summary: str | None
    ) -> CommitAnswer:
        """Write all changes of a decision, or none if another commit came after the load."""
        old, new = decision.old, decision.job
        change = {
            "id": commit_id,
            "expect": old.commit,
            "whole": new.halted is None and new.intent is not Intent.FORCE_STOP,
            "guards": [
                {"group": g.group, "epoch": g.epoch, "nonce": g.nonce, "kind": g.kind}
                for g in decision.guards
            ],
            "job": new.changed_fields(old),
            "groups": _as_json(decision.groups),
            "inputs": decision.frozen,
            "plans": decision.plans,
            "forks": {name: json.dumps(values) for name, values in decision.collected.items()},
            "attempts": _as_json(decision.offered),
            "drop": list(decision.dropped),
            "forget": list(decision.forgotten),
            "unfreeze": list(decision.unfrozen),
            "uncollect": list(decision.uncollected),
            "instructions": decision.instructions,
            "events": [json.dumps(event, separators=(",", ":")) for event in decision.events],
            "notices": decision.notices,
            "due": _stamp(decision.due),
            "due_seen": due_seen,
            "withdrawn": [[lane, str(offer)] for offer, lane in decision.withdrawn.items()],
            **self._offers(
                decision.offers, [*decision.offers.values(), *decision.withdrawn.values()]
            ),
            **acks.to_dict(decision.ended),
            "summary": summary,
            "submitted_at": f"{old.submitted_at:.6f}",
            "expire": self._retention,
            "notify": bool(decision.instructions) or new.status in _ENDED_EARLY,
            "lease_ttl": self._lease_ttl,
            "published": _published(new) if new.status is Status.FINISHED else {},
            "ended": None,
            "published_as": f"{new.version} {new.published_at:.6f}",
            "reported_as": reported_as(new),
            "staged": None,
        }
        if new.terminal:
            change["ended"] = ended_as(new, decision.publishing)
            change["staged"] = staging_record(new, self._released_after)
        reach(Point.BEFORE_COMMIT, old.id)
        answer = self._scripts["commit"](
            old.id,
            change=json.dumps(change, separators=(",", ":")),
            consumer_group=REPORT_GROUP,
            channel=self._keys.cancel(old.id),
            status_before=self._keys.status(old.status),
            status_after=self._keys.status(new.status),
            submit_key=self._keys.submit_key(old.key),
            chain_key=self._keys.submit_key(old.chain_key),
            after=self._keys.after(""),
        )
        reach(Point.AFTER_COMMIT, old.id)
        return CommitAnswer(answer)

    def command(
        self,
        commanded: JobRecord,
        old: JobRecord,
        command_id: str,
        event: Mapping[str, Any],
        *,
        plans: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> CommitAnswer:
        """Write a command of a user. The only way in which the intent is ever written.

        Args:
            commanded: the record after the command; ``old`` is what it was judged by.
            command_id: made before the first try; it becomes the job's commit.
            plans: of groups that run otherwise from now on, as `submit` stores them.
            params: the job's parameters, if they changed.
        """
        fields = commanded.changed_fields(old)
        if params is not None:
            fields["params"] = json.dumps(dict(params))
        change = {
            "id": command_id,
            "expect": old.commit,
            "job": fields,
            "plans": dict(plans or {}),
            "event": json.dumps(dict(event), separators=(",", ":")),
        }
        answer = self._scripts["command"](old.id, change=json.dumps(change))
        reach(Point.AFTER_COMMAND, old.id)
        return CommitAnswer(answer)

    def job(self, job: str) -> JobRecord | None:
        """Return the record of a job; of a damaged record, the readable part.

        Raises: NewerJob.
        """
        fields = cast(dict[str, str], self._redis.hgetall(self._keys.of(job).job))
        return JobRecord.salvaged(job, fields) if fields else None

    def halt(
        self,
        job: str,
        reason: Reason,
        commit_id: str,
        now: float,
        tell: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        """Halt a job that cannot be decided, until a person acts.

        Nothing happens to a job that has ended, or that another pass commits at this moment.

        Args:
            tell: completes the decision with its notices.
        """
        old = self.job(job)
        if old is None or old.terminal:
            return
        line = self._redis.hget(self._keys.summary, job)
        halted = replace(old, halted=reason, status=Status.HALTED, paused_at=old.paused_at or now)
        summary = None if line is None else compact({**json.loads(str(line)), **halted.summary()})
        event = {"kind": Status.HALTED, "at": now, "code": reason.code, "text": reason.text}
        # An event only if the job was not halted before.
        events: list[dict[str, Any]] = [event] if old.status is not Status.HALTED else []
        decision = Decision(halted, old, events=events, due=now + HALTED_LOOK)
        tell(decision)
        self.commit(decision, commit_id, "", Acks(), summary)

    def acknowledge(
        self,
        job: str,
        due: float | None,
        due_seen: str,
        acks: Acks,
        offers: Mapping[Offer, str] = NO_OFFERS,
    ) -> None:
        """Ack and count the reports of a pass without changes, and set the next look at the job.

        Args:
            offers: added where they are lost, each with its lane.
        """
        offered = self._offers(offers, offers.values())
        change = {"due": _stamp(due), "due_seen": due_seen, **offered, **acks.to_dict()}
        self._scripts["acknowledge_reports"](
            job, change=json.dumps(change), consumer_group=REPORT_GROUP
        )

    def _offers(self, offers: Mapping[Offer, str], lanes: Iterable[str]) -> dict[str, Any]:
        """Return the arguments of ``add_offers.lua``."""
        places = {lane: self._place(lane) for lane in set(lanes)}
        return {"offers": [[lane, str(offer)] for offer, lane in offers.items()], "lanes": places}

    def _place(self, lane: str) -> dict[str, str]:
        queue = queue_of(lane)
        ready, notify = self._keys.ready(lane), self._keys.notify(queue)
        return {"queue": queue, "pool": pool_of(lane), "ready": ready, "notify": notify}

    # ---- the sweep
    # -----------------------------------------------------------------------------------

    def tick(self, period: float, lease_ttl: float) -> tuple[float, float]:
        """Record that the sweep is alive.

        Returns the time of Redis and the age of the record before, in seconds.
        """
        now, gap = self._scripts["note_sweep"](period=period, lease_ttl=lease_ttl)
        return float(now), float(gap)

    def silence(self) -> float:
        """Return the seconds since the last sweep."""
        at = self._redis.hget(self._keys.alive, "at")
        seconds, micros = self._redis.time()
        return seconds + micros / 1e6 - float(cast(str, at) or 0)

    def due(self, now: float, limit: int) -> list[str]:
        """Return the jobs that must be decided by ``now``, the most overdue first."""
        return cast(
            list[str], self._redis.zrangebyscore(self._keys.due, "-inf", now, start=0, num=limit)
        )

    def first_due(self, limit: int) -> tuple[float, dict[str, float]]:
        """Return the time of Redis, and the jobs that are due first, each with its time."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.time()
        pipe.zrange(self._keys.due, 0, limit - 1, withscores=True)
        (seconds, micros), due = pipe.execute()
        return seconds + micros / 1e6, dict(due)

    def forget_ended(self, now: float, limit: int = 100) -> int:
        """Drop jobs past their retention from the indexes; their own keys have expired.

        Returns how many.
        """
        ended = cast(
            list[str], self._redis.zrangebyscore(self._keys.ended, "-inf", now, start=0, num=limit)
        )
        if ended:
            # First: a process that dies in between finds the same jobs again.
            self._scripts["forget_failed"](jobs=json.dumps(ended))
            pipe = self._redis.pipeline(transaction=True)
            for status in Status:
                pipe.zrem(self._keys.status(status), *ended)
            pipe.zrem(self._keys.jobs, *ended)
            pipe.hdel(self._keys.summary, *ended)
            pipe.hdel(self._keys.retries, *ended)
            pipe.zrem(self._keys.ended, *ended)
            pipe.execute()
        return len(ended)

    def usual(self, name: str, schedule: str) -> float:
        """Return the usual seconds from the first claim of a job to its end.

        It is 0 while too few jobs of this name have FINISHED.

        Args:
            schedule: that of the job, whose runs are read; empty: the newest jobs are read.
        """
        index = self._keys.status(Status.FINISHED)
        if schedule:
            index = self._keys.of_schedule(schedule).schedule_runs
        jobs = cast(list[str], self._redis.zrevrange(index, 0, USUAL_AMONG - 1))
        texts = cast(list[str | None], self._redis.hmget(self._keys.summary, jobs)) if jobs else []
        lines = (json.loads(text) for text in texts if text)
        same = (line for line in lines if (line["name"], line["status"]) == (name, Status.FINISHED))
        newest = list(islice(same, USUAL_OF))
        took = [line["ended_at"] - line["started_at"] for line in newest if line.get("started_at")]
        return max(0.0, median(took)) if len(took) >= 3 else 0.0

    # ---- the fleet
    # -----------------------------------------------------------------------------------

    def listening(self, now: float, max_age: float) -> dict[str, list[RunnerInfo]]:
        """Return, by queue, the runners that sent a heartbeat within ``max_age`` seconds."""
        listeners: dict[str, list[RunnerInfo]] = {}
        for runner in self._processes.runners():
            for queue in runner.queues if runner.heard_at >= now - max_age else ():
                listeners.setdefault(queue, []).append(runner)
        return listeners

    def lanes(self) -> list[str]:
        """Return the lanes with offers.

        A lane that became empty is included until a runner checks it.
        """
        return cast(list[str], self._redis.zrange(self._keys.lanes, 0, -1))

    def free_slots(self) -> int:
        """Free pool slots of attempts that have ended. Returns how many."""
        any_job, start, freed = self._keys.of("\0"), 0, 0
        free = self._scripts["free_slots"]
        while True:
            looked, released = free(
                start=start,
                count=SLOTS_LOOKED_AT,
                job_key=any_job.job,
                attempts_key=any_job.attempts,
            )
            freed += released
            start += looked - released
            if looked < SLOTS_LOOKED_AT:
                return int(freed)

    def wake_ups(
        self, lanes: Iterable[str], listening: Mapping[str, Sequence[RunnerInfo]], now: float
    ) -> dict[str, int]:
        """Return how many wake-ups to send to each queue.

        There is one for each offer that may be taken, and none beyond the idle runners. Wake-ups
        that are not consumed yet count. A queue without listeners gets one, for its first listener.
        """
        names = served(lanes, listening)
        queues = sorted({*map(queue_of, names), *listening})
        listeners = chain.from_iterable(listening.values())
        runners = {runner.id: runner for runner in listeners}
        ready, waiting, room, polled = self._queued_work(names, queues, list(runners))
        offers = Counter[str]()
        for lane in names:
            offers[queue_of(lane)] += min(ready[lane], room.get(pool_of(lane), ready[lane]))
        idle = [
            runner for runner in runners.values() if idle_runner(runner, polled[runner.id], now)
        ]
        return share_wake_ups(offers, waiting, idle, listening)

    def _queued_work(
        self, lanes: Collection[str], queues: Collection[str], runners: Collection[str]
    ) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, float]]:
        """Read the ready offers of lanes, the wake-ups of queues, the room of pools, and polls.

        A poll is when a runner asked for work last; 0 if never.
        """
        keys, pools = self._keys, sorted({*map(pool_of, lanes)} - {""})
        pipe = self._redis.pipeline(transaction=False)
        for lane in lanes:
            pipe.zcard(keys.ready(lane))
        for queue in queues:
            pipe.llen(keys.queue(queue))
        for pool in pools:
            pipe.hget(keys.pools, pool)
            pipe.zlexcount(keys.pool_slots, *members_of(pool))
        if runners:
            pipe.hmget(keys.polled, list(runners))
        answers = iter(pipe.execute())
        ready = {lane: next(answers) for lane in lanes}
        waiting = {queue: next(answers) for queue in queues}
        room = {pool: max(0, int(next(answers) or 1) - next(answers)) for pool in pools}
        times = next(answers, ())
        polled = {runner: float(at or 0) for runner, at in zip(runners, times, strict=True)}
        return ready, waiting, room, polled


def _published(job: JobRecord) -> dict[str, tuple[str, int]]:
    """Return the published datasets of a job by their stored names, each with its rows."""
    published = job.published.items() if job.version else ()
    return {at_warehouse(name, job.warehouse): (name, rows) for name, rows in published}


def _stamp(due: float | None) -> str | None:
    return None if due is None else f"{due:.6f}"


def _as_json(records: Mapping[str, GroupRecord] | Mapping[str, AttemptRecord]) -> dict[str, str]:
    return {name: record.to_json() for name, record in records.items()}
