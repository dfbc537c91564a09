"""The commands that change jobs: pause, resume, stop, cancel, force-stop, retry, alter, skip and rerun.

A filter chooses only jobs in which the command is legal, and a person agrees to the list before any of them is changed.
A job that refuses, or is not there, never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.progress import track

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.options import (
    AsJson,
    Because,
    By,
    JobArgument,
    Named,
    Params,
    Since,
    Statuses,
    Yes,
    confirm,
    params_of,
    resolve,
    since_time,
)
from unstuck.coordinator.cli.render.terminal import (
    coloured,
    count_of,
    emit,
    for_people,
    printable,
    stderr,
    stdout,
    table,
)
from unstuck.coordinator.client import Client
from unstuck.coordinator.commands.job import LEGAL, RETRY_LEGAL, Answer, Command, Commanded
from unstuck.coordinator.errors import BadRequest, NoSuchJob, Refused, WarehouseSilent
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.views.jobs import ListedJob
from unstuck.tasks.errors import WarehouseMismatch

Jobs = Annotated[
    list[str] | None, typer.Argument(metavar="JOB…", help="Ids, beginnings of ids, names of jobs, or `last`.")
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="A group, a fork, or one member: 'by_month[3]'.")]

SHOWN = 20  # jobs that are listed before a person is asked, and above which a bar shows how far it is


class Selection:
    """The jobs that a person means: those that are named, or those that fit a filter."""

    def __init__(
        self,
        words: Sequence[str] | None,
        status: Sequence[Status] | None,
        name: str | None,
        since: str | None,
        yes: bool,
    ) -> None:
        """Raises: BadRequest: neither names nor a filter, or both; typer.BadParameter: not a time."""
        self.words, self.status, self.name, self.yes = tuple(words or ()), status, name, yes
        self.since = None if since is None else since_time(since)
        self.filtered = bool(status or name is not None or since is not None)
        if bool(self.words) == self.filtered:
            both = "not both" if self.filtered else "one of the two"
            raise BadRequest(f"Name jobs, or choose them with --status, --name or --since; {both}.")


@dataclass(frozen=True, slots=True)
class Missing:
    """A word that names no job."""

    word: str
    text: str


@dataclass(slots=True)
class Answers:
    """The answers of several jobs to one command."""

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
        """``cancel: 12 on record, 3 already, 1 refused``. On record: a coordinator carries it out."""
        counted = [
            *((self.count(Answer.DONE), "on record"), (self.count(Answer.ALREADY), "already")),
            *((self.count(Answer.REFUSED), "refused"), (self.missing, "not there")),
            (self.skipped, f"skipped, since {self.given} is not legal in their state"),
        ]
        return f"{self.given}: {', '.join(f'{n:,} {what}' for n, what in counted if n) or 'no job fits'}"


def _command(given: Command, summary: str) -> Callable[..., None]:
    """The command ``given``, with ``summary`` as its help."""

    def run(
        jobs: Jobs = None,
        status: Statuses = None,
        name: Named = None,
        since: Since = None,
        yes: Yes = False,
        reason: Because = "",
        by: By = None,
        as_json: AsJson = False,
    ) -> None:
        _send(given, Selection(jobs, status, name, since, yes), reason, by, as_json)

    run.__doc__ = summary
    return run


def pause(
    jobs: Jobs = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    now: Annotated[bool, typer.Option("--now", help="Interrupt what is running; it is charged to nobody.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start nothing more; what is running may end."""
    _send(Command.PAUSE, Selection(jobs, status, name, since, yes), reason, by, as_json, now=now)


resume = _command(Command.RESUME, "Go on with a paused job, with its full retry budget.")
stop = _command(Command.STOP, "Start nothing more, let what is running end, and end the job. Nothing is published.")
cancel = _command(
    Command.CANCEL, "Interrupt what is running and end the job. At the deadline it ends without its workers."
)
force_stop = _command(
    Command.FORCE_STOP, "End the job at once, whatever its workers do; they can change nothing any more."
)


def _send(given: Command, chosen: Selection, reason: str, by: str | None, as_json: bool, *, now: bool = False) -> None:
    with connected() as connection:
        client = connection.client
        answers = ask_each(
            client, given, LEGAL[given], chosen, lambda job: client.command(job, given, reason=reason, by=by, now=now)
        )
    tell_all(answers, chosen.filtered, as_json)


