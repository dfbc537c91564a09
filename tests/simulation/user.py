"""The user: gives commands at the worst moments, through the real ``Client``.

To running, publishing, paused and ended jobs, once or twice, with lost replies: those that the connection repeats by
itself (the same command id) and those that the user repeats (another one).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import cast

import redis

from coordinator.asking import NoSuchGroup
from coordinator.client import Client, NoSuchJob
from coordinator.commands import Command, Commanded
from coordinator.giving import Giving
from coordinator.job import NewerJob
from coordinator.problem import SpecError
from coordinator.queries import Queries
from coordinator.state import JobState
from coordinator.store import Store
from tasks.settings import Settings

from .broker import Broker
from .head import StoreAtHand, readable
from .line import Line, current, life_of
from .model import ModelStore
from .stage import Stage, Turn
from .trouble import Trouble
from .wishes import Wish


class _QueriesAtHand:
    """As much of ``Queries`` as commands are judged by."""

    def __init__(self, line: Line, core: ModelStore, knows: Callable[[int], bool]) -> None:
        self._line, self._core, self._knows = line, core, knows

    def state(self, job: str) -> tuple[JobState, float, float | None] | None:
        def read() -> tuple[JobState, float, float | None] | None:
            state = self._core.load(job)
            if state is not None:
                readable(state.job, self._knows)
            return None if state is None else (state, self._core.now, self._core.due.get(job))

        return self._line.call(f"read all of {job}", read)


class _ClientAtHand(Client):
    """The client, on a store of ours."""

    def __init__(
        self,
        settings: Settings,
        line: Line,
        core: ModelStore,
        broker: Broker,
        stage: Stage,
        knows: Callable[[int], bool],
    ) -> None:
        self.settings = settings
        store = StoreAtHand(line, core, broker, dict, knows)
        self._store = cast(Store, store)
        self.queries = cast(Queries, _QueriesAtHand(line, core, knows))
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
        knows: Callable[[int], bool],
    ) -> None:
        self._stage, self._trouble = stage, trouble
        line = Line(stage, trouble, self._killed)
        self._client = _ClientAtHand(settings, line, core, broker, stage, knows)
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
        if wish.given is Command.PAUSE and not wish.then and self._stage.rng.random() < 0.6:
            self._give_soon(Wish(0.0, job, Command.RESUME), delay + self._stage.rng.choice((0.1, 3.0, 20.0)))

    def _give_soon(self, wish: Wish, delay: float) -> None:
        self._soon.append(Turn(self._stage, "user", life_of(lambda: self._give_all(wish)), delay))

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
            self._give_all(self._wishes[0])
            self._wishes.pop(0)

    def _give_all(self, wish: Wish) -> None:
        self._give(wish)
        for delay, given in wish.then:
            current().pause(delay)
            self._give(Wish(0.0, wish.job, given, twice=wish.twice))

    def _give(self, wish: Wish) -> None:
        for _ in range(2 if wish.twice else 1):
            # A user whose shell says that the store is away asks again, up to a point.
            for _ in range(self._stage.rng.randint(1, 3)):
                try:
                    said = self._said(wish)
                except redis.ConnectionError as error:
                    self._stage.log("user", f"{wish.given} {wish.job}: {error}")
                except NoSuchJob:
                    return
                except NewerJob as error:
                    self._stage.log("user", f"{wish.given} {wish.job}: NEWER, {error}")
                    break
                except (NoSuchGroup, SpecError) as error:
                    self._stage.log("user", f"{wish.given} {wish.job}: WRONG, {error}")
                    break
                else:
                    self._stage.log("user", f"{wish.given} {wish.job}: {said.answer}, {said.text}")
                    break

    def _said(self, wish: Wish) -> Commanded:
        client, job, given = self._client, wish.job, wish.given
        if isinstance(given, Command):
            return client.command(job, given, now=wish.now, by="user")
        if given.word == "alter":
            # The reason says what was asked for, so that what was written can be held against it.
            return client.alter(job, given.values, reason=json.dumps(dict(given.values)), by="user")
        ask = client.skip if given.word == "skip" else client.rerun
        return ask(job, given.group, by="user")

    def _killed(self) -> None:
        self._stage.log("user", "the shell is KILLED")
        if current() is self._shell:
            self._open(self._wishes[1:])
