"""A store of schedules that is two: the model, and the real store and scripts on a real Valkey,
call by call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import redis

from tests.simulation.model.mirror import AGREE, CLOCK, ClockedRedis
from tests.simulation.rules.broken import Broken
from tests.simulation.schedules.store import ModelSchedules
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.answers import CommitAnswer, ScheduleChanged, Submission
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.coordinator.store.submissions import Submissions
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings

KEYS = Keys("mirrored-schedules")


class MirroredSchedules(ModelSchedules):
    """The model, and beside it the real store. ``client`` must decode responses; its server is
    emptied.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        client: ClockedRedis,
        bytes_client: redis.Redis,
        compared: Callable[[str], None],
    ) -> None:
        """``compared``: is told of every answer that was the same."""
        super().__init__(clock)
        self._redis, self._bytes, self._compared = client, bytes_client, compared
        self._seen: dict[str, str] = {}  # dues as the model writes them → as Redis does
        client.flushall()
        self._real = ScheduleStore(client, KEYS)
        self._jobs_store = Store(Settings(prefix="mirrored-schedules"), client)
        self._submissions = Submissions(client, KEYS)

    def _set_real_clock(self) -> None:
        now = self.now
        self._redis.hset(CLOCK, mapping={"s": int(now), "us": round((now - int(now)) * 1e6)})

    def _same(self, what: str, model: Any, real: Any) -> None:
        if model != real:
            raise Broken(AGREE, f"{what}: the model answers {model}, the real store {real}")
        self._compared(f"{what}: {model}")

    def _compare(self, name: str) -> None:
        """What stands of a schedule is the same on both."""
        stored, keys = self.schedules[name], KEYS.of_schedule(name)
        pairs = {
            "record": (self.load(name), self._real.load(name)),
            "due": (self.due.get(name), self._redis.zscore(KEYS.schedules_due, name)),
            "runs": (
                stored.runs,
                dict(self._redis.zrange(keys.schedule_runs, 0, -1, withscores=True)),
            ),
            "ticks": (self.ticks(name, 0.0), self._real.ticks(name, 0.0)),
            "outbox": (
                self.outbox,
                [fields["notice"] for _, fields in self._redis.xrange(KEYS.outbox)],
            ),
            "events": (stored.events[-20:], self._real.events(name, 20)),
        }
        for what, (model, real) in pairs.items():
            if model != real:
                raise Broken(
                    AGREE, f"the {what} of {name}: {model} in the model, {real} in the real store"
                )

    def remember(self) -> Callable[[], None]:
        restore = super().remember()
        keys: Any = self._bytes.keys()
        dumped = {key: self._bytes.dump(key) for key in keys}

        def restore_both() -> None:
            restore()
            self._bytes.flushall()
            for key, data in dumped.items():
                self._bytes.restore(key, 0, data)

        return restore_both

    def tick(self, period: float) -> None:
        self._set_real_clock()
        super().tick(period)
        self._jobs_store.tick(period, 15.0)
        for name in self.schedules:
            self._compare(name)

    def repair(self) -> int:
        self._set_real_clock()
        model, real = super().repair(), self._real.repair()
        self._same("repair", model, real)
        return model

    def lose_due(self, name: str) -> None:
        super().lose_due(name)
        self._redis.zrem(KEYS.schedules_due, name)

    def forget_runs(self, name: str, keep: int) -> int:
        self._set_real_clock()
        model, real = super().forget_runs(name, keep), self._real.forget_runs(name, keep)
        self._same("forget runs", model, real)
        return model

    def submit(self, job: JobRecord, fingerprint: str, expect: str) -> tuple[str, bool] | None:
        self._set_real_clock()
        model = super().submit(job, fingerprint, expect)
        real: tuple[str, bool] | None = None
        with suppress(ScheduleChanged):
            real = self._submissions.submit(
                Submission(job, {}, {}, fingerprint), "{}", expect=expect
            )
        self._same(
            "submit",
            model and (model[0] == job.id, model[1]),
            real and (real[0] == job.id, real[1]),
        )
        return model

    def take_due(self, term: float) -> tuple[float, dict[str, str]]:
        self._set_real_clock()
        model, (wait, real) = super().take_due(term), self._real.take_due(term)
        alike = wait == model[0] or abs(wait - model[0]) < 1e-5
        if not alike or model[1] != {name: repr(float(due)) for name, due in real.items()}:
            raise Broken(AGREE, f"due are {model} in the model, {(wait, real)} in the real store")
        self._seen.update(zip(model[1].values(), real.values(), strict=True))
        self._compared(f"take due: {len(real)}")
        return model

    def commit(self, change: ScheduleChange) -> CommitAnswer:
        self._set_real_clock()
        real = self._real.commit(replace(change, due_seen=self._seen.get(change.due_seen, "")))
        model = super().commit(change)
        self._same("commit", model, real)
        if change.record.name in self.schedules:
            self._compare(change.record.name)
        return model

    def end_job(
        self, job_id: str, status: Status, version: int, reason: Reason | None, left: int
    ) -> None:
        super().end_job(job_id, status, version, reason, left)
        self._redis.hset(KEYS.of(job_id).job, "status", status)

    def due_now(self, name: str) -> None:
        super().due_now(name)
        self._redis.zadd(KEYS.schedules_due, {name: self.now}, xx=True, lt=True)
