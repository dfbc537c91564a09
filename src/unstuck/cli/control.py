"""The commands that change something, made from their table.

A filter selects only targets in a legal state for the command, and a user confirms the list
before any of them is changed. A target that refuses the command, or does not exist, does not keep
it from the others.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, get_origin

import typer
from rich.progress import track

from unstuck.cli.connection import connected, settings_here
from unstuck.cli.options import (
    SHOWN,
    AsJson,
    JobArgument,
    Named,
    OtherWarehouse,
    Since,
    Statuses,
    Yes,
    confirm,
    params_of,
    written_spec,
)
from unstuck.cli.render.dead_letter_table import dead_letter_table
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
from unstuck.coordinator.command_table import Argument, Command, CommandOutcome, TargetKind
from unstuck.coordinator.errors import (
    BadRequest,
    NoSuchGroup,
    NoSuchJob,
    NoSuchProblem,
    NoSuchReport,
    NoSuchSchedule,
    Refused,
)
from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.documents.command_answers import CommandAnswer, give
from unstuck.exits import ExitCode
from unstuck.read_model.job import JobInfo
from unstuck.tasks.settings import Settings
from unstuck.views.dataset_views import warehouse_at

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB…", help="Ids, beginnings of ids, or names of jobs."),
]

# The summary counts the answers in these words. On record: a coordinator carries it out.
COUNTED = {
    "DONE": "on record",
    "REPLAYED": "replayed",
    "DROPPED": "dropped",
    "ALREADY": "already",
    "REFUSED": "refused",
    NoSuchJob.code: "not there",
    NoSuchSchedule.code: "not there",
    NoSuchProblem.code: "not there",
    NoSuchGroup.code: "wrong",
    SpecError.code: "wrong",
    NoSuchReport.code: "gone",
}
BAD = {
    "REFUSED": ExitCode.REFUSED,
    NoSuchJob.code: ExitCode.NO_SUCH_JOB,
    NoSuchSchedule.code: ExitCode.NO_SUCH_JOB,
    NoSuchProblem.code: ExitCode.NO_SUCH_JOB,
    NoSuchReport.code: ExitCode.NO_SUCH_JOB,
    NoSuchGroup.code: ExitCode.USAGE,
    SpecError.code: ExitCode.USAGE,
}

# Errors of one target, which do not keep a command from the others.
_ABOUT_ONE = (
    NoSuchJob,
    NoSuchGroup,
    NoSuchProblem,
    NoSuchSchedule,
    NoSuchReport,
    Refused,
    SpecError,
)


# -- the words of a command ------------------------------------------------------------------------


def function_of(command: Command) -> Callable[..., None]:
    """Return the function from which typer makes the command."""

    def run(**values: Any) -> None:
        as_json = values.pop("as_json")
        arguments = _arguments_of(command, values)
        chosen = _SELECTIONS[command.target, command.single](**values)
        _give_each(command, chosen, arguments, as_json)

    selection = inspect.signature(_SELECTIONS[command.target, command.single], eval_str=True)
    parameters = [
        *(each.replace(kind=each.KEYWORD_ONLY) for each in selection.parameters.values()),
        *map(_parameter, command.arguments),
        inspect.Parameter(
            "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
        ),
    ]
    run.__doc__ = command.help
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _parameter(argument: Argument) -> inspect.Parameter:
    """Return the option names of an argument; positional if required and without an option."""
    about, default = argument.about, argument.default
    kind = argument.kind
    if _is_mapping(kind) or get_origin(kind) is Sequence:
        kind, default = list[str] | None, None
    if kind == Spec | None:
        kind = Path | None
    if argument.required and not about.option:
        words: Any = typer.Argument(metavar=argument.alias.upper(), help=about.help)
    else:
        names = about.option.split() or [f"--{argument.alias.replace('_', '-')}"]
        words = typer.Option(*names, metavar=about.metavar or None, help=about.help)
    return inspect.Parameter(
        argument.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if argument.required else default,
        annotation=Annotated[kind, words],
    )


def _is_mapping(kind: Any) -> bool:
    return kind in (Mapping[str, Any], Mapping[str, Any] | None)


def _arguments_of(command: Command, values: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments of ``command`` from ``values``, in the form that its handler expects.

    Raises: BadParameter, SpecError.
    """
    arguments = {argument.name: values.pop(argument.name) for argument in command.arguments}
    for argument in command.arguments:
        value, about = arguments[argument.name], argument.about
        if value in (None, []):
            arguments[argument.name] = argument.default
        elif _is_mapping(argument.kind):
            arguments[argument.name] = params_of(value, about.option.split()[0], about.metavar)
    if arguments.get("spec") is not None:
        written = written_spec(arguments["spec"])
        arguments["spec"] = JobSpec.from_written(written, arguments["params"] or {})
    return arguments


