"""The notices of a schedule: from its record before a commit, and its record after it (pure).

An alert stays open until a run succeeds, so a problem is notified once, not for each retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unstuck.coordinator.model.notice import Notice, notice_id
from unstuck.coordinator.model.schedule_record import Backfill, ScheduleRecord, ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.rules.alerts import Alerting, Alerts, NoticeSubject
from unstuck.coordinator.notices.rules.late_deadlines import Deadlines, deadlines
from unstuck.coordinator.notices.rules.schedule_wording import words
from unstuck.coordinator.notices.rules.subscriptions import Subscriptions
from unstuck.coordinator.schedules.schedule_state import ScheduleState
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.spec.notify_spec import Condition, Late

Mark = str | float


def notices_of_schedule(
    subscribed: Subscriptions,
    before: ScheduleRecord,
    after: ScheduleRecord,
    view: ScheduleState,
    events: Sequence[Mapping[str, Any]],
    zone: str,
) -> Alerting:
    """Return the notices of the commit that leads from ``before`` to ``after``, with ``events``.

    Args:
        view: the state of ``after`` at the time of the commit.
        zone: time zone if neither the rule nor the schedule names one.
    """
    zone = policy_of(after.policy).zone or zone
    alerts = _ScheduleAlerts(subscribed, before, after, view, events, zone)
    alerts.runs()
    if after.status.terminal:
        alerts.ended()
    else:
        alerts.failing()
        alerts.backfill()
        alerts.lasting()
    alerts.recovered()
    return alerts.book.result()


class _ScheduleAlerts:
    def __init__(
        self,
        subscribed: Subscriptions,
        before: ScheduleRecord,
        after: ScheduleRecord,
        view: ScheduleState,
        events: Sequence[Mapping[str, Any]],
        zone: str,
    ) -> None:
        self._before, self._record, self._view, self._zone = before, after, view, zone
        self._now, self._events = view.at, events
        self._succeeded = [event for event in events if event["kind"] == "RUN_FINISHED"]
        # A run by hand has no tick, and its failure is not one of the schedule.
        self._failed = [event for event in events if _is_failure_of_tick(event)]
        subject = NoticeSubject("schedule", after.name, f"schedule:{after.name}")
        self.book = Alerts(subject, subscribed, after.alerts, view.at)

    def runs(self) -> None:
        """Notify of each successful run, and of a backfill whose ticks are all done."""
        to = self.book.subscribed.to("finished")
        for event in self._succeeded:
            job = str(event["job"])
            self._notify("finished", job, to, self._now, job=job)
        backfill = self._record.backfill
        for event in self._events:
            if event["kind"] == "BACKFILL_ENDED" and backfill is not None and not backfill.canceled:
                key = f"backfill {backfill.at}"
                self._notify("finished", key, to, backfill.at, of_backfill=True)

    def failing(self) -> None:
        """Update ``failed`` and ``halted``: a failure opens them, a success closes them."""
        if self._succeeded and not self._record.failures and self._record.halted is None:
            if self._failed and self.book.opened("failed") is None:  # both since the last decision
                event = self._failed[0]
                self._update("failed", "failed", float(event["at"]), str(event["job"]))
            self._close_after_success()
        self._halted()
        first = self._record.first_error
        if self._record.failures and first is not None:
            # Targets that know that it is HALTED are not notified of the failure as well.
            halted = self.book.opened("halted")
            self._update("failed", "failed", first.at, first.job, but=halted.to if halted else ())

    def _close_after_success(self) -> None:
        for key in self.book.open_keys():
            # Without a rule nobody else closes the alert, and it would hold back later ends.
            unsubscribed = key not in self.book.subscribed.conditions and key != "backfill"
            if unsubscribed or _ends_with_success(key):
                self.book.close(key)

    def _halted(self) -> None:
        opened, last = self.book.opened("halted"), self.book.last("halted")
        if self._record.halted is not None and (self._before.halted is None or opened is None):
            # If it was not halted before, a user ended the last halt: this is a new one.
            at = 0.0 if last is None else last.at
            self._open("halted", "halted", self._now, (*self._halted_by(), at))

    def ended(self) -> None:
        """Close all alerts of a schedule that is STOPPED, or whose last run succeeded."""
        stopped = self._record.status is ScheduleStatus.STOPPED
        if stopped or self._succeeded:
            for key in self.book.open_keys():
                if stopped or key != "backfill":
                    self.book.close(key)
        if not stopped:
            self.backfill()

    def backfill(self) -> None:
        """Update the alert of the backfill.

        FAILED is a problem until its failed ticks are done or skipped, or it is canceled.
        """
        backfill, opened = self._record.backfill, self.book.opened("backfill")
        if backfill is None or backfill.over:
            is_over = True
        elif backfill.halted is None:
            is_over = not backfill.retries
        else:
            is_over = False
            if opened is None or any(event["kind"] == "BACKFILL_FAILED" for event in self._events):
                self._open_backfill(backfill)
        if is_over and opened is not None:
            self.book.close("backfill")

    def _open_backfill(self, backfill: Backfill) -> None:
        last, to = self.book.last("backfill"), self.book.subscribed.to("failed")
        if not to:
            return
        error = backfill.last_error
        job = str(backfill.next) if error is None else error.job
        marks: tuple[Mark, ...] = (
            (backfill.at, job) if last is None else (backfill.at, job, last.at)
        )
        self.book.open("backfill", self._now, to)
        self._notify("failed", "backfill", to, self._now, marks, of_backfill=True)

    def lasting(self) -> None:
        """Update the conditions that become a problem with time."""
        for key, (condition, _) in self.book.subscribed.conditions.items():
            update = _LASTING.get(condition.word)
            if update is not None:
                update(self, key, condition)

    def recovered(self) -> None:
        """Notify of the end of problems."""
        stopped = self._record.status is ScheduleStatus.STOPPED and not self._succeeded
        for over, to, since in self.book.ended():
            alerts = [(key, self.book.last(key)) for key in over]
            marks = sorted(f"{key} {alert.at}" for key, alert in alerts if alert is not None)
            read = all(key.startswith("behind") for key in over)
            wording = "read" if read else "recovered"
            self._notify(
                "recovered",
                " ".join(over),
                to,
                since,
                marks,
                wording="stopped" if stopped else wording,
                of_backfill=over == ("backfill",),
            )

    def retrying(self, key: str, condition: Condition) -> None:
        record = self._record
        if record.status is not ScheduleStatus.RETRYING or self.book.opened(key) is not None:
            return
        tried = [(run.at, run.key(record.name)) for run in record.runs if run.trouble is not None]
        since, mark = min(tried, default=(self._now, ""))
        if record.first_error is not None:
            since, mark = record.first_error.at, record.first_error.job
        self._update(key, condition.word, min(since, self._now), mark, condition.seconds)

    def behind(self, key: str, condition: Condition) -> None:
        backlog, success = self._view.backlog, self._record.last_success
        if backlog is None or (success is not None and backlog.at <= success.at):
            return  # a run may have read it since the look
        if backlog.since and backlog.at - backlog.since >= condition.seconds:
            self._update(key, condition.word, backlog.since, str(backlog.since))
        elif self.book.opened(key) is not None:
            self.book.close(key)

    def late(self, key: str, condition: Condition) -> None:
        if not isinstance(late := condition.value, Late):
            return
        record, alert = self._record, self.book.last(key)
        deadline = deadlines(late, self._zone, self._now, record.policy)
        if deadline.next_at:
            self.book.look_by(deadline.next_at)
        success = record.last_success
        if success is not None and success.tick > deadline.counts_from:
            if self.book.opened(key) is not None:
                self.book.close(key)
            return
        notified = alert is not None and deadline.at <= alert.since <= self._now
        if deadline.asks_for > record.made_at and not notified:
            marks = (str(deadline.at),)
            self._open(key, "late", deadline.at, marks, late=late, deadline=deadline)

    def _halted_by(self) -> tuple[str, str]:
        """Return the run that halted the schedule, and the spec with which it was tried."""
        run = next((run for run in self._record.retries if run.final), None)
        return "" if run is None else run.key(self._record.name), str(self._record.set_at)

    def _update(
        self,
        key: str,
        word: str,
        since: float,
        mark: str,
        limit: float = 0.0,
        but: Sequence[str] = (),
    ) -> None:
        """Open the alert of a condition that holds, unless it is open or was so lately."""
        is_watched = key in self.book.subscribed.conditions and self.book.opened(key) is None
        if is_watched and self.book.update(key, since, limit):
            self._open(key, word, since, (mark,), but)

    def _open(
        self,
        key: str,
        word: str,
        since: float,
        marks: Sequence[Mark],
        but: Sequence[str] = (),
        late: Late | None = None,
        deadline: Deadlines | None = None,
    ) -> None:
        _, targets = self.book.subscribed.conditions.get(key, (None, ()))
        to = tuple(target for target in targets if target not in but)
        if to:
            # The same cause may open it again after its end: that is another notice.
            last = self.book.last(key)
            marks = marks if last is None else (*marks, last.over)
            self.book.open(key, since, to)
            self._notify(word, key, to, since, marks, late=late, deadline=deadline)

    def _notify(
        self,
        event: str,
        key: str,
        to: tuple[str, ...],
        since: float,
        marks: Sequence[Mark] = (),
        *,
        job: str = "",
        wording: str = "",
        of_backfill: bool = False,
        late: Late | None = None,
        deadline: Deadlines | None = None,
    ) -> None:
        if to:
            text = words(
                self._view,
                wording or event,
                job=job,
                of_backfill=of_backfill,
                late=late,
                deadline=deadline,
                zone=self._zone,
            )
            id_ = notice_id("schedule", self._record.name, event, key, *marks)
            self.book.notify(id_, event, to, since, _status(self._record, of_backfill), text)


_LASTING: Mapping[str, Callable[[_ScheduleAlerts, str, Condition], None]] = {
    "late": _ScheduleAlerts.late,
    "retrying_for": _ScheduleAlerts.retrying,
    "behind": _ScheduleAlerts.behind,
}


def _is_failure_of_tick(event: Mapping[str, Any]) -> bool:
    return event["kind"] == "RUN_FAILED" and "tick" in event


def notice_of_removal(record: ScheduleRecord, by: str, now: float) -> tuple[Notice, ...]:
    """Return the notice that ends the open alerts of a schedule that is removed."""
    open_alerts = [alert for alert in record.alerts.values() if not alert.over and alert.ends]
    if not open_alerts:
        return ()
    since = min(alert.since for alert in open_alerts)
    return (
        Notice(
            id=notice_id("schedule", record.name, "removed", record.commit, since),
            to=tuple(dict.fromkeys(target for alert in open_alerts for target in alert.ends)),
            event="recovered",
            kind="schedule",
            name=record.name,
            job="",
            problem=f"schedule:{record.name}",
            at=now,
            since=since,
            status="REMOVED",
            text=(
                f"{by} has removed it, though its problem stood: nothing of it is looked at any "
                "more"
            ),
            commands=("unstuck schedule list",),
        ),
    )


def _status(record: ScheduleRecord, of_backfill: bool) -> str:
    """Return the status that a notice carries; CANCELED for a backfill that was canceled."""
    canceled = of_backfill and record.backfill is not None and record.backfill.canceled
    return str(Status.CANCELED) if canceled else record.status


def _ends_with_success(key: str) -> bool:
    """Return whether a successful run ends the problem; lateness and backlogs end by themselves."""
    return key.partition(":")[0] in ("failed", "halted", "retrying_for")
