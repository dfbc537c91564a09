"""Take, renew and finish leases: the only writes of a worker, each a Lua script.

Every call is idempotent, because redis-py repeats a command whose reply was lost. Worker scripts
write the attempt record only, never the job's commit (docs/internals/protocol.md, rule 2): a wide
job must not make its coordinator lose every race.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, cast

import redis

from unstuck.tasks.errors import WorkOrderUnreadable
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.identity import release_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.report import SCHEMA_VERSION, Outcome, in_short
from unstuck.tasks.protocol.texts import FIELD, unpack
from unstuck.tasks.protocol.token import Offer, Token
from unstuck.tasks.settings import whoami
from unstuck.tasks.spec.fields import STORED
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder
from unstuck.tasks.transport.redis_client import persistently

log = logging.getLogger(__name__)

# Seconds of trying to record an outcome; its lease has lapsed by then, and its marker stands
# anyway.
FINISH_FOR = 600.0
ANSWER_KEPT = 900  # seconds; longer than FINISH_FOR


class TakeAnswer(StrEnum):
    CLAIMED = "CLAIMED"
    EMPTY = "EMPTY"  # no offer stands ready on these queues
    MORE = "MORE"  # so many offers were dropped that the script stopped: ask again


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


Finish = Callable[[Token, Outcome, str], FinishAnswer]  # as `Lease.finish`


@dataclass(frozen=True)
class Claim:
    """An attempt that was claimed. ``stored``: what ``take.lua`` answers besides the offer."""

    token: Token
    stored: tuple[str, ...]

    @cached_property
    def work_order(self) -> WorkOrder:
        """The work order.

        Raises: WorkOrderUnreadable: the runner holds the attempt nevertheless.
        """
        try:
            plan_text, inputs_text, member_text, params, *texts = self.stored
            plan = _plan(plan_text, params, *texts)
            inputs = FrozenInputs.model_validate_json(inputs_text, context=STORED)
            if member_text != inputs_text:  # of a fork: all but the value is that of the whole fork
                member = FrozenInputs.model_validate_json(member_text, context=STORED)
                inputs = inputs.model_copy(update={"value": member.value})
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise WorkOrderUnreadable(unreadable(error)) from error
        return WorkOrder(plan=plan, frozen=inputs)


@lru_cache(maxsize=16)
def _plan(text: str, params: str, *texts: str) -> GroupPlan:
    """With the ``params`` of the job. All members of a fork have one plan.

    Steps get copies of what stands in it.
    """
    stored = json.loads(text)
    group = unpack(stored["group"], dict(zip(texts[::2], texts[1::2], strict=True)))
    merged_params = {**json.loads(params), **stored.get("params", {})}
    return GroupPlan.model_validate(
        {**stored, "group": group, "params": merged_params}, context=STORED
    )


def unreadable(error: Exception) -> str:
    """Return what this worker could not read, without its content, and what to do."""
    release = release_here().release or "(not installed)"
    return (
        f"what the store has of this attempt cannot be read on {whoami()}, with Unstuck {release} "
        f"({in_short(error)}). Most likely another release wrote it: run one release everywhere. "
        "The group is tried again, as its retry: allows; if the job was submitted to an older "
        "release, submit it again"
    )


class Lease:
    """Takes, renews and finishes attempts on one Redis, for one sequential caller.

    Attributes:
        altered: at the last renewal, the plan of the group (JSON) if the job was altered since the
            claim; else empty.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        ttl: float,
        caller: str,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the scripts.

        Args:
            versions: of this runner, to which its jobs keep (`RunsOn.bound`); None: it takes any
                job.
            client: must decode responses.
            ttl: the life of a lease, in seconds.
            caller: a name that no other process has; a repeat finds its answer under it.
        """
        self._client = client
        self._keys = keys
        self._ttl = ttl
        self._caller = caller
        self._versions = dict(versions or {})
        self.altered = ""
        self._answer = keys.answer(caller)
        self._takes = self._finishes = 0
        # Of the last take, and of the last finish: a repeat has the same value.
        self._claimant = self._event = ""
        self._take = Script(client, keys, __package__, "take")
        self._renew = Script(client, keys, __package__, "renew")
        self._finish = Script(client, keys, __package__, "finish")
        self._finish_and_take = Script(client, keys, __package__, "finish_and_take")

    def take(
        self,
        queues: Sequence[str],
        claimant: str,
        worker: str,
        event: str,
        *,
        linger: float = 0.0,
    ) -> Claim | None:
        """Claim the next offer from the first of ``queues`` that has one; None without one.

        Args:
            claimant, event: made before the first try and reused in retries.
            linger: seconds to wait first until a coordinator adds an offer. If none stands ready
                then, this runner takes none by itself any more, and wants a wake-up.

        Raises:
            redis.RedisError: the store could not be asked; ask again with the same ``claimant``.
        """
        while True:
            arguments = self._taking(queues, claimant, worker, event, leaves=linger > 0)
            reply = (
                self._wait_and_take(queues, linger, arguments)
                if linger
                else self._take(**arguments)
            )
            answer, claim = self._read(claimant, reply)
            if answer is not TakeAnswer.MORE:
                return claim
            self._takes += 1

    def _taking(
        self, queues: Sequence[str], claimant: str, worker: str, event: str, *, leaves: bool = False
    ) -> dict[str, Any]:
        any_job = self._keys.of("\0")
        self._takes += claimant != self._claimant
        self._claimant = claimant
        taking = {
            "queues": list(queues),
            "ready": self._keys.ready(""),
            "runner": self._caller,
            "worker": worker,
            "claimant": claimant,
            "ttl": self._ttl,
            "event": event,
            "leaves": leaves,
            "bound": self._versions,
            "schema_version": SCHEMA_VERSION,
            "text_field": FIELD,
            **{
                name: getattr(any_job, name)
                for name in ("job", "attempts", "plans", "inputs", "versions")
            },
        }
        return {
            "taking": json.dumps(taking),
            "takes": self._takes,
            "answer": self._answer,
            "kept": ANSWER_KEPT,
        }

    def _read(self, claimant: str, answer: Sequence[str]) -> tuple[TakeAnswer, Claim | None]:
        word, *stored = answer
        if word != TakeAnswer.CLAIMED:
            return TakeAnswer(word), None
        claim = Claim(Offer.parse(stored[0]).held_by(claimant), tuple(stored[1:]))
        reach(Point.AFTER_CLAIM, claim.token.job)
        return TakeAnswer.CLAIMED, claim

    def taken(self, claimant: str) -> Token | None:
        """Return the attempt that `take` gave to ``claimant`` in an unreadable answer.

        Raises: redis.RedisError.
        """
        holder, offer = cast(
            list[str | None], self._client.hmget(self._answer, ["claimant", "offer"])
        )
        return Offer.parse(offer).held_by(claimant) if holder == claimant and offer else None

    def _wait_and_take(
        self, queues: Iterable[str], seconds: float, arguments: dict[str, Any]
    ) -> Any:
        """Send both at once: Redis takes when the wait ends, and this process wakes up once."""
        wait = ("BLPOP", *map(self._keys.notify, queues), seconds)
        return self._take.run(wait, self._take.command(**arguments))[-1]

    def sleep(self) -> None:
        """Record that this runner waits for a wake-up and takes no offers by itself.

        Raises: redis.RedisError.
        """
        seconds, micros = self._client.time()
        self._client.hset(self._keys.polled, self._caller, f"-{seconds}.{micros:06}")

    def renew(self, token: Token, worker: str, progress: str = "") -> RenewAnswer:
        """Keep the lease for another ``ttl``, carrying the last progress value (JSON text).

        Raises: redis.RedisError: the store could not be asked; the lease runs on as it is.
        """
        bound = json.dumps(self._versions)
        answer, *plan = self._renew(
            token.job, **_fence(token), worker=worker, ttl=self._ttl, progress=progress, bound=bound
        )
        self.altered = (plan and plan[0]) or ""
        return RenewAnswer(answer)

    def finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        """Store the outcome and report it, in one step. ``event`` is reused in retries.

        Raises: redis.RedisError: the store could not be asked; try again with the same ``event``.
        """
        answer = self._finish(
            token.job,
            answer=self._answer,
            kept=ANSWER_KEPT,
            **self._finishing(token, outcome, event),
        )
        return _finished(token, answer)

    def finish_and_take(
        self,
        token: Token,
        outcome: Outcome,
        event: str,
        queues: Sequence[str],
        claimant: str,
        worker: str,
        claim: str,
    ) -> tuple[FinishAnswer, TakeAnswer, Claim | None]:
        """`finish` one attempt and `take` the next, in one round trip.

        Args:
            event, claim: the ids of the two reports, reused in retries, as is ``claimant``.

        Raises: redis.RedisError: the store could not be asked; try again with the same ids.
        """
        taking = self._taking(queues, claimant, worker, claim)
        word, *answer = self._finish_and_take(
            token.job, **taking, **self._finishing(token, outcome, event)
        )
        return _finished(token, word), *self._read(claimant, answer)

    def _finishing(self, token: Token, outcome: Outcome, event: str) -> dict[str, Any]:
        self._finishes += event != self._event
        self._event = event
        return {
            **_fence(token),
            "outcome": outcome.to_json(),
            "kind": str(outcome.kind),
            "event": event,
            "finishes": self._finishes,
            "schema_version": SCHEMA_VERSION,
        }


def _finished(token: Token, word: str) -> FinishAnswer:
    reach(Point.AFTER_FINISH, token.job)
    return FinishAnswer(word)


def record_outcome(finish: Finish, token: Token, outcome: Outcome) -> str:
    """Record the outcome. Returns it with the answer, for people.

    If Redis refuses it nothing is removed, because another attempt may adopt the files.
    """
    event = secrets.token_hex(8)  # one for all tries
    try:
        answer: FinishAnswer = persistently(FINISH_FOR, finish, token, outcome, event)
    except redis.RedisError as error:
        log.error(
            "%s %s, but Redis did not answer for %gs: %s. Its lease will lapse and the next "
            "attempt takes over what stands in %s",
            token,
            outcome.kind,
            FINISH_FOR,
            error,
            token.staging,
        )
        return f"{outcome.kind} UNREACHABLE"
    level = (
        logging.INFO
        if answer in (FinishAnswer.APPLIED, FinishAnswer.DUPLICATE)
        else logging.WARNING
    )
    log.log(level, "%s %s: %s", token, outcome.kind, answer)
    return f"{outcome.kind} {answer}"


def _fence(token: Token) -> dict[str, str | int]:
    return {
        "group": token.group,
        "epoch": token.epoch,
        "nonce": token.nonce,
        "claimant": token.claimant,
    }