def retry(
    jobs: Jobs = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    param: Params = None,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a new job of one that FAILED, was CANCELED or STOPPED. Finished work is taken over."""
    params = params_of(param or [])
    chosen = Selection(jobs, status, name, since, yes)
    with connected() as connection:
        client = connection.client
        answers = ask_each(client, "retry", RETRY_LEGAL, chosen, lambda job: _retried(client, job, params, reason, by))
    tell_all(answers, chosen.filtered, as_json)


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


def alter(
    job: JobArgument,
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
    _ask_one("alter", job, lambda client, one: client.alter(one, values, reason=reason, by=by), as_json)


def skip(job: JobArgument, group: Group, reason: Because = "", by: By = None, as_json: AsJson = False) -> None:
    """Skip a group of a PAUSED or RETRYING job. The groups after it go by their join rules."""
    _ask_one("skip", job, lambda client, one: client.skip(one, group, reason=reason, by=by), as_json)


def rerun(job: JobArgument, group: Group, reason: Because = "", by: By = None, as_json: AsJson = False) -> None:
    """Run a group of a PAUSED or RETRYING job again, and everything after it."""
    _ask_one("rerun", job, lambda client, one: client.rerun(one, group, reason=reason, by=by), as_json)


def _ask_one(given: str, job: str, ask: Callable[[Client, str], Commanded], as_json: bool) -> None:
    with connected() as connection:
        answer = ask(connection.client, resolve(connection.client, job))
    tell_all(Answers(given, [answer]), False, as_json)


def ask_each(
    client: Client, given: str, legal: frozenset[Status], chosen: Selection, ask: Callable[[str], Commanded]
) -> Answers:
    """Give a command to every job of ``chosen``.

    Args:
        given: the command's word, and where it is ``legal``: of jobs chosen by a filter, only those are asked.
        ask: gives the command to one job. Raises NoSuchJob.

    Raises:
        BadRequest: a filter, and nobody there who could agree.
        Ambiguous: a short id fits several jobs; nothing was asked of any.
        typer.Exit: the person said no.
    """
    answers = Answers(given)
    if chosen.filtered:
        jobs, answers.skipped = _filtered(client, legal, chosen)
        if jobs:
            _agree(given, jobs, chosen.yes)
        ids = [job.id for job in jobs]
    else:
        ids = _resolved(client, chosen.words, answers)
    _ask_all(ids, ask, answers)
    return answers


def _filtered(client: Client, legal: frozenset[Status], chosen: Selection) -> tuple[list[ListedJob], int]:
    """Jobs that fit the filter and stand in a status of ``legal``, the oldest first; and how many others fit it."""

    def fitting(statuses: Iterable[Status]) -> list[ListedJob]:
        status = [one for one in statuses if not chosen.status or one in chosen.status]
        return client.jobs(status=status, name=chosen.name, since=chosen.since, limit=None) if status else []

    return fitting(legal)[::-1], len(fitting(one for one in Status if one not in legal))


def _agree(given: str, jobs: Sequence[ListedJob], yes: bool) -> None:
    """Show which jobs are meant and let a person decide. Raises: as `confirm`."""
    shown = table("ID", "NAME", "STATUS")
    for job in jobs[:SHOWN]:
        shown.add_row(job.id, job.name, coloured(job.status))
    stderr.print(shown)
    if len(jobs) > SHOWN:
        stderr.print(f"and {len(jobs) - SHOWN:,} more")
    count = count_of(len(jobs), "job")
    confirm(f"{given}: {count}, as listed?", f"{given} would be given to {count}", yes)


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
    """Give the command to each. If something ends this early, a person is told how many jobs were asked."""
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
    """A line for each job that was named; of those that a filter chose, only what went wrong; of several, the sum.

    Raises: typer.Exit: not all did as they were asked.
    """
    if as_json:
        emit([answer_json(one) for one in answers.answered])
    for one in answers.answered if not as_json else ():
        bad = isinstance(one, Missing) or one.answer is Answer.REFUSED
        if bad or not filtered:
            (stderr if bad else stdout).print(printable(one.text), soft_wrap=True)
    if filtered or len(answers.answered) > 1:
        for_people(as_json).print(answers.summary(), soft_wrap=True)
    if answers.code is not ExitCode.FINE:
        raise typer.Exit(answers.code)


def answer_json(one: Commanded | Missing) -> dict[str, Any]:
    """The answer of one job. A job that is not there has neither intent nor status."""
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
