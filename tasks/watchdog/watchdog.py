"""Watch a runner from a separate process: renew its lease, pass instructions, time it, kill it.

It is a process because a C call that holds the GIL stops every thread of the runner (measured: 2.7
s of 2.7 s).
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import psutil
import redis

from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.host import java_version, may_run_spark, worker_here
from unstuck.tasks.log_lines import formatter, one_line, process_is_about
from unstuck.tasks.process.call_deadlines import NonBlockingHandler, run_with_deadline
from unstuck.tasks.process.shutdown_flag import ShutdownFlag, ShutdownLevel
from unstuck.tasks.process.stack_dump import StackDump
from unstuck.tasks.process.tree import (
    ProcessState,
    Tree,
    describe_status,
    exit_status,
    is_watchdog,
    process_state,
)
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.protocol.step_stack import own_frame
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.settings import Settings, settings
from unstuck.tasks.transport.lease import Lease, RenewAnswer, record_outcome
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.transport.stack_store import StackStore
from unstuck.tasks.warehouse.probe import WarehouseProbe
from unstuck.tasks.watchdog.cancel_channel import CancelChannel
from unstuck.tasks.watchdog.policy import (
    Instruction,
    Observation,
    WatchState,
    decide,
    timeout_failure,
    with_timeouts,
)
from unstuck.tasks.watchdog.runner_state import RunnerState, SharedRunnerState
from unstuck.tasks.watchdog.stack_watch import StackWatch

log = logging.getLogger("unstuck.tasks.watchdog")

LOOK_EVERY = 0.25  # seconds between looks at what the runner holds
# Seconds until a runner that runs one short attempt after the other is shown as it is now.
SHOWN_WITHIN = 1.0
# Seconds between looks at a shutdown flag that is raised, because it may be raised higher.
FLAG_EVERY = 0.2
RENEW_AGAIN = 0.5  # seconds until a renewal is tried again that Redis refused at once
STACK_KEPT = 60.0  # seconds


# The argument is a JSON object: runner, pid, worker, worker_pid, queues; temporary is the folder of
# the runner's temporary files; shutdown_flag, shared and stack are descriptors. The state of the
# runner is in memory that both share (``runner_state``). Instructions go to the runner through a
# pipe, one JSON object per line: token, instruction (cancel, stale, drain, timeout), failure (of a
# timeout). An object with the op "look" asks for the stages that Spark runs.


class Watchdog:
    """The watchdog of one runner. It renews for no dead or stopped runner, and never outlives it.

    ``hello`` is what it was started with.
    """

    def __init__(self, hello: dict[str, Any], settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._client = connect(
            settings.redis_url, timeout=max(1.0, min(5.0, settings.lease_ttl / 5)), repeats=1
        )
        self._registry = ProcessRegistry(self._client, self._keys)
        self._id = str(hello["runner"])
        self._worker = str(hello["worker"])
        self._worker_pid = int(hello["worker_pid"])
        self._queues = tuple(hello["queues"])
        self._runner = psutil.Process(int(hello["pid"]))
        self._parent = self._runner.parent()  # the main process of the worker
        # The watchdog of a fresh runner may have an attempt to report, and ends by itself.
        self._tree = Tree(self._runner, spare=is_watchdog)
        self._channel = CancelChannel(self._client, self._keys)
        self._flag = (
            None
            if hello.get("shutdown_flag") is None
            else ShutdownFlag(int(hello["shutdown_flag"]))
        )
        self._level = ShutdownLevel.WORK
        self._drain_at: float | None = None  # monotonic seconds
        self._shared = SharedRunnerState(int(hello["shared"]))
        self._runner_state = RunnerState()  # as it was at the last look
        self._token: Token | None = None  # in it
        self._seen_twice = False  # two looks in a row found the same
        self._probe = WarehouseProbe(settings)
        java = 0
        if may_run_spark(settings, self._queues):
            with suppress(subprocess.TimeoutExpired):
                java = java_version()
        # Of its runner, too: both are started by one Python.
        self._release = replace(worker_here(settings), java=str(java or ""))
        caller = f"{hello['runner']}/{os.getpid()}"
        self._lease = Lease(
            self._client, self._keys, settings.lease_ttl, caller, self._release.bound
        )
        self._state = WatchState()
        self._answer: RenewAnswer | None = None
        # The group, if its job was altered since the claim.
        self._altered: dict[str, Any] | None = None
        self._next_tick = 0.0
        self._stacks = StackStore(self._client, self._keys)
        self._stack: StackWatch | None = None
        self._asked_for_stages = ("", 0.0)  # for which attempt, and when there was an answer before
        if hello.get("stack") is not None and settings.stack_every:
            dump = StackDump(int(hello["stack"]))
            self._stack = StackWatch(self._runner, dump, settings.stack_every, self._ask_for_stages)

    # -- the loop ----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch until the runner has ended and its attempt is reported."""
        pidfd = _pidfd(self._runner.pid)
        try:
            while True:
                self._wait(pidfd)
                if not self._step():
                    return
        finally:
            self._registry.leave(self._id)

    def _wait(self, pidfd: int | None) -> None:
        """Wait for an instruction of the job, the runner's death, or the next due moment."""
        now = time.monotonic()
        socket, flag = self._channel.socket(), None
        if self._level is ShutdownLevel.WORK:
            flag = self._flag  # a raised one can be read for ever
        sources = [source for source in (flag, pidfd, socket) if source is not None]
        ready, _, _ = select.select(sources, [], [], max(0.0, self._next_moment(now) - now) + 0.001)
        if flag in ready and flag is not None and flag.level is ShutdownLevel.WORK:
            # All writers of the pipe are dead, as the check for an orphan finds, too.
            self._flag = None
        if socket in ready and self._channel.received():
            self._next_tick = 0.0  # the renewal brings the instruction

    def _next_moment(self, now: float) -> float:
        """Return when to look at the latest, in monotonic seconds."""
        moments = [self._next_tick, now + LOOK_EVERY]
        if self._state.next_end is not None:
            moments.append(self._state.next_end)
        if self._state.instruction is not None:
            moments.append(self._state.instructed_at + self._settings.cancel_grace)
        if self._drain_at is not None and not self._state.drains:
            # A flag may be raised higher.
            moments += [self._drain_at, now + FLAG_EVERY] if self._token else []
        return min(moments)

    def _look(self) -> None:
        """Read what the runner holds. An attempt is followed once two looks find it."""
        before, held = self._runner_state, self._shared.read()
        self._runner_state = held
        if held.token != before.token:
            self._token = Token.parse(held.token) if held.token else None
            process_is_about(**(self._token.work if self._token else {}))
            self._state, self._answer, self._altered = WatchState(), None, None
        if (held.token, held.idle) != (before.token, before.idle):
            self._seen_twice = False
            self._next_tick = min(self._next_tick, time.monotonic() + SHOWN_WITHIN)
        elif not self._seen_twice:
            self._seen_twice = True
            if self._token is not None:
                self._channel.follow(self._token.job)
            self._next_tick = 0.0
        clocks = (
            self._runner_state.clocks
            if self._altered is None
            else with_timeouts(self._runner_state.clocks, self._altered)
        )
        self._state = replace(self._state, clocks=clocks)

    def _step(self) -> bool:
        """Observe the runner, renew if due, and act. Returns False if nothing is left to watch."""
        self._read_flag()
        runner = process_state(self._runner)
        self._look()  # after it: what a dead runner holds stays
        death = ""
        # Read before the parent reaps the zombie; afterwards nobody can tell.
        if runner is ProcessState.GONE:
            death = describe_status(exit_status(self._runner.pid)) + self._runner_state.remark
        if time.monotonic() >= self._next_tick:
            self._tick(runner)
        orphaned = self._orphaned(runner)
        # Again: a worker that was told to stop may have ended the runner, or itself, meanwhile.
        self._read_flag()
        if self._token is None:
            return self._goes_on_idle(runner, orphaned)
        observation = Observation(time.monotonic(), runner, orphaned, self._answer, self._drain_at)
        self._answer = None
        action = decide(
            self._state,
            observation,
            grace=self._settings.cancel_grace,
            death=death,
            who=f"the runner {self._worker}",
        )
        self._state = action.state
        if action.instruction is not None:
            self._instruct(self._token, action.instruction)
        if action.kill_reason:
            self._log_for_attempt(action.kill_reason)
            if left := self._tree.kill():
                log.error("%s: these processes do not end: %s", self._token, [p.pid for p in left])
        if action.outcome is not None:
            reach(Point.BEFORE_LOSS_REPORT, self._token.job)
            record_outcome(self._lease.finish, self._token, action.outcome)
        return not action.kill_reason

    def _goes_on_idle(self, runner: ProcessState, orphaned: bool) -> bool:
        """Whether a runner without an attempt is to be watched. Kill what a dead one left."""
        is_over = runner is ProcessState.GONE or orphaned
        if is_over:
            self._tree.kill()
        return not is_over

    def _tick(self, runner: ProcessState) -> None:
        """Renew the lease, and note what others ask for."""
        self._next_tick = time.monotonic() + self._settings.lease_renew
        if runner is not ProcessState.GONE:
            self._tree.remember()
        if self._renew(runner) and self._counts_as_living(runner):
            self._registry.note(self._status)
            self._show_stack()

    def _instruct(self, token: Token, instruction: Instruction) -> None:
        log.info("%s: %s", token, instruction)
        # With its token: by the time it is read the runner may hold another attempt, which it
        # must not hit.
        line: dict[str, Any] = {
            "op": "instruction",
            "token": str(token),
            "instruction": str(instruction),
        }
        if instruction is Instruction.TIMEOUT and self._state.timed_out is not None:
            failure = timeout_failure(self._state.timed_out, self._state.stood)
            line["failure"] = asdict(failure)  # which of the clocks it was
        self._send(line)

    def _read_flag(self) -> None:
        """Read whether the worker must stop. The grace counts from the first such reading."""
        level = ShutdownLevel.WORK if self._flag is None else self._flag.level
        if level <= self._level:
            return
        self._level = level
        now = time.monotonic()
        grace = self._settings.drain_grace if level is ShutdownLevel.STOP else 0.0
        self._drain_at = now + grace if self._drain_at is None else min(self._drain_at, now + grace)

    def _counts_as_living(self, runner: ProcessState) -> bool:
        """Return False for a stopped runner, and for an idle one whose worker is stopped.

        If it seemed to listen, `why` and the doctor would promise work for ever.
        """
        if runner is ProcessState.STOPPED or self._token is not None or self._parent is None:
            return runner is not ProcessState.STOPPED
        return process_state(self._parent) is not ProcessState.STOPPED

    def _orphaned(self, runner: ProcessState) -> bool:
        if runner is ProcessState.GONE:
            return False
        try:
            return self._runner.ppid() != self._worker_pid
        except psutil.NoSuchProcess:
            return False

    # -- Redis -------------------------------------------------------------------------------------

    def _renew(self, runner: ProcessState) -> bool:
        """Renew the lease, if there is one. Returns False if Redis is away.

        Another call now could delay a timeout.
        """
        if self._token is None or runner is not ProcessState.ALIVE:
            return True
        try:
            self._answer = self._lease.renew(self._token, self._worker, self._runner_state.progress)
            if self._lease.altered:
                self._altered = json.loads(self._lease.altered)["group"]
        except redis.RedisError as error:
            log.warning("%s: the lease could not be renewed: %s", self._token, error)
            # Nobody takes over in an outage (docs/internals/protocol.md, rule 7). But a store that
            # comes back may have forgotten the claim, and offer the attempt to others.
            self._next_tick = min(self._next_tick, time.monotonic() + RENEW_AGAIN)
            return False
        return True

    def _status(self, now: float) -> RunnerInfo:
        """This runner, its times by the clock of Redis, which says that it is ``now``."""
        token, held, here = self._token, self._runner_state, time.time()

        def of_redis(at: float) -> float | None:
            return now - max(0.0, here - at) if at else None

        return RunnerInfo(
            id=self._id,
            host=self._worker.rpartition(":")[0],
            pid=self._runner.pid,
            queues=self._queues,
            heard_at=now,
            warehouse=self._probe.seen(now),
            runs_on=self._release,
            worker_pid=self._worker_pid,
            code=held.code,
            unfit=held.unfit,
            taken_at=of_redis(held.taken),
            claimed_at=of_redis(held.since),
            job=token.job if token else None,
            group=token.group if token else None,
            attempt=token.epoch if token else None,
            step=json.loads(held.progress).get("label") if token and held.progress else None,
            idle_since=of_redis(max(held.idle, held.taken))
            if not token and self._level is ShutdownLevel.WORK
            else None,
        )

    def _show_stack(self) -> None:
        """Let people see where a step stands that runs long."""
        if (
            self._stack is None
            or (observation := self._stack.look(self._runner_state)) is None
            or self._token is None
        ):
            return
        frames, seen_at, since = observation
        self._state = replace(self._state, stood=str(own_frame(frames)))
        every, held = self._settings.stack_every, self._runner_state
        stages = (
            held.stages
            if time.time() - held.stages_at < 2 * every + self._settings.lease_renew
            else ""
        )
        try:
            keep = max(STACK_KEPT, 3 * every)
            self._stacks.note(
                self._token, frames, stages, time.monotonic() - seen_at, seen_at - since, keep
            )
        except redis.RedisError as error:
            log.info("%s: its stack could not be shown: %s", self._token, error)

    def _ask_for_stages(self, token: str) -> None:
        """Ask the runner for Spark's stages, unless the last question has no answer.

        The runner may not be reading the pipe.
        """
        question = (token, self._runner_state.stages_at)
        if '"app"' in self._runner_state.progress and question != self._asked_for_stages:
            self._asked_for_stages = question
            self._send({"op": "look", "token": token})

    # -- the runner --------------------------------------------------------------------------------

    def _send(self, line: dict[str, Any]) -> None:
        try:
            os.write(1, json.dumps(line).encode() + b"\n")
        except BrokenPipeError:
            log.warning("%s reads no instructions any more", self._worker)

    def _log_for_attempt(self, text: str) -> None:
        """Write ``text`` to the attempt's log with a deadline, since the log may hang."""
        log.warning("%s: %s", self._token, text)
        path = self._runner_state.log
        if path is None:
            return
        line = one_line(self._settings.log, "watchdog", "ERROR", text)
        if not run_with_deadline(_append, path, f"{line}\n"):
            log.warning("%s cannot be written: it hangs", path)


def _append(path: str, line: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable when ``pid`` dies; None where there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def run(hello: dict[str, Any]) -> None:
    """Run the watchdog of a runner until the runner has ended and its attempt is reported."""
    handler = NonBlockingHandler(2)
    text = logging.Formatter("%(asctime)s %(levelname)s watchdog: %(message)s")
    handler.setFormatter(formatter(settings().log, text))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        try:
            watchdog = Watchdog(hello, settings())
        except psutil.NoSuchProcess:
            log.warning(
                "the runner %s died while its watchdog started: its lease, if any, lapses",
                hello["worker"],
            )
        else:
            watchdog.watch()
        if folder := hello.get("temporary"):
            shutil.rmtree(folder, ignore_errors=True)  # all that could write there has ended
    except Exception as error:
        log.critical("it ends, and its runner starts another: %s", error, exc_info=error)
        handler.flush()
        os._exit(os.EX_SOFTWARE)
    handler.flush()
