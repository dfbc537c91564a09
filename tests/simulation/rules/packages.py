"""What is written to the warehouse log: once for each job, and what its groups made.

It remembers across a rollback, as the warehouse does.
"""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.actors.dispatch import package_of
from tests.simulation.actors.warehouse import Depot, LogEntry
from tests.simulation.rules.user import word
from unstuck.coordinator.model.state import JobState


class Packages:
    """Watches every entry of the log."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._written: set[str] = set()
        self._told: defaultdict[str, list[LogEntry]] = defaultdict(
            list
        )  # what the publishers of a job were told to
        self.went_back = False
        self.outlasted: set[str] = (
            set()
        )  # jobs whose package outlasts the record of their publishing

    def publishing(self, state: JobState) -> None:
        """A job is publishing from now on."""
        self._told[state.job.id].append(package_of(state, self._depot))

    def store_went_back(self) -> None:
        self.went_back = True
        self.outlasted |= self._written

    def wrote(self, entry: LogEntry, state: JobState) -> str:
        """What is wrong with a new entry; empty if nothing is."""
        job = state.job
        if job.id in self._written:
            return f"{job.id} stands in the log twice"
        self._written.add(job.id)
        if entry.kind == "abort" and job.intent in word.ENDED_BY_USER and job.phase.aborts:
            # Also of a coordinator that was frozen in it, under a job that another one brought to
            # its end.
            return ""
        if entry.kind == "abort" and self.went_back and (not job.terminal or not job.version):
            # Of a cancel that the store has forgotten since. It withholds nothing from a job that
            # had no output; one that has not published yet finds it in its slot, and ends as it
            # says.
            return ""
        is_so = entry == package_of(state, self._depot)
        publishing = bool(job.phase) and not job.terminal
        if not (publishing and is_so) and self.went_back and entry in self._told[job.id]:
            # Its publisher was frozen when the store went back to before the job was publishing.
            self.outlasted.add(job.id)
            return ""
        if job.terminal:
            return f"{job.id} was {job.status} already when its {entry.kind} was written"
        return "" if is_so else f"the package of {job.id} is not what its groups made: {entry}"
