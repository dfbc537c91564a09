"""The lease: claim, renew and finish, by which alone a worker writes to the store; each is one Lua script.

Every call is idempotent, because redis-py repeats a command whose reply was lost. Worker scripts write the
attempt record only, never the job's commit (docs/protocol.md, rule 2): a wide job must not make its coordinator lose
every race.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

import redis

from unstuck.tasks.errors import OrderUnreadable
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.identity import release_here
from unstuck.tasks.protocol.group import STORED, FrozenInputs, GroupPlan, WorkOrder
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.report import SCHEMA_VERSION, Outcome, in_short
from unstuck.tasks.protocol.texts import FIELD, unpack
from unstuck.tasks.protocol.token import Hint, Token, split_member
from unstuck.tasks.settings import whoami

ANSWER_KEPT = 900  # seconds; longer than any process goes on trying to finish (attempt.FINISH_FOR, watchdog.REPORT_FOR)


class ClaimAnswer(StrEnum):
    CLAIMED = "CLAIMED"
    HELD = "HELD"  # the job's intent is not to run: leave, the coordinator will hint again
    STALE = "STALE"  # another claimant, another epoch, or a job that has ended
    UNKNOWN_JOB = "UNKNOWN_JOB"


class RenewAnswer(StrEnum):
    CONTINUE = "CONTINUE"
    CANCEL = "CANCEL"
    DRAIN = "DRAIN"
    STALE = "STALE"


class FinishAnswer(StrEnum):
    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    STALE = "STALE"
    UNKNOWN_JOB = "UNKNOWN_JOB"


@dataclass(frozen=True, slots=True)
class Claim:
    """What the store said to a claim. ``stored``: with CLAIMED, what ``claim.lua`` answers besides."""

    answer: ClaimAnswer
    stored: tuple[str, ...] = ()

    @property
    def order(self) -> WorkOrder | None:
        """What to do; None unless CLAIMED. Raises: OrderUnreadable: the runner holds the attempt nevertheless."""
        if self.answer is not ClaimAnswer.CLAIMED:
            return None
        try:
            plan_text, inputs_text, member_text, params, *texts = self.stored
            stored = json.loads(plan_text)
            group = unpack(stored["group"], dict(zip(texts[::2], texts[1::2], strict=True)))
            plan = GroupPlan.model_validate({**stored, "group": group}, context=STORED)
            plan = plan.model_copy(update={"params": {**json.loads(params), **plan.params}})
            inputs = FrozenInputs.model_validate_json(inputs_text, context=STORED)
            member = FrozenInputs.model_validate_json(member_text, context=STORED)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise OrderUnreadable(unreadable(error)) from error
        return WorkOrder(plan=plan, frozen=FrozenInputs(value=member.value, inputs=inputs.inputs or member.inputs))


def unreadable(error: Exception) -> str:
    """In words: what this worker could not read, and what to do. Not what stands there: it may be long."""
    release = release_here().release or "(not installed)"
    return (
        f"what the store has of this attempt cannot be read on {whoami()}, with Unstuck {release} ({in_short(error)}). "
        "Most likely another release wrote it: run one release everywhere. The group is tried again, as its retry: "
        "allows; if the job was submitted to an older release, submit it again"
    )


class Lease:
    """Claims, renews and finishes attempts on one Redis."""

    def __init__(self, client: redis.Redis, keys: Keys, ttl: float) -> None:
        """``client`` must decode responses; ``ttl`` is the life of a lease in seconds."""
        self._keys = keys
        self._ttl = ttl
        self._claim = Script(client, keys, __package__, "claim")
        self._renew = Script(client, keys, __package__, "renew")
        self._finish = Script(client, keys, __package__, "finish")

    def claim(self, hint: Hint, claimant: str, worker: str, event: str) -> Claim:
        """Try to take the attempt. ``claimant`` and ``event`` are made before the first try and reused in retries.

        Raises: redis.RedisError: the store could not be asked; the hint will be sent again.
        """
        answer = self._claim(
            hint.job,
            **_fence(hint.held_by(claimant)),
            worker=worker,
            ttl=self._ttl,
            event=event,
            planned=split_member(hint.group)[0],
            schema_version=SCHEMA_VERSION,
            text_field=FIELD,
        )
        kind = ClaimAnswer(answer[0])
        if kind is not ClaimAnswer.CLAIMED:
            return Claim(kind)
        reach(Point.AFTER_CLAIM, hint.job)
        return Claim(kind, tuple(answer[1:]))

    def renew(self, token: Token, worker: str, progress: str = "") -> RenewAnswer:
        """Keep the lease for another ``ttl``, carrying the last progress value (JSON text).

        Raises: redis.RedisError: the store could not be asked; the lease runs on as it is.
        """
        answer = self._renew(token.job, **_fence(token), worker=worker, ttl=self._ttl, progress=progress)
        return RenewAnswer(answer)

    def finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        """Put the outcome on the record and report it, in one step. ``event`` is reused in every retry.

        Raises: redis.RedisError: the store could not be asked; try again with the same ``event``.
        """
        answer = self._finish(
            token.job,
            **_fence(token),
            outcome=outcome.to_json(),
            kind=str(outcome.kind),
            event=event,
            schema_version=SCHEMA_VERSION,
            answered=self._keys.finish(str(token), event),
            kept=ANSWER_KEPT,
        )
        reach(Point.AFTER_FINISH, token.job)
        return FinishAnswer(answer)


def _fence(token: Token) -> dict[str, str | int]:
    return {"group": token.group, "epoch": token.epoch, "nonce": token.nonce, "claimant": token.claimant}
