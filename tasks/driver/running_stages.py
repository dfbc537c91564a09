"""Reads the running stages of Spark from its JVM, even if its UI is off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from unstuck.tasks.protocol.step_stack import SparkStage

SHOWN = 5  # stages
MAX_NAME = 200  # characters


def running_stages(context: Any, clean: Callable[[str], str]) -> list[SparkStage]:
    """Return the running stages of a Spark context, earliest first.

    Raises: Exception: any error of py4j.

    ``clean`` removes the secrets from a text.
    """
    store = context._jsc.sc().statusStore()
    active = store.activeStages()
    of_running_jobs = _stages_of_running_jobs(context, store)
    stages = [active.apply(n) for n in range(active.size())]
    stages = [stage for stage in stages if stage.stageId() in of_running_jobs][:SHOWN]
    return [
        _told(context, store, stage, clean)
        for stage in sorted(stages, key=lambda stage: stage.stageId())
    ]


def _stages_of_running_jobs(context: Any, store: Any) -> set[int]:
    """Return the ids of their stages.

    A canceled job has ended, but its stage is active until its tasks have ended, too.
    """
    running = context._jvm.java.util.ArrayList()
    running.add(context._jvm.org.apache.spark.JobExecutionStatus.RUNNING)
    jobs = store.jobsList(running)
    ids = [jobs.apply(n).stageIds() for n in range(jobs.size())]
    return {stages.apply(n) for stages in ids for n in range(stages.size())}


def _told(context: Any, store: Any, stage: Any, clean: Callable[[str], str]) -> SparkStage:
    longest, host = 0.0, ""
    # The signature of this call is internal to Spark and differs between its versions.
    with suppress(Exception):
        status = context._jvm.org.apache.spark.status.api.v1
        running = context._jvm.java.util.ArrayList()
        running.add(status.TaskStatus.RUNNING)
        by_time = status.TaskSorting.DECREASING_RUNTIME
        tasks = store.taskList(stage.stageId(), stage.attemptId(), 0, 1, by_time, running)
        if tasks.size():
            task = tasks.apply(0)
            longest, host = task.duration().get() / 1000, str(task.host())
    return SparkStage(
        id=stage.stageId(),
        name=clean(str(stage.name()))[:MAX_NAME],
        tasks=stage.numTasks(),
        done=stage.numCompleteTasks(),
        running=stage.numActiveTasks(),
        failed=stage.numFailedTasks(),
        longest=longest,
        host=host,
    )
