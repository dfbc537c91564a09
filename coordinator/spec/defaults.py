"""``defaults:`` of a job spec."""

from __future__ import annotations

from pydantic import Field, StrictStr

from unstuck.tasks.duration import Timeout
from unstuck.tasks.spec.fields import PoolName, QueueName, Strict
from unstuck.tasks.spec.retry import RetryPolicy


class Defaults(Strict):
    """Defaults for the fields that a group leaves out.

    ``conf`` is merged key by key; the keys of the group win.
    """

    retry: RetryPolicy | None = Field(
        default=None, description="For groups without a retry of their own."
    )
    timeout: Timeout | None = Field(
        default=None, description="For groups without a timeout of their own."
    )
    queue_timeout: Timeout | None = Field(
        default=None, description="For groups without a queue_timeout of their own."
    )
    worker_losses: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        strict=True,
        description="For groups without worker_losses of their own.",
    )
    queue: QueueName | None = Field(
        default=None, description="For groups without a queue of their own."
    )
    pool: PoolName | None = Field(
        default=None, description="For groups without a pool of their own."
    )
    conf: dict[StrictStr, StrictStr] = Field(
        default_factory=dict, description="Run-time Spark conf of every group."
    )
