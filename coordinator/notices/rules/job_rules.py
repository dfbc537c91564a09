"""Of which changes of a job somebody is told (pure): from its record before a commit, and its state
after.

A problem that was told stands on the record of the job until it is over. So the problem is told
once, and its end is told to the same targets, also if another coordinator decides then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.notice import TOLD_AGAIN_AFTER, Alert, Notice, notice_id
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.coordinator.model.tick import is_by_hand
from unstuck.coordinator.notices.rules.job_wording import words
from unstuck.coordinator.spec.notify_spec import Condition, FleetRule, NotifyRule, Usual

S = GroupState


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The conditions that are watched, and the targets of each.

    Attributes:
        conditions: by key, each condition and the targets that are told of it.
        recovered: the targets that are told of the end of a problem.
    """

    conditions: Mapping[str, tuple[Condition, tuple[str, ...]]]
    recovered: frozenset[str]

    def to(self, word: str) -> tuple[str, ...]:
        """The targets of a condition without a value."""
        return self.conditions[word][1] if word in self.conditions else ()

    def ends(self, event: str, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the targets of a notice that are to be notified of the end of its
        problem.
        """
        if event in ("finished", "recovered"):
            return ()
        return tuple(target for target in to if target in self.recovered)

    def told_now(self, since: float, now: float, to: tuple[str, ...]) -> Alert:
        """A problem that is told ``now``, as it stands on the record."""
        return Alert(
            since, now, to, ends=tuple(target for target in to if target in self.recovered)
        )


@lru_cache(maxsize=1024)
def subscriptions(
    name: str, rules: tuple[NotifyRule, ...], fleet: tuple[FleetRule, ...]
) -> Subscriptions:
    """The rules of a job or schedule of this name, and those of the fleet that hold for it."""
    conditions: dict[str, tuple[Condition, tuple[str, ...]]] = {}
    recovered: set[str] = set()
    for rule in (
        *rules,
        *(
            fleet_rule
            for fleet_rule in fleet
            if any(fnmatchcase(name, glob) for glob in fleet_rule.names)
        ),
    ):
        for condition in rule.conditions:
            if condition.word == "recovered":
                recovered.update(rule.to)
                continue
            _, targets = conditions.get(condition.key, (condition, ()))
            conditions[condition.key] = condition, tuple(dict.fromkeys((*targets, *rule.to)))
    return Subscriptions(conditions, frozenset(recovered))


@dataclass(frozen=True, slots=True)
class Telling:
    """The notices of a commit of a job or a schedule.

    Attributes:
        alerts: the field `told` of its record after it.
        look_at: when the next condition may come true by itself; None: none will.
    """

    alerts: dict[str, Alert]
    notices: tuple[Notice, ...]
    look_at: float | None


def tell(
    subscribed: Subscriptions,
    before: JobRecord,
    state: JobState,
    env: Environment,
    due: float | None,
    *,
    usual: Callable[[], float] = lambda: 0.0,
    everything: bool = True,
) -> Telling:
    """Find the notices of the commit that leads from the record ``before`` to ``state``.

    A run of a schedule tells nothing of its own end: its schedule does. That its job is HALTED no
    schedule sees.

    Args:
        due: when the job is decided again.
        usual: gives the usual duration of this job in seconds; 0 while it is unknown.
        everything: all groups were looked at, so what nobody has claimed is known.
    """
    alerts = _JobAlerts(subscribed, before, state, env, due, usual)
    if state.job.terminal:
        if not before.terminal:
            alerts.end()
    else:
        alerts.halted()
        if state.job.intent is Intent.RUN and state.job.halted is None:
            alerts.look(everything)
    alerts.recovered()
    return Telling(alerts.told, tuple(alerts.notices), alerts.look_at)


class _JobAlerts:
    def __init__(
        self,
        subscribed: Subscriptions,
        before: JobRecord,
        state: JobState,
        env: Environment,
        due: float | None,
        usual: Callable[[], float],
    ) -> None:
        self._asked, self._before, self._state, self._env, self._due = (
            subscribed,
            before,
            state,
            env,
            due,
        )
        self._usual = usual
        self._job = state.job
        self.told = dict(state.job.told)
        self.notices: list[Notice] = []
        self.look_at: float | None = None
        self._over: dict[
            str, list[str]
        ] = {}  # target → keys of problems that it was told of and that are over now

    def end(self) -> None:
        """The job ends with this commit."""
        well = self._job.status is Status.FINISHED
        word = "finished" if well else "failed"
        # A run by hand has no tick, so its schedule does not report its failure.
        failed_by_hand = not well and is_by_hand(self._job.key)
        if not self._job.schedule or failed_by_hand:
            self._tell(word, word, self._asked.to(word), self._job.ended_at)
            if not well:
                self._note_failure()
        # The failure of a run is told by its schedule, as another problem.
        stays = self.told.get("failed") if not well else None
        for key in self._standing():
            # Who is told that the job has failed is not told that this is over.
            if key != "failed" or well:
                self._close(key, but=stays.to if stays else ())

    def _note_failure(self) -> None:
        """The failure stands until a retry ends well, also for who was told that the job before
        this one failed.
        """
        alert = self._asked.told_now(self._job.ended_at, self._env.now, self._asked.to("failed"))
        if (before := self.told.get("failed")) is not None:
            to, ends = (
                dict.fromkeys((*before.to, *alert.to)),
                dict.fromkeys((*before.ends, *alert.ends)),
            )
            alert = replace(alert, to=tuple(to), ends=tuple(ends))
        if alert.to:
            self.told["failed"] = alert

    def halted(self) -> None:
        """Halts end by a person's word only, so each is told."""
        job, alert = self._job, self.told.get("halted")
        if job.status is Status.HALTED and job.halted is not None:
            if alert is None or alert.over or alert.at < job.intent_at:
                self._open(
                    "halted", "halted", self._asked.to("halted"), job.paused_at, mark=job.intent_at
                )
        elif (
            alert is not None
            and not alert.over
            and job.halted is None
            and job.status is not Status.HALTED
        ):
            self._close("halted")

    def look(self, everything: bool) -> None:
        """Judge what holds for a time, of a job that goes on."""
        if self.told:
            self._unwatched(everything)
        for key, (condition, targets) in self._asked.conditions.items():
            if condition.value is None or (
                condition.word == "waiting_for_worker" and not everything
            ):
                continue
            limit = self._limit(condition)
            since, group = self._since(condition.word, limit) if limit else (0.0, "")
            alert = self.told.get(key)
            open_alert = alert if alert is not None and not alert.over else None
            if not since:
                if open_alert is not None and limit:
                    self._close(key)
                continue
            since = min(since, self._env.now)
            at = since + limit
            if open_alert is not None:
                if since > open_alert.since and at > self._env.now:
                    self._close(key)
                    self._look_by(max(at, open_alert.at + TOLD_AGAIN_AFTER))
                continue
            if alert is not None and alert.at <= self._env.now:  # else the clock was set back since
                at = max(at, alert.at + TOLD_AGAIN_AFTER)
            if at <= self._env.now:
                self._open(
                    key, condition.word, targets, since, mark=since, group=group, usual=limit
                )
            else:
                self._look_by(at)

    def _unwatched(self, everything: bool) -> None:
        """Judge the end of problems of which no rule tells any more."""
        for key in self._standing():
            word = key.partition(":")[0]
            if key in self._asked.conditions or word not in ("retrying_for", "waiting_for_worker"):
                continue
            if word == "retrying_for" or everything:
                since, _ = self._since(word, 0.0)
                if not since or since > self.told[key].since:
                    self._close(key)

    def recovered(self) -> None:
        """Problems are over, and none that the same target was told of stands."""
        ends: dict[tuple[str, ...], list[str]] = {}
        for target, keys in self._over.items():
            if not any(target in self.told[key].to for key in self._standing()):
                ends.setdefault(tuple(keys), []).append(target)
        for over, targets in ends.items():
            since = min(
                (self.told[key].since for key in over if key in self.told),
                default=self._job.submitted_at,
            )
            self._tell("recovered", " ".join(over), tuple(targets), since, mark=since, over=over)

    def _limit(self, condition: Condition) -> float:
        """Seconds; 0 while they are unknown."""
        if isinstance(condition.value, Usual):
            return condition.value.times * self._usual() if self._job.counted_from else 0.0
        return condition.value if isinstance(condition.value, float) else 0.0

    def _since(self, word: str, limit: float) -> tuple[float, str]:
        """Since when the condition of ``word`` holds, and for which group; 0 while it does not."""
        if word == "running_for":
            return self._job.counted_from, ""
        if word == "retrying_for":
            return self._retrying_since()
        return self._waiting_since(limit) if word == "waiting_for_worker" else (0.0, "")

    def _retrying_since(self) -> tuple[float, str]:
        if self._state.recovering:
            return min(
                (self._state.groups[group].troubled_since, group)
                for group in self._state.recovering
            )
        return self._job.publish_troubled_since if self._job.phase else 0.0, ""

    def _waiting_since(self, limit: float) -> tuple[float, str]:
        """Since when a queue of which the job has an offer has taken nothing of it, and the oldest
        offer there.
        """
        state, oldest = self._state, dict[str, tuple[float, str]]()
        for group in state.by_state[S.QUEUED]:
            attempt = state.attempts.get(group)
            if attempt is None or not attempt.claimant:
                queue, offer = self._queue(group), (state.groups[group].since, group)
                oldest[queue] = min(oldest.get(queue, offer), offer)
        for group in (*state.by_state[S.RUNNING], *state.by_state[S.CANCELING]):
            oldest.pop(self._queue(group), None)
        if oldest and min(oldest.values())[0] + limit <= self._env.now:
            # Before an offer is told, so that one that stood behind others is not: when something
            # ended there last.
            for group, record in state.groups.items():
                if (
                    record.epoch
                    and record.state is not S.QUEUED
                    and (queue := self._queue(group)) in oldest
                ):
                    since, first = oldest[queue]
                    oldest[queue] = max(since, record.since), first
        return min(oldest.values(), default=(0.0, ""))

    def _queue(self, group: str) -> str:
        return self._state.planned(group).spec.queue_name

    def _standing(self) -> list[str]:
        return [key for key, alert in self.told.items() if not alert.over]

    def _look_by(self, at: float) -> None:
        self.look_at = at if self.look_at is None else min(self.look_at, at)

    def _open(
        self,
        key: str,
        word: str,
        targets: tuple[str, ...],
        since: float,
        *,
        mark: float,
        group: str = "",
        usual: float = 0.0,
    ) -> None:
        if targets:
            self.told[key] = self._asked.told_now(since, self._env.now, targets)
            self._tell(word, key, targets, since, mark=mark, group=group, limit=usual)

    def _close(self, key: str, but: Sequence[str] = ()) -> None:
        alert = self.told[key]
        self.told[key] = replace(alert, over=self._env.now)
        for target in alert.told_of_end(self._asked.recovered):
            if target not in but:
                self._over.setdefault(target, []).append(key)

    def _tell(
        self,
        event: str,
        key: str,
        targets: tuple[str, ...],
        since: float,
        *,
        mark: float = 0.0,
        group: str = "",
        limit: float = 0.0,
        over: Sequence[str] = (),
    ) -> None:
        if not targets:
            return
        job = self._job
        root = job.adopts[-1] if job.adopts else job.id
        wording = words(
            self._state, self._env, self._due, event, group=group, limit=limit, over=over
        )
        self.notices.append(
            Notice(
                id=notice_id(job.id, event, key, mark),
                to=targets,
                event=event,
                kind="job",
                name=job.name,
                job=job.id,
                problem=f"job:{root}",
                at=self._env.now,
                since=since,
                status=job.status,
                text=wording.text,
                first_error=wording.first_error,
                next=wording.next,
                commands=wording.commands,
                ends=self._asked.ends(event, targets),
            )
        )
