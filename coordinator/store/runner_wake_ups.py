"""How many wake-ups each queue gets: never more than runners are idle, where one listens on several
queues too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping

from unstuck.tasks.protocol.keys import queue_of, versions_of
from unstuck.tasks.protocol.processes import RunnerStatus


def idle_runner(runner: RunnerStatus, polled_at: float, now: float) -> bool:
    """Whether the runner waits for a wake-up. What it said itself counts until its watchdog says
    something later.

    Args:
        polled_at: when it last took offers, by the clock of Redis; below 0: since when it sleeps. A
            time ahead was noted before the clock was set back, and does not count.
    """
    return (
        polled_at < 0
        if runner.seen < abs(polled_at) <= now + 1.0
        else runner.idle_since is not None
    )


def served(lanes: Iterable[str], listening: Mapping[str, Collection[RunnerStatus]]) -> list[str]:
    """Those of ``lanes`` that some runner may empty: not those of versions that no runner of their
    queue has.
    """
    return sorted(
        lane
        for lane in lanes
        if not (versions := versions_of(lane))
        or any(runner.runs_on.may_run(versions) for runner in listening.get(queue_of(lane), ()))
    )


def share_wake_ups(
    offers: Mapping[str, int],
    waiting: Mapping[str, int],
    idle: Iterable[RunnerStatus],
    listening: Mapping[str, Collection[RunnerStatus]],
) -> dict[str, int]:
    """How many wake-ups to send to each queue with ``offers``. Queues take turns in choosing idle
    runners.

    A runner that is woken takes the offers of all its queues, so one wake-up on one of them is
    enough. Who listens on
    few queues is chosen first: the others may be needed elsewhere.

    Args:
        offers: how many may be taken, per queue.
        waiting: wake-ups that nobody has consumed yet, per queue: each has its runner already.
    """
    choice = sorted(idle, key=lambda runner: (len(runner.queues), runner.id))
    left = {
        queue: iter([runner.id for runner in choice if queue in runner.queues]) for queue in waiting
    }
    chosen: set[str] = set()

    def choose(queue: str) -> bool:
        runner = next((runner_id for runner_id in left[queue] if runner_id not in chosen), None)
        chosen.update(() if runner is None else (runner,))
        return runner is not None

    for queue, count in waiting.items():
        for _ in range(count):
            if not choose(queue):
                break
    unserved = {queue: count - waiting[queue] for queue, count in sorted(offers.items())}
    # Where nobody listens, one wake-up waits for the first listener.
    sent = Counter(
        queue
        for queue in unserved
        if offers[queue] and not waiting[queue] and not listening.get(queue)
    )
    turns = deque(queue for queue, count in unserved.items() if count > 0 and listening.get(queue))
    while turns:
        queue = turns.popleft()
        if choose(queue):
            sent[queue] += 1
            if sent[queue] < unserved[queue]:
                turns.append(queue)
    return dict(sent)
