"""Sends a Celery task of the user, by its name, to the broker of the user.

The id of the task is that of the notice.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, SecretStr

from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.channel import (
    Message,
    NoticeChannel,
    SendFailed,
    shortened,
)
from unstuck.coordinator.notices.channels.webhook import payload
from unstuck.tasks.spec.fields import QueueName


class CeleryTask(NoticeChannel):
    """``celery: NAME`` of the task, with the ``broker`` and the ``queue`` of its workers.

    ``options``: transport options of the broker, such as ``global_keyprefix``.
    """

    kind: ClassVar[str] = "celery"
    celery: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=200)]
    broker: SecretStr
    queue: QueueName = "celery"
    options: dict[str, Any] = Field(default_factory=dict)

    def send(self, message: Message, allowed: Allowed) -> str:
        from celery import Celery  # 0.3 s, which each command of ours would take longer

        app = Celery(set_as_current=False, broker=self.broker.get_secret_value())
        app.conf.update(
            broker_transport_options={
                "socket_timeout": self.timeout,
                "socket_connect_timeout": self.timeout,
                "max_retries": 0,
                **self.options,
            },
            broker_connection_timeout=self.timeout,
            broker_connection_retry=False,
            task_ignore_result=True,
        )
        try:
            with app.connection_for_write() as connection:
                app.send_task(
                    self.celery,
                    args=[payload(message)],
                    task_id=message.notice.id,
                    queue=self.queue,
                    connection=connection,
                    retry=False,
                    ignore_result=True,
                )
        except Exception as error:  # noqa: BLE001 - each transport of kombu has errors of its own
            raise SendFailed(
                f"the broker did not take it: {shortened(str(error) or type(error).__name__)}"
            ) from None
        finally:
            app.close()
        return f"the broker has it, on the queue {self.queue}"
