"""The commands that change jobs: pause, resume, stop, cancel, force-stop, retry, alter, skip and
rerun.

A filter chooses only jobs in which the command is legal, and a person confirms the list before any
of them is changed. A job that refuses the command, is not there, or has no such group does not keep
it from the other jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from unstuck.cli.connection import connected
from unstuck.cli.options import (
    SHOWN,
    AsJson,
    Because,
    By,
    JobArgument,
    Named,
    Params,
    Since,
    Statuses,
    TakeOver,
    Yes,
    confirm,
    params_of,
    read_spec,
)
from unstuck.cli.render.terminal import (
    TextTable,
    coloured,
    emit,
    for_people,
    stderr,
    stdout,
    table,
)
from unstuck.client.client import Client
from unstuck.client.find_job import find_job
from unstuck.client.retry_answer import retry_job
from unstuck.coordinator.commands.job_commands import LEGAL, MEANS, RETRY_LEGAL, Command
from unstuck.coordinator.errors import BadRequest, NoSuchGroup, NoSuchJob
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.spec.problems import SpecError
from unstuck.documents.fleet_documents import DeadLetterAnswerDocument
from unstuck.documents.job_documents import JobAnswerDocument
from unstuck.exits import ExitCode
from unstuck.read_model.command_result import CommandResult
from unstuck.read_model.job import JobInfo
from unstuck.tasks.errors import UnstuckError

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB…", help="Ids, beginnings of ids, names of jobs, or `last`."),
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="A group, a fork, or one member: 'by_month[3]'.")
]
Ask = Callable[[Client, str], CommandResult]

# The summary counts the answers in these words. On record: a coordinator carries it out.
COUNTED = {
    "DONE": "on record",
    "REPLAYED": "replayed",
    "DROPPED": "dropped",
    "ALREADY": "already",
    "REFUSED": "refused",
    "NO_SUCH_JOB": "not there",
    "WRONG": "wrong",  # of the job there is no such group or parameter
    "GONE": "gone",
}
BAD = {
    "REFUSED": ExitCode.REFUSED,
    "NO_SUCH_JOB": ExitCode.NO_SUCH_JOB,
    "GONE": ExitCode.NO_SUCH_JOB,
    "WRONG": ExitCode.USAGE,
}


def _command(command: Command) -> Callable[..., None]:
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
        def ask(client: Client, job: str) -> CommandResult:
            return client.command(job, command, reason=reason, by=by)

        _ask_each(
            command, LEGAL[command], ask, JobSelection(jobs, status, name, since, yes), as_json
        )

    run.__doc__ = MEANS[command]
    return run


def pause(
    jobs: Jobs = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    now: Annotated[
        bool, typer.Option("--now", help="Interrupt what is running; it is charged to nobody.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    def ask(client: Client, job: str) -> CommandResult:
        return client.pause(job, now=now, reason=reason, by=by)

    _ask_each(
        "pause", LEGAL[Command.PAUSE], ask, JobSelection(jobs, status, name, since, yes), as_json
    )


pause.__doc__ = MEANS[Command.PAUSE]
resume, stop, cancel, force_stop = map(
    _command, (Command.RESUME, Command.STOP, Command.CANCEL, Command.FORCE_STOP)
)


def retry(
    jobs: Jobs = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    param: Params = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            "--spec",
            metavar="SPEC",
            help="Retry with this spec: work that does not differ is taken over.",
        ),
    ] = None,
    rerun: Annotated[
        list[str] | None,
        typer.Option(
            "--rerun",
            metavar="GROUP",
            help="Run this group again in any case, and all that comes after it.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="GROUP",
            help="As --rerun GROUP, and take over all other work, as --adopt-all.",
        ),
    ] = None,
    adopt_all: Annotated[
        bool,
        typer.Option(
            "--adopt-all", help="Take over work also where the code of its steps has changed."
        ),
    ] = False,
    take_over: TakeOver = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a new job of one that FAILED, was CANCELED or STOPPED. Finished work is taken over."""
    params = params_of(param or [])
    mended = None if spec is None else read_spec(spec, param)

    def ask(client: Client, job: str) -> CommandResult:
        again = [*(rerun or []), *([start] if start else [])]
        adopts = adopt_all or start is not None
        how: dict[str, Any] = {"rerun": again, "adopt_all": adopts, "take_over": take_over}
        return retry_job(client, job, spec=mended, params=params, **how, reason=reason, by=by)

    _ask_each("retry", RETRY_LEGAL, ask, JobSelection(jobs, status, name, since, yes), as_json)


