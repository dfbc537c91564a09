"""The Celery app of the coordinator: ``celery -A unstuck.coordinator worker -P threads``.

Its worker consumes the ``control`` queue (sweeps, submits, commands) and runs the report consumer
as a bootstep. ``celery -A unstuck.coordinator beat`` uses the same app.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from celery import Task

from unstuck.coordinator.command_table import COMMANDS, TargetKind
from unstuck.coordinator.commands.job_commands import Commanded
from unstuck.coordinator.notices.setting import notify_setting
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.reconcile.bootsteps import (
    CoordinatorStallDetector,
    NoticeSender,
    ReportConsumer,
    hide_from_log,
)
from unstuck.coordinator.reconcile.wiring import consumer
from unstuck.coordinator.requests.job_requests import JUDGED, JobRequests, connect_for_requests
from unstuck.coordinator.requests.schedule_requests import ScheduleRequests
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, shorten
from unstuck.coordinator.store.answers import Submitted
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.traces.trace_sender import TraceStep, wanted
from unstuck.coordinator.unreachable import unreachable
from unstuck.tasks.errors import SettingsInvalid, UnstuckError
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.redis_url import tls_options, without_options
from unstuck.tasks.settings import leave, settings
from unstuck.tasks.transport.celery_app import celery_app, refuse_other_pools
from unstuck.tasks.transport.kombu_fixes import Acknowledging
from unstuck.tasks.transport.redis_client import FEW_QUESTIONS, REPLY_WITHIN, retries

NO_SPEC = (
    "neither a spec nor its text. The task unstuck.submit takes a mapping, or the text of a YAML "
    "or JSON file, and never opens a file by its path: `unstuck submit FILE` and "
    "Client().submit(PATH) do, where they are called"
)
_BREAKER = CircuitBreaker()  # of this process: what hangs in a warehouse outlives the request
_settings = settings()
try:
    notify_setting(_settings)
except SettingsInvalid as error:
    leave(str(error))
app = celery_app("unstuck.coordinator", (CONTROL_QUEUE,), _settings)
app.conf.update(
    worker_pool="threads",
    worker_concurrency=4,
    # Two beats are harmless with RedBeat. Its lock would outlive a killed beat by 25 minutes if it
    # were not told.
    beat_scheduler="unstuck.coordinator.reconcile.beat:Scheduler",
    beat_max_loop_interval=max(1.0, _settings.sweep_every),
    redbeat_redis_url=without_options(_settings.redis_url),
    redbeat_redis_options={
        "socket_timeout": REPLY_WITHIN,
        "socket_connect_timeout": REPLY_WITHIN,
        "retry": retries(),
        **FEW_QUESTIONS,
        **tls_options(_settings.redis_url),
    },
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
app.steps["consumer"].add(NoticeSender)
app.steps["consumer"].add(Acknowledging)
app.steps["consumer"].add(CoordinatorStallDetector)
if wanted(os.environ):
    app.steps["consumer"].add(TraceStep)
hide_from_log("unstuck.sweep")


class Beat(app.Beat):  # type: ignore[misc, name-defined]
    """Celery beat without its banner if logs are JSON."""

    def __init__(self, *arguments: Any, quiet: bool = False, **named: Any) -> None:
        super().__init__(*arguments, quiet=quiet or _settings.log == "json", **named)


app.Beat = Beat
refuse_other_pools(
    app,
    "celery -A unstuck.coordinator worker reads reports in a thread, beside which no process may "
    "fork, and needs the threads pool: leave out -P/--pool, or give -P threads.",
)


@app.task(name="unstuck.sweep")  # type: ignore[untyped-decorator]
def sweep() -> int:
    """Decide every job that is due."""
    return consumer().sweep.run()


def _spec(source: Any) -> JobSpec:
    """The spec in a message: a mapping, or its text. Raises: SpecError."""
    if not isinstance(source, str):
        return JobSpec.from_values(source, None)
    # A path would be one of this host, read with the rights of this coordinator, and its first
    # words would be logged.
    if "\n" not in source.strip() and not source.lstrip().startswith("{"):
        raise SpecError([SpecProblem(f"{shorten(source)} is {NO_SPEC}")])
    return JobSpec.from_text(source)


def _keep_refused(
    client: redis.Redis, task: Task, values: Mapping[str, Any], error: Exception
) -> None:
    """Make a dead letter of a submit in vain.

    The error is in the log of this coordinator as well.
    """
    arguments = {
        name: argument if isinstance(argument, str) else json.dumps(argument, default=str)
        for name, argument in values.items()
    }
    with suppress(redis.RedisError):  # the store is away
        code = f"{error.code}: " if isinstance(error, UnstuckError) else ""
        dead_letters = DeadLetters(client, Keys(_settings.prefix))
        dead_letters.add_refused(
            task.name, f"{code}{error}", {**arguments, "task_id": task.request.id or ""}
        )


def _task(name: str, names: Sequence[str], act: Callable[..., Any]) -> None:
    """Register a task such as ``unstuck.submit``, for apps that do not install Unstuck.

    A task runs at most once, because Celery may lose its message.

    Args:
        names: of its arguments. Its result, for the log of the coordinator, is the id of the job,
            or the answer with its text.
        act: takes the requests and the arguments.
    """

    def ask(self: Task, *positional: Any, **named: Any) -> str:
        if len(positional) > len(names):
            raise TypeError(
                f"unstuck.{name} takes {', '.join(names)}; {len(positional)} values were given"
            )
        values = {**dict(zip(names, positional, strict=False)), **named}
        # The process that sent the message asks, as Celery names it; never the user of this
        # coordinator.
        origin = self.request.origin
        if "by" in names:
            values["by"] = values.get("by") or (
                f"a Celery task from {origin}" if origin else "a Celery task"
            )
        has_spec = name == "submit" or values.get("spec") is not None
        with connect_for_requests(_settings) as client:
            try:
                arguments = {**values, "spec": _spec(values.get("spec"))} if has_spec else values
                return _in_words(_request(client, act, arguments))
            except Exception as error:
                if has_spec:  # what was to be stored is nowhere else, and nobody awaits the result
                    _keep_refused(client, self, values, error)
                raise

    app.task(ask, name=f"unstuck.{name}", bind=True)


def _request(client: redis.Redis, act: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call ``act`` on the fleet. Raises: Unreachable, and as ``act``."""
    try:
        return act(JobRequests.at(_settings, client, _BREAKER), **values)
    except redis.RedisError as error:
        raise unreachable(_settings.redis_url, error) from error


def _in_words(result: Submitted | Commanded | ScheduleResult) -> str:
    if isinstance(result, Submitted):
        return result.id if result.new else f"{result.id}: {result.summary}"
    return f"{result.answer}: {result.text}"


def _names(method: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def _of_schedules(method: str) -> Callable[..., Any]:
    return lambda requests, **values: getattr(requests.schedules, method)(**values)


_task("submit", _names(JobRequests.submit), JobRequests.submit)
_task("set_schedule", _names(ScheduleRequests.set), _of_schedules("set"))
_task("retry", _names(JobRequests.retry), JobRequests.retry)
for _command in JUDGED.values():
    _arguments = ["job", *(argument.name for argument in _command.arguments)]
    _task(_command.method, _arguments, partial(JobRequests.command, word=_command.name))
for _command in COMMANDS[TargetKind.SCHEDULE].values():
    _name = _command.method
    _task(f"{_name}_schedule", _names(_command.handler), _of_schedules(_name))
