"""The coordinator's hands: hints into the broker, packages into the warehouse log.

A hint may be lost here at any point: the group stays QUEUED and is hinted again. A publish may be repeated at any
point: the slot in the warehouse log decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from kombu.exceptions import BatchPublishError, OperationalError

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.publishing.package import Aborted, abort, publish
from unstuck.tasks.errors import UnstuckError, WarehouseMismatch
from unstuck.tasks.protocol.token import Hint

log = logging.getLogger(__name__)


class Hands:
    """Sends hints through one Celery app and publishes through the job's warehouse."""

    def __init__(self, app: Any) -> None:
        """``app``: the Celery app of the fleet (``tasks.transport.celery_app.app``)."""
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

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        """Publish a job whose groups are all done. ``answered`` is called after each answer of the warehouse."""
        job, plan = state.job, state.plan
        sources = {
            name: tuple(
                record.staging
                for member in state.members(name)
                if (record := state.record(member)).state is GroupState.SUCCEEDED and record.staging
            )
            for name in plan.groups
        }
        try:
            result = publish(
                warehouse_uri=job.warehouse,
                warehouse_id=job.warehouse_id,
                publish_id=job.id,
                job=job.id,
                job_name=job.name,
                params=plan.params,
                sources={name: staging for name, staging in sources.items() if staging},
                published_by=plan.default_publish,
                wanted=plan.publish,
                base=job.base or 0,
                now=time.time(),
                answered=answered,
            )
        except PublishFailed as error:
            return PublishResult(failed=Reason(error.code, str(error)))
        except WarehouseMismatch as error:
            return PublishResult(trouble=Reason(error.code, str(error)))
        except (OSError, UnstuckError) as error:
            text = f"the package could not be published yet: {type(error).__name__}: {error}"
            return PublishResult(trouble=Reason("PUBLISH_TROUBLE", text))
        if isinstance(result, Aborted):
            return PublishResult(
                failed=Reason(result.code or "PUBLISH_ABORTED", result.reason or "publishing was aborted")
            )
        return PublishResult(version=result.version or 0, rows=result.rows)

    def abort(self, state: JobState, why: Reason, answered: Callable[[], None]) -> PublishResult:
        """Take the job's place in the log with an ABORT entry; if its package stands there already, it is published."""
        job = state.job
        try:
            result = abort(
                warehouse_uri=job.warehouse,
                warehouse_id=job.warehouse_id,
                publish_id=job.id,
                job=job.id,
                job_name=job.name,
                base=job.base or 0,
                now=time.time(),
                code=why.code,
                reason=why.text,
                answered=answered,
            )
        except (OSError, UnstuckError) as error:
            text = f"the warehouse could not be asked yet whether the package stands: {type(error).__name__}: {error}"
            return PublishResult(trouble=Reason("PUBLISH_TROUBLE", text))
        if isinstance(result, Aborted):
            return PublishResult(failed=why)
        return PublishResult(version=result.version or 0, rows=result.rows)
