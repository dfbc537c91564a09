"""Of which changes of a schedule somebody is told (pure): from its record before a commit and after
it.

A problem that was told stands on the record until a run ends well, so it is told once, not for each
retry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unstuck.coordinator.model.notice import TOLD_AGAIN_AFTER, Notice, notice_id
from unstuck.coordinator.model.schedule_record import ScheduleRecord, ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.rules.job_rules import Subscriptions, Telling
from unstuck.coordinator.notices.rules.late_deadlines import Deadlines, deadlines
from unstuck.coordinator.notices.rules.schedule_wording import words
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.coordinator.spec.notify_spec import Condition, Late


def tell_of_schedule(
    subscribed: Subscriptions,
    before: ScheduleRecord,
    after: ScheduleRecord,
    view: ScheduleView,
    events: Sequence[Mapping[str, Any]],
    zone: str,
) -> Telling:
    """Judge the commit that leads from ``before`` to ``after``, which ``view`` shows, with
    ``events``.

    Args:
        zone: of local times, where neither the rule nor the schedule names one.
    """
    alerts = _ScheduleAlerts(
        subscribed, before, after, view, events, view.schedule.policy.zone or zone
    )
    alerts.runs()
    if after.status.terminal:
        alerts.ended()
    else:
        alerts.failing()
        alerts.backfill()
        alerts.waiting()
    alerts.recovered()
    return Telling(alerts.told, tuple(alerts.notices), alerts.look_at)


class _ScheduleAlerts:
    def __init__(
        self,
        subscribed: Subscriptions,
        before: ScheduleRecord,
        after: ScheduleRecord,
        view: ScheduleView,
        events: Sequence[Mapping[str, Any]],
        zone: str,
    ) -> None:
        self._asked, self._before, self._view, self._zone = subscribed, before, view, zone
        self._record, self._now = after, view.at
        self._runs = {
            "RUN_FINISHED": [event for event in events if event["kind"] == "RUN_FINISHED"],
            # A run by hand has no tick, and its failure is none of the schedule.
            "RUN_FAILED": [
                event for event in events if event["kind"] == "RUN_FAILED" and "tick" in event
            ],
        }
        self._backfill_failed = any(event["kind"] == "BACKFILL_FAILED" for event in events)
        self._events = events
        self.told = dict(after.told)
        self.notices: list[Notice] = []
        self.look_at: float | None = None
        self._over: list[str] = []

    def runs(self) -> None:
        """Notify of each run that ended well, and of a backfill whose ticks are all done."""
        for event in self._runs["RUN_FINISHED"]:
            self._tell(
                "finished",
                str(event["job"]),
                self._asked.to("finished"),
                self._now,
                job=str(event["job"]),
            )
        backfill = self._record.backfill
        for event in self._events:
            if event["kind"] == "BACKFILL_ENDED" and backfill is not None and not backfill.canceled:
                key = f"backfill {backfill.at}"
                self._tell(
                    "finished", key, self._asked.to("finished"), backfill.at, of_backfill=True
                )

    def failing(self) -> None:
        """Judge failures: a problem begins with the first one, and ends when a run ends well."""
        record, before, failed = self._record, self._before, self._runs["RUN_FAILED"]
        if self._runs["RUN_FINISHED"] and not record.failures and record.halted is None:
            if failed and not self._stands("failed"):  # it failed and ended well within one look
                self._open("failed", "failed", float(failed[0]["at"]), str(failed[0]["job"]))
            for key in self._standing():
                # What no rule watches any more would otherwise stand for ever, and keep each later
                # end from being told.
                if _ends_with_success(key) or (
                    key != "backfill" and key not in self._asked.conditions
                ):
                    self._close(key)
        if record.halted is not None and (before.halted is None or not self._stands("halted")):
            # It was not halted before: a person's word has ended that, and it is told anew.
            last = self.told.get("halted")
            self._open(
                "halted",
                "halted",
                self._now,
                *self._halted_by(),
                last.at if last else 0.0,
                again=True,
            )
        if record.failures and record.first_error is not None:
            # Who is told that it is HALTED, which no run has mended yet, is not told of the failure
            # as well.
            halted = self.told["halted"].to if self._stands("halted") else ()
            self._open(
                "failed", "failed", record.first_error.at, record.first_error.job, but=halted
            )

    def ended(self) -> None:
        """The schedule has ended: nothing of it is a problem any more if its last run ended well,
        or it was STOPPED.
        """
        stopped = self._record.status is ScheduleStatus.STOPPED
        if stopped or self._runs["RUN_FINISHED"]:
            for key in self._standing():
                if stopped or key != "backfill":
                    self._close(key)
        if not stopped:
            self.backfill()

    def backfill(self) -> None:
        """Judge the backfill: FAILED is a problem until its failed ticks are done or skipped, or it
        is canceled.
        """
        backfill, to = self._record.backfill, self._asked.to("failed")
        if backfill is not None and backfill.halted is not None and not backfill.over:
            if to and (self._backfill_failed or not self._stands("backfill")):
                failed = (
                    backfill.last_error.job
                    if backfill.last_error is not None
                    else str(backfill.next)
                )
                last = self.told.get("backfill")
                before = () if last is None else (last.at,)
                self.told["backfill"] = self._asked.told_now(self._now, self._now, to)
                self._tell(
                    "failed",
                    "backfill",
                    to,
                    self._now,
                    backfill.at,
                    failed,
                    *before,
                    of_backfill=True,
                )
        elif self._stands("backfill") and (
            backfill is None or backfill.over or not backfill.retries
        ):
            self._close("backfill")

    def waiting(self) -> None:
        """Judge what holds for a time, and deadlines."""
        for key, (condition, _) in self._asked.conditions.items():
            if isinstance(condition.value, Late):
                self._late(key, condition.value)
            elif condition.word == "retrying_for":
                self._retrying(key, condition)
            elif condition.word == "behind":
                self._behind(key, condition)

    def recovered(self) -> None:
        """Problems are over, and none that the same target was told of stands."""
        if not self._over:
            return
        alerted = {target for alert in self.told.values() if not alert.over for target in alert.to}
        recovered = self._asked.recovered
        targets = dict.fromkeys(
            target for key in self._over for target in self.told[key].told_of_end(recovered)
        )
        to = tuple(target for target in targets if target not in alerted)
        since = min(self.told[key].since for key in self._over)
        began = sorted(f"{key} {self.told[key].at}" for key in self._over)
        stopped = self._record.status is ScheduleStatus.STOPPED and not self._runs["RUN_FINISHED"]
        of = "read" if all(key.startswith("behind") for key in self._over) else "recovered"
        of = "stopped" if stopped else of
        self._tell(
            "recovered",
            " ".join(self._over),
            to,
            since,
            *began,
            wording_event=of,
            of_backfill=self._over == ["backfill"],
        )

    def _retrying(self, key: str, condition: Condition) -> None:
        record, limit = self._record, condition.seconds
        if record.status is not ScheduleStatus.RETRYING:
            return
        tried = [run for run in record.runs if run.trouble is not None]
        since, mark = (
            min((run.at, run.key(record.name)) for run in tried) if tried else (self._now, "")
        )
        if record.first_error is not None:
            since, mark = record.first_error.at, record.first_error.job
        since = min(since, self._now)
        if self._now < since + limit:
            self._look_by(since + limit)
        else:
            self._open(key, condition.word, since, mark)

    def _behind(self, key: str, condition: Condition) -> None:
        backlog, well, limit = self._view.backlog, self._record.last_success, condition.seconds
        if backlog is None or (well is not None and backlog.at <= well.at):
            return  # what it saw may have been read since
        if backlog.since and backlog.at - backlog.since >= limit:
            self._open(key, condition.word, backlog.since, str(backlog.since))
        elif self._stands(key):
            self._close(key)

    def _late(self, key: str, late: Late) -> None:
        record, alert = self._record, self.told.get(key)
        deadline = deadlines(late, self._zone, self._now, record.policy)
        if deadline.next_at:
            self._look_by(deadline.next_at)
        well = record.last_success
        if well is not None and well.tick > deadline.counts_from:
            if self._stands(key):
                self._close(key)
        elif deadline.asks_for > record.made_at and (
            alert is None or not deadline.at <= alert.since <= self._now
        ):
            self._open(
                key, "late", deadline.at, str(deadline.at), again=True, late=late, deadline=deadline
            )

    def _halted_by(self) -> tuple[str, str]:
        """The run for which it is halted, and the spec with which it was tried."""
        run = next((run for run in self._record.retries if run.final), None)
        return "" if run is None else run.key(self._record.name), str(self._record.set_at)

    def _standing(self) -> list[str]:
        return [key for key, alert in self.told.items() if not alert.over]

    def _stands(self, key: str) -> bool:
        return key in self.told and not self.told[key].over

    def _look_by(self, at: float) -> None:
        self.look_at = at if self.look_at is None else min(self.look_at, at)

    def _open(
        self,
        key: str,
        word: str,
        since: float,
        *marks: str | float,
        again: bool = False,
        but: Sequence[str] = (),
        late: Late | None = None,
        deadline: Deadlines | None = None,
    ) -> None:
        """A problem stands: it is told, unless it was already, or a short while ago; ``again``: in
        any case.
        """
        if key not in self._asked.conditions:
            return
        last = self.told.get(key)
        if last is not None and not again:
            if not last.over:
                return
            if last.at <= self._now < last.at + TOLD_AGAIN_AFTER:
                self._look_by(last.at + TOLD_AGAIN_AFTER)
                return
        targets = tuple(target for target in self._asked.conditions[key][1] if target not in but)
        if not targets:
            return
        self.told[key] = self._asked.told_now(since, self._now, targets)
        # What caused it before may cause it again, after its end: that is another notice.
        before = () if last is None else (last.over,)
        self._tell(word, key, targets, since, *marks, *before, late=late, deadline=deadline)

    def _close(self, key: str) -> None:
        self.told[key] = replace(self.told[key], over=self._now)
        self._over.append(key)

    def _tell(
        self,
        event: str,
        key: str,
        to: tuple[str, ...],
        since: float,
        *marks: str | float,
        job: str = "",
        wording_event: str = "",
        of_backfill: bool = False,
        late: Late | None = None,
        deadline: Deadlines | None = None,
    ) -> None:
        if not to:
            return
        record = self._record
        more: dict[str, Any] = {"late": late, "deadline": deadline, "zone": self._zone}
        wording = words(
            self._view, wording_event or event, job=job, of_backfill=of_backfill, **more
        )
        self.notices.append(
            Notice(
                id=notice_id("schedule", record.name, event, key, *marks),
                to=to,
                event=event,
                kind="schedule",
                name=record.name,
                job=job or wording.job,
                problem=f"schedule:{record.name}",
                at=self._now,
                since=since,
                status=_status(record, of_backfill),
                text=wording.text,
                first_error=wording.first_error,
                next=wording.next,
                commands=wording.commands,
                ends=self._asked.ends(event, to),
            )
        )


def told_of_removal(record: ScheduleRecord, by: str, now: float) -> tuple[Notice, ...]:
    """The end of what stands of a schedule that is removed, to those who asked to be told of it:
    nobody else could.
    """
    open_alerts = [alert for alert in record.told.values() if not alert.over and alert.ends]
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
    """Return the status that a notice carries; CANCELED if the backfill that it reports was
    canceled.
    """
    canceled = of_backfill and record.backfill is not None and record.backfill.canceled
    return str(Status.CANCELED) if canceled else record.status


def _ends_with_success(key: str) -> bool:
    """Whether a run that ends well ends the problem; lateness and backlogs have ends of their
    own.
    """
    return key.partition(":")[0] in ("failed", "halted", "retrying_for")
