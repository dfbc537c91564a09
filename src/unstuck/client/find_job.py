"""The job that a person or a program means by a word; one rule for the command line, the page and
the API.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unstuck.coordinator.errors import Ambiguous, BadRequest, NoSuchJob

if TYPE_CHECKING:
    from unstuck.client.client import Client

LAST = "last"
_MINTED = re.compile(r"\d{8}T\d{6}-[a-z0-9]{8,12}")
_LOOK_AT = 100_000  # jobs; as many as a listing ever answers with


def find_job(client: Client, word: str, *, by_key: bool = False) -> str:
    """The id of the job that ``word`` names: an id, a name (of its newest job), the beginning of an
    id, or ``last``.

    Args:
        by_key: it may be ``last`` or the key of a job, which counts more than the beginning of an
            id. Only for what changes nothing: many keys are dates, and so begin the ids of other
            jobs.

    Raises:
        NoSuchJob: it names none.
        BadRequest: it is ``last``, for a command.
        Ambiguous: it begins several ids; the text lists them.
    """
    if _MINTED.fullmatch(word):
        return word  # whether it is there, the next question tells
    if word == LAST:
        newest = next(iter(client.jobs(limit=1)), None)
        if newest is None:
            raise NoSuchJob("there is no job yet; submit one with `unstuck submit SPEC`")
        if not by_key:
            raise BadRequest(
                "`last` may be another job by the time that a command is given, so only looks take "
                f"it; nothing was changed. The newest job is {newest.id} ({newest.name}, "
                f"{newest.status})."
            )
        return newest.id
    jobs = client.jobs(limit=_LOOK_AT)
    keyed = next((job for job in jobs if job.key and job.key == word), None)
    for match in (
        next((job for job in jobs if job.id == word), None),
        next(
            (job for job in jobs if job.name == word), None
        ),  # the newest, for jobs are listed newest first
        keyed if by_key else None,
    ):
        if match is not None:
            return match.id
    fitting = [job for job in jobs if word and re.match(rf"(\w+-)?{re.escape(word)}", job.id)]
    if not fitting and keyed is not None:
        raise NoSuchJob(
            f"{word} is the key of job {keyed.id}, and a command wants the id: nothing was changed"
        )
    if not fitting:
        raise NoSuchJob(
            f"no job {word} is in the store at {client.settings.prefix}: no job has this name, and "
            "no id begins with it; `unstuck list` shows what is there"
        )
    if len(fitting) > 1:
        shown = "\n".join(f"  {job.id}  {job.name}  {job.status}" for job in fitting[:20])
        more = f"\n  … and {len(fitting) - 20} more" if len(fitting) > 20 else ""
        raise Ambiguous(f"{word} fits {len(fitting)} jobs; name one of them:\n{shown}{more}")
    return fitting[0].id
