"""``unstuck ack`` acknowledges a problem."""

from __future__ import annotations

from typing import Annotated

import typer

from unstuck.cli.connection import connected
from unstuck.cli.options import AsJson, Because, By
from unstuck.cli.render.terminal import emit, stdout


def ack(
    problem: Annotated[
        str, typer.Argument(metavar="PROBLEM", help="KIND/NAME/CODE; `unstuck now` shows it.")
    ],
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge a problem: `now` and the metrics ignore it until it changes, at most 30 days."""
    with connected() as connection:
        done = connection.client.acknowledge(problem, reason=reason, by=by)
    if as_json:
        emit(done)
    else:
        stdout.print(f"{done.id} is acknowledged until it changes.", soft_wrap=True)
