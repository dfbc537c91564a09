"""The state of an installation in which problems are detected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from unstuck.coordinator.model.acknowledgement import Acknowledgement
from unstuck.coordinator.model.fleet import FleetInfo, PoolInfo
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import Problem
from unstuck.coordinator.schedules.schedule_state import ScheduleState


class JobSummary(Protocol):
    """The fields of a job from which problems are detected."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def started_at(self) -> float: ...
    @property
    def ended_at(self) -> float: ...
    @property
    def reason(self) -> Reason | None: ...


@dataclass(frozen=True, slots=True)
class InstallationState:
    """The state of an installation at the time ``fleet.at``. Each list is bounded.

    Attributes:
        jobs: jobs that are HALTED or RETRYING, jobs that wait for their first worker, and the last
            job of each name if it FAILED recently.
        late: late jobs that coordinators have recorded.
        schedules: schedules that may have a problem.
        unreadable: schedules with a damaged record, each with a sentence.
        acknowledged: acknowledgements by id of the problem.
    """

    fleet: FleetInfo
    jobs: Sequence[JobSummary] = ()
    open_jobs: int = 0
    late: Sequence[Problem] = ()
    schedules: Sequence[ScheduleState] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    pools: Sequence[PoolInfo] = ()
    dead_letters: int = 0
    acknowledged: Mapping[str, Acknowledgement] = field(default_factory=dict)
