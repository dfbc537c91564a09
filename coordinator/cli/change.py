"""``unstuck alter | skip | rerun | retry``: what may still be changed of a job that has begun, or has ended badly."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.cli.command import AsJson, Because, Jobs, tell
from coordinator.cli.connection import connected
from coordinator.cli.job_name import resolve
from coordinator.cli.submit import params_of
from coordinator.cli.terminal import emit, stdout

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
    as_json: AsJson = False,
) -> None:
    """Change values of a job's spec, all or none.

    Timeouts, retries, limits and queues in every state; code, parameters and conf while it is PAUSED or RETRYING.
    """
    values = params_of(settings, "--set", "PATH=VALUE")
    with connected() as connection:
        result = connection.client.alter(resolve(connection.client, job), values, reason=reason)
    tell([result], as_json)


def skip(job: Job, group: Group, reason: Because = "", as_json: AsJson = False) -> None:
    """Skip a group of a PAUSED or RETRYING job; what comes after it decides by its join rule."""
    with connected() as connection:
        result = connection.client.skip(resolve(connection.client, job), group, reason=reason)
    tell([result], as_json)


def rerun(job: Job, group: Group, reason: Because = "", as_json: AsJson = False) -> None:
    """Run a group of a PAUSED or RETRYING job again, and everything after it."""
    with connected() as connection:
        result = connection.client.rerun(resolve(connection.client, job), group, reason=reason)
    tell([result], as_json)


def retry(
    jobs: Jobs,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="Change a parameter of the spec.")
    ] = None,
    reason: Because = "",
    as_json: AsJson = False,
) -> None:
    """Make a new job of one that FAILED, was CANCELED or STOPPED. What stands of its work is taken over."""
    params = params_of(param or [])
    with connected() as connection:
        client = connection.client
        done = [
            (old, client.retry(old, params=params, reason=reason)) for old in (resolve(client, job) for job in jobs)
        ]
    if as_json:
        emit([{"id": new.id, "retry_of": old, "new": new.new} for old, new in done])
        return
    for old, new in done:
        said = "is retried" if new.new else "was retried before, in the same way,"
        stdout.print(f"job {old} {said} as job {new.id}\n  watch it   unstuck watch {new.id}", soft_wrap=True)
