"""The network between an actor and the outside: at each call the actor may die, freeze, or not hear
the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis

from tests.simulation.stage.stage import Killed, Stage, Turn
from tests.simulation.stage.trouble import Fault, Trouble

T = TypeVar("T")
SLOW = 0.15  # seconds that a slow call takes at most
# Seconds that a consumer waits at most before it asks a store again that was away.
LONGEST_WAIT = 2.0


class Connection:
    """The connection of one process: every call may be where it dies, freezes, or does not hear the
    answer.
    """

    of_coordinator = True  # its faults delay what a coordinator does

    def __init__(self, stage: Stage, trouble: Trouble, die: Callable[[], None]) -> None:
        self.stage, self.trouble, self._die = stage, trouble, die

    def call(
        self,
        what: str,
        effect: Callable[[], T],
        lost: type[Exception] = redis.ConnectionError,
        *,
        of_store: bool = True,
    ) -> T:
        """The call ``what``, made in the turn of whoever calls; of the store, unless it is of the
        warehouse.

        Raises:
            Killed: its process died here.
            Exception: of type ``lost``; the request or the reply was lost.
        """
        rng, actor = self.stage.rng, Turn.current()
        actor.check()
        if of_store and self.trouble.away:
            self._disturb(1.0 + LONGEST_WAIT)
            actor.pause(rng.uniform(0.01, 1.0))
            raise lost("the store is away")
        fault = self.trouble.of_call()
        if fault is Fault.NONE:
            drawn = rng.random()
            if drawn < 0.4:
                actor.pause(rng.uniform(0.0, 0.004))
            elif drawn < 0.43:
                actor.pause(rng.uniform(0.0, SLOW))  # no fault; others act meanwhile
            return effect()
        self.stage.log(actor.name, f"{fault.upper()}: {what}")
        if fault is Fault.DIE_BEFORE:
            self._die()
            raise Killed
        if fault is Fault.FREEZE_BEFORE:
            self._freeze(actor)
        if fault is Fault.REQUEST_LOST:
            self._disturb(2.0 + LONGEST_WAIT)
            actor.pause(rng.uniform(0.0, 2.0))
            raise lost("the request was lost")
        answer = effect()
        if fault is Fault.DIE_AFTER:
            self._die()
            raise Killed
        if fault is Fault.FREEZE_AFTER:
            self._freeze(actor)
        if fault is Fault.REPLY_LOST:
            self._disturb(2.0 + LONGEST_WAIT)
            actor.pause(rng.uniform(0.0, 2.0))
            raise lost("the reply was lost")
        if fault is Fault.REPEATED:
            self._disturb(2.0, loses=False)
            actor.pause(rng.uniform(0.0, 2.0))
            answer = effect()
        return answer

    def stall(self, what: str) -> None:
        """Perhaps a publisher stands still before ``what``."""
        if self.trouble.chance_of_more(self.trouble.publisher_freezes):
            actor, until = Turn.current(), self.trouble.freeze_of_publisher()
            self.stage.log(
                actor.name, f"its publisher FREEZES before {what} for {until - self.stage.now:.1f}s"
            )
            self._disturb(until - self.stage.now, loses=False)
            actor.freeze(until)
            actor.pause(0.0)

    def _disturb(self, seconds: float, *, loses: bool = True) -> None:
        if self.of_coordinator:
            self.trouble.disturb(self.stage.now + seconds, loses=loses)

    def note(self, what: str) -> None:
        """For the trace."""
        self.stage.log(Turn.current().name, what)

    def _freeze(self, actor: Turn) -> None:
        until = self.trouble.freeze_until()
        self._disturb(until - self.stage.now, loses=False)
        actor.freeze(until)
        actor.pause(0.0)
