"""``unstuck health`` checks the coordinators or workers of this host, for probes."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from unstuck.cli.connection import connected
from unstuck.cli.render.terminal import stderr, stdout
from unstuck.exits import ExitCode
from unstuck.tasks.duration import parse_duration
from unstuck.views.words import count_of


def health(
    role: Annotated[
        Literal["coordinator", "worker"],
        typer.Argument(metavar="ROLE", help="The processes to check."),
    ],
    max_age: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a process may have done nothing that others see."
        ),
    ] = "30s",
) -> None:
    """Check whether the coordinators or workers of this host are at work, for probes.

    Exit code 1: one of them is not, or there is none; 5: Redis, which has their heartbeats, does
    not answer.
    """
    try:
        seconds = parse_duration(max_age)
    except ValueError as error:
        raise typer.BadParameter(f"--max-age: {error}") from None
    from unstuck.doctor.process_health import health_of

    with connected() as connection:
        processes = health_of(
            connection.redis, connection.client.settings, role, os.uname().nodename, seconds
        )
    for sentence in processes.ailing:
        stderr.print(sentence, soft_wrap=True)
    if processes.ailing:
        raise typer.Exit(ExitCode.NOT_WELL)
    noun = "runner" if role == "worker" else role
    if not processes.well:
        stderr.print(f"no {noun} of this host has been heard of", soft_wrap=True)
        raise typer.Exit(ExitCode.NOT_WELL)
    stdout.print(f"{count_of(processes.well, noun)} of this host at work")
