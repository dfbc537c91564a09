"""The jobs that a retry makes: each is one more job of the history, with a behaviour of its own."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.stage.jobs import SimulatedJob, random_behaviours
from tests.simulation.stage.stage import Stage
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.spec.plan import plan_of


class Retries:
    """Knows of every new job where it comes from, and how its steps will behave."""

    def __init__(
        self,
        stage: Stage,
        jobs: dict[str, SimulatedJob],
        rng: random.Random,
        forget: Callable[[], None],
    ) -> None:
        """
        Args:
            jobs: of the history, by id; what is retried is added.
            rng: dice of their own.
            forget: nothing goes back to before now: of a submit, which the client would have to
                repeat.
        """
        self._stage, self._jobs, self._rng, self._forget = stage, jobs, rng, forget
        self._minted = 0
        self.last_at = 0.0  # when the last one was stored

    def new_id(self, now: float) -> str:
        """In the place of ``coordinator.submitter.new_job_id``."""
        self._minted += 1
        return f"retry{self._minted}"

    def stored(self, record: JobRecord) -> None:
        """It is in the store; said again, if its first reply was lost."""
        if record.id in self._jobs:
            return
        plan = plan_of(record.spec)
        behaviours, root = random_behaviours(self._rng, plan), self.root(record.retry_of)
        self._jobs[record.id] = SimulatedJob(
            record, plan, behaviours, self._stage.elapsed, root=root
        )
        self.last_at = self._stage.now
        self._forget()

    def root(self, job: str) -> str:
        """The job that was submitted first."""
        return self._jobs[job].root or job
