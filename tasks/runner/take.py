"""Take the attempts that stand ready, one after the other, and run each here or in a fresh runner.

A take that failed after Redis may have granted it still becomes an attempt, so that the attempt gets an outcome.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress

import redis

from unstuck.tasks.errors import NotBegun, OrderUnreadable, UnstuckError
from unstuck.tasks.process import hang_alarm
from unstuck.tasks.protocol.lease import Claim, unreadable
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.attempt import Attempt
from unstuck.tasks.runner.fresh import run_fresh, wants_fresh
from unstuck.tasks.runner.runner import Runner
from unstuck.tasks.transport.redis_client import persistently

log = logging.getLogger(__name__)

LINGER = 0.05  # seconds to wait for what the last outcome sets free; waking this runner again takes about as long


def run_ready(runner: Runner, woken_for: str = "") -> Counter[str]:
    """Run what stands ready on the queues of this worker, until nothing does. Returns what became of the attempts.

    ``woken_for``: the queue that the wake-up came from, which Celery may have been told of after this runner began.
    """
    runner.watchdog.taken()
    queues = deque(dict.fromkeys([*filter(None, [woken_for]), *runner.queues]))
    done: Counter[str] = Counter()
    lingered = False
    try:
        while runner.may_take():
            taken = _take(runner, list(queues), leaves=lingered)
            queues.rotate(-1)  # no queue waits for all that stands on another
            if taken is not None:
                done[_run(runner, *taken)] += 1
                lingered = False
            elif lingered:
                return done
            else:
                hang_alarm.start()
                runner.lease.wait(queues, LINGER)
                lingered = True
    except redis.RedisError as error:
        log.warning("Redis does not answer: %s. A coordinator will send another wake-up", error)
        done["UNREACHABLE"] += 1
        return done
    except BaseException:
        runner.replace()  # our own code has failed in this process, and may fail again
        raise
    # Else no wake-up would come until the watchdog has said that this runner is idle.
    with suppress(redis.RedisError):
        runner.lease.sleep()
    return done


def _take(runner: Runner, queues: Sequence[str], *, leaves: bool) -> tuple[Token, Claim | UnstuckError] | None:
    """Take the next attempt. Returns the attempt, and its claim or why it cannot begin; None if nothing stands ready.

    Raises: redis.RedisError: Redis did not answer.
    """
    # Made before the first try, so that a take that is repeated after a lost reply is the same take.
    claimant, event = secrets.token_hex(6), secrets.token_hex(8)

    def try_to_take() -> Claim | None:
        hang_alarm.start()  # one try takes a minute at most; all tries together may take longer
        return runner.lease.take(queues, claimant, runner.name, event, leaves=leaves)

    try:
        claim = persistently(runner.settings.dispatch_timeout, try_to_take)
        return None if claim is None else (claim.token, claim)
    except redis.RedisError:
        raise
    except BaseException as error:
        # Redis may have granted the take, so the attempt needs an outcome.
        token = runner.lease.taken(claimant)
        if token is None:
            raise
        if isinstance(error, ValueError):  # an answer that is no text
            return token, OrderUnreadable(unreadable(error))
        what = f"{type(error).__name__}: {error}"
        return token, NotBegun(f"{runner.name} could not read the answer of Redis to its claim: {what}")


def _run(runner: Runner, token: Token, claim: Claim | UnstuckError) -> str:
    """Run one attempt. Returns what became of it, for people."""
    if wants_fresh(claim):
        try:
            return run_fresh(runner, claim)
        except NotBegun as error:
            claim = error
    return Attempt(runner, token, claim).run()
