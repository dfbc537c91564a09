"""Selection: the jobs that a command goes to, named by id or chosen by a filter, and what came of asking them all.

A filter chooses only jobs in which the command is legal, and nothing is asked of them before a person has seen which
they are and agreed. One job that refuses, or is not there, never stops the others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.progress import track

from unstuck.coordinator.cli.exits import BadRequest, ExitCode
from unstuck.coordinator.cli.job_name import resolve
from unstuck.coordinator.cli.look import since_time
from unstuck.coordinator.cli.render.terminal import coloured, count_of, emit, stderr, stdout, table, voice
from unstuck.coordinator.client import Client, NoSuchJob
from unstuck.coordinator.commands.job import Answer, Commanded
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.views.jobs import ListedJob

Words = Annotated[list[str] | None, typer.Argument(metavar="JOB…", help="Ids, beginnings of ids, or `last`.")]
Statuses = Annotated[
    list[Status] | None,
    typer.Option("--status", case_sensitive=False, help="All jobs in this status; may be given several times."),
]
Named = Annotated[str | None, typer.Option("--name", metavar="GLOB", help="All jobs whose name fits.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="All jobs submitted since: 2h, 7d, or 2013-12-31T12:00.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether the jobs that fit are meant.")]

SHOWN = 20  # jobs that are listed before a person is asked, and above which a bar shows how far it is


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person gave to name jobs: words, or a filter."""

    words: Sequence[str] | None
    status: Sequence[Status] | None
    name: str | None
    since: str | None
    yes: bool

    @property
    def filtered(self) -> bool:
        return bool(self.status or self.name is not None or self.since is not None)


@dataclass(frozen=True, slots=True)
class Missing:
    """A word that names no job."""

    word: str
    text: str


@dataclass(slots=True)
class Answers:
    """What came of one command to several jobs."""

    given: str
    answered: list[Commanded | Missing] = field(default_factory=list)
    skipped: int = 0  # they fit the filter, and the command is not legal in their state

    def count(self, answer: Answer) -> int:
        return sum(1 for one in self.answered if isinstance(one, Commanded) and one.answer is answer)

    @property
    def missing(self) -> int:
        return sum(1 for one in self.answered if isinstance(one, Missing))

    @property
    def code(self) -> ExitCode:
        if self.count(Answer.REFUSED):
            return ExitCode.REFUSED
        return ExitCode.NO_SUCH_JOB if self.missing else ExitCode.FINE

    def summary(self) -> str:
        """``cancel: 12 on record, 3 already, 1 refused``. On record: a coordinator brings it about."""
        counted = [
            *((self.count(Answer.DONE), "on record"), (self.count(Answer.ALREADY), "already")),
            *((self.count(Answer.REFUSED), "refused"), (self.missing, "not there")),
            (self.skipped, f"skipped, since {self.given} is not legal in their state"),
        ]
        return f"{self.given}: {', '.join(f'{n:,} {what}' for n, what in counted if n) or 'no job fits'}"


def give(
    client: Client, given: str, legal: frozenset[Status], wanted: Wanted, ask: Callable[[str], Commanded]
) -> Answers:
    """Ask every job that is wanted.

    Args:
        given: the command's word, and where it is ``legal``: of jobs chosen by a filter, only those are asked.
        ask: gives the command to one job. Raises NoSuchJob.

    Raises:
        BadRequest: neither ids nor a filter, or both; or a filter, and nobody there who could be asked.
        Ambiguous: a short id fits several jobs; nothing was asked of any.
        typer.Exit: the person said no.
    """
    if bool(wanted.words) == wanted.filtered:
        both = "not both" if wanted.filtered else "one of the two"
        raise BadRequest(f"Name jobs by id, or choose them with --status, --name or --since; {both}.")
    answers = Answers(given)
    if wanted.filtered:
        jobs, answers.skipped = chosen(client, legal, wanted)
        if jobs:
            agree(given, jobs, wanted.yes)
        ids = [job.id for job in jobs]
    else:
        ids = _resolved(client, wanted.words or (), answers)
    _ask_all(ids, ask, answers)
    return answers


