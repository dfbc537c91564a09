"""Create the Celery app that carries wake-ups from coordinators to workers.

A wake-up is acknowledged when it is received, because offers stand in Redis and may be taken by
anybody: with late acknowledgement a dropped connection gives every running task a second copy at
once (measured).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from celery import Celery, signals
from celery.concurrency import get_implementation
from celery.utils.log import ColorFormatter, get_multiprocessing_logger
from kombu import Exchange, Queue

from unstuck.tasks.log_lines import formatter, one_line
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import tls_options
from unstuck.tasks.settings import Settings, leave, settings, settings_or_leave
from unstuck.tasks.terminal_text import PrintableFormatter
from unstuck.tasks.transport.kombu_fixes import BrokerConnection
from unstuck.tasks.transport.redis_client import REPLY_WITHIN, broker_url
from unstuck.tasks.transport.refusals import fit_or_leave

QUEUES = ("spark", "light")
START_WITHIN = 60.0  # seconds; a child on a busy host may take long to say that it is up


def queue_of(name: str) -> Queue:
    """The Celery queue ``name``, on the anonymous exchange.

    A message to a *named* exchange whose binding key is gone from Redis vanishes silently
    (measured).
    """
    return Queue(name, exchange=Exchange(""), routing_key=name)


def celery_app(name: str, queues: tuple[str, ...], settings: Settings) -> Celery:
    """Return a Celery app without results, with early acknowledgement and anonymous exchanges.

    It binds to nothing yet.

    The first of ``queues`` is the default one.
    """
    new_app = Celery(name, broker=broker_url(settings.redis_url), set_as_current=False)
    # Queues that a worker is given with -Q, or a spec names, are made the same way.
    new_app.amqp.autoexchange = lambda _name: Exchange("")
    new_app.amqp.Connection = BrokerConnection
    new_app.conf.update(
        task_ignore_result=True,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        task_default_queue=queues[0],
        task_queues=[queue_of(queue) for queue in queues],
        task_create_missing_queues=True,
        task_default_exchange="",
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        # A message that nobody here can begin with is left to others: what a worker holds and has
        # not begun comes back only after the visibility_timeout.
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_redirect_stdouts=False,
        broker_use_ssl=tls_options(settings.redis_url) or False,
        task_send_sent_event=False,
        broker_connection_retry_on_startup=True,
        broker_connection_timeout=5.0,
        # Celery would give up after a hundred tries, and end a worker with all that it runs. And it
        # takes an answer that refuses a write for an error without a cure, and ends at once.
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,
        # No retry option here: it would silently switch Producer.batch off (measured).
        broker_transport_options={
            # These alone find a connection whose other end is gone without notice (a failover, a
            # firewall). A process has several, and finds them one after the other. BRPOP waits for
            # one second.
            "socket_timeout": REPLY_WITHIN,
            "socket_connect_timeout": REPLY_WITHIN,
            "socket_keepalive": True,
            # Longer than between two heartbeats of Celery, which would ask before each: a server
            # whose disk is broken refuses that, and Celery would try to send the heartbeat for as
            # long, and listen to nothing.
            "health_check_interval": 5,
            "visibility_timeout": 3600,
            # Two fleets may share a database. Without it they would take each other's messages.
            "global_keyprefix": Keys(settings.prefix).broker,
        },
    )
    # Celery's mingle and gossip ask all other workers at each reconnect. One reply that is lost
    # meanwhile is an error that Celery does not recover from: a healthy worker ends. Revoked tasks
    # and logical clocks are not used here.
    at_worker_start(
        new_app, lambda worker: worker.options.update(without_mingle=True, without_gossip=True)
    )
    # Celery would try for ever with a Redis that refuses it, or listen to nothing.
    at_worker_start(new_app, lambda _: fit_or_leave(settings))
    if settings.log == "json":
        _print_json_alone(new_app)
    return new_app


def at_worker_start(app: Celery, act: Callable[[Any], None]) -> None:
    """Call ``act`` with a worker of ``app`` when it starts."""

    def look(sender: Any, **_: Any) -> None:
        # Signals are global to a process, and a coordinator's worker has both apps.
        if sender.app is app:
            act(sender)

    signals.worker_init.connect(look, weak=False)


def _print_json_alone(app: Celery) -> None:
    """Print no banner, and write what bypasses all loggers as JSON, in workers of ``app``."""

    def look(instance: Any, **_: Any) -> None:
        if instance.app is app:
            # Imported here, since a process that sends wake-ups does not need it.
            from celery.apps import worker as program

            instance.quiet = True
            program.safe_say = _say
            warnings.showwarning = _warn

    signals.celeryd_init.connect(look, weak=False)


def _say(message: str, file: Any) -> None:
    os.write(file.fileno(), f"{one_line('json', 'celery.worker', 'WARNING', message)}\n".encode())


def _warn(
    message: Any, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    text = f"{filename}:{lineno}: {category.__name__}: {message}"
    sys.stderr.write(f"{one_line('json', 'py.warnings', 'WARNING', text)}\n")


def refuse_other_pools(app: Celery, sentence: str) -> None:
    """End a worker of ``app`` with ``sentence`` if it is started with another ``worker_pool``.

    ``-P prefork`` is not another one: Celery takes it for no choice at all, and ``worker_pool`` for
    what is wanted.
    """

    def look(worker: Any) -> None:
        if get_implementation(worker.pool_cls) is not get_implementation(app.conf.worker_pool):
            leave(sentence)

    at_worker_start(app, look)


def _log_printably(logger: logging.Logger, **_: Any) -> None:
    """Make log records printable, since names and errors may contain escape sequences.

    As JSON is written what Celery would write as text. A handler of the user's keeps its form.
    """
    for handler in (*logger.handlers, *get_multiprocessing_logger().handlers):
        own = handler.formatter or logging.Formatter()
        as_set = formatter(settings().log, own) if isinstance(own, ColorFormatter) else own
        if not isinstance(own, PrintableFormatter):
            handler.setFormatter(PrintableFormatter(as_set))


signals.after_setup_logger.connect(_log_printably)
signals.after_setup_task_logger.connect(_log_printably)

app = celery_app("unstuck.tasks", QUEUES, settings_or_leave())
app.conf.update(worker_concurrency=1, worker_proc_alive_timeout=START_WITHIN)