def alter(
    job: JobArgument,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="`groups.clean.timeout=2h`, `params.year=2014`; `=null` takes it out.",
        ),
    ],
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change values of a job's spec, all or none.

    Timeouts, retries, limits and queues in every state; code, parameters and conf while it is
    PAUSED, HALTED or RETRYING.
    """
    values = params_of(settings, "--set", "PATH=VALUE")
    _ask_one(
        "alter",
        job,
        lambda client, job_id: client.alter(job_id, values, reason=reason, by=by),
        as_json,
    )


def skip(
    job: JobArgument, group: Group, reason: Because = "", by: By = None, as_json: AsJson = False
) -> None:
    """Skip a group of a PAUSED, HALTED or RETRYING job.

    The groups after it go by their join rules.
    """
    _ask_one(
        "skip",
        job,
        lambda client, job_id: client.skip(job_id, group, reason=reason, by=by),
        as_json,
    )


def rerun(
    job: JobArgument, group: Group, reason: Because = "", by: By = None, as_json: AsJson = False
) -> None:
    """Run a group of a PAUSED, HALTED or RETRYING job again, and everything after it."""
    _ask_one(
        "rerun",
        job,
        lambda client, job_id: client.rerun(job_id, group, reason=reason, by=by),
        as_json,
    )


def _ask_one(word: str, job: str, ask: Ask, as_json: bool) -> None:
    with connected() as connection:
        answer = ask(connection.client, find_job(connection.client, job))
    show_answers(word, [JobAnswerDocument.of_result(answer)], as_json)


@dataclass(frozen=True)
class JobSelection:
    """The jobs of a command: those that are named, or those that fit a filter. ``yes``: nobody is
    asked to confirm.
    """

    named: Sequence[str] | None
    status: Sequence[Status] | None
    name: str | None
    since: float | None
    yes: bool

    @property
    def filtered(self) -> bool:
        return bool(self.status or self.name is not None or self.since is not None)


def _ask_each(
    word: str, legal: frozenset[Status], ask: Ask, jobs: JobSelection, as_json: bool
) -> None:
    """Give the command ``word`` to each job that is named or fits the filter, and show what each
    answered.

    Raises:
        BadRequest: neither names nor a filter, or both; or a filter, and nobody is there to
            confirm.
        Ambiguous: a short id fits several jobs; no job was asked.
        typer.Exit: not all did as they were asked, or the person said no.
    """
    if bool(jobs.named) == jobs.filtered:
        both = "not both" if jobs.filtered else "one of the two"
        raise BadRequest(f"Name jobs, or choose them with --status, --name or --since; {both}.")
    ids: dict[str, None] = {}  # each once, in this order
    missing: list[JobAnswerDocument] = []
    answers: list[JobAnswerDocument] = []
    skipped = 0
    with connected() as connection:
        client = connection.client
        if jobs.filtered:
            fitting = client.jobs(
                status=jobs.status or (), name=jobs.name, since=jobs.since, limit=None
            )
            chosen = [job for job in reversed(fitting) if job.status in legal]
            skipped = len(fitting) - len(chosen)
            confirm(word, chosen, "job", _listing, jobs.yes)
            ids = dict.fromkeys(job.id for job in chosen)
        for named in jobs.named or ():
            try:
                ids[find_job(client, named)] = None
            except NoSuchJob as error:
                missing.append(_missing(named, error))
        bar = len(ids) > SHOWN and stderr.is_terminal
        try:
            for job in track(ids, word, console=stderr, transient=True, disable=not bar):
                try:
                    answers.append(JobAnswerDocument.of_result(ask(client, job)))
                except NoSuchJob as error:
                    answers.append(_missing(job, error))
                except (NoSuchGroup, SpecError) as error:
                    answers.append(_missing(job, error, "WRONG"))
        finally:
            if 0 < len(answers) < len(ids):
                stderr.print(
                    f"{len(answers):,} of {len(ids):,} jobs were asked before this. Give the "
                    "command again for the rest: asking a job twice changes nothing."
                )
    more = f"{skipped:,} skipped, since {word} is not legal in their state" if skipped else ""
    show_answers(word, [*missing, *answers], as_json, filtered=jobs.filtered, more=more)


def _listing(jobs: Sequence[JobInfo]) -> TextTable:
    shown = table("ID", "NAME", "STATUS")
    for job in jobs:
        shown.add_row(job.id, job.name, coloured(job.status))
    return shown


def _missing(job: str, error: UnstuckError, answer: str = "NO_SUCH_JOB") -> JobAnswerDocument:
    return JobAnswerDocument(
        id=job, answer=answer, intent=None, status=None, text=str(error), retry_of=None
    )


def show_answers(
    word: str,
    answers: Sequence[JobAnswerDocument | DeadLetterAnswerDocument],
    as_json: bool,
    *,
    filtered: bool = False,
    more: str = "",
    none: str = "no job fits",
) -> None:
    """A line for each that was named; of those that a filter chose, only what went wrong; of
    several, the counts.

    Args:
        more: at the end of the counts.
        none: said instead of the counts if there is nothing to count.

    Raises: typer.Exit: not all did as they were asked.
    """
    if as_json:
        emit(answers)
    for document in answers if not as_json else ():
        bad = document.answer in BAD
        if bad or not filtered:
            (stderr if bad else stdout).print(document.text, soft_wrap=True)
    counts = Counter(document.answer for document in answers)
    if filtered or len(answers) > 1:
        counted = [
            *(f"{counts[answer]:,} {name}" for answer, name in COUNTED.items() if counts[answer]),
            more,
        ]
        for_people(as_json).print(
            f"{word}: {', '.join(filter(None, counted)) or none}", soft_wrap=True
        )
    for answer, code in BAD.items():
        if counts[answer]:
            raise typer.Exit(code)
