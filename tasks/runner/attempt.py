"""One attempt, from a claim to the finish.

An attempt that made something writes its marker, then records its outcome, and then closes the
Spark session, so a failing close cannot change the outcome. Whatever user code raises ends the
attempt and never the runner.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from billiard.common import terminate_handler_fired

from unstuck.tasks.driver.driver import TABLES
from unstuck.tasks.errors import (
    AttemptEnded,
    NotBegun,
    StepNotFound,
    UnstuckError,
    WarehouseMismatch,
)
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.log_lines import process_is_about
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.protocol.failure import (
    MAX_TEXT,
    TEXT_WITHIN,
    class_name,
    describe,
    describe_in_time,
    outside_of_the_steps,
    shorten,
)
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.runner.attempt_host import WAREHOUSE_TIMEOUT, AttemptHost, Held
from unstuck.tasks.runner.done_before import DoneBefore, on_record
from unstuck.tasks.runner.logs.attempt_log import AttemptLog, logging_restored
from unstuck.tasks.runner.logs.stdio_filter import filtered
from unstuck.tasks.runner.outcome import success
from unstuck.tasks.runner.snapshot import ProcessSnapshot, environment
from unstuck.tasks.runner.spark_session import open_session
from unstuck.tasks.spec.group import Step
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.beside import BesidePublished
from unstuck.tasks.steps.calls import untaken
from unstuck.tasks.steps.code import code_of, code_taken, fingerprint, forget_code
from unstuck.tasks.steps.context import Scratch, StepContext
from unstuck.tasks.steps.execute import StepRaised, run_step, users_code
from unstuck.tasks.steps.loaded import loaded
from unstuck.tasks.steps.step_inputs import (
    PublishedDatasets,
    of_skipped,
    read_inputs,
    with_published,
)
from unstuck.tasks.steps.stream_reading import StreamReading
from unstuck.tasks.steps.work import OutputRules, Work
from unstuck.tasks.streams.arrived.fork_share import Share
from unstuck.tasks.streams.read.group_stream import Reader
from unstuck.tasks.time_zone import in_zone
from unstuck.tasks.transport.lease import Claim, Finish, record_outcome
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import Marker, joined_versions, write_marker
from unstuck.tasks.watchdog.policy import Instruction

log = logging.getLogger(__name__)

TEXT_CLOCK = 3 * TEXT_WITHIN  # seconds until a runner is killed that cannot describe an error


class Attempt:
    """A claimed attempt. Every error must produce an outcome; a lapsed lease is a lost worker."""

    def __init__(
        self, runner: AttemptHost, token: Token, claim: Claim | UnstuckError, finish: Finish
    ) -> None:
        """Prepare an attempt; it reads nothing yet.

        Args:
            claim: the answer of Redis, or why the attempt cannot begin.
            finish: records the outcome, as `Lease.finish`.
        """
        self._put_outcome = finish
        self._runner = runner
        self._token = token
        self._claim = claim
        self._secrets = Secrets(environment())  # before a step changes it
        self._held = Held(token, self._secrets.clean)
        self._work_order: WorkOrder  # once the claim is read
        self._published: PublishedDatasets  # like the next three, once the warehouse is open
        self._files: Files
        self._log: AttemptLog
        self._warehouse = ""  # its address
        self._code = ""  # what stands for the code of the work, once it is known
        self._retry = RetryPolicy()  # that of the group, once it is known
        self._stop_log: Callable[[], None] = lambda: None  # of the log, once there is one
        self._zone = runner.settings.time_zone
        self._ran_again = ""  # why work that was done is done again, in words
        self._changed = ""  # what the steps changed in this process, in words

    def run(self) -> str:
        """Run the attempt and record its outcome. Returns both, for people."""
        stop: BaseException | None = None
        with ExitStack() as stack:
            try:
                process_is_about(**self._token.work)
                stack.callback(process_is_about)
                stack.enter_context(self._runner.holding(self._held))
                if not isinstance(self._claim, Claim):
                    raise self._claim
                self._work_order = self._claim.work_order
                if schedule := self._work_order.plan.schedule:
                    process_is_about(**self._token.work, schedule=schedule)
                if zone := self._work_order.plan.zone:
                    stack.enter_context(in_zone(zone))
                    self._zone = zone
                self._retry = self._work_order.group.retry or self._retry
                self._open(stack)
                outcome: Outcome | None = self._succeed(stack)
            except BaseException as error:  # noqa: BLE001
                # A step may raise anything, which ends only the attempt.
                outcome = self._or_give_up(self._ended_by, error)
                if terminate_handler_fired():
                    stop = error
            self._held.ended = True
            answer: str = self._or_give_up(self._finish, outcome)
            if stop is not None:
                # This process was told to end (billiard's SIGTERM handler raised through the step).
                raise SystemExit(0) from stop
            return answer

    def _or_give_up(self, end: Callable[[Any], Any], argument: Any) -> Any:
        """Call ``end``.

        If that fails, end this runner, so that its watchdog reports the attempt with the reason.
        """
        try:
            return end(argument)
        except BaseException as error:
            if not self._is_held:
                raise  # the watchdog does not know the attempt: the lease lapses
            changed = f"; its steps had changed {self._changed}" if self._changed else ""
            why = f"{self._token} could not be ended: {describe(error)}{changed}"
            with suppress(Exception):  # the cleaning may be what is broken
                why = self._secrets.clean(why)
            self._runner.watchdog.give_up(why)

    @property
    def _is_held(self) -> bool:
        """True while the runner holds the attempt, and so its watchdog knows it."""
        return self._runner.held is self._held

    # -- what the attempt does ---------------------------------------------------------------------

    def _warehouse_clock(
        self, what: str, reads_warehouse: object = True
    ) -> AbstractContextManager[None]:
        return self._runner.warehouse_clock(self._warehouse if reads_warehouse else "", what)

    def _open(self, stack: ExitStack) -> None:
        """Open the warehouse and the log in it.

        The id is checked first, so that nothing is created in a wrong folder.
        """
        plan = self._work_order.plan
        self._warehouse = plan.warehouse
        with self._warehouse_clock("opening"):
            warehouse = Warehouse(plan.warehouse, plan.warehouse_id)
            self._published = PublishedDatasets(warehouse, plan.base)
            self._files = warehouse.storage
            self._files.answered = partial(self._runner.watchdog.restart_clock, WAREHOUSE_TIMEOUT)
            self._files.check()
            self._log = AttemptLog(
                self._files, self._token.log, self._secrets, self._runner.settings.log
            )
            self._stop_log = self._log.stop
            stack.enter_context(self._log.open())
        self._runner.watchdog.log_to(None if self._log.path is None else str(self._log.path))

    def _succeed(self, stack: ExitStack) -> Outcome:
        """Find the work done, or do it."""
        loaded.use(self._work_order.group.packages)
        if (adopted := self._adopted()) is not None:
            return adopted
        params = self._resolved()
        session = self._session(stack)
        with ExitStack() as within:
            within.enter_context(filtered(self._secrets, self._runner.start_helper))
            work = self._run_group(session, params, within)
            marker = self._marker(work)
            with self._warehouse_clock("writing the marker into", not marker.made_nothing):
                reach(Point.BEFORE_MARKER, self._token.job)
                if not marker.made_nothing:
                    write_marker(self._files, self._token.staging, marker)
            reach(Point.AFTER_MARKER, self._token.job)
        return success(self._token.staging, marker, ran_again=self._ran_again)

    def _adopted(self) -> Outcome | None:
        """The success of an earlier attempt that did the same work; None if there is none."""
        work_order, runner = self._work_order, self._runner
        self._code = code_of(work_order)
        runner.watchdog.show_code(code_taken())
        records = {
            job: runner.result_without_outputs(self._token.group, job)
            for job in work_order.plan.adopts
        }
        recorded = {job: on_record(*work) for job, work in records.items() if work is not None}
        before = DoneBefore(self._token, work_order, self._code, runner.runs_on, self._published)
        with self._warehouse_clock("looking for work that is done in"):
            earlier_work = before.find(self._files, recorded)
            self._ran_again = before.why_again
            if earlier_work is None:
                return None
            self._files.check()
        log.info(
            "%s: the work was done before, by %s; its outputs are taken over",
            self._token,
            earlier_work[1].token,
        )
        return success(*earlier_work, adopted=True)

    def _resolved(self) -> dict[str, Any]:
        """Return the parameters of all steps.

        References that are resolved later are read too, so that all secrets are known.
        """
        work_order = self._work_order
        for step in work_order.group.steps:
            self._secrets.resolve(step.params)
        self._secrets.resolve(work_order.group.conf)
        written = self._secrets.resolve(work_order.written_params)
        self._runner.watchdog.hide(self._secrets.values)
        return {**written, **work_order.fork_params}

    def _session(self, stack: ExitStack) -> Any:
        """Return the Spark session, which ``stack`` closes; None for a group without Spark."""
        if not self._work_order.group.spark:
            return None
        self._progress({"label": "starting Spark"})
        conf = {
            key: str(self._secrets.resolve(value))
            for key, value in self._work_order.group.conf.items()
        }
        tables = self._files.uri(f"{self._token.staging}/{TABLES}")
        return open_session(stack, self._runner, self._token, self._work_order, conf, tables)

    def _run_group(self, session: Any, params: dict[str, Any], stack: ExitStack) -> Work:
        """Read the inputs and run all steps."""
        work_order, runner = self._work_order, self._runner
        plan, group, frozen = work_order.plan, work_order.group, work_order.frozen
        stack.enter_context(logging_restored())
        # A group without outputs has no folder.
        reads_warehouse = any(map(any, frozen.inputs.values())) or frozen.empty or group.inputs
        with self._warehouse_clock("reading what the group needs in", reads_warehouse):
            upstream = read_inputs(self._files, frozen.inputs, plan.forks)
            empty = of_skipped(work_order, self._published)
            inputs = with_published({**empty, **upstream.datasets}, group.inputs, self._published)
        work = Work(
            files=self._files,
            token=self._token,
            session=session,
            inputs=inputs,
            secrets=self._secrets,
            rules=OutputRules(
                plan.partition_by,
                plan.checks,
                BesidePublished(self._published, plan.publishing_of, group.for_each is not None),
                plan.judged_at,
            ),
            recorded=upstream.results,
            sources=upstream.sources,
            published=self._published,
            stream=self._stream(session) if group.streams else None,
        )
        scratch = stack.enter_context(Scratch(runner.temporary))
        stack.enter_context(runner.watchdog.clock("TIMEOUT", group.timeout or math.inf))
        with users_code():
            for name in (*work.inputs, *work.streams) if session is not None else ():
                # Spark reads in jobs that may wait for the cluster: this counts as time of the
                # group.
                work.show(name)
        self._run_steps(work, params, scratch)
        work.check_refused()
        with self._warehouse_clock("reading the values of forks in", plan.collect):
            work.forks = work.fork_values(work_order)
        if warning := untaken(work_order, runner.settings.step_modules):
            self._log_line(logging.WARNING, warning)
        # From here on the work is done and counts, whatever is instructed: giving it up would cost
        # doing it again.
        self._end_if_told()
        return work

    def _stream(self, session: Any) -> StreamReading:
        """Prepare the reading of the group's stream."""
        plan, group, frozen = self._work_order.plan, self._work_order.group, self._work_order.frozen
        share = Share(split_member(self._token.group)[1] or 0, max(frozen.members, 1))
        reader = Reader(session, self._files, self._token.staging, share)
        return StreamReading(
            reader, self._token, self._secrets, self._published, group.streams, plan.appended
        )

    def _run_steps(self, work: Work, params: dict[str, Any], scratch: Scratch) -> None:
        """Run all steps, and restore the process before our own code goes on."""
        steps, runner = self._work_order.group.steps, self._runner
        with self._put_back() as before:
            for index, step in enumerate(steps):
                self._end_if_told()
                where = f"step {index + 1} of {len(steps)}"
                log.info("%s: %s", where, step.label)
                ctx = self._context(work, step, index, params, scratch)
                with runner.watchdog.clock(
                    "STEP_TIMEOUT", step.timeout or math.inf, f"{where} ({step.label})", index
                ):
                    before.run(
                        partial(
                            run_step, step, work, ctx, runner.settings.step_modules, before.imported
                        )
                    )

    @contextmanager
    def _put_back(self) -> Iterator[ProcessSnapshot]:
        """Restore the process after the block, before our own code goes on."""
        runner = self._runner
        before = runner.snapshot()
        try:
            yield before
        finally:
            before.put_back()
            if before.changed:
                self._changed = self._secrets.clean(", ".join(before.changed))
                then = (
                    "this runner is replaced before it takes more work"
                    if before.spoiled
                    else "it was put back"
                )
                self._log_line(
                    logging.WARNING,
                    "the steps of %s changed %s; %s",
                    self._token,
                    self._changed,
                    then,
                )
                runner.watchdog.remark(f"its steps had changed {self._changed}")
            if before.spoiled:
                runner.replace()

    def _context(
        self, work: Work, step: Step, index: int, params: dict[str, Any], scratch: Scratch
    ) -> StepContext:
        at: dict[str, Any] = {
            "step": index + 1,
            "steps": len(self._work_order.group.steps),
            "label": step.label,
        }
        if work.session is not None:
            at |= self._runner.driver.application

        def report(**more: Any) -> None:
            value = {**at, "rows": work.rows, **more}
            self._progress(value)

        report()
        return StepContext(
            work,
            {**params, **self._secrets.resolve(step.params)},
            log=self._log.logger,
            scratch=scratch,
            is_cancelled=lambda: self._held.instruction is not None,
            report=lambda done, total: report(done=done, total=total),
        )

    def _marker(self, work: Work) -> Marker:
        noted = work.noted_params(self._work_order)
        return Marker(
            token=str(self._token),
            fingerprint=fingerprint(self._work_order, self._code, noted),
            code=self._code,
            params=noted,
            outputs=work.outputs,
            forks=work.forks,
            results=work.results,
            written_at=time.time(),
            reads=self._published.reads,
            sources=joined_versions([work.sources, self._published.sources]),
            made_on=self._runner.runs_on.used(spark=self._work_order.group.spark),
        )

    def _progress(self, value: dict[str, Any]) -> None:
        self._runner.watchdog.progress(json.dumps(self._secrets.clean_all(value)))

    # -- how the attempt ends ----------------------------------------------------------------------

    def _end_if_told(self) -> None:
        if self._held.instruction is not None:
            raise AttemptEnded(f"{self._token} was told to end: {self._held.instruction}")

    def _ended_by(self, error: BaseException) -> Outcome | None:
        """Return the outcome for ``error``; None if another runner has the attempt."""
        if isinstance(error, NotBegun):
            self._runner.replace()
        instruction = self._held.instruction or (
            Instruction.DRAIN if terminate_handler_fired() else None
        )
        if instruction is None:
            return self._failed(error)
        self._log_line(
            logging.WARNING, "%s ended because it was told to: %s", self._token, instruction
        )
        if instruction is Instruction.STALE:
            return None
        if instruction is Instruction.CANCEL:
            return Outcome(OutcomeKind.CANCELED)
        if instruction is Instruction.DRAIN:
            return Outcome(OutcomeKind.RELEASED)
        return Outcome(OutcomeKind.FAILED, failure=self._held.timeout)

    def _log_line(
        self, level: int, text: str, *arguments: object, trace: str | None = None
    ) -> None:
        """Log a line before the outcome is recorded, which must not wait for a log that hangs."""
        record = log.makeRecord(log.name, level, __file__, 0, text, arguments, None)
        record.exc_text = trace
        if not run_with_deadline(log.handle, record):
            self._stop_log()
            self._runner.replace()

    def _failed(self, error: BaseException) -> Outcome:
        ours = not isinstance(error, StepRaised | UnstuckError)
        # A failure of this runner is no fault of the group: it counts as a lost worker.
        lost = ours or isinstance(error, NotBegun)
        error = error.error if isinstance(error, StepRaised) else error
        # The watchdog counts the time too: asking for the text may block every thread.
        with self._runner.watchdog.clock(
            "STEP_FAILED", TEXT_CLOCK if self._is_held else None, class_name(error)
        ):
            described = describe_in_time(error, self._secrets.clean)
            failure = described.failure if lost else self._runner.driver.blamed(described.failure)
        if described.hangs or ours:
            self._runner.replace()
        self._log_line(logging.ERROR, "%s failed", self._token, trace=described.whole)
        if issubclass(type(error), StepNotFound):  # which asks the error itself nothing
            forget_code(self._work_order.group.packages)
        if ours:
            failure = outside_of_the_steps(failure, self._runner.name, self._changed)
        failure = self._recoverable_if_away(failure)
        kind, failure = self._runner.judge(
            error, failure, OutcomeKind.LOST if lost else OutcomeKind.FAILED
        )
        return Outcome(kind, failure=failure)

    def _recoverable_if_away(self, failure: Failure) -> Failure:
        """``failure``; recoverable if the warehouse is away.

        If it hangs, the watchdog reports the failure.
        """
        if not self._retry.why_final(failure):
            return failure
        plan = self._work_order.plan
        what = (
            f"looking, after it failed with {failure.code} "
            f"({shorten(failure.text, MAX_TEXT // 2)}), for"
        )
        try:
            with self._warehouse_clock(what):
                Warehouse(plan.warehouse, plan.warehouse_id).storage.check()
        except WarehouseMismatch as away:
            text = self._secrets.clean(
                shorten(f"{away}. It failed with {failure.code}: {failure.text}", MAX_TEXT)
            )
            return replace(failure, code=away.code, text=text, recoverable=True, names=())
        except Exception as error:  # noqa: BLE001
            # The failure of the step counts, not that of the file system.
            message = "%s: the warehouse could not be asked whether it is there: %s"
            self._log_line(logging.WARNING, message, self._token, error)
        return failure

    def _finish(self, outcome: Outcome | None) -> str:
        if outcome is None:
            return "STALE"
        outcome = replace(outcome, zone=self._zone)
        reach(Point.BEFORE_FINISH, self._token.job)
        return record_outcome(self._put_outcome, self._token, outcome)
