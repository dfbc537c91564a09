"""The dispatcher sends hints to the broker. A hint may be lost: the group stays QUEUED, and is hinted again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kombu.exceptions import BatchPublishError, OperationalError

from unstuck.tasks.protocol.token import Hint

log = logging.getLogger(__name__)


class Dispatcher:
    """Sends hints through one Celery app."""

    def __init__(self, app: Any) -> None:
        """``app``: the Celery app of the fleet (``tasks.transport.celery_app``)."""
        self._app = app

    def send(self, hints: Sequence[tuple[str, Hint]]) -> None:
        """Send hints in one batch. One that cannot be sent is logged, and sent again after ``dispatch_timeout``."""
        try:
            with self._app.producer_pool.acquire(block=True) as producer, producer.batch():
                for queue, hint in hints:
                    self._app.send_task(
                        "unstuck.run", args=[str(hint)], task_id=str(hint), queue=queue, producer=producer, retry=False
                    )
        except (BatchPublishError, OperationalError, OSError) as error:
            log.warning("%d hints could not be sent (they will be again): %s", len(hints), error)
