"""Problems of the processes, queues, hosts and pools of a fleet (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unstuck.coordinator.problems.problem import Limits, Problem, ProblemCode, Severity
from unstuck.coordinator.problems.queues import (
    nobody_takes,
    oldest_waiting,
    unfit_runners,
    unread_messages,
    unserved_queues,
)
from unstuck.coordinator.problems.state import InstallationState
from unstuck.tasks.protocol.keys import CONTROL_QUEUE

C = ProblemCode

START_COORDINATOR = "celery -A unstuck.coordinator worker -P threads"
START_WORKER = "celery -A unstuck.tasks worker"
RESTART_COORDINATOR = (
    "Look at their logs and restart them: Celery has stalled in them, or all their threads hang. "
    "Submits and commands sent through Celery wait meanwhile, and so does the sweep of beat."
)
RESTART_WORKER = (
    "Look at it with `unstuck fleet`, and restart that worker: its main process is frozen, or "
    "Celery in it has stalled. Other workers of the queue take what lies there; no job is lost by "
    "a restart."
)


def _coordinators(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    fleet = state.fleet
    if all(coordinator.silent for coordinator in fleet.coordinators):
        yield Problem(
            C.NO_COORDINATOR,
            "fleet",
            "coordinators",
            "No coordinator is heard of, so nothing is decided or published",
            fleet.swept_at or 0.0,
            f"Start one: {START_COORDINATOR} (run two). If some run, Redis refuses what they "
            "write, or they use another UNSTUCK_REDIS_URL or UNSTUCK_PREFIX.",
        )


def _workers(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    if state.open_jobs and all(runner.silent for runner in state.fleet.runners):
        remedy = (
            f"Start one: {START_WORKER} (or `unstuck up`: a whole fleet). If some run, they use "
            "another UNSTUCK_REDIS_URL or UNSTUCK_PREFIX."
        )
        text = "No worker is heard of, so nothing runs"
        yield Problem(C.NO_WORKER, "fleet", "workers", text, remedy=remedy)


def _unserved(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    for queue in unserved_queues(state.fleet):
        start = START_COORDINATOR if queue.name == CONTROL_QUEUE else START_WORKER
        start += "" if queue.name == CONTROL_QUEUE else f" -Q {queue.name}"
        text = f"Nobody listens on queue {queue.name}, and messages wait there: {queue.length:,}"
        remedy = f"Start a process for it: {start}"
        yield Problem(C.UNSERVED, "queue", queue.name, text, remedy=remedy)


def _unread(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    for queue, text in unread_messages(state.fleet, limits.stalled).items():
        remedy = RESTART_COORDINATOR if queue == CONTROL_QUEUE else RESTART_WORKER
        since = oldest_waiting(state.fleet, queue)
        yield Problem(C.UNREAD, "queue", queue, f"Messages wait on {text}", since, remedy)


def _busy(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    for queue, text in nobody_takes(state.fleet).items():
        since = oldest_waiting(state.fleet, queue)
        if since and state.fleet.at - since > limits.waiting:
            remedy = f"Start more workers: {START_WORKER} -Q {queue}"
            yield Problem(
                C.BUSY,
                "queue",
                queue,
                f"Work waits: {text}",
                since,
                remedy,
                Severity.WARNING,
            )


def _hosts(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    for host, why in unfit_runners(state.fleet).items():
        remedy = (
            "Repair the host. Its runners try again every 30s while work waits; no restart is "
            "needed."
        )
        yield Problem(C.UNFIT, "host", host, f"It takes no Spark work: {why}", remedy=remedy)


def _dead_letters(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    if state.dead_letters:
        text = (
            f"Dead letters wait for a person: {state.dead_letters:,}. These are reports that "
            "nobody could apply, notices that nobody took, or submits that were refused"
        )
        remedy = "See `unstuck dead list`; then `unstuck dead replay` or `unstuck dead drop`."
        yield Problem(
            C.DEAD_LETTERS,
            "fleet",
            "dead letters",
            text,
            remedy=remedy,
            severity=Severity.WARNING,
        )


def _pools(state: InstallationState, limits: Limits) -> Iterator[Problem]:
    for pool in state.pools:
        if pool.waiting and not pool.slots:
            text = f"It has 0 slots, and groups wait for one: {pool.waiting:,}"
            remedy = f"Unless it was closed on purpose: `unstuck pool set {pool.name} N`."
            yield Problem(
                C.NO_SLOTS,
                "pool",
                pool.name,
                text,
                remedy=remedy,
                severity=Severity.WARNING,
            )


FLEET_RULES: tuple[Callable[[InstallationState, Limits], Iterator[Problem]], ...] = (
    _coordinators,
    _workers,
    _unserved,
    _unread,
    _busy,
    _hosts,
    _dead_letters,
    _pools,
)
