"""Claim the attempt that a hint offers, and run it here or in a fresh runner.

A claim that failed after Redis may have granted it still becomes an attempt, so that the attempt gets an outcome.
"""

from __future__ import annotations

import logging
import secrets

import redis

from unstuck.tasks.errors import Malformed, NotBegun, OrderUnreadable, UnstuckError
from unstuck.tasks.process import hang_alarm
from unstuck.tasks.protocol.lease import Claim, ClaimAnswer, unreadable
from unstuck.tasks.protocol.token import Hint
from unstuck.tasks.runner.attempt import Attempt
from unstuck.tasks.runner.fresh import run_fresh, wants_fresh
from unstuck.tasks.runner.runner import Runner
from unstuck.tasks.transport.redis_client import persistently

log = logging.getLogger(__name__)


def run(runner: Runner, hint_text: str) -> str:
    """Claim and run the attempt that a hint offers. Returns what became of it, for people."""
    runner.watchdog.taken()
    try:
        hint = Hint.parse(hint_text)
    except Malformed as error:
        log.error("a hint that cannot be read is dropped: %s", error)
        return "UNREADABLE"
    if runner.stopping:
        # A claim would be handed back at once. Unclaimed, the hint costs no epoch and goes to another worker.
        log.info("%s is not claimed: this worker was told to stop. The hint will be sent again", hint)
        return "STOPPING"
    if runner.unfit:
        # A host without Java fails in seconds, and each claim would count as a lost worker.
        runner.replace()
        log.error("%s is not claimed: Java is gone from this host. The hint will be sent again", hint)
        return "UNFIT"
    if runner.driver.died:
        runner.replace()
        log.error("%s is not claimed: the Spark session of this runner has died. The hint will be sent again", hint)
        return "UNFIT"
    # Made before the first try, so that a claim that is repeated after a lost reply is the same claim.
    claimant, event = secrets.token_hex(6), secrets.token_hex(8)

    def try_to_claim() -> Claim:
        hang_alarm.start()  # one try takes a minute at most; all tries together may take longer
        return runner.lease.claim(hint, claimant, runner.name, event)

    claim: Claim | UnstuckError
    try:
        claim = persistently(runner.settings.dispatch_timeout, try_to_claim)
    except redis.RedisError as error:
        log.warning("%s could not be claimed, Redis does not answer: %s. The hint will be sent again", hint, error)
        return "UNREACHABLE"
    except ValueError as error:  # an answer that is no text
        claim = OrderUnreadable(unreadable(error))
    except BaseException as error:  # noqa: BLE001 - Redis may have granted the claim, so the attempt needs an outcome
        what = f"{type(error).__name__}: {error}"
        claim = NotBegun(f"{runner.name} could not read the answer of Redis to its claim: {what}")
    if isinstance(claim, Claim) and claim.answer is not ClaimAnswer.CLAIMED:
        log.info("%s: %s", hint, claim.answer)
        return str(claim.answer)
    token = hint.held_by(claimant)
    try:
        if wants_fresh(claim):
            try:
                return run_fresh(runner, token, claim)
            except NotBegun as error:
                claim = error
        return Attempt(runner, token, claim).run()
    except BaseException:
        runner.replace()  # our own code has failed in this process, and may fail again
        raise