def chosen(client: Client, legal: frozenset[Status], wanted: Wanted) -> tuple[list[ListedJob], int]:
    """Jobs that fit the filter and stand in a status of ``legal``, the oldest first; and how many others fit it."""
    since = None if wanted.since is None else since_time(wanted.since, time.time())

    def fitting(statuses: Iterable[Status]) -> list[ListedJob]:
        status = [one for one in statuses if not wanted.status or one in wanted.status]
        return client.jobs(status=status, name=wanted.name, since=since, limit=None) if status else []

    return fitting(legal)[::-1], len(fitting(one for one in Status if one not in legal))


def agree(given: str, jobs: Sequence[ListedJob], yes: bool) -> None:
    """Show which jobs are meant and let a person decide. Returns if it is yes.

    Raises:
        BadRequest: nobody can be asked.
        typer.Exit: it is no.
    """
    shown = table("ID", "NAME", "STATUS")
    for job in jobs[:SHOWN]:
        shown.add_row(job.id, job.name, coloured(job.status))
    stderr.print(shown)
    if len(jobs) > SHOWN:
        stderr.print(f"and {len(jobs) - SHOWN:,} more")
    count = count_of(len(jobs), "job")
    let_decide(f"{given}: {count}, as listed?", f"{given} would be given to {count}", yes)


def let_decide(question: str, would: str, yes: bool) -> None:
    """Let a person decide. Returns if it is yes.

    Args:
        would: what would be done, as a sentence of who is not there to agree.

    Raises:
        BadRequest: nobody can be asked.
        typer.Exit: it is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and stderr.is_terminal):
        raise BadRequest(f"{would}, and nobody is there to agree. Nothing was changed; give --yes if they are meant.")
    try:
        answer = stderr.input(f"{question} [y/N] ", markup=False, emoji=False)
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        stderr.print("Nothing was changed.")
        raise typer.Exit(ExitCode.NOT_WELL)


def _resolved(client: Client, words: Sequence[str], answers: Answers) -> list[str]:
    """The ids that words name, each once. Raises: Ambiguous, before anything was asked of any job."""
    ids: dict[str, None] = {}
    for word in words:
        try:
            ids[resolve(client, word)] = None
        except NoSuchJob as error:
            answers.answered.append(Missing(word, str(error)))
    return list(ids)


def _ask_all(ids: Sequence[str], ask: Callable[[str], Commanded], answers: Answers) -> None:
    """Give the command to each. Whatever ends this early, a person is told how far it came."""
    asked = 0
    bar = len(ids) > SHOWN and stderr.is_terminal
    try:
        for job in track(ids, answers.given, console=stderr, transient=True) if bar else ids:
            try:
                answers.answered.append(ask(job))
            except NoSuchJob as error:
                answers.answered.append(Missing(job, str(error)))
            asked += 1
    finally:
        if 0 < asked < len(ids):
            stderr.print(
                f"{asked:,} of {len(ids):,} jobs were asked before this. Give the command again for the rest: "
                "asking a job twice changes nothing."
            )


def tell_all(answers: Answers, filtered: bool, as_json: bool) -> None:
    """A line for each job that was named; of those that were chosen, only for what went wrong; of several, the sum.

    Raises: typer.Exit: not all did as they were asked.
    """
    if as_json:
        emit([answer_json(one) for one in answers.answered])
    for one in answers.answered if not as_json else ():
        bad = isinstance(one, Missing) or one.answer is Answer.REFUSED
        if bad or not filtered:
            (stderr if bad else stdout).print(one.text, soft_wrap=True)
    if filtered or len(answers.answered) > 1:
        voice(as_json).print(answers.summary(), soft_wrap=True)
    if answers.code is not ExitCode.FINE:
        raise typer.Exit(answers.code)


def answer_json(one: Commanded | Missing) -> dict[str, Any]:
    """The answer of one job. One that is not there has neither intent nor status."""
    if isinstance(one, Missing):
        return {"id": one.word, "answer": "NO_SUCH_JOB", "intent": None, "status": None, "text": one.text}
    return {
        "id": one.job.id,
        "answer": str(one.answer),
        "intent": str(one.job.intent),
        "status": str(one.job.status),
        "text": one.text,
        **({"retry_of": one.job.retry_of} if one.job.retry_of else {}),
    }
