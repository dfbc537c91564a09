"""``unstuck alter | skip | rerun | retry``: what may still be changed of a job that has begun, or has ended badly."""

from __future__ import annotations

from typing import Annotated

import typer

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.control import AsJson, Because, By
from unstuck.coordinator.cli.job_name import resolve
from unstuck.coordinator.cli.selection import Answers, Named, Since, Statuses, Wanted, Words, Yes, give, tell_all
from unstuck.coordinator.cli.submit import params_of
from unstuck.coordinator.client import Client, Refused
from unstuck.coordinator.commands.job import RETRY_LEGAL, Answer, Commanded
from unstuck.coordinator.publishing.breaker import WarehouseSilent
from unstuck.tasks.errors import WarehouseMismatch

Job = Annotated[str, typer.Argument(metavar="JOB", help="An id, the beginning of one, or `last`.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="A group, a fork, or one member: 'by_month[3]'.")]


def alter(
    job: Job,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="PATH=VALUE", help="`groups.clean.timeout=2h`, `params.year=2014`; `=null` takes it out."
        ),
    ],
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change values of a job's spec, all or none.

    Timeouts, retries, limits and queues in every state; code, parameters and conf while it is PAUSED or RETRYING.
    """
    values = params_of(settings, "--set", "PATH=VALUE")
    with connected() as connection:
        result = connection.client.alter(resolve(connection.client, job), values, reason=reason, by=by)
    tell_all(Answers("alter", [result]), False, as_json)


def skip(job: Job, group: Group, reason: Because = "", by: By = None, as_json: AsJson = False) -> None:
    """Skip a group of a PAUSED or RETRYING job; what comes after it decides by its join rule."""
    with connected() as connection:
        result = connection.client.skip(resolve(connection.client, job), group, reason=reason, by=by)
    tell_all(Answers("skip", [result]), False, as_json)


def rerun(job: Job, group: Group, reason: Because = "", by: By = None, as_json: AsJson = False) -> None:
    """Run a group of a PAUSED or RETRYING job again, and everything after it."""
    with connected() as connection:
        result = connection.client.rerun(resolve(connection.client, job), group, reason=reason, by=by)
    tell_all(Answers("rerun", [result]), False, as_json)


def retry(
    jobs: Words = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="Change a parameter of the spec.")
    ] = None,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a new job of one that FAILED, was CANCELED or STOPPED. What stands of its work is taken over."""
    params = params_of(param or [])
    wanted = Wanted(jobs, status, name, since, yes)
    with connected() as connection:
        client = connection.client
        answers = give(client, "retry", RETRY_LEGAL, wanted, lambda job: _retried(client, job, params, reason, by))
    tell_all(answers, wanted.filtered, as_json)


def _retried(client: Client, job: str, params: dict[str, str], reason: str, by: str | None) -> Commanded:
    """Raises: NoSuchJob, SpecError."""
    try:
        new = client.retry(job, params=params, reason=reason, by=by)
    except (Refused, WarehouseSilent) as error:
        return Commanded(Answer.REFUSED, client.show(job).job, str(error))
    except WarehouseMismatch as error:
        text = f"job {job} is not retried: {error}. Bring it back and retry, or submit the job anew in another one"
        return Commanded(Answer.REFUSED, client.show(job).job, text)
    record = client.show(new.id).job
    if new.new:
        text = f"job {job} is retried as job {new.id}; `unstuck watch {new.id}` follows it"
        return Commanded(Answer.DONE, record, text)
    text = f"job {job} was retried before, in the same way, as job {new.id}, which is {record.status}"
    return Commanded(Answer.ALREADY, record, text)
