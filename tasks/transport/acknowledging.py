"""Acknowledging: a message whose acknowledgement fails must not take a slot of its worker for ever.

kombu frees the slot only once Redis has taken the acknowledgement, and Celery notes the error and goes on. So a worker
with one slot, whose link stalls at that moment, listens no more and looks alive. Here the slot is freed either way.
What stays behind in Redis comes back as a second copy of the hint, much later, and is STALE then.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.transport import virtual


class Acknowledging(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of a Celery worker, for both rooms. Celery starts it anew with every connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        channel = parent.task_consumer.channel
        free_slot_too(channel.qos, channel.connection_errors)


def free_slot_too(qos: Any, errors: tuple[type[BaseException], ...]) -> None:
    """Let ``qos.ack`` free the slot of the message also where one of ``errors`` stops it. The error is raised on."""
    acknowledge = qos.ack

    def ack(delivery_tag: str) -> None:
        try:
            acknowledge(delivery_tag)
        except errors:
            virtual.QoS.ack(qos, delivery_tag)
            raise

    qos.ack = ack
