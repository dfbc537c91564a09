"""``unstuck why``: what a job, and each of its groups that is not done, waits for, and what a person can do."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.text import Text

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.job_name import resolve
from unstuck.coordinator.cli.render.terminal import clock, emit, iso, stdout
from unstuck.coordinator.explain.explanation import Explanation

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="An id, the beginning of one, or `last`.")]


def why(job: JobArgument, as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False) -> None:
    """Say what a job waits for: since when, what was tried, what happens next and when, and what would help."""
    with connected() as connection:
        found = connection.client.explain(resolve(connection.client, job))
    if as_json:
        emit([_as_json(one) for one in found])
        return
    for one in found:
        stdout.print(Text.assemble((one.subject, "bold"), f"  {one.state}" if one.state else ""), soft_wrap=True)
        for label, text in _lines(one):
            stdout.print(Text(f"  {label:<8}{text}"), soft_wrap=True)


def _lines(one: Explanation) -> list[tuple[str, str]]:
    lines = [("why", one.what)]
    if one.since:
        lines.append(("since", clock(one.since)))
    if one.tried:
        lines.append(("tried", one.tried))
    if one.next.at:
        lines.append(("next", f"{clock(one.next.at)}: {one.next.what}"))
    elif one.next.what:
        lines.append(("next", one.next.what))
    if one.ends.what:
        lines.append(("ends", one.ends.what + (f", at {clock(one.ends.at)}" if one.ends.at else "")))
    lines.extend(("try", command) for command in one.help)
    return lines


def _as_json(one: Explanation) -> dict[str, object]:
    data = dataclasses.asdict(one)
    following, ends = data.pop("next"), data.pop("ends")
    data |= {"next_at": following["at"], "next_what": following["what"]}
    data |= {"gives_up": ends["what"], "gives_up_at": ends["at"]}
    for name in ("since", "next_at", "gives_up_at"):
        data[name] = iso(data[name]) if data[name] else None
    return {**data, "help": list(one.help)}
