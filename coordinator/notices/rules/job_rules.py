"""The notices of a job: from its record before a commit, and its state after it (pure)."""

from __future__ import annotations

from collections.abc import Callable

from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.notice import notice_id
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, Status
from unstuck.coordinator.model.tick import is_by_hand
from unstuck.coordinator.notices.rules.alerts import Alerting, Alerts, NoticeSubject
from unstuck.coordinator.notices.rules.job_wording import words
from unstuck.coordinator.notices.rules.subscriptions import Subscriptions
from unstuck.coordinator.problems.job_conditions import JOB_CONDITIONS, NEVER, Onset
from unstuck.coordinator.spec.notify_spec import Condition, Usual


def notices_of_job(
    subscribed: Subscriptions,
    before: JobRecord,
    state: JobState,
    env: Environment,
    due: float | None,
    *,
    usual: Callable[[], float] = lambda: 0.0,
    everything: bool = True,
) -> Alerting:
    """Return the notices of the commit that leads from the record ``before`` to ``state``.

    A schedule reports the end of its runs, but not that a run is HALTED.

    Args:
        due: when the job is decided again.
        usual: returns the usual duration of this job in seconds; 0 if unknown.
        everything: whether all groups were checked, so that all unclaimed groups are known.
    """
    alerts = _JobAlerts(subscribed, state, env, due, usual, everything)
    if not state.job.terminal:
        alerts.halted()
        if state.job.intent is Intent.RUN and state.job.halted is None:
            alerts.lasting()
    elif not before.terminal:
        alerts.end()
    alerts.recovered()
    return alerts.book.result()


class _JobAlerts:
    def __init__(
        self,
        subscribed: Subscriptions,
        state: JobState,
        env: Environment,
        due: float | None,
        usual: Callable[[], float],
        everything: bool,
    ) -> None:
        self._state, self._env, self._due, self._usual = state, env, due, usual
        self._job, self._everything = state.job, everything
        root = state.job.adopts[-1] if state.job.adopts else state.job.id
        subject = NoticeSubject("job", state.job.name, f"job:{root}")
        self.book = Alerts(subject, subscribed, state.job.alerts, env.now)

    def end(self) -> None:
        """Notify of the end of the job, and close its alerts.

        The alert of a failure stays open until a retry succeeds. Its targets are not notified that
        other problems are over.
        """
        well = self._job.status is Status.FINISHED
        word = "finished" if well else "failed"
        # A run by hand has no tick, so its schedule does not report its failure.
        reported_by_schedule = self._job.schedule and (well or not is_by_hand(self._job.key))
        if not reported_by_schedule:
            self._notify(word, word, self.book.subscribed.to(word), self._job.ended_at)
            if not well:
                self._open_failure()
        failure = self.book.last("failed")
        but = () if well or failure is None else failure.to
        for key in self.book.open_keys():
            if key != "failed" or well:
                self.book.close(key, but=but)

    def _open_failure(self) -> None:
        """Open the alert of the failure, also for the targets of the job before this retry."""
        before, to = self.book.last("failed"), self.book.subscribed.to("failed")
        earlier, ends = ((), ()) if before is None else (before.to, before.ends)
        if to or earlier:
            self.book.open("failed", self._job.ended_at, dict.fromkeys((*earlier, *to)), ends)

    def halted(self) -> None:
        """Notify of each halt, because only a user can end it."""
        job, opened = self._job, self.book.opened("halted")
        shown, halted = job.status is Status.HALTED, job.halted is not None
        if shown and halted and (opened is None or opened.at < job.intent_at):
            self._open("halted", "halted", job.paused_at, job.intent_at)
        elif opened is not None and not (shown or halted):
            self.book.close("halted")

    def lasting(self) -> None:
        """Update the conditions that become a problem with time."""
        self._close_unsubscribed()
        for key, (condition, _) in self.book.subscribed.conditions.items():
            detect = JOB_CONDITIONS.get(condition.word)
            limit = self._limit(condition)
            if detect is None or not limit or not self._is_known(condition.word):
                continue
            since, group = detect(self._state, limit, self._env.now)
            since = min(since, self._env.now)
            if self.book.update(key, since, limit):
                self._open(key, condition.word, since, since, (since, group), limit)

    def _close_unsubscribed(self) -> None:
        """Close alerts whose condition is in no rule any more, once it is over."""
        for key in self.book.open_keys():
            word = key.partition(":")[0]
            if key in self.book.subscribed.conditions or word not in JOB_CONDITIONS:
                continue
            if word != "running_for" and self._is_known(word):
                since, _ = JOB_CONDITIONS[word](self._state, 0.0, self._env.now)
                alert = self.book.opened(key)
                if alert is not None and (not since or since > alert.since):
                    self.book.close(key)

    def _is_known(self, word: str) -> bool:
        return self._everything or word != "waiting_for_worker"

    def recovered(self) -> None:
        """Notify of the end of problems."""
        for over, targets, since in self.book.ended():
            self._notify("recovered", " ".join(over), targets, since, since, over=over)

    def _limit(self, condition: Condition) -> float:
        """Return the limit in seconds; 0 while it is unknown."""
        if isinstance(condition.value, Usual):
            return condition.value.times * self._usual() if self._job.counted_from else 0.0
        return condition.seconds

    def _open(
        self,
        key: str,
        word: str,
        since: float,
        mark: float,
        onset: Onset = NEVER,
        limit: float = 0.0,
    ) -> None:
        _, to = self.book.subscribed.conditions.get(key, (None, ()))
        if to:
            self.book.open(key, since, to)
            self._notify(word, key, to, since, mark, group=onset[1], limit=limit)

    def _notify(
        self,
        event: str,
        key: str,
        to: tuple[str, ...],
        since: float,
        mark: float = 0.0,
        *,
        group: str = "",
        limit: float = 0.0,
        over: tuple[str, ...] = (),
    ) -> None:
        if to:
            job = self._job
            text = words(
                self._state, self._env, self._due, event, group=group, limit=limit, over=over
            )
            id_ = notice_id(job.id, event, key, mark)
            self.book.notify(id_, event, to, since, job.status, text)
