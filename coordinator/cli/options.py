"""How a person may name a job: by its id, by the beginning of the id or of its random part, or as ``last``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from unstuck.coordinator.cli.exits import Ambiguous
from unstuck.coordinator.client import Client, NoSuchJob
from unstuck.coordinator.views.jobs import ListedJob

LAST = "last"
_MINTED = re.compile(r"\d{8}T\d{6}-[a-z0-9]{8}")
_LOOK_AT = 100_000  # jobs; as many as a listing ever answers with

Because = Annotated[str, typer.Option("--reason", help="Why, for the event log.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who asks, for the event log; by default user@host.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def resolve(client: Client, word: str) -> str:
    """The id of the job that ``word`` names.

    Raises:
        NoSuchJob: it names none.
        Ambiguous: it names several; the text lists them.
    """
    if _MINTED.fullmatch(word):
        return word  # whether it is there, the next question tells
    if word == LAST:
        newest = client.jobs(limit=1)
        if not newest:
            raise NoSuchJob("there is no job yet; submit one with `unstuck submit SPEC`")
        return newest[0].id
    jobs = client.jobs(limit=_LOOK_AT)
    fitting = [job for job in jobs if job.id == word] or [job for job in jobs if _fits(job, word)]
    if not fitting:
        raise NoSuchJob(f"no job {word} is in the store at {client.settings.prefix}; `unstuck list` shows what is")
    if len(fitting) > 1:
        shown = "\n".join(f"  {job.id}  {job.name}  {job.status}" for job in fitting[:20])
        more = f"\n  … and {len(fitting) - 20} more" if len(fitting) > 20 else ""
        raise Ambiguous(f"{word} fits {len(fitting)} jobs; name one of them:\n{shown}{more}")
    return fitting[0].id


def _fits(job: ListedJob, word: str) -> bool:
    return bool(word) and (job.id.startswith(word) or job.id.partition("-")[2].startswith(word))


def params_of(texts: list[str], option: str = "--param", form: str = "NAME=VALUE") -> dict[str, str]:
    """``{"year": "2013"}`` of ``["year=2013"]``. Raises: typer.BadParameter."""
    params = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        params[name] = value
    return params
