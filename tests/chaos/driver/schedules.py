"""The schedules of the load: by the clock, after a dataset, of files that arrive all the time, and
a person's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.driver.fleet import ChaosFleet
from tests.chaos.driver.load import PATIENT
from unstuck import Unreachable
from unstuck.coordinator.model.schedule_record import ScheduleIntent
from unstuck.coordinator.store.schedule_store import ScheduleStore

TICKS, FOLLOWS, ARRIVES = (
    "ticks",
    "follows",
    "arrives",
)  # each the name of a schedule and of its dataset
HELD, PAST = (
    "held",
    "past",
)  # the one that a person pauses, and the one of which a person wants ticks of the past
NAMES = (TICKS, FOLLOWS, ARRIVES, HELD, PAST)
PAUSE = 0.4  # seconds between two files
ROWS = 3  # of a file
BROKEN_EVERY = 9  # one of so many files cannot be read, and is to be put aside
KEEP = 10_000  # runs: the judge wants all of them


def specs(ran: Path, landing: Path) -> list[dict[str, Any]]:
    """Each a job of one group that appends to its dataset."""
    retry = {"max": 1000, "backoff": "1s", "max_backoff": "2s"}

    def spec(
        name: str, inputs: dict[str, Any], function: str = "", **schedule: Any
    ) -> dict[str, Any]:
        python = f"tests.chaos.driver.steps:{function or name}"
        step = {"python": python, "params": {"ran": str(ran)}, "output": name}
        return {
            "name": name,
            "priority": "high",
            "schedule": {**schedule, "retry": retry, "keep_runs": KEEP},
            "params": {"tick": {"type": "datetime", "default": "tick"}},
            "defaults": PATIENT,
            "outputs": {name: {"mode": "append"}},
            "groups": [{"name": "only", "spark": False, "inputs": inputs, "steps": [step]}],
        }

    stream = {
        "stream": str(landing),
        "format": "json",
        "schema": "id BIGINT",
        "on_bad_file": "skip",
    }
    return [
        spec(TICKS, {}, every="3s"),
        spec(FOLLOWS, {TICKS: TICKS}, after=[TICKS]),
        spec(ARRIVES, {"files": stream}, every="2s", only_if="arrived"),
        # No tick of it waits for the run before, so each shows how late a run may be.
        spec(HELD, {}, TICKS, every="2s", overlap="allow", missed="all"),
        spec(PAST, {}, TICKS, every="1d"),
    ]


@dataclass(slots=True)
class Schedules:
    """Sets the schedules, feeds the stream in a thread of its own, and stops all once the last of
    each has come.

    Attributes:
        fed: the path of each file that has arrived → the ids in it; none of a file that is broken.
        let_go: of each schedule the ticks whose run was not submitted yet when it was stopped.
    """

    fleet: ChaosFleet
    fed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    let_go: dict[str, frozenset[float]] = field(default_factory=dict)
    _enough: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _over: float = 0.0  # when all faults were undone, and the last file had arrived

    @property
    def landing(self) -> Path:
        return self.fleet.folder / "landing"

    def start(self) -> None:
        self.landing.mkdir()
        for spec in specs(self.fleet.ran, self.landing):
            self.fleet.client.schedules.set(spec)
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def end_feed(self) -> None:
        """One last file, once all faults are undone."""
        self._enough.set()
        if self._thread is not None:
            self._thread.join()
        self._arrive(broken=False)
        self._over = time.time()

    def ended(self) -> bool:
        """Whether all have ended. Stops each once its last run was after the faults, and found all
        that there was.

        Raises: redis.RedisError, Unreachable.
        """
        store = ScheduleStore(self.fleet.eye, self.fleet.keys)
        records = {record.name: record for record in store.load_all(NAMES)[0]}
        if len(records) < len(NAMES):
            return False  # which the judge says
        ticks, follows, arrives, held, past = (records[name] for name in NAMES)
        came = store.published(ticks.warehouse, [TICKS])
        paused = held.intent is ScheduleIntent.PAUSE
        well: dict[str, Callable[[], bool]] = {
            TICKS: lambda: ticks.last_success is not None and ticks.last_success.at > self._over,
            ARRIVES: lambda: arrives.quiet is not None and arrives.quiet.looked_at > self._over,
            FOLLOWS: lambda: (
                ticks.status.terminal
                and not ticks.runs
                and follows.followed.get(TICKS, 0) >= came.get(TICKS, (0, 0.0))[0]
                and not follows.retries
            ),
            HELD: lambda: (
                paused or (held.last_success is not None and held.last_success.at > self._over)
            ),
            PAST: lambda: past.backfill is not None and past.backfill.over,
        }
        for name, record in records.items():
            goes_on = record.runs and name != HELD  # of which one run or another may always go on
            if not record.status.terminal and not goes_on and well[name]():
                self.let_go[name] = frozenset(run.tick for run in record.runs if not run.job)
                self.fleet.client.schedules.stop(name, reason="the faults are over")
        return all(record.status.terminal and not record.going_on for record in records.values())

    def _feed(self) -> None:
        while not self._enough.wait(PAUSE):
            self._arrive(broken=len(self.fed) % BROKEN_EVERY == BROKEN_EVERY - 1)

    def _arrive(self, *, broken: bool) -> None:
        """A file is renamed into its place.

        Names come in no order, so that a position of one would lose some.
        """
        number = len(self.fed)
        path = self.landing / f"{number * 7919 % 100_003:06d}.json"
        ids = () if broken else tuple(range(number * ROWS, (number + 1) * ROWS))
        text = '{"id": 1' if broken else "".join(f"{json.dumps({'id': one})}\n" for one in ids)
        part = path.with_suffix(".part")
        part.write_text(text)
        self.fed[str(path)] = ids
        part.rename(path)


def explained(fleet: ChaosFleet, name: str) -> str:
    """Where a schedule stands, in words."""
    try:
        return str(fleet.client.schedules.show(name).waits)
    except Unreachable as error:
        return f"Redis does not answer: {error}"
