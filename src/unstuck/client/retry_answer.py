"""Retries a job, and forecasts what of its work runs again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unstuck.client.client import Client
from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.alter import work_of
from unstuck.coordinator.errors import Refused, WarehouseSilent
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.problems import listed
from unstuck.read_model.command_result import CommandResult
from unstuck.read_model.group import GroupInfo
from unstuck.read_model.job import JobInfo
from unstuck.tasks.errors import WarehouseMismatch


def retry_job(client: Client, job: str, arguments: Mapping[str, Any]) -> CommandResult:
    """Retry a job, with a forecast of what runs; arguments and errors are those of `Client.retry`.

    A refusal is an answer here, and the job of the answer is the new one.
    """
    try:
        new = client.retry(job, **arguments)
    except (Refused, WarehouseSilent) as error:
        return CommandResult(Answer.REFUSED, client.show(job), str(error))
    except WarehouseMismatch as error:
        text = (
            f"job {job} is not retried: {error}. Bring it back and retry, or submit the job "
            "again in another one"
        )
        return CommandResult(Answer.REFUSED, client.show(job), text)
    record = client.show(new.id)
    if new.new:
        text = f"job {job} is retried as job {new.id}. {_taken_over(client, job, record)}"
        return CommandResult(Answer.DONE, record, text)
    text = (
        f"job {job} was retried before, in the same way, as job {new.id}, which is {record.status}"
    )
    return CommandResult(Answer.ALREADY, record, text)


def _taken_over(client: Client, before: str, new: JobInfo) -> str:
    """Forecast which work of a retried job is taken over, before a runner has looked at it."""
    old, groups = _works(client, before), _works(client, new.id)
    done = {group.name for group in client.show(before).groups if _succeeded(group)}
    same = {name for name, work in groups.items() if old.get(name) == work}
    kept = [name for name in old if name in (done & same) - {*new.reruns}]
    runs = [name for name in groups if name not in kept]
    message = f"It runs {listed(runs)}" if runs else "All groups had finished"
    if kept:
        what = "parameters" if new.any_code else "code, parameters"
        message += f", and takes over each of {listed(kept)} unless its {what} or inputs changed"
    return (
        f"{message}. `unstuck show {new.id}` says of each group whether its work was taken over, "
        f"and why not; `unstuck watch {new.id}` follows it"
    )


def _works(client: Client, job: str) -> dict[str, Any]:
    """Return the work of each group in the spec of a job."""
    return {group["name"]: work_of(group) for group in client.written(job)["groups"]}


def _succeeded(group: GroupInfo) -> bool:
    states = {member.state for member in group.members}
    return states == {GroupState.SUCCEEDED}
