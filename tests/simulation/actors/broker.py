"""The broker: queues of hints. It may lose, double, delay and reorder them; nothing may depend on it."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.stage.stage import Stage
from tests.simulation.stage.trouble import Trouble
from unstuck.tasks.protocol.token import Hint


class Broker:
    """A list of hints per queue. A hint that was popped is gone, as with BRPOP."""

    def __init__(self, stage: Stage, trouble: Trouble) -> None:
        self._stage = stage
        self._trouble = trouble
        self._queues: dict[str, list[tuple[float, Hint]]] = {}
        self.pushed: Callable[[str, float], None] = lambda queue, at: None

    def push(self, queue: str, hint: Hint) -> None:
        trouble, rng = self._trouble, self._stage.rng
        if trouble.chance(trouble.lose):
            self._stage.log("broker", f"loses {hint}")
            return
        waiting = self._queues.setdefault(queue, [])
        for _ in range(2 if trouble.chance(trouble.double) else 1):
            at = trouble.late()
            index = rng.randint(0, len(waiting)) if trouble.chance(trouble.reorder) else len(waiting)
            waiting.insert(index, (at, hint))
            self.pushed(queue, at)

    def remember(self) -> Callable[[], None]:
        """A snapshot; answers how to go back to it."""
        queues = {queue: list(waiting) for queue, waiting in self._queues.items()}

        def restore() -> None:
            self._queues = queues

        return restore

    def pop(self, queues: tuple[str, ...]) -> Hint | None:
        now = self._stage.now
        for queue in queues:
            waiting = self._queues.get(queue, [])
            for index, (at, hint) in enumerate(waiting):
                if at <= now:
                    del waiting[index]
                    return hint
        return None

    def next_at(self, queues: tuple[str, ...]) -> float | None:
        """When the next delayed hint arrives on these queues."""
        return min((at for queue in queues for at, _ in self._queues.get(queue, [])), default=None)

    def length(self, queue: str) -> int:
        return len(self._queues.get(queue, []))
