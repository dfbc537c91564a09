"""Sends notices in one thread per target, so that a target that hangs delays nothing else.

A notice is sent at least once, with its id. After an hour of tries it becomes a dead letter with
its reason.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import replace

import redis

from unstuck.coordinator.decide.timers.backoff import AWAY_WAIT, Uniform, doubled, random_wait
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.channels.channel import (
    LONGEST_ANSWER,
    Message,
    SendFailed,
    shortened,
)
from unstuck.coordinator.notices.message import digest_of, message_of
from unstuck.coordinator.notices.open_problems import ForgottenProblems, OpenProblems
from unstuck.coordinator.notices.outbox import Outbox, TakenNotice, TryEnd
from unstuck.coordinator.notices.setting import NotifySetting
from unstuck.tasks.log_lines import about
from unstuck.tasks.process.call_deadlines import call_in_thread
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
LOOK = 1.0  # seconds between two checks for notices to retry
FIRST_WAIT, LONGEST_WAIT = 2.0, 120.0  # seconds until a notice is tried again
MARGIN = 5.0  # seconds beyond the timeout of a target, after which another coordinator sends
LATE = 2.0  # of them: for what a channel does beside its waits, such as killing a command
CROWDED_AT = 10  # notices within a minute, after which people get digests
MAX_DIGEST = 50  # notices
LAST_SENDING = 4.0  # seconds for what is being sent when the coordinator stops


class Sender:
    """The sender of one coordinator. ``clock``: Unix seconds, sent to receivers as the time."""

    def __init__(
        self,
        outbox: Outbox,
        setting: NotifySetting,
        mint: Callable[[], str],
        known_elsewhere: Callable[[], Collection[str] | None] = frozenset,
        clock: Callable[[], float] = time.time,
        uniform: Uniform = random.uniform,
        problems: OpenProblems | None = None,
        forgotten: ForgottenProblems | None = None,
    ) -> None:
        """Create the sender.

        Args:
            known_elsewhere: targets that other coordinators know, which are left to them.
            problems: records which problems were sent; None: not recorded.
            forgotten: sends the end of problems that Redis has forgotten; None: not sent.
        """
        self._problems, self._forgotten = problems, forgotten
        self._outbox, self._setting, self._mint, self._clock, self._uniform = (
            outbox,
            setting,
            mint,
            clock,
            uniform,
        )
        self._known_elsewhere = known_elsewhere
        self._wake: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        # A send to this target that did not end in time.
        self._hanging: dict[str, Future[str]] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        """Send until ``stopping`` is set, then finish active sends.

        An error here never delays a decision.

        """
        failures = 0
        while not self.stopping.is_set():
            try:
                self.look()
                if self._forgotten is not None:
                    self._forgotten.begin()
                failures = 0
                self._outbox.await_new(LOOK)
            except Exception as error:  # noqa: BLE001 - the process also decides
                failures += 1
                self._log_trouble("notices wait", error, failures)
                self.stopping.wait(random_wait(AWAY_WAIT, failures, self._uniform))
        ends = time.monotonic() + LAST_SENDING
        for target, event in self._wake.items():
            event.set()
            self._threads[target].join(max(0.0, ends - time.monotonic()))

    def _log_trouble(self, what: str, error: Exception, failures: int = 1) -> None:
        """Log once that the store is away, which the reconciler logs too.

        Any other error is a bug.
        """
        if not unavailable(error):
            log.error("%s, and are tried again: %s", what, error, exc_info=error)
        elif failures == 1:
            log.warning("%s: the store is away: %s", what, error)

    def look(self) -> None:
        """Queue new notices for their targets, and wake the threads of targets with due notices."""
        unknown = []
        for target in self._outbox.spread():
            if target in self._setting.targets:
                self._thread(target).set()
            else:
                unknown.append(target)
        if unknown:
            left = self._known_elsewhere() or ()
            for target in unknown:
                if target not in left:
                    self._refuse(target)

    def send_next(self, target: str) -> TryEnd | None:
        """Send the next notice for ``target``; None if none is due. Raises: redis.RedisError."""
        sender = self._mint()
        channel = self._setting.targets[target]
        most = MAX_DIGEST if channel.for_people else 1
        taken = self._outbox.take(target, sender, channel.timeout + MARGIN, most)
        if taken is None:
            return None
        try:
            notices = [each.notice for each in (taken, *taken.others)]
        except ValueError as error:
            unreadable = replace(taken, others=())
            return self._end(unreadable, sender, "dead", f"UNREADABLE: {shortened(str(error))}")
        with _about(notices[0]):
            for notice in notices:
                if self._problems is not None:
                    self._problems.note(target, notice)
            ended = self._end(taken, sender, *self._try(target, notices))
            for notice in notices:
                if notice.event == "recovered" and ended in (TryEnd.SENT, TryEnd.DEAD):
                    self._forget(target, notice.problem)
            return ended

    def _forget(self, target: str, problem: str) -> None:
        if self._problems is not None:
            self._problems.forget(target, problem)

    def _end(
        self, taken: TakenNotice, sender: str, outcome: str, detail: str, retry_after: float = 0.0
    ) -> TryEnd:
        again, rest = (
            max(retry_after, self._backoff(failures)) for failures in (taken.tries, taken.failed)
        )
        ended = self._record(taken, sender, outcome, detail, again, rest)
        if ended is TryEnd.DEAD:
            log.error(
                "the notice %s for %s is a dead letter now: %s", taken.id, taken.target, detail
            )
        elif ended is TryEnd.AGAIN:
            log.warning(
                "the notice %s could not be sent to %s, and is tried again: %s",
                taken.id,
                taken.target,
                detail,
            )
        return ended

    def _try(self, target: str, notices: Sequence[Notice]) -> tuple[str, str, float]:
        """Return the outcome, its description, and the seconds of a Retry-After."""
        try:
            detail = self._send(target, self._message(notices))
        except SendFailed as error:
            outcome = "dead" if error.permanent else "failed"
            return outcome, self._clean(f"NOT_SENT: {error}"), error.wait
        except Exception as error:  # noqa: BLE001 - any error of a library is tried again
            return "failed", self._clean(f"NOT_SENT: {type(error).__name__}: {error}"), 0.0
        return "sent", self._clean(detail), 0.0

    def _message(self, notices: Sequence[Notice]) -> Message:
        page, now = self._setting.page, self._clock()
        return digest_of(notices, page, now) if notices[1:] else message_of(notices[0], page, now)

    def _send(self, target: str, message: Message) -> str:
        """Send in a thread, which is abandoned at the timeout: resolving a name may take longer.

        Raises: SendFailed, and what a library raises.
        """
        if target in self._hanging:
            if not self._hanging[target].done():
                raise SendFailed("the try before this one has not ended")
            del self._hanging[target]
        channel = self._setting.targets[target]
        trying = call_in_thread(
            lambda: channel.send(message, self._setting.allowed), f"send-{target}"
        )
        wait([trying], channel.timeout + LATE)
        if not trying.done():
            self._hanging[target] = trying
            raise SendFailed(f"it has not ended within {channel.timeout:g}s")
        return trying.result()

    def _clean(self, text: str) -> str:
        return shortened(self._setting.secrets.clean(text), LONGEST_ANSWER + 100)

    def _backoff(self, failures: int) -> float:
        return doubled(FIRST_WAIT, LONGEST_WAIT, failures) * self._uniform(0.5, 1.0)

    def _record(
        self, taken: TakenNotice, sender: str, outcome: str, detail: str, again: float, rest: float
    ) -> TryEnd:
        """Record the outcome, however long the store is away. Else it is sent again."""
        away = 0
        crowded_at = CROWDED_AT if self._setting.targets[taken.target].for_people else 0
        while True:
            try:
                return self._outbox.note_try(
                    taken, sender, outcome, detail, wait=again, rest=rest, crowded_at=crowded_at
                )
            except redis.RedisError as error:
                if not unavailable(error) or self.stopping.is_set():
                    raise
                away += 1
                self.stopping.wait(random_wait(AWAY_WAIT, away, self._uniform))

    def _refuse(self, target: str) -> None:
        """Make dead letters of the notices for a target that no coordinator knows."""
        sender = self._mint()
        while (taken := self._outbox.take(target, sender, MARGIN)) is not None:
            why = f"UNKNOWN_TARGET: {self._setting.unknown(target)}"
            self._outbox.note_try(taken, sender, "dead", why)
            self._forget(target, taken.problem)
            log.error("the notice %s is a dead letter now: %s", taken.id, why)

    def _thread(self, target: str) -> threading.Event:
        """Return the event that wakes the thread of ``target``; start the thread if needed."""
        event = self._wake.get(target)
        if event is None:
            event = self._wake[target] = threading.Event()
            name = f"notices-{target}"
            thread = threading.Thread(
                target=self._send_all, args=(target, event), name=name, daemon=True
            )
            self._threads[target] = thread
            thread.start()
        return event

    def _send_all(self, target: str, event: threading.Event) -> None:
        while event.wait() and not self.stopping.is_set():
            event.clear()
            try:
                while not self.stopping.is_set() and self.send_next(target) is not None:
                    pass
            except Exception as error:  # noqa: BLE001 - the thread is needed for the next notice
                self._log_trouble(f"notices for {target} wait", error)


def _about(notice: Notice) -> AbstractContextManager[None]:
    """Name the subject of a notice in the lines of the log."""
    return about(
        **({"schedule": notice.name} if notice.kind == "schedule" else {"job": notice.job})
    )
