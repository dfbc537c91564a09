"""What stands in the store of one job, and who is told of every write to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.tasks.protocol.processes import RunnerStatus
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.work_order import WorkOrder

Fields = dict[str, str]


@dataclass(slots=True)
class StoredJob:
    """The keys of one job."""

    record: JobRecord
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    collected: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    attempts: dict[str, AttemptRecord] = field(default_factory=dict)
    commanded: str = ""
    frozen: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    lock: tuple[str, float] = ("", 0.0)
    dirty_until: float = 0.0
    begun_at: float = 0.0  # for the promises: when somebody last began a pass
    decided_at: float = 0.0  # for the promises: when the pass of the last commit began

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


class Reports(Protocol):
    """As much of the report stream as the scripts touch."""

    def add(self, fields: Fields) -> None: ...
    def ack(self, ids: Iterable[str]) -> list[str]: ...
    def count(self, counts: Iterable[tuple[str, int]]) -> None: ...


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
    def rang(self, sent: Mapping[str, int], listening: Mapping[str, Sequence[RunnerStatus]]) -> None: ...
