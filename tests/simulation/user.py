"""The user: gives commands at the worst moments, through the real ``Client.command``.

To running, publishing, paused and ended jobs, once or twice, with lost replies: those that the connection repeats by
itself (the same command id) and those that the user repeats (another one).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import redis

from coordinator.client import Client, NoSuchJob
from coordinator.commands import Command
from coordinator.giving import Giving
from coordinator.store import Store
from tasks.settings import Settings

from .broker import Broker
from .head import StoreAtHand
from .line import Line, current, life_of
from .model import ModelStore
from .stage import Stage, Turn
from .trouble import Trouble

# Instead of a time, a moment: an attempt of the job was claimed, or has ended; or the job begins to publish.
MOMENTS = ("claimed", "claimed", "ended", "publishing", "publishing")
# The commands after which a job can still do something come most often.
_COMMANDS = (
    *(Command.PAUSE, Command.PAUSE, Command.PAUSE, Command.RESUME, Command.RESUME, Command.RESUME, Command.RESUME),
    *(Command.STOP, Command.CANCEL, Command.CANCEL, Command.CANCEL, Command.FORCE_STOP),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """One command that will be given, at a time or at a moment, and to be repeated at once if ``twice``."""

    at: float
    job: str
    given: Command
    now: bool = False
    twice: bool = False
    moment: str = ""


def random_wishes(rng: random.Random, jobs: Sequence[str], begin: float, end: float) -> list[Wish]:
    """What a user will ask for in one history; in some of them, nothing."""
    wishes = []
    for _ in range(rng.choice((0, 0, 1, 3, 6, 9))):
        given, job = rng.choice(_COMMANDS), rng.choice(jobs)
        moment = rng.choice(MOMENTS) if given is not Command.RESUME and rng.random() < 0.75 else ""
        now = given is Command.PAUSE and rng.random() < 0.4
        wishes.append(Wish(rng.uniform(begin, end), job, given, now, rng.random() < 0.2, moment))
    return wishes


class _ClientAtHand(Client):
    """The client, on a store of ours."""

    def __init__(self, settings: Settings, store: StoreAtHand, stage: Stage) -> None:
        self.settings = settings
        self._store = cast(Store, store)
        self._giving = Giving(store, stage.mint, lambda: stage.now, lambda seconds: current().pause(seconds))


class User:
    """Somebody at a shell, which may be killed under a command, and is opened again."""

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelStore,
        broker: Broker,
        settings: Settings,
        wishes: Iterable[Wish],
    ) -> None:
        self._stage, self._trouble = stage, trouble
        line = Line(stage, trouble, self._killed)
        self._client = _ClientAtHand(settings, StoreAtHand(line, core, broker, dict), stage)
        self._wishes = sorted((wish for wish in wishes if not wish.moment), key=lambda wish: wish.at)
        self._shell: Turn | None = None
        self._soon: list[Turn] = []
        self._strikes = [wish for wish in wishes if wish.moment]
        self._open(self._wishes)

    @property
    def busy(self) -> bool:
        """There are commands to come."""
        return bool(self._wishes) or any(not turn.dead for turn in self._soon)

    def happened(self, moment: str, job: str) -> None:
        """Strike now, if that was wished for."""
        wish = next((wish for wish in self._strikes if (wish.moment, wish.job) == (moment, job)), None)
        if wish is None or (moment != "publishing" and self._stage.rng.random() < 0.4):
            return
        self._strikes.remove(wish)
        delay = self._stage.rng.uniform(0.0, self._stage.rng.choice((0.005, 0.03, 0.5, 2.0)))
        self._give_soon(wish, delay)
        if wish.given is Command.PAUSE and self._stage.rng.random() < 0.6:
            self._give_soon(Wish(0.0, job, Command.RESUME), delay + self._stage.rng.choice((0.1, 3.0, 20.0)))

    def _give_soon(self, wish: Wish, delay: float) -> None:
        self._soon.append(Turn(self._stage, "user", life_of(lambda: self._give(wish)), delay))

    def resume(self, jobs: Iterable[str]) -> None:
        """At the end of all trouble."""
        self._open([Wish(self._stage.now, job, Command.RESUME) for job in jobs])

    def _open(self, wishes: list[Wish]) -> None:
        self._wishes = wishes
        if wishes:
            self._shell = Turn(self._stage, "user", life_of(self._life), max(0.0, wishes[0].at - self._stage.now))

    def _life(self) -> None:
        while self._wishes:
            current().pause(max(0.0, self._wishes[0].at - self._stage.now))
            self._give(self._wishes[0])
            self._wishes.pop(0)

    def _give(self, wish: Wish) -> None:
        for _ in range(2 if wish.twice else 1):
            # A user whose shell says that the store is away asks again, up to a point.
            for _ in range(self._stage.rng.randint(1, 3)):
                try:
                    said = self._client.command(wish.job, wish.given, now=wish.now, by="user")
                except redis.ConnectionError as error:
                    self._stage.log("user", f"{wish.given} {wish.job}: {error}")
                except NoSuchJob:
                    return
                else:
                    self._stage.log("user", f"{wish.given} {wish.job}: {said.answer}, {said.text}")
                    break

    def _killed(self) -> None:
        self._stage.log("user", "the shell is KILLED")
        if current() is self._shell:
            self._open(self._wishes[1:])
