"""What the rules want of a job beside what the store holds, and who is told of every write to
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.in_process import stored
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.work_order import WorkOrder


@dataclass(slots=True)
class StoredJob(stored.StoredJob):
    """The keys of one job.

    Attributes:
        begun_at: when somebody last began a pass.
        decided_at: when the pass of the last commit began.
    """

    begun_at: float = 0.0
    decided_at: float = 0.0

    def copy(self) -> StoredJob:
        """What stands here now, whatever is written later."""
        return replace(
            self,
            groups=dict(self.groups),
            collected=dict(self.collected),
            attempts=dict(self.attempts),
            frozen=dict(self.frozen),
            plans=dict(self.plans),
            turns=dict(self.turns),
            params=dict(self.params),
            events=list(self.events),
        )


class Watching(Protocol):
    """Who is told of every write: the promises."""

    def submitted(self, record: JobRecord) -> None: ...
    def committed(self, before: StoredJob, after: StoredJob, decision: Decision) -> None: ...
    def handed_out(self, token: Token, work_order: WorkOrder) -> None: ...
    def claimed(self, token: Token) -> None: ...
    def heard(self, claimant: str, token: Token | None) -> None: ...
    def finished(self, token: Token, outcome: Outcome) -> None: ...
    def commanded(self, before: JobRecord, after: JobRecord, event: Mapping[str, Any]) -> None: ...
    def halted(self, before: StoredJob, reason: Reason) -> None: ...
    def met_busy(self, job: str) -> None: ...
    def begun(self, job: str) -> None: ...
    def due_set(self, job: str) -> None: ...
    def set_back(self, now: float) -> None: ...
    def rang(
        self, sent: Mapping[str, int], listening: Mapping[str, Sequence[RunnerInfo]]
    ) -> None: ...
