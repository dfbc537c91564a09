"""The Celery app of the coordinator: ``celery -A unstuck.coordinator worker -P threads``, and ``… beat``.

Its worker consumes the ``control`` queue (sweeps, submits, commands) and carries the report consumer as a bootstep.
"""

from __future__ import annotations

from typing import Any

from celery import Task

from unstuck.coordinator.client import Client
from unstuck.coordinator.commands.job import Command
from unstuck.coordinator.reconcile.bootsteps import CoordinatorStallDetector, ReportConsumer, hide_from_log
from unstuck.coordinator.reconcile.wiring import consumer
from unstuck.tasks.protocol.keys import CONTROL_QUEUE
from unstuck.tasks.settings import settings
from unstuck.tasks.transport.celery_app import celery_app, refuse_other_pools
from unstuck.tasks.transport.kombu_fixes import Acknowledging

_settings = settings()
app = celery_app("unstuck.coordinator", (CONTROL_QUEUE,), _settings)
app.conf.update(
    worker_pool="threads",
    worker_concurrency=4,
    # Two beats are harmless with RedBeat. Its lock would outlive a killed beat by 25 minutes if it were not told.
    beat_scheduler="redbeat.RedBeatScheduler",
    beat_max_loop_interval=max(1.0, _settings.sweep_every),
    redbeat_redis_url=_settings.redis_url,
    redbeat_redis_options={"socket_timeout": 30.0, "socket_connect_timeout": 5.0},
    redbeat_key_prefix=f"{_settings.prefix}:beat:",
    redbeat_lock_timeout=max(5.0, 5 * _settings.sweep_every),
    beat_schedule={
        "sweep": {
            "task": "unstuck.sweep",
            "schedule": _settings.sweep_every,
            # Sweeps that nobody took in time are not worth doing one after the other.
            "options": {"queue": "control", "expires": max(1.0, 3 * _settings.sweep_every)},
        }
    },
)
app.steps["consumer"].add(ReportConsumer)
app.steps["consumer"].add(Acknowledging)
app.steps["consumer"].add(CoordinatorStallDetector)
hide_from_log("unstuck.sweep")
refuse_other_pools(
    app,
    "celery -A unstuck.coordinator worker reads reports in a thread, beside which no process may fork, and needs the "
    "threads pool: leave out -P/--pool, or give -P threads.",
)


@app.task(name="unstuck.sweep")  # type: ignore[untyped-decorator]
def sweep() -> int:
    """Decide every job that is due."""
    return consumer().sweep.run()


def _asker(task: Task, by: str | None) -> str:
    """Who asks: ``by``, else the process that sent the message, as Celery names it. Never this coordinator's user."""
    origin = task.request.origin
    return by or (f"a Celery task from {origin}" if origin else "a Celery task")


@app.task(name="unstuck.submit", bind=True)  # type: ignore[untyped-decorator]
def submit(
    self: Task,
    spec: dict[str, Any],
    key: str | None = None,
    params: dict[str, Any] | None = None,
    by: str | None = None,
) -> str:
    """Submit for an app that has nothing of ours installed. At most once: Celery may lose the message."""
    with Client(settings()) as client:
        return client.submit(spec, key=key, params=params, by=_asker(self, by)).id


@app.task(name="unstuck.pause", bind=True)  # type: ignore[untyped-decorator]
def pause(self: Task, job: str, reason: str = "", by: str | None = None, now: bool = False) -> str:
    """Pause a job; ``now``: interrupt what runs. At most once, like every Celery message."""
    with Client(settings()) as client:
        return str(client.pause(job, now=now, reason=reason, by=_asker(self, by)).answer)


def _command_task(given: Command) -> None:
    """``unstuck.resume`` … for apps that have nothing of ours installed. At most once, like all of Celery."""

    def give(self: Task, job: str, reason: str = "", by: str | None = None) -> str:
        with Client(settings()) as client:
            return str(client.command(job, given, reason=reason, by=_asker(self, by)).answer)

    app.task(give, name=f"unstuck.{given.name.lower()}", bind=True)


for _given in (Command.RESUME, Command.STOP, Command.CANCEL, Command.FORCE_STOP):
    _command_task(_given)


@app.task(name="unstuck.alter", bind=True)  # type: ignore[untyped-decorator]
def alter(self: Task, job: str, values: dict[str, Any], reason: str = "", by: str | None = None) -> str:
    """Change values of a job's spec, by path. At most once, like every Celery message."""
    with Client(settings()) as client:
        return str(client.alter(job, values, reason=reason, by=_asker(self, by)).answer)


@app.task(name="unstuck.skip", bind=True)  # type: ignore[untyped-decorator]
def skip(self: Task, job: str, group: str, reason: str = "", by: str | None = None) -> str:
    """Skip a group. At most once, like every Celery message."""
    with Client(settings()) as client:
        return str(client.skip(job, group, reason=reason, by=_asker(self, by)).answer)


@app.task(name="unstuck.rerun", bind=True)  # type: ignore[untyped-decorator]
def rerun(self: Task, job: str, group: str, reason: str = "", by: str | None = None) -> str:
    """Run a group again, and what comes after it. At most once, like every Celery message."""
    with Client(settings()) as client:
        return str(client.rerun(job, group, reason=reason, by=_asker(self, by)).answer)


@app.task(name="unstuck.retry", bind=True)  # type: ignore[untyped-decorator]
def retry(self: Task, job: str, params: dict[str, Any] | None = None, reason: str = "", by: str | None = None) -> str:
    """The id of a new job that runs what ``job`` did not finish. At most once, like every Celery message."""
    with Client(settings()) as client:
        return client.retry(job, params=params, reason=reason, by=_asker(self, by)).id
