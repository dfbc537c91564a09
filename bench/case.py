"""A case of the benchmark, and the stage on which cases are measured.

A case has pairs (our figure and a peer's, measured in turn) or figures of ours alone, or both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.progress import Progress

from bench.fleet import Fleet
from bench.measure import Sample, Spread, measured
from bench.peer import NotInstalled, Peer
from bench.server import Server
from unstuck import JobSpec

SCRIPTS = ("evalsha", "eval", "fcall")
Size = Literal["tiny", "quick", "full"]
Unit = Literal["groups/s", "rows/s", "ms each", "s"]


@dataclass
class Pair:
    """Ours and one peer's, round by round. Without a peer, ``theirs`` is empty."""

    what: str
    peer: str
    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)

    @property
    def ratio(self) -> Spread:
        """How many times as fast per unit as the peer we are, round by round."""
        times = [
            (ours.seconds / ours.units, theirs.seconds / theirs.units)
            for ours, theirs in self._rounds()
        ]
        return Spread.of([theirs / ours for ours, theirs in times])

    def _rounds(self) -> Iterator[tuple[Sample, Sample]]:
        return zip(self.ours, self.theirs, strict=True)


@dataclass
class Figure:
    """A figure of ours that no peer has: one value for each round."""

    what: str
    unit: str
    values: list[float] = field(default_factory=list)


@dataclass
class Case:
    """One case, with all its pairs and figures.

    Args:
        letter: as the documentation calls it.
        unit: what its pairs are given in.
        notes: what a reader of the figures must know of this run.
    """

    letter: str
    name: str
    unit: Unit = "s"
    pairs: list[Pair] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def pair(self, what: str, peer: str) -> Pair:
        self.pairs.append(made := Pair(what, peer))
        return made

    def add(self, what: str, unit: str, value: float) -> None:
        """One more round of a figure."""
        found = next(
            (figure for figure in self.figures if (figure.what, figure.unit) == (what, unit)), None
        )
        if found is None:
            self.figures.append(found := Figure(what, unit))
        found.values.append(value)

    def in_unit(self, samples: Sequence[Sample]) -> Spread:
        """The samples in the unit of the case."""
        if self.unit in ("groups/s", "rows/s"):
            return Spread.of([sample.units / sample.seconds for sample in samples])
        if self.unit == "ms each":
            return Spread.of([1000 * sample.seconds / sample.units for sample in samples])
        return Spread.of([sample.seconds for sample in samples])


class Stage:
    """One Redis server, one fleet of ours and the peers that were asked for, until ``close``.

    All are started when they are first needed. A peer that waits is stopped (SIGSTOP). A fleet of
    ours that waits takes below one percent of a core.

    Args:
        count: rounds of each case.
        peers: the peers that may be asked; None: all.
    """

    def __init__(
        self,
        folder: Path,
        size: Size,
        count: int,
        progress: Progress,
        peers: frozenset[str] | None = None,
    ) -> None:
        self.folder, self.size, self._count, self._progress, self._allowed = (
            folder,
            size,
            count,
            progress,
            peers,
        )
        self._open = ExitStack()
        self._peers: dict[str, Peer] = {}
        self._lacking: dict[str, str] = {}
        self._fleets = 0
        self._task = progress.add_task("", total=None)

    @cached_property
    def server(self) -> Server:
        return self._open.enter_context(closing(Server(self.folder)))

    @cached_property
    def fleet(self) -> Fleet:
        return self._open.enter_context(closing(Fleet(self.server, self.folder)))

    @contextmanager
    def own_fleet(self, **options: Any) -> Iterator[Fleet]:
        """A fleet on a Redis server of its own, for a case that freezes, kills or fills it."""
        self._fleets += 1
        folder = self.folder / f"fleet-{self._fleets}"
        folder.mkdir()
        self.say("starting a fleet")
        with closing(Server(folder)) as server, closing(Fleet(server, folder, **options)) as fleet:
            yield fleet

    def say(self, what: str) -> None:
        """What is being done, for who waits."""
        self._progress.update(self._task, description=what)

    def rounds(self, most: int | None = None) -> Iterator[int]:
        """The rounds of a case. ``most``: of one whose rounds take long."""
        count = self._count if most is None else min(most, self._count)
        for i in range(count):
            self.say(f"round {i + 1} of {count}")
            yield i

    def compare(
        self,
        case: Case,
        what: str,
        ours: Callable[[], Sample],
        peers: Mapping[tuple[str, str], int],
        most: int | None = None,
    ) -> None:
        """Measure ours and each peer in turn, round by round.

        Args:
            peers: a peer and what it is asked for, with how many of them.
            most: at most so many rounds.
        """
        ready = [(name, command) for name, command in peers if self._has(name, case)]
        pairs = {key: case.pair(what, " ".join(key)) for key in ready} or {
            ("", ""): case.pair(what, "")
        }
        for _ in self.rounds(most):
            sample = ours()
            for (name, command), pair in pairs.items():
                pair.ours.append(sample)
                if name:
                    self.say(f"{name} {command}")
                    beside = {"redis": self.server.process}
                    pair.theirs.append(self._peers[name].run(command, peers[name, command], beside))

    def ours(self, spec: dict[str, Any] | JobSpec, units: int) -> Sample:
        """Submit a job to the fleet and wait for its end."""
        fleet = self.fleet  # started before its processes and scripts are counted
        before, client = self.server.calls(), time.process_time()
        with measured(fleet.processes, units) as sample:
            fleet.finish(fleet.client.submit(spec).id)
        sample.cpu["client"] = round(time.process_time() - client, 3)
        after = self.server.calls()
        sample.extra["scripts"] = (
            sum(after.get(name, 0) - before.get(name, 0) for name in SCRIPTS) / units
        )
        return sample

    def _has(self, name: str, case: Case) -> bool:
        """Whether the peer can be asked; it is started for that.

        The case notes what cannot be installed.
        """
        if self._allowed is not None and name not in self._allowed:
            return False
        if name not in self._peers and name not in self._lacking:
            self.say(f"starting {name}")
            url = self.server.url(database=len(self._peers) + 1)
            try:
                self._peers[name] = self._open.enter_context(closing(Peer(name, url, self.folder)))
            except NotInstalled as error:
                self._lacking[name] = str(error)
        if name in self._lacking and self._lacking[name] not in case.notes:
            case.notes.append(self._lacking[name])
        return name in self._peers

    def close(self) -> None:
        self._open.close()
