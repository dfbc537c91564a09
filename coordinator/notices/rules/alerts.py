"""The alerts of one subject, each with a notice when it opens and when it closes (pure).

Open alerts are stored with the record of the subject, so any coordinator notifies of each problem
and each end once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from unstuck.coordinator.model.notice import TOLD_AGAIN_AFTER, Alert, Notice
from unstuck.coordinator.notices.rules.job_wording import Words
from unstuck.coordinator.notices.rules.subscriptions import Subscriptions


@dataclass(frozen=True, slots=True)
class Alerting:
    """The notices of a commit.

    Attributes:
        alerts: the alerts to store with the record.
        look_at: when the next condition may become a problem without an event; None if none will.
    """

    alerts: dict[str, Alert]
    notices: tuple[Notice, ...]
    look_at: float | None


@dataclass(frozen=True, slots=True)
class NoticeSubject:
    """The fields that all notices of a subject share; see `Notice`."""

    kind: str
    name: str
    problem: str


class Alerts:
    """The alerts of ``subject`` by condition, in one commit at ``now``."""

    def __init__(
        self,
        subject: NoticeSubject,
        subscribed: Subscriptions,
        alerts: Mapping[str, Alert],
        now: float,
    ) -> None:
        self.subscribed, self.now = subscribed, now
        self._subject, self._alerts = subject, dict(alerts)
        self._closed: dict[str, list[str]] = {}  # target → keys of the alerts closed for it
        self._notices: list[Notice] = []
        self._look_at: float | None = None

    def result(self) -> Alerting:
        """Return the alerts and notices to commit."""
        return Alerting(self._alerts, tuple(self._notices), self._look_at)

    def last(self, key: str) -> Alert | None:
        """Return the newest alert of a condition, open or closed."""
        return self._alerts.get(key)

    def opened(self, key: str) -> Alert | None:
        """Return the open alert of a condition."""
        alert = self._alerts.get(key)
        return None if alert is None or alert.over else alert

    def open_keys(self) -> list[str]:
        """Return the conditions with an open alert."""
        return [key for key, alert in self._alerts.items() if not alert.over]

    def open(self, key: str, since: float, to: Collection[str], ends: Collection[str] = ()) -> None:
        """Open an alert whose targets are notified now; ``ends``: also notify these of its end."""
        recovered = {*ends, *self.subscribed.recovered}
        asked_for_end = tuple(target for target in to if target in recovered)
        self._alerts[key] = Alert(since, self.now, tuple(to), ends=asked_for_end)

    def close(self, key: str, but: Collection[str] = ()) -> None:
        """Close an alert; the targets in ``but`` are not notified of the end."""
        alert = self._alerts[key]
        self._alerts[key] = replace(alert, over=self.now)
        for target in alert.targets_of_end(self.subscribed.recovered):
            if target not in but:
                self._closed.setdefault(target, []).append(key)

    def update(self, key: str, since: float, limit: float = 0.0) -> bool:
        """Bring the alert of a condition up to date. Returns whether to open it now.

        A condition that recurs is notified again after `TOLD_AGAIN_AFTER` at the earliest.

        Args:
            since: since when the condition holds; 0 if it does not.
            limit: seconds for which it may hold without a notice.
        """
        alert, is_open = self.last(key), self.opened(key) is not None
        at = min(since, self.now) + limit  # the clock may have been set back
        if not since or alert is None:
            if is_open:
                self.close(key)
            return bool(since) and self._is_due(at)
        if is_open:
            if since > alert.since and at > self.now:  # it ended and came back unseen
                self.close(key)
                self.look_by(max(at, alert.at + TOLD_AGAIN_AFTER))
            return False
        if alert.at <= self.now:  # otherwise the clock was set back
            at = max(at, alert.at + TOLD_AGAIN_AFTER)
        return self._is_due(at)

    def _is_due(self, at: float) -> bool:
        if at > self.now:
            self.look_by(at)
        return at <= self.now

    def look_by(self, at: float) -> None:
        """Check the subject again at ``at`` at the latest."""
        self._look_at = at if self._look_at is None else min(self._look_at, at)

    def ended(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], float]]:
        """Yield the keys of closed alerts, the targets to notify of their end, and their start.

        A target with another open alert is not notified yet.
        """
        busy = {target for key in self.open_keys() for target in self._alerts[key].to}
        targets_by_keys: dict[tuple[str, ...], list[str]] = {}
        for target, closed in self._closed.items():
            if target not in busy:
                targets_by_keys.setdefault(tuple(closed), []).append(target)
        for keys, targets in targets_by_keys.items():
            yield keys, tuple(targets), min(self._alerts[key].since for key in keys)

    def notify(
        self,
        notice_id: str,
        event: str,
        to: tuple[str, ...],
        since: float,
        status: str,
        words: Words,
    ) -> None:
        """Write a notice."""
        self._notices.append(
            Notice(
                id=notice_id,
                to=to,
                event=event,
                kind=self._subject.kind,
                name=self._subject.name,
                job=words.job,
                problem=self._subject.problem,
                at=self.now,
                since=since,
                status=status,
                text=words.text,
                first_error=words.first_error,
                next=words.next,
                commands=words.commands,
                ends=self.subscribed.ends(event, to),
            )
        )
