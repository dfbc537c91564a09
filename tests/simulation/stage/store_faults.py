"""Faults of the store itself, and releases that meet.

Most histories have some of them, a third has none.
"""

# The store restarts and is away for a while; it comes back as it was some seconds ago (a failover,
# a lost tail of the append-only file); its clock is set forward or back; a newer release of
# coordinators, workers and clients runs beside an older one until the upgrade is done. All dice are
# its own, so that the rest of a history is as it would be without.

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tests.simulation.model.store import ModelStore
from tests.simulation.stage.network import LONGEST_WAIT
from tests.simulation.stage.stage import Life, Stage
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.reconcile.reconciler import NEWER_LOOK

NEWER = 2  # the schema of the newer release
SNAPSHOT_EVERY = 0.4  # seconds
Restore = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One fault of the store.

    Attributes:
        at: seconds after the beginning.
        by: restart: seconds it is away; rollback: seconds that are lost; jump: seconds the clock is
            set forward by.
    """

    at: float
    kind: Literal["restart", "rollback", "jump"]
    by: float


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """The faults of the store in one history, and who is of the newer release.

    Attributes:
        upgraded_at: seconds after the beginning at which everybody is of the newer release; 0:
            there is one release.
        newer_jobs, newer_coordinators, newer_hosts: those that are of the newer release from the
            start.
    """

    faults: tuple[StoreFault, ...] = ()
    upgraded_at: float = 0.0
    newer_jobs: frozenset[str] = frozenset()
    newer_coordinators: frozenset[str] = frozenset()
    newer_hosts: frozenset[str] = frozenset()
    behind: bool = False  # coordinators publish behind their other work, as the real ones do

    @property
    def rolls_back(self) -> bool:
        return any(fault.kind == "rollback" for fault in self.faults)

    def knows(self, stage: Stage, who: str) -> Callable[[int], bool]:
        """Whether ``who`` can read what has this schema, at the time it is asked."""
        return lambda schema: (
            schema < NEWER or who in self.newer_coordinators or stage.elapsed >= self.upgraded_at
        )

    def undecidable(self, stage: Stage) -> Callable[[JobRecord], bool]:
        """Whether a job may wait for a newer coordinator: an older one that meets it leaves it for
        a moment.
        """
        until = self.upgraded_at + NEWER_LOOK + 1.0
        return lambda job: self.upgraded_at > 0 and job.schema >= NEWER and stage.elapsed < until


FAULT_FREE = StoreFaults()


def random_store_faults(rng: random.Random, jobs: Iterable[str], lasts: float) -> StoreFaults:
    """Half a dozen faults at most, within ``lasts`` seconds."""
    faults = []
    if rng.random() < 0.4:
        faults += [
            StoreFault(rng.uniform(1.0, lasts), "restart", rng.choice((0.5, 4.0, 25.0)))
            for _ in range(2)
        ]
    if rng.random() < 0.4:
        faults += [
            StoreFault(rng.uniform(2.0, lasts), "rollback", rng.uniform(0.2, 2.5))
            for _ in range(rng.randint(1, 3))
        ]
    if rng.random() < 0.4:
        for _ in range(rng.randint(1, 2)):
            seconds = rng.choice((0.7, 2.0, 20.0, 100.0, 4000.0)) * rng.uniform(0.8, 1.2)
            faults.append(
                StoreFault(rng.uniform(1.0, lasts), "jump", rng.choice((seconds, -seconds)))
            )
    behind = rng.random() < 0.5
    if rng.random() < 0.7:
        return StoreFaults(tuple(sorted(faults, key=lambda fault: fault.at)), behind=behind)
    return StoreFaults(
        tuple(sorted(faults, key=lambda fault: fault.at)),
        upgraded_at=rng.uniform(5.0, lasts),
        newer_jobs=frozenset(job for job in jobs if rng.random() < 0.6),
        newer_coordinators=frozenset(
            name for name in ("coordinator0", "coordinator1", "user") if rng.random() < 0.4
        ),
        newer_hosts=frozenset(
            name for name in ("worker0", "worker1", "worker2") if rng.random() < 0.5
        ),
        behind=behind,
    )


class StoreFaultActor:
    """Makes the faults happen: one actor of the stage."""

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelStore,
        store_faults: StoreFaults,
        remembered: Iterable[Callable[[], Restore]],
    ) -> None:
        """``remembered``: each takes a snapshot of one thing that lives in the store, and answers
        how to go back.
        """
        self._stage, self._trouble, self._core, self._faults = stage, trouble, core, store_faults
        self._remembered = list(remembered)
        self._pending = len(store_faults.faults)
        self._snapshots: list[tuple[float, list[Restore]]] = []

    @property
    def rolls_back(self) -> bool:
        return self._faults.rolls_back

    @property
    def pending(self) -> bool:
        """More is to come."""
        return self._pending > 0

    def forget(self) -> None:
        """Nothing goes back to before now: of a submit, which the client would have to repeat."""
        self._snapshots.clear()
        if self._faults.rolls_back:
            self._snap()

    def _snap(self) -> None:
        self._snapshots.append((self._stage.now, [remember() for remember in self._remembered]))
        del self._snapshots[:-10]

    def life(self) -> Life:
        faults = list(self._faults.faults)
        while faults:
            wait = self._stage.start + faults[0].at - self._stage.now
            if wait > 0:
                if self._faults.rolls_back:
                    self._snap()
                    wait = min(wait, SNAPSHOT_EVERY)
                yield wait
                continue
            self._inject(faults.pop(0))
            self._pending -= 1

    def _inject(self, fault: StoreFault) -> None:
        stage, core = self._stage, self._core
        if not self._trouble.happens():
            return
        if fault.kind == "jump":
            core.set_clock(fault.by)
            self._trouble.disturb(stage.now)
            stage.log(
                "store",
                f"its CLOCK is set {'forward' if fault.by > 0 else 'back'} by {abs(fault.by):.1f}s",
            )
            return
        away = fault.by if fault.kind == "restart" else 0.3
        self._trouble.away_until = min(self._trouble.ends, stage.now + away)
        self._trouble.disturb(self._trouble.away_until + 1.0 + LONGEST_WAIT)
        if fault.kind == "restart":
            stage.log(
                "store", f"RESTARTS, and is away for {self._trouble.away_until - stage.now:.1f}s"
            )
            return
        old_enough = [
            snapshot for snapshot in self._snapshots if snapshot[0] <= stage.now - fault.by
        ]
        if self._snapshots:
            at, restores = (old_enough or self._snapshots[:1])[-1]
            for restore in restores:
                restore()
            stage.log("store", f"is ROLLED BACK by {stage.now - at:.1f}s")
            self._snapshots.clear()
