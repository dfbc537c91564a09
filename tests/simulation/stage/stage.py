"""The stage: a virtual clock, the actors, and the one place that says who goes next."""

# Exactly one actor runs at any time. An actor is a generator that yields seconds (workers), or a
# greenlet that hands its turn back at every call to the store (coordinators, whose code is ordinary
# and knows nothing of this). The choice among those who are ready is drawn from the seed, so a seed
# is a history.

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator

from greenlet import getcurrent, greenlet

STEP = 0.0002  # virtual seconds that any step costs, so that no two things happen at the same time
TRACE = 60

Life = Generator[float, None, None]


class Killed(BaseException):
    """The process was killed. Not an Exception: no code of ours may catch it."""


class Stage:
    """The clock, the actors, the dice and the trace of one history."""

    def __init__(self, seed: int, *, keep_all: bool = False, start: float = 1_000_000.0) -> None:
        self.rng = random.Random(seed)
        self.waits = random.Random(seed)  # how long coordinators wait for what is busy or away
        self.start = start
        self.now = start
        self.actors: list[Actor] = []
        self.steps = 0
        self.trace: deque[tuple[float, str, str]] = deque(maxlen=None if keep_all else TRACE)
        self._minted = 0

    @property
    def elapsed(self) -> float:
        return self.now - self.start

    def mint(self) -> str:
        """A fresh word: nonces, owners, commit ids, claimants, event ids."""
        self._minted += 1
        return f"x{self._minted}"

    def log(self, who: str, what: str) -> None:
        self.trace.append((self.now, who, what))

    def lines(self) -> list[str]:
        return [f"{at - self.start:9.3f}  {who:<12} {what}" for at, who, what in self.trace]

    def run(self, done: Callable[[], bool], until: float) -> bool:
        """Let actors act until ``done``, or the clock passes ``until``.

        Returns whether it was done.
        """
        while not done():
            ready = [actor for actor in self.actors if actor.ready_at <= self.now]
            if not ready:
                if not self.actors:
                    return False
                self.now = max(self.now, min(actor.ready_at for actor in self.actors))
                if self.now > until:
                    return False
                continue
            actor = ready[0] if len(ready) == 1 else ready[int(self.rng.random() * len(ready))]
            self.steps += 1
            actor.step()
            self.now += STEP
        return True

    def close(self) -> None:
        """End all threads."""
        for actor in list(self.actors):
            actor.kill()


class Actor:
    """Something that takes turns."""

    def __init__(self, stage: Stage, name: str, delay: float = 0.0) -> None:
        self.stage = stage
        self.name = name
        self.ready_at = stage.now + delay
        self.frozen_until = 0.0
        self.dead = False
        stage.actors.append(self)

    def step(self) -> None:
        raise NotImplementedError

    def freeze(self, until: float) -> None:
        """No turn before ``until``."""
        self.frozen_until = max(self.frozen_until, until)
        self.ready_at = max(self.ready_at, self.frozen_until)

    def wake(self, at: float) -> None:
        """What it waits for has come."""
        self.ready_at = max(min(self.ready_at, at), self.frozen_until)

    def wait(self, seconds: float) -> None:
        self.ready_at = max(self.stage.now + seconds, self.frozen_until)

    def kill(self) -> None:
        self.leave()

    def leave(self) -> None:
        self.dead = True
        if self in self.stage.actors:
            self.stage.actors.remove(self)


class Routine(Actor):
    """An actor whose life is a generator of pauses."""

    def __init__(self, stage: Stage, name: str, life: Life, delay: float = 0.0) -> None:
        super().__init__(stage, name, delay)
        self._life = life

    def step(self) -> None:
        try:
            pause = next(self._life)
        except (StopIteration, Killed):
            self.leave()
        else:
            self.wait(pause)


class Turn(Actor):
    """An actor whose life is ordinary code on a stack of its own; it gives its turn back by
    ``pause``.
    """

    def __init__(
        self, stage: Stage, name: str, life: Callable[[], None], delay: float = 0.0
    ) -> None:
        super().__init__(stage, name, delay)
        self._life = life
        self._stack = greenlet(self._run)
        self._stack.turn = self

    @staticmethod
    def current() -> Turn:
        """Whose turn it is: the actor on whose stack this is called."""
        turn: Turn = getcurrent().turn
        return turn

    def _run(self) -> None:
        try:
            self.check()
            self._life()
        except Killed:
            pass
        finally:
            self.dead = True

    def step(self) -> None:
        self._go()
        if self.dead:
            self.leave()

    def _go(self) -> None:
        """Until it pauses, dies or raises: then whoever called goes on."""
        self._stack.parent = getcurrent()
        self._stack.switch()

    def check(self) -> None:
        """On its own stack: the dead do nothing more, not even in a ``finally``."""
        if self.dead:
            raise Killed

    def pause(self, seconds: float) -> None:
        """On its own stack: let others act."""
        self.check()
        self.wait(seconds)
        self._stack.parent.switch()
        self.check()

    def kill(self) -> None:
        """From outside its stack."""
        self.leave()
        if not self._stack.dead:
            self._go()