# -- the targets of a command ----------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The targets of a command.

    Attributes:
        missing: the answers for words that name no target.
        passed_over: how many fit the filter, and are in no state for the command.
    """

    subjects: Sequence[str]
    missing: Sequence[CommandAnswer] = ()
    passed_over: int = 0


class Selection(Protocol):
    """The targets that a user names or selects with a filter."""

    @property
    def filtered(self) -> bool: ...

    def choose(self, client: Client, command: Command) -> Chosen: ...


@dataclass(frozen=True)
class JobSelection:
    """The named jobs, or those that match a filter. ``yes``: no confirmation.

    Raises: BadRequest: neither names nor a filter, or both.
    """

    jobs: Jobs = None
    status: Statuses = None
    name: Named = None
    since: Since = None
    yes: Yes = False

    def __post_init__(self) -> None:
        if bool(self.jobs) == self.filtered:
            both = "not both" if self.filtered else "one of the two"
            raise BadRequest(f"Name jobs, or choose them with --status, --name or --since; {both}.")

    @property
    def filtered(self) -> bool:
        return bool(self.status or self.name is not None or self.since is not None)

    def choose(self, client: Client, command: Command) -> Chosen:
        """Choose the jobs.

        Raises: BadRequest: no terminal for the confirmation; Ambiguous: a short id matches several
        jobs.
        """
        if self.filtered:
            fitting = client.jobs(
                status=self.status or (), name=self.name, since=self.since, limit=None
            )
            jobs = [job for job in reversed(fitting) if job.status in command.legal]
            confirm(command.name, jobs, "job", _listing, self.yes)
            return Chosen([job.id for job in jobs], passed_over=len(fitting) - len(jobs))
        ids: dict[str, None] = {}  # each once, in this order
        missing = []
        for word in self.jobs or ():
            try:
                ids[find_job(client, word)] = None
            except NoSuchJob as error:
                missing.append(CommandOutcome(word, error.code, str(error)))
        return Chosen(list(ids), missing)


@dataclass(frozen=True)
class SingleJob:
    """The job that the argument of a command names."""

    job: JobArgument
    filtered = False

    def choose(self, client: Client, command: Command) -> Chosen:
        """Choose the job. Raises: NoSuchJob, Ambiguous."""
        return Chosen([find_job(client, self.job)])


@dataclass(frozen=True)
class Names:
    """The named targets."""

    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Its name.")]
    filtered = False

    def choose(self, client: Client, command: Command) -> Chosen:
        return Chosen(list(dict.fromkeys(self.names)))


@dataclass(frozen=True)
class ProblemNames(Names):
    """The problems that are named."""

    names: Annotated[
        list[str],
        typer.Argument(metavar="PROBLEM…", help="KIND/NAME/CODE; `unstuck now` shows it."),
    ]


@dataclass(frozen=True)
class SingleName:
    """The named target."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
    filtered = False

    def choose(self, client: Client, command: Command) -> Chosen:
        return Chosen([self.name])


@dataclass(frozen=True)
class DeadLetterSelection:
    """The named dead letters, or all. ``yes``: no confirmation.

    Raises: BadRequest: neither ids nor ``--all``, or both.
    """

    reports: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID…", help="Ids, as `unstuck dead list` shows them."),
    ] = None
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False
    yes: Yes = False

    def __post_init__(self) -> None:
        if bool(self.reports) == self.everything:
            raise BadRequest("Give ids, as `unstuck dead list` shows them, or --all.")

    @property
    def filtered(self) -> bool:
        return self.everything

    def choose(self, client: Client, command: Command) -> Chosen:
        """Choose the dead letters. Raises: BadRequest: no terminal for the confirmation."""
        ids = list(dict.fromkeys(self.reports or ()))
        letters = client.dead_letters.all() if self.everything else []
        for letter_id in ids:
            with suppress(NoSuchReport):  # its answer reports it
                letters.append(client.dead_letters.get(letter_id))
        if self.everything or command.ends:
            confirm(command.name, letters, "dead letter", dead_letter_table, self.yes)
        return Chosen(ids or [letter.id for letter in letters])


@dataclass(frozen=True)
class SingleDataset(SingleName):
    """The named dataset of a warehouse."""

    warehouse: OtherWarehouse = None


