"""Takes ready attempts one after the other, and runs each here or in a fresh runner.

A take that failed after Redis may have granted it still becomes an attempt, so that the attempt
gets an outcome.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress

import redis

from unstuck.tasks.errors import NotBegun, UnstuckError, WorkOrderUnreadable
from unstuck.tasks.process import hang_alarm
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.attempt import Attempt
from unstuck.tasks.runner.fresh_process import run_fresh, wants_fresh
from unstuck.tasks.runner.runner import Runner
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.transport.lease import Claim, FinishAnswer, TakeAnswer, unreadable
from unstuck.tasks.transport.redis_client import persistently

log = logging.getLogger(__name__)

# Seconds to wait for what the last outcome sets free; waking this runner again takes about as long.
LINGER = 0.05


def run_ready(runner: Runner, woken_for: str = "") -> Counter[str]:
    """Run ready attempts of this worker's queues until none is left. Returns counts by result.

    ``woken_for``: the queue of the wake-up, to which Celery may have subscribed after this runner
    started.
    """
    runner.watchdog.taken()
    queues = deque(dict.fromkeys([*filter(None, [woken_for]), *runner.queues]))
    done: Counter[str] = Counter()
    taken: _Taken | None = None
    try:
        while (taken := _next(runner, queues, taken)) is not None:
            try:
                done[taken.run()] += 1
            except BaseException:
                taken.hand_back()
                raise
    except redis.RedisError as error:
        log.warning("Redis does not answer: %s. A coordinator will send another wake-up", error)
        done["UNREACHABLE"] += 1
    except BaseException:
        runner.replace()  # our own code has failed in this process, and may fail again
        raise
    return done


def _next(runner: Runner, queues: deque[str], last: _Taken | None) -> _Taken | None:
    """Return the next attempt: taken with the last outcome, now, or freed within a moment.

    None: this runner leaves.

    The queues are rotated at each look: no queue waits for all that stands on another.
    """
    if last is not None and last.next is not None:
        last.next.queues = [queue for queue in queues if queue in last.queues]
        queues.rotate(-1)
        return last.next
    if not runner.may_take():
        # Else no wake-up would come until the watchdog has said that this runner is idle.
        with suppress(redis.RedisError):
            runner.lease.sleep()
        return None
    able = runner.takes_from(queues)
    queues.rotate(-1)
    if last is None or last.answer is not TakeAnswer.EMPTY:  # not known with its outcome
        taken = _take(runner, able)
        if taken is not None:
            return taken
    return _linger(runner, able) if able else None


def _linger(runner: Runner, queues: list[str]) -> _Taken | None:
    """Take an attempt that is set free within a moment."""
    taken = _take(runner, [*queues[1:], queues[0]], linger=LINGER)
    if taken is None or runner.may_still_take():
        return taken
    taken.give_back()  # the code has changed while it waited, or the worker ends
    return None


def _take(runner: Runner, queues: Sequence[str], *, linger: float = 0.0) -> _Taken | None:
    """Take the next attempt; None if nothing stands ready.

    Raises: redis.RedisError: Redis did not answer.
    """
    # Made before the first try, so that a take that is repeated after a lost reply is the same
    # take.
    claimant, event = secrets.token_hex(6), secrets.token_hex(8)

    def try_to_take() -> Claim | None:
        hang_alarm.start()  # one try takes a minute at most; all tries together may take longer
        return runner.lease.take(queues, claimant, runner.name, event, linger=linger)

    try:
        claim = persistently(runner.settings.dispatch_timeout, try_to_take)
        return None if claim is None else _Taken(runner, claim.token, claim, queues)
    except redis.RedisError:
        raise
    except BaseException as error:
        if (taken := _unread(runner, claimant, error, queues)) is None:
            raise
        return taken


def _unread(
    runner: Runner, claimant: str, error: BaseException, queues: Sequence[str]
) -> _Taken | None:
    """Return the attempt granted to ``claimant`` in an unreadable answer. It needs an outcome."""
    token = runner.lease.taken(claimant)
    if token is None:
        return None
    if isinstance(error, ValueError):  # an answer that is no text
        return _Taken(runner, token, WorkOrderUnreadable(unreadable(error)), queues)
    what = f"{type(error).__name__}: {error}"
    why = f"{runner.name} could not read the answer of Redis to its claim: {what}"
    return _Taken(runner, token, NotBegun(why), queues)


def _ends_at_once(work_order: WorkOrder) -> bool:
    warehouse = work_order.plan.warehouse
    return not work_order.group.spark and ("://" not in warehouse or warehouse.startswith("file:"))


class _Taken:
    """An attempt that was taken. Its outcome is recorded together with the next take if possible.

    It can be where nothing is left to do after the outcome that may take long or fail: no Spark
    session to close, no log to upload, no JVM to ask, and a look finds that the attempt has left
    nothing behind.

    Attributes:
        queues: from which this runner may take more.
        next: what was taken with the outcome, if anything.
        answer: whether something stood ready, where more was asked for.
    """

    def __init__(
        self, runner: Runner, token: Token, claim: Claim | UnstuckError, queues: Sequence[str]
    ) -> None:
        """``claim``: or why the attempt cannot begin."""
        self._runner, self._token, self._claim, self.queues = runner, token, claim, queues
        self._claimant, self._event = secrets.token_hex(6), secrets.token_hex(8)
        self._takes: bool | None = None
        self.next: _Taken | None = None
        self.answer: TakeAnswer | None = None

    def run(self) -> str:
        """Run the attempt here or in a fresh runner. Return a description of the result."""
        claim = self._claim
        if wants_fresh(claim):
            try:
                return run_fresh(self._runner, claim)
            except NotBegun as error:
                claim = error
        return Attempt(self._runner, self._token, claim, self._finish).run()

    def hand_back(self) -> None:
        """Hand back the attempt that was taken with the outcome, because this runner ends."""
        if self.next is not None:
            self.next.give_back()

    def give_back(self) -> None:
        """Hand back this attempt before its start, because this runner ends."""
        why = f"{self._runner.name} had to end before it could begin"
        with suppress(redis.RedisError):  # then the lease lapses
            released = Outcome(OutcomeKind.RELEASED, failure=Failure("RELEASED", why))
            self._runner.lease.finish(self._token, released, secrets.token_hex(8))

    def _may_take_with(self, outcome: Outcome) -> bool:
        """Whether the next attempt may be taken together with ``outcome``."""
        if outcome.kind is not OutcomeKind.SUCCEEDED or not isinstance(self._claim, Claim):
            return False
        quick = _ends_at_once(self._claim.work_order) and self._runner.may_take_at_once()
        return quick and self._runner.looks_clean()

    def _finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        lease = self._runner.lease
        if self._takes is None:
            self._takes = self._may_take_with(outcome)
        if not self._takes:
            return lease.finish(token, outcome, event)
        runner, queues = self._runner, self.queues
        try:
            answer, self.answer, following = lease.finish_and_take(
                token, outcome, event, queues, self._claimant, worker=runner.name, claim=self._event
            )
        except redis.RedisError:
            raise
        except Exception as error:
            answer = lease.finish(token, outcome, event)
            self.next = _unread(runner, self._claimant, error, queues)
            if self.next is None:
                log.exception(
                    "%s: what was taken after it could not be read; this runner is replaced", token
                )
                runner.replace()
            return answer
        if following is not None:
            self.next = _Taken(runner, following.token, following, queues)
        return answer
