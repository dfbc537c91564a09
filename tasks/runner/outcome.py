"""The outcome of an attempt: what a success tells the coordinator, and how any outcome is recorded."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

import redis

from unstuck.tasks.identity import bound_of
from unstuck.tasks.protocol.report import Done, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.transport.lease import FinishAnswer
from unstuck.tasks.transport.redis_client import persistently
from unstuck.tasks.warehouse.marker import Marker

log = logging.getLogger(__name__)

FINISH_FOR = 600.0  # seconds of trying to record the outcome; the marker stands anyway
Finish = Callable[[Token, Outcome, str], FinishAnswer]  # as `Lease.finish`


def success(staging: str, marker: Marker, *, adopted: bool = False, ran_again: str = "") -> Outcome:
    """The outcome of an attempt whose marker is ``marker``. ``ran_again``: why work that was done was done again."""
    return Outcome(
        OutcomeKind.SUCCEEDED,
        staging=staging,
        adopted=adopted,
        ran_again=ran_again,
        arrived=marker.arrived,
        rows={name: output.rows for name, output in marker.outputs.items()},
        rejected={name: output.rejected_by for name, output in marker.outputs.items() if output.rejected_by},
        forks=marker.forks,
        results=marker.results,
        done=_done(marker) if marker.made_nothing else None,
    )


def _done(marker: Marker) -> Done:
    return Done(marker.fingerprint, marker.code, bound_of(marker.made_on), marker.params)


def record_outcome(finish: Finish, token: Token, outcome: Outcome) -> str:
    """Record the outcome. Returns it with the answer, for people.

    If Redis refuses it nothing is removed, because another attempt may adopt the files.
    """
    event = secrets.token_hex(8)  # one for all tries
    try:
        answer: FinishAnswer = persistently(FINISH_FOR, finish, token, outcome, event)
    except redis.RedisError as error:
        log.error(
            "%s %s, but Redis did not answer for %gs: %s. Its lease will lapse and the next attempt takes over what "
            "stands in %s",
            token,
            outcome.kind,
            FINISH_FOR,
            error,
            token.staging,
        )
        return f"{outcome.kind} UNREACHABLE"
    level = logging.INFO if answer in (FinishAnswer.APPLIED, FinishAnswer.DUPLICATE) else logging.WARNING
    log.log(level, "%s %s: %s", token, outcome.kind, answer)
    return f"{outcome.kind} {answer}"
