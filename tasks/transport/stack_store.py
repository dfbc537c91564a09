"""Shows where the steps of running attempts stand, in Redis, for a minute or so."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import cast

import redis
from pydantic import TypeAdapter, ValidationError

from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.step_stack import Frame, StepStack
from unstuck.tasks.protocol.token import Token

_STACK = TypeAdapter(tuple[str, StepStack], config=DEFERRED)  # by the token of its attempt


class StackStore:
    """The stacks on one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def note(
        self,
        token: Token,
        frames: tuple[Frame, ...],
        stages: str,
        age: float,
        stood: float,
        keep: float,
    ) -> None:
        """Store ``frames`` for ``keep`` seconds.

        They were seen ``age`` seconds ago, and had not moved for ``stood``.

        ``stages``: what Spark runs, as JSON; empty: it is not known.

        Raises: redis.RedisError.
        """
        seconds, micros = self._client.time()
        at = seconds + micros / 1e6 - age
        key = self._keys.of(token.job).stacks
        with self._client.pipeline(transaction=True) as pipe:
            stack = {
                **asdict(StepStack(at, at - stood, frames)),
                "stages": json.loads(stages or "[]"),
            }
            pipe.hset(key, token.group, json.dumps([str(token), stack]))
            pipe.expire(key, max(1, round(keep)))
            pipe.execute()

    def of_job(self, job: str) -> dict[str, StepStack]:
        """Return the stacks of a job by token. Raises: redis.RedisError."""
        by_token = {}
        for text in cast(list[str], self._client.hvals(self._keys.of(job).stacks)):
            try:
                token, stack = _STACK.validate_json(text)
            except ValidationError:
                continue
            by_token[token] = stack
        return by_token
