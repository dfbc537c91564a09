"""The broker: queues of wake-ups. It may lose, double and delay them; nothing may depend on it."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.stage.stage import Stage
from tests.simulation.stage.trouble import Trouble


class Broker:
    """Per queue, when each wake-up arrives. One that was popped is gone, as with BRPOP."""

    def __init__(self, stage: Stage, trouble: Trouble) -> None:
        self._stage = stage
        self._trouble = trouble
        self._queues: dict[str, list[float]] = {}
        self.woken_at: dict[
            str, float
        ] = {}  # queue → when somebody last sent a wake-up, whatever became of it
        self.pushed: Callable[[str, float], None] = lambda queue, at: None

    def push(self, queue: str) -> None:
        trouble = self._trouble
        self.woken_at[queue] = self._stage.now
        if trouble.chance(trouble.lose):
            self._stage.log("broker", f"loses a wake-up for {queue}")
            return
        for _ in range(2 if trouble.chance(trouble.double) else 1):
            at = trouble.late()
            self._queues.setdefault(queue, []).append(at)
            self.pushed(queue, at)

    def remember(self) -> Callable[[], None]:
        """A snapshot; answers how to go back to it."""
        queues = {queue: list(waiting) for queue, waiting in self._queues.items()}

        def restore() -> None:
            self._queues = queues
            for queue, waiting in queues.items():
                for at in waiting:
                    self.pushed(queue, at)  # whoever blocks on it connects again

        return restore

    def pop(self, queues: tuple[str, ...]) -> bool:
        """Take a wake-up that has arrived on one of these queues; whether there was one."""
        for queue in queues:
            waiting = self._queues.get(queue, [])
            for at in waiting:
                if at <= self._stage.now:
                    waiting.remove(at)
                    return True
        return False

    def next_at(self, queues: tuple[str, ...]) -> float | None:
        """When the next delayed wake-up arrives on these queues."""
        return min((at for queue in queues for at in self._queues.get(queue, [])), default=None)

    def length(self, queue: str) -> int:
        return len(self._queues.get(queue, []))
