"""The commands that change something, made from their table.

A filter chooses only targets in whose state the command is legal, and a person confirms the list
before any of them is changed. A target that refuses the command, or does not exist, does not keep
it from the others.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, get_origin

import typer
from rich.progress import track

from unstuck.cli.connection import connected
from unstuck.cli.options import (
    SHOWN,
    AsJson,
    JobArgument,
    Named,
    Since,
    Statuses,
    Yes,
    confirm,
    params_of,
    written_spec,
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
from unstuck.coordinator.command_table import Argument, Command, TargetKind
from unstuck.coordinator.errors import BadRequest, NoSuchGroup, NoSuchJob
from unstuck.coordinator.model.listed_job import ListedJob
from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.documents.command_answers import AnswerDocument, give, unanswered
from unstuck.exits import ExitCode

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
    NoSuchGroup.code: "wrong",
    SpecError.code: "wrong",
    "GONE": "gone",
}
BAD = {
    "REFUSED": ExitCode.REFUSED,
    NoSuchJob.code: ExitCode.NO_SUCH_JOB,
    "GONE": ExitCode.NO_SUCH_JOB,
    NoSuchGroup.code: ExitCode.USAGE,
    SpecError.code: ExitCode.USAGE,
}


# -- the words of a command ------------------------------------------------------------------------


def function_of(command: Command) -> Callable[..., None]:
    """Return the function of which typer makes the command."""

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
    """The words of an argument: positional if it is required and has no option of its own."""
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
    """Take the arguments of ``command`` out of ``values``, as its handler wants them. Raises:
    BadParameter, SpecError.
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
    missing: Sequence[AnswerDocument] = ()
    passed_over: int = 0


class Selection(Protocol):
    """The targets that a person names, or chooses with a filter."""

    @property
    def filtered(self) -> bool: ...

    def choose(self, client: Client, command: Command) -> Chosen: ...


@dataclass(frozen=True)
class JobSelection:
    """The jobs that are named, or those that fit a filter. ``yes``: nobody is asked to confirm.

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
        """Raises: BadRequest: nobody is there to confirm; Ambiguous: a short id fits several
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
                missing.append(unanswered(command, word, error))
        return Chosen(list(ids), missing)


@dataclass(frozen=True)
class SingleJob:
    """The job that is named."""

    job: JobArgument
    filtered = False

    def choose(self, client: Client, command: Command) -> Chosen:
        """Raises: NoSuchJob, Ambiguous."""
        return Chosen([find_job(client, self.job)])


# By target, and whether the command takes one target at a time.
_SELECTIONS: Mapping[tuple[TargetKind, bool], Callable[..., Selection]] = {
    (TargetKind.JOB, False): JobSelection,
    (TargetKind.JOB, True): SingleJob,
    (TargetKind.GROUP, True): SingleJob,
}


def _listing(jobs: Sequence[ListedJob]) -> TextTable:
    shown = table("ID", "NAME", "STATUS")
    for job in jobs:
        shown.add_row(job.id, job.name, coloured(job.status))
    return shown


# -- the answers -----------------------------------------------------------------------------------


def _give_each(
    command: Command, selection: Selection, arguments: Mapping[str, Any], as_json: bool
) -> None:
    """Give the command to each target, and show the answers.

    Raises:
        UnstuckError: of the single target of a command.
        typer.Exit: not all did as they were asked, or the person said no.
    """
    with connected() as connection:
        client = connection.client
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
    )


def _answers(
    command: Command, subjects: Sequence[str], ask: Callable[[str], AnswerDocument]
) -> Iterator[AnswerDocument]:
    """Yield the answer of each target; one that does not exist has an answer too."""
    bar, answered = len(subjects) > SHOWN and stderr.is_terminal, 0
    try:
        for subject in track(
            subjects, command.name, console=stderr, transient=True, disable=not bar
        ):
            try:
                answer = ask(subject)
            except (NoSuchJob, NoSuchGroup, SpecError) as error:
                answer = unanswered(command, subject, error)
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
    answers: Sequence[AnswerDocument],
    as_json: bool,
    *,
    filtered: bool = False,
    more: str = "",
    none: str = "no job fits",
) -> None:
    """Print a line for each target that was named; of those that a filter chose, only for what went
    wrong; of several, the counts.

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
