"""Classifies queues: stalled, busy or unserved; also finds unfit hosts and full pools. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unstuck.coordinator.model.fleet import FleetInfo, PoolInfo, QueueInfo
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.keys import CONTROL_QUEUE

if TYPE_CHECKING:
    from unstuck.tasks.protocol.process_info import RunnerInfo

# Seconds for which a message may wait beside idle runners, where UNSTUCK_STALLED_AFTER says none.
STALLED_AFTER = 60.0
SHOWN = 6  # names in one sentence


def unread_messages(view: FleetInfo, stalled_after: float) -> dict[str, str]:
    """Return queues with a message older than ``stalled_after`` seconds and an idle listener.

    A listener counts if it is a runner that has been idle for that long: if all runners are busy,
    messages may wait for hours in a healthy fleet. For ``control`` every coordinator counts,
    because coordinators are busy only for moments.

    Returns:
    queue → a sentence with the age of its messages and its idle listeners.
    """
    term = stalled_after or STALLED_AFTER
    sentences = {}
    for queue in view.queues:
        waits = view.at - (view.at if queue.oldest_since is None else queue.oldest_since)
        listeners = _idle_listeners(view, queue.name, term) if waits > term else ""
        if listeners:
            oldest = f"queue {queue.name}, the oldest for {format_duration(waits)}"
            sentences[queue.name] = f"{oldest}, {listeners}"
    return sentences


def _idle_listeners(view: FleetInfo, queue: str, term: float) -> str:
    """Name the listeners of a queue that should take its messages; empty if there are none."""
    if queue == CONTROL_QUEUE:
        live = [f"{each.host}:{each.pid}" for each in view.coordinators if not each.silent]
        words = f"and nobody takes them: they are for the coordinators {some(live)}"
        return words if live else ""
    idle = {
        f"{runner.host}:{runner.worker_pid}"
        for runner in _listeners(view, queue)
        if _idle_for(runner, view.at) > term
    }
    words = f"though runners that listen there are idle: those of worker {some(sorted(idle))}"
    return words if idle else ""


def _listeners(view: FleetInfo, queue: str) -> list[RunnerInfo]:
    return [runner for runner in view.runners if not runner.silent and queue in runner.queues]


def _idle_for(runner: RunnerInfo, now: float) -> float:
    """Return for how many seconds a runner has been idle; 0 if it is not, or its worker stops."""
    is_idle = runner.job is None and runner.idle_since is not None
    return now - (runner.idle_since or 0.0) if is_idle else 0.0


def all_at_work(view: FleetInfo) -> dict[str, str]:
    """Return queues whose listeners are all busy: queue → a sentence about their work."""
    sentences = {}
    for queue in {queue for runner in view.runners for queue in runner.queues}:
        runners = _listeners(view, queue)
        if runners and all(runner.job is not None for runner in runners):
            sentences[queue] = _work_of(runners, view.at)
    return sentences


def _work_of(runners: list[RunnerInfo], now: float) -> str:
    first = min(runners, key=lambda runner: runner.since or now)
    alone = len(runners) == 1
    who = "it is at work," if alone else f"all {len(runners)} are at work, the longest"
    seconds = format_duration(max(0.0, now - (first.since or now)))
    return f"{who} for {seconds} on {first.group} of job {first.job}"


def nobody_takes(view: FleetInfo) -> dict[str, str]:
    """Return queues whose offers wait because all listeners are busy or unfit, with a sentence."""
    unfit: dict[str, list[str]] = {}
    for host, why in unfit_runners(view).items():
        for queue in {
            queue
            for runner in view.runners
            if runner.host == host
            for queue in runner.queues
            if runner.unfit
        }:
            unfit.setdefault(queue, []).append(f"{host} takes no Spark work: {why}")
    return {
        **all_at_work(view),
        **{queue: "; ".join(sentences[:SHOWN]) for queue, sentences in unfit.items()},
    }


def unserved_queues(view: FleetInfo) -> list[QueueInfo]:
    """Return queues with messages to which nobody listens."""
    return [queue for queue in view.queues if queue.length and not queue.listeners]


def oldest_waiting(view: FleetInfo, name: str) -> float:
    """Return since when the oldest message of a queue waits; 0 if unknown."""
    return next((queue.oldest_since or 0.0 for queue in view.queues if queue.name == name), 0.0)


def unfit_runners(view: FleetInfo) -> dict[str, str]:
    """Return hosts with a runner that takes no Spark work: host → why."""
    return {
        runner.host: runner.unfit for runner in view.runners if runner.unfit and not runner.silent
    }


def full_pools(pools: Iterable[PoolInfo]) -> dict[str, str]:
    """Return pools without a free slot: pool → a sentence about its slots and waiting groups."""
    return {
        pool.name: (
            f"a slot of pool {pool.name}, {_use_of(pool)}; `unstuck pool set {pool.name} N` "
            "changes its size"
        )
        for pool in pools
        if pool.used >= pool.slots
    }


def _use_of(pool: PoolInfo) -> str:
    if not pool.slots:
        return "which has none"
    taken = (
        "whose one slot is in use"
        if pool.slots == 1
        else f"whose {pool.slots:,} slots are all in use"
    )
    return f"{taken}, by {some(list(pool.holders))}"


def some(names: list[str]) -> str:
    """Return the first few of ``names``, and the number of the others."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
