"""A case of the benchmark: pairs of our figure and a peer's, measured in turn, and the stage that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.progress import Progress

from bench.fleet import Fleet
from bench.measure import Sample, Spread, measured
from bench.peer import Peer
from bench.server import Server

SCRIPTS = ("evalsha", "eval", "fcall")
Unit = Literal["groups/s", "ms/hop"]


@dataclass
class Pair:
    """Ours and one peer's, round by round."""

    what: str
    peer: str
    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)

    def add(self, ours: Sample, theirs: Sample) -> None:
        self.ours.append(ours)
        self.theirs.append(theirs)

    @property
    def ratio(self) -> Spread:
        """How many times as fast as the peer we are, round by round."""
        return Spread.of([theirs.seconds / ours.seconds for ours, theirs in zip(self.ours, self.theirs, strict=True)])


@dataclass
class Case:
    """One case, with all its pairs.

    Args:
        letter: as the documentation calls it.
        unit: what its figures are given in.
    """

    letter: str
    name: str
    unit: Unit
    pairs: list[Pair] = field(default_factory=list)

    def pair(self, what: str, peer: str) -> Pair:
        made = Pair(what, peer)
        self.pairs.append(made)
        return made

    def figure(self, samples: list[Sample]) -> Spread:
        """The samples in the unit of the case."""
        if self.unit == "groups/s":
            return Spread.of([sample.units / sample.seconds for sample in samples])
        return Spread.of([1000 * sample.seconds / sample.units for sample in samples])


class Stage:
    """One Redis server, one fleet of ours and the peers that were asked for, until ``close``.

    Peers are started when they are first asked. What waits costs nothing that would change the other's figure: an
    idle fleet of ours takes below one percent of a core.

    Args:
        size: ``quick`` or ``full``.
        count: rounds of each case.
    """

    def __init__(self, folder: Path, size: Literal["quick", "full"], count: int, progress: Progress) -> None:
        self.folder, self.size, self._count, self._progress = folder, size, count, progress
        self._open = ExitStack()
        self._peers: dict[str, Peer] = {}
        self.server = self._open.enter_context(closing(Server(folder)))
        try:
            self.fleet = self._open.enter_context(closing(Fleet(self.server, folder)))
        except BaseException:
            self.close()
            raise
        self._task = progress.add_task("", total=None)

    def rounds(self) -> Iterator[int]:
        """The rounds of a case."""
        for i in range(self._count):
            self._progress.update(self._task, description=f"round {i + 1} of {self._count}")
            yield i

    def ours(self, spec: dict[str, Any], units: int) -> Sample:
        """Submit a job and wait for its end."""
        before = self.server.calls()
        with measured(self.fleet.processes, units) as sample:
            self.fleet.finish(self.fleet.client.submit(spec).id)
        after = self.server.calls()
        sample.extra["scripts"] = sum(after.get(name, 0) - before.get(name, 0) for name in SCRIPTS) / units
        return sample

    def peer(self, name: str, what: str, n: int) -> Sample:
        """Ask a peer for the same."""
        if name not in self._peers:
            url = self.server.url(database=len(self._peers) + 1)
            self._peers[name] = self._open.enter_context(closing(Peer(name, url, self.folder)))
        peer = self._peers[name]
        with measured({name: peer.process, "redis": self.server.process}, n) as sample:
            seconds = peer.run(what, n)
        sample.seconds = seconds
        return sample

    def close(self) -> None:
        self._open.close()
