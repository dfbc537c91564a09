"""The lease: claim, renew, finish. The only way a worker writes to the store; each is one Lua script.

Every call is idempotent, because redis-py repeats a command whose reply was lost. Worker scripts write the
attempt record only, never the job's commit (docs/protocol.md, rule 2): a wide job must not make its coordinator lose
every race.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

import redis

from tasks.group import FrozenInputs, GroupPlan, WorkOrder
from tasks.keys import Keys
from tasks.points import Point, reach
from tasks.report import SCHEMA_VERSION, Outcome
from tasks.token import Hint, Token, split_member

ANSWER_KEPT = 900  # seconds; whoever finishes goes on trying for less (run.FINISH_FOR, watchdog.LAST_WORD_FOR)


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
    answer: ClaimAnswer
    order: WorkOrder | None = None


def script(client: redis.Redis, package: str, name: str) -> Any:
    """The Lua script ``name`` of ``package``, registered with ``client`` (EVALSHA, loaded when missing)."""
    return client.register_script((files(package) / "lua" / f"{name}.lua").read_text())


class Lease:
    """Claims, renews and finishes attempts on one Redis."""

    def __init__(self, client: redis.Redis, keys: Keys, ttl: float) -> None:
        """``client`` must decode responses; ``ttl`` is the life of a lease in seconds."""
        self._keys = keys
        self._ttl = ttl
        self._claim = script(client, "tasks", "claim")
        self._renew = script(client, "tasks", "renew")
        self._finish = script(client, "tasks", "finish")

    def claim(self, hint: Hint, claimant: str, worker: str, event: str) -> Claim:
        """Try to take the attempt. ``claimant`` and ``event`` are made before the first try and reused in retries.

        Raises:
            redis.RedisError: the store could not be asked; the hint will be sent again.
        """
        keys = self._keys.of(hint.job)
        answer = self._claim(
            keys=[keys.job, keys.attempts, keys.plans, keys.inputs, self._keys.reports, self._keys.due],
            args=[
                hint.job,
                hint.group,
                hint.epoch,
                hint.nonce,
                claimant,
                worker,
                self._ttl,
                event,
                split_member(hint.group)[0],
                SCHEMA_VERSION,
            ],
        )
        kind = ClaimAnswer(answer[0])
        if kind is not ClaimAnswer.CLAIMED:
            return Claim(kind)
        reach(Point.AFTER_CLAIM, hint.job)
        plan = GroupPlan.model_validate_json(answer[1])
        plan = plan.model_copy(update={"params": {**json.loads(answer[4]), **plan.params}})
        inputs = FrozenInputs.model_validate_json(answer[2])
        member = FrozenInputs.model_validate_json(answer[3])
        frozen = FrozenInputs(value=member.value, inputs=inputs.inputs or member.inputs)
        return Claim(kind, WorkOrder(plan=plan, frozen=frozen))

    def renew(self, token: Token, worker: str, progress: str = "") -> RenewAnswer:
        """Keep the lease for another ``ttl``, carrying the last progress value (JSON text).

        Raises:
            redis.RedisError: the store could not be asked; the lease runs on as it is.
        """
        keys = self._keys.of(token.job)
        answer = self._renew(
            keys=[keys.job, keys.attempts],
            args=[token.group, token.epoch, token.nonce, token.claimant, worker, self._ttl, progress],
        )
        return RenewAnswer(answer)

    def finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        """Put the outcome on the record and report it, in one step. ``event`` is reused in every retry.

        Raises:
            redis.RedisError: the store could not be asked; try again with the same ``event``.
        """
        keys = self._keys.of(token.job)
        answer = self._finish(
            keys=[
                *(keys.job, keys.attempts, self._keys.reports, self._keys.due),
                self._keys.finish(str(token), event),
            ],
            args=[
                token.job,
                token.group,
                token.epoch,
                token.nonce,
                token.claimant,
                outcome.to_json(),
                str(outcome.kind),
                event,
                SCHEMA_VERSION,
                ANSWER_KEPT,
            ],
        )
        reach(Point.AFTER_FINISH, token.job)
        return FinishAnswer(answer)