# By target, and whether the command takes one target at a time.
_SELECTIONS: Mapping[tuple[TargetKind, bool], Callable[..., Selection]] = {
    (TargetKind.JOB, False): JobSelection,
    (TargetKind.JOB, True): SingleJob,
    (TargetKind.GROUP, True): SingleJob,
    (TargetKind.SCHEDULE, False): Names,
    (TargetKind.SCHEDULE, True): SingleName,
    (TargetKind.BACKFILL, False): Names,
    (TargetKind.DATASET, True): SingleDataset,
    (TargetKind.STREAM, True): SingleDataset,
    (TargetKind.POOL, False): Names,
    (TargetKind.POOL, True): SingleName,
    (TargetKind.DEAD_LETTER, False): DeadLetterSelection,
    (TargetKind.PROBLEM, False): ProblemNames,
}


def _listing(jobs: Sequence[JobInfo]) -> TextTable:
    shown = table("ID", "NAME", "STATUS")
    for job in jobs:
        shown.add_row(job.id, job.name, coloured(job.status))
    return shown


# -- the answers -----------------------------------------------------------------------------------


def _give_each(
    command: Command, selection: Selection, arguments: Mapping[str, Any], as_json: bool
) -> None:
    """Give the command to each target, and print the answers.

    Raises:
        UnstuckError: of the single target of a command.
        typer.Exit: not all commands took effect, or the user declined.
    """
    with _client(command, selection) as client:
        chosen = selection.choose(client, command)
        ask = partial(give, client, command, arguments=arguments)
        if command.single:
            answers = [ask(subject) for subject in chosen.subjects]
        else:
            answers = list(_answers(command, chosen.subjects, ask))
    more = f"{chosen.passed_over:,} skipped, since {command.name} is not legal in their state"
    show_answers(
        command.name,
        [*chosen.missing, *answers],
        as_json,
        filtered=selection.filtered,
        more=more if chosen.passed_over else "",
        none=f"no {command.target} fits",
    )


@contextmanager
def _client(command: Command, selection: Selection) -> Iterator[Client]:
    """Return the client of a command; none for a stream, which needs no Redis."""
    settings = settings_here()
    if isinstance(selection, SingleDataset):
        if selection.warehouse is not None:
            place = Settings(warehouse=selection.warehouse).warehouse
            settings = settings.model_copy(update={"warehouse": place})
        warehouse_at(settings.warehouse)
    if command.target is TargetKind.STREAM:
        with Client(settings) as client:
            yield client
    else:
        with connected(settings) as connection:
            yield connection.client


def _answers(
    command: Command, subjects: Sequence[str], ask: Callable[[str], CommandAnswer]
) -> Iterator[CommandAnswer]:
    """Yield the answer of each target, also for a target that does not exist."""
    bar, answered = len(subjects) > SHOWN and stderr.is_terminal, 0
    try:
        for subject in track(
            subjects, command.name, console=stderr, transient=True, disable=not bar
        ):
            try:
                answer = ask(subject)
            except _ABOUT_ONE as error:
                answer = CommandOutcome(subject, error.code, str(error))
            answered += 1
            yield answer
    finally:
        if 0 < answered < len(subjects):
            stderr.print(
                f"{answered:,} of {len(subjects):,} {command.target}s were asked before this. Give "
                "the command again for the rest: asking twice changes nothing."
            )


def show_answers(
    word: str,
    answers: Sequence[CommandAnswer],
    as_json: bool,
    *,
    filtered: bool = False,
    more: str = "",
    none: str = "no job fits",
) -> None:
    """Print a line for each named target, or for each failure among filtered ones, and the counts.

    Args:
        more: at the end of the counts.
        none: printed instead of the counts if there is nothing to count.

    Raises: typer.Exit: not all commands took effect.
    """
    if as_json:
        emit(answers)
    else:
        _print_texts(answers, failures_only=filtered)
    counts = Counter(each.answer for each in answers)
    if filtered or len(answers) > 1:
        counted = [
            f"{counts[answer]:,} {name}" for answer, name in COUNTED.items() if counts[answer]
        ]
        summary = ", ".join(filter(None, [*counted, more])) or none
        for_people(as_json).print(f"{word}: {summary}", soft_wrap=True)
    for answer, code in BAD.items():
        if counts[answer]:
            raise typer.Exit(code)


def _print_texts(answers: Sequence[CommandAnswer], *, failures_only: bool) -> None:
    for each in answers:
        if each.answer in BAD:
            stderr.print(each.text, soft_wrap=True)
        elif not failures_only:
            stdout.print(each.text, soft_wrap=True)
