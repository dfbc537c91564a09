"""How many wake-ups each queue gets: never more than runners are idle, where one listens on several queues too."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import redis

from unstuck.tasks.protocol.keys import Keys, members_of, pool_of, queue_of
from unstuck.tasks.protocol.processes import RunnerStatus


def count_wake_ups(
    client: redis.Redis, keys: Keys, lanes: Iterable[str], listening: Mapping[str, Sequence[RunnerStatus]], now: float
) -> dict[str, int]:
    """How many wake-ups to send to each queue now; see `Store.wake_ups`.

    Raises: redis.RedisError.
    """
    names = sorted(lanes)
    pools = sorted({*map(pool_of, names)} - {""})
    queues = sorted({*map(queue_of, names), *listening})
    runners = {one.id: one for there in listening.values() for one in there}
    pipe = client.pipeline(transaction=False)
    for lane in names:
        pipe.zcard(keys.ready(lane))
    for queue in queues:
        pipe.llen(keys.queue(queue))
    for pool in pools:
        pipe.hget(keys.pools, pool)
        pipe.zlexcount(keys.held, *members_of(pool))
    if runners:
        pipe.hmget(keys.awake, list(runners))
    answers = iter(pipe.execute())
    ready = {lane: next(answers) for lane in names}
    waiting = {queue: next(answers) for queue in queues}
    room = {pool: max(0, int(next(answers) or 1) - next(answers)) for pool in pools}
    said = dict(zip(runners, next(answers) if runners else (), strict=True))
    offers = Counter[str]()
    for lane in names:
        offers[queue_of(lane)] += min(ready[lane], room.get(pool_of(lane), ready[lane]))
    idle = [one for one in runners.values() if idle_runner(one, float(said[one.id] or 0), now)]
    return share_wake_ups(offers, waiting, idle, listening)


def idle_runner(runner: RunnerStatus, said: float, now: float) -> bool:
    """Whether the runner waits for a wake-up. What it said itself counts until its watchdog says something later.

    Args:
        said: when it last took offers, by the clock of Redis; below 0: since when it sleeps. A time that lies ahead was
            said before the clock was set back, and does not count.
    """
    return said < 0 if runner.seen < abs(said) <= now + 1.0 else runner.idle_since is not None


def share_wake_ups(
    offers: Mapping[str, int],
    waiting: Mapping[str, int],
    idle: Iterable[RunnerStatus],
    listening: Mapping[str, Collection[RunnerStatus]],
) -> dict[str, int]:
    """How many wake-ups to send to each queue with ``offers``. Queues take turns in choosing idle runners.

    A runner that is woken takes the offers of all its queues, so one wake-up on one of them is enough. Who listens on
    few queues is chosen first: the others may be needed elsewhere.

    Args:
        offers: how many may be taken, per queue.
        waiting: wake-ups that nobody has consumed yet, per queue: each has its runner already.
    """
    choice = sorted(idle, key=lambda one: (len(one.queues), one.id))
    left = {queue: iter([one.id for one in choice if queue in one.queues]) for queue in waiting}
    chosen: set[str] = set()

    def choose(queue: str) -> bool:
        runner = next((one for one in left[queue] if one not in chosen), None)
        chosen.update(() if runner is None else (runner,))
        return runner is not None

    for queue, count in waiting.items():
        for _ in range(count):
            if not choose(queue):
                break
    wanted = {queue: count - waiting[queue] for queue, count in sorted(offers.items())}
    # Where nobody listens, one wake-up waits for the first listener.
    sent = Counter(queue for queue in wanted if offers[queue] and not waiting[queue] and not listening.get(queue))
    turns = deque(queue for queue, count in wanted.items() if count > 0 and listening.get(queue))
    while turns:
        queue = turns.popleft()
        if choose(queue):
            sent[queue] += 1
            if sent[queue] < wanted[queue]:
                turns.append(queue)
    return dict(sent)
