"""Runs jobs in this process: no Redis, no Celery, no fleet; the same decisions and publishing."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.errors import BadRequest, NoSuchGroup
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.coordinator.spec.plan import Plan, compile_plan
from unstuck.coordinator.spec.problems import suggestion
from unstuck.coordinator.spec.selection import GroupSelection, select
from unstuck.in_process.attempts import Failing, RunnerHere
from unstuck.in_process.coordinator import Coordinator, JumpingClock
from unstuck.in_process.leftovers import remove_leftovers, staging_of_run
from unstuck.in_process.limits_of_one import refuse_what_needs_a_fleet
from unstuck.read_model.job import JobInfo
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.errors import HostUnfit
from unstuck.tasks.host import LIGHT, lacking
from unstuck.tasks.identity import NO_SPARK
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.lease import FinishAnswer
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.validation.validate import check_tables_by_code

PUBLISH_TRIES = 5  # until a warehouse that cannot be written is given up: no person is waited for
SHOWING = 0.5, 0.2  # seconds, and a part of the time, that may be spent to show a job


@dataclass(frozen=True)
class GroupEnd:
    """The end of a group, or of one member of a fork."""

    name: str
    state: GroupState
    reason: Reason | None
    results: Mapping[str, Any]
    attempts: int


class JobResult:
    """A job that has ended in this process.

    Attributes:
        job_id: of the job.
        view: all that is known of it, as `Client.show` answers.
    """

    def __init__(self, view: JobInfo, events: list[dict[str, Any]]) -> None:
        self.view, self.job_id, self._events = view, view.id, events

    def __repr__(self) -> str:
        return f"<JobResult {self.view.name} {self.status}>"

    @property
    def status(self) -> Status:
        return self.view.status

    @property
    def finished(self) -> bool:
        """Whether it is FINISHED, with everything published."""
        return self.status is Status.FINISHED

    @property
    def groups(self) -> dict[str, GroupEnd]:
        """Return the groups by name; members of a fork as ``name[0]``, ``name[1]`` and so on."""
        return {
            member.id: GroupEnd(
                member.id,
                member.state,
                member.reason,
                member.results,
                member.attempt,
            )
            for fork in self.view.groups
            for member in fork.members
        }

    def group(self, name: str) -> GroupEnd:
        """Return a group. Raises: NoSuchGroup: no group of this name has begun or ended."""
        groups = self.groups
        if name not in groups:
            raise NoSuchGroup(f"the job has no group {name}{suggestion(name, groups)}")
        return groups[name]

    @property
    def results(self) -> dict[str, Any]:
        """Return the results of steps by group; for a fork a list, in the order of its members."""
        return {
            fork.name: recorded if fork.forked else recorded[0]
            for fork in self.view.groups
            if (recorded := [dict(member.results) for member in fork.members]) and any(recorded)
        }

    def why(self) -> str:
        """Return a line for the job, and for each group that has failed."""
        failed = [
            f"{group.name}: {group.state}: {group.reason.code}: {group.reason.text}"
            for group in self.groups.values()
            if group.reason is not None and group.state is not GroupState.SUCCEEDED
        ]
        job = self.view
        return "\n".join([f"{job.name}: {self.view.why_line(job.id) or job.status}", *failed])

    def events(self) -> list[dict[str, Any]]:
        """Return its event log, the oldest first."""
        return self._events


class InProcess:
    """One warehouse, in which jobs run one after another; waits are skipped."""

    def __init__(
        self,
        warehouse: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        driver: Callable[[], Driver] | None = None,
        now: datetime.datetime | None = None,
    ) -> None:
        """Create the object.

        Args:
            settings: of everything else; those of the environment by default.
            driver: returns the Spark driver when a group first needs it. None: this process has
                its own.
            now: the tick of which the job is a run, where the clock begins.
        """
        explicit = (settings or Settings()).model_dump(exclude_unset=True)
        self.settings = Settings(
            **{**explicit, "warehouse": str(warehouse), "durability": "everysec"}
        )
        self._tick, self.clock = now, JumpingClock(now)
        self._coordinator = Coordinator(self.settings, self.clock)
        self._on_change: Callable[[JobInfo], None] | None = None
        # When the job began, and the seconds that were spent to show it.
        self._began = self._spent = 0.0
        self._runner = RunnerHere(self.settings, driver, self._progressed)

    def close(self) -> None:
        self._runner.close()

    def run_or_leave(
        self, *args: Any, leaves: tuple[type[BaseException], ...] = (), **named: Any
    ) -> JobResult:
        """Run like `run`, for a program: if the user ends the job, raise the same error.

        For example, Ctrl-C raises KeyboardInterrupt.

        Args:
            leaves: more errors of a step that end the caller, too, and are no failure of the step.
        """
        self._runner.leaves += leaves
        ended = self.run(*args, **named)
        if self._runner.left_with is not None:
            raise self._runner.left_with
        return ended

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        spec: Spec,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        only: Collection[str] = (),
        from_: Collection[str] = (),
        until: Collection[str] = (),
        fail: Failing | None = None,
        times: int = 1,
        take_over: bool = False,
        keep: bool = False,
        on_change: Callable[[JobInfo], None] | None = None,
        on_input: Callable[[], None] = lambda: None,
    ) -> JobResult:
        """Run a job until it ends, or cannot continue by itself.

        Args:
            params, key, take_over: as of `Client.submit`.
            only, from_, until: the groups that run, if not all: these, these with what comes after
                them, these with what comes before them; by name or pattern. They read what the
                others have published before.
            fail: by group or member, the error that its first ``times`` attempts raise in the place
                of their steps.
            keep: leave the staging of the job as it is, with the logs of its attempts.
            on_change: called with the job after a change; for a wide job not after each
                time.
            on_input: called when a step reads from the terminal, as a debugger does.

        Raises: as `Client.submit`; HostUnfit: this host lacks what a group needs; NoSuchGroup: a
            name fits none; BadRequest: a group that is left out has published nothing, or a group
            needs a fleet.
        """
        job_spec = JobSpec.of(spec, params or {})
        check_tables_by_code(job_spec, self.settings)
        if only or from_ or until:
            job_spec = self._part(select(job_spec, only, from_, until))
        refuse_what_needs_a_fleet(job_spec)
        plan = compile_plan(job_spec)
        for name in fail or {}:
            if split_member(name)[0] not in plan.groups:
                raise NoSuchGroup(
                    f"fail: the job has no group {name}{suggestion(name, plan.groups)}"
                )
        self._check_host(plan)
        if key is None and self._tick is not None:
            key = f"{job_spec.name}@{tick_text(self._tick.timestamp())}"
        job = self._coordinator.submit(job_spec, key or "", take_over=take_over)
        self._runner.make_fail(fail or {}, times)
        self._runner.on_input, self._on_change = on_input, on_change
        self._began, self._spent = time.monotonic(), 0.0
        record = self._coordinator.record(job)
        warehouse = Warehouse(record.warehouse, record.warehouse_id)
        remove_leftovers(warehouse)
        with (
            staging_of_run(warehouse, job, record.base or 0, keep=keep),
            self._runner.interruptible(),
        ):
            self._run(job)
            view = self._coordinator.show(job)
            if on_change is not None:
                on_change(view)
        return JobResult(view, list(self._coordinator.events(job)))

    def _check_host(self, plan: Plan) -> None:
        """Check the host. Raises: HostUnfit: this host lacks what a group of ``plan`` needs."""
        on_spark = any(group.spec.spark for group in plan.groups.values())
        if lacks := lacking(self.settings, ["spark" if on_spark else LIGHT]):
            raise HostUnfit(lacks)
        if on_spark and self.settings.spark_master == NO_SPARK:
            raise HostUnfit(
                f"a group wants Spark, and UNSTUCK_SPARK_MASTER={NO_SPARK} says that this process "
                "runs none. Unset it, or run a part of the job with --only"
            )

    def _part(self, part: GroupSelection) -> JobSpec:
        warehouse = Warehouse(self.settings.warehouse)
        published = warehouse.state() if part.reads else ()
        if lacks := part.lacking(published):
            raise BadRequest(lacks)
        return part.spec

    def clean(self, text: str) -> str:
        """Return ``text`` with each secret of steps in this process replaced by its reference."""
        return self._runner.secrets.clean(text)

    def events(self, job: str, after: int = 0) -> list[dict[str, Any]]:
        """Return the event log of a job, from its entry ``after`` on."""
        return self._coordinator.events(job, after)

    def _progressed(self, token: Token, progress: str) -> None:
        self._coordinator.note_progress(token, progress)
        self._show(token.job)

    def _show(self, job: str) -> None:
        """Report the state of the job, unless that would take more than a part of the time."""
        began = time.monotonic()
        if self._on_change is not None and self._spent <= SHOWING[0] + SHOWING[1] * (
            began - self._began
        ):
            self._on_change(self._coordinator.show(job))
            self._spent += time.monotonic() - began

    def _run(self, job: str) -> None:
        coordinator, runner, shown_commit = self._coordinator, self._runner, ""
        while True:
            coordinator.decide()
            if (record := coordinator.record(job)).commit != shown_commit:
                shown_commit = record.commit
                self._show(job)
            if record.at_rest or record.publish_tries >= PUBLISH_TRIES:
                return
            if runner.interrupted:
                runner.interrupted = False
                coordinator.cancel(job, "interrupted")
            elif (claim := coordinator.take()) is not None:
                coordinator.decide()
                self._show(job)
                runner.run(claim, self._finish)
            else:
                coordinator.jump()

    def _finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        return self._coordinator.store.finish(token, outcome, event, "here")
