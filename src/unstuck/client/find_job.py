"""Finds the job that a word names, by one rule for the command line, the page and the API."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from unstuck.coordinator.errors import Ambiguous, BadRequest, NoSuchJob

if TYPE_CHECKING:
    from unstuck.client.client import Client
    from unstuck.read_model.job import JobInfo

LAST = "last"
_MINTED = re.compile(r"\d{8}T\d{6}-[a-z0-9]{8,12}")
_LOOK_AT = 100_000  # jobs; as many as a listing ever answers with


def find_job(client: Client, word: str, *, by_key: bool = False) -> str:
    """Return the id of the job that ``word`` names.

    A word is an id, the name of a job (its newest), the beginning of an id, or ``last``.

    Args:
        by_key: accept ``last`` and the key of a job, which takes precedence over the beginning of
            an id. Only for reads: many keys are dates, and ids of other jobs begin with these.

    Raises:
        NoSuchJob: no job has this name.
        BadRequest: ``last`` was given for a command.
        Ambiguous: several ids begin with the word; the text lists them.
    """
    if _MINTED.fullmatch(word):
        return word  # the next request finds out whether it exists
    if word == LAST:
        return _last(client, by_key)
    jobs = client.jobs(limit=_LOOK_AT)  # the newest first
    exact: list[Callable[[JobInfo], bool]] = [
        lambda job: job.id == word,
        lambda job: job.name == word,
    ]
    if by_key:
        exact.append(lambda job: bool(word) and job.key == word)
    for matches in exact:
        if (match := next(filter(matches, jobs), None)) is not None:
            return match.id
    pattern = re.compile(rf"(\w+-)?{re.escape(word)}")
    fitting = [job for job in jobs if pattern.match(job.id)] if word else []
    if not fitting:
        raise _no_such_job(client, word, jobs)
    if len(fitting) > 1:
        raise _ambiguous(word, fitting)
    return fitting[0].id


def _last(client: Client, by_key: bool) -> str:
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


def _no_such_job(client: Client, word: str, jobs: Sequence[JobInfo]) -> NoSuchJob:
    for job in jobs:
        if job.key and job.key == word:
            return NoSuchJob(
                f"{word} is the key of job {job.id}, and a command wants the id: nothing was "
                "changed"
            )
    return NoSuchJob(
        f"no job {word} is in the store at {client.settings.prefix}: no job has this name, and "
        "no id begins with it; `unstuck list` shows what is there"
    )


def _ambiguous(word: str, fitting: Sequence[JobInfo]) -> Ambiguous:
    shown = "\n".join(f"  {job.id}  {job.name}  {job.status}" for job in fitting[:20])
    more = f"\n  … and {len(fitting) - 20} more" if len(fitting) > 20 else ""
    return Ambiguous(f"{word} fits {len(fitting)} jobs; name one of them:\n{shown}{more}")
