"""How many wake-ups each queue gets: never more than there are idle runners."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping

from unstuck.tasks.protocol.keys import queue_of, versions_of
from unstuck.tasks.protocol.process_info import RunnerInfo


def idle_runner(runner: RunnerInfo, polled_at: float, now: float) -> bool:
    """Return whether the runner waits for a wake-up, by its own status and its watchdog's.

    Args:
        polled_at: when it took offers last, by the clock of Redis; below 0: since when it sleeps. A
            time ahead was written before the clock was set back, and does not count.
    """
    return (
        polled_at < 0
        if runner.heard_at < abs(polled_at) <= now + 1.0
        else runner.idle_since is not None
    )


def served(lanes: Iterable[str], listening: Mapping[str, Collection[RunnerInfo]]) -> list[str]:
    """Return the ``lanes`` that some runner can serve.

    Other lanes have versions that no runner has.
    """
    return sorted(lane for lane in lanes if _is_served(lane, listening.get(queue_of(lane), ())))


def _is_served(lane: str, runners: Collection[RunnerInfo]) -> bool:
    versions = versions_of(lane)
    return not versions or any(runner.runs_on.may_run(versions) for runner in runners)


def share_wake_ups(
    offers: Mapping[str, int],
    waiting: Mapping[str, int],
    idle: Iterable[RunnerInfo],
    listening: Mapping[str, Collection[RunnerInfo]],
) -> dict[str, int]:
    """Return how many wake-ups to send to each queue with ``offers``.

    Queues take turns in choosing idle runners. A runner that is woken takes the offers of all its
    queues, so one wake-up is enough. Runners that listen on few queues are chosen first, since the
    others may be needed elsewhere.

    Args:
        offers: how many may be taken, by queue.
        waiting: wake-ups that are not consumed yet, by queue: each has its runner already.
    """
    choice = _Choice(idle)
    for queue, count in waiting.items():
        for _ in range(count):
            choice.take(queue)
    sent = Counter[str]()
    turns = deque[str]()
    for queue, count in sorted(offers.items()):
        if listening.get(queue):
            turns += [queue] * (count > waiting[queue])
        elif count and not waiting[queue]:
            sent[queue] = 1  # it waits for the first listener
    while turns:
        queue = turns.popleft()
        if choice.take(queue):
            sent[queue] += 1
            if sent[queue] < offers[queue] - waiting[queue]:
                turns.append(queue)
    return dict(sent)


class _Choice:
    """The idle runners, each of which is chosen once."""

    def __init__(self, idle: Iterable[RunnerInfo]) -> None:
        self._by_queue: dict[str, deque[str]] = {}
        self._chosen: set[str] = set()
        for runner in sorted(idle, key=lambda runner: (len(runner.queues), runner.id)):
            for queue in runner.queues:
                self._by_queue.setdefault(queue, deque()).append(runner.id)

    def take(self, queue: str) -> bool:
        """Choose the next runner of a queue. Return whether there was one."""
        left = self._by_queue.get(queue, deque())
        while left:
            runner = left.popleft()
            if runner not in self._chosen:
                self._chosen.add(runner)
                return True
        return False
