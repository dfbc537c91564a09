"""``unstuck schedule`` repeats jobs: it sets schedules, gives them commands and shows them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.options import AsJson, Because, By, Params, TakeOver, params_of, read_spec
from unstuck.cli.render.terminal import (
    clock,
    coloured,
    emit,
    for_people,
    hanging,
    stderr,
    stdout,
    table,
    warn,
)
from unstuck.client.client import Client
from unstuck.coordinator.commands.job_commands import Answer
from unstuck.coordinator.errors import NoSuchSchedule, Refused
from unstuck.coordinator.model.schedule_record import Redo
from unstuck.coordinator.schedules.explain import backlog_facts
from unstuck.coordinator.schedules.schedule_commands import MEANS, BackfillCommand, ScheduleCommand
from unstuck.coordinator.schedules.schedule_facts import ScheduleResult
from unstuck.documents.schedule_documents import (
    ScheduleAnswerDocument,
    ScheduleDocument,
    ScheduleExplanationDocument,
    TickDocument,
    WholeScheduleDocument,
)
from unstuck.exits import ExitCode
from unstuck.views.words import count_of, one_line

schedule = typer.Typer(
    help="Jobs that repeat: each run of a schedule is an ordinary job.", no_args_is_help=True
)

_TIME = (
    "A time with its offset, as 2026-01-01T00:00Z, or a date: a day in the zone of the schedule."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the schedule, which is that of its spec.")
]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of schedules.")]


@schedule.command(
    "set", epilog="Example: unstuck schedule set schedules/*.yaml --reason 'nightly at two'"
)
def set_schedules(
    specs: Annotated[
        list[Path],
        typer.Argument(metavar="SPEC…", help="Job specs, YAML or JSON, with `schedule:`."),
    ],
    take_over: TakeOver = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make schedules of job specs, or change those that there are. A spec that is the same changes
    nothing.

    All specs are read before any of them is set.
    """
    read = [read_spec(path, None, scheduled=True) for path in specs]
    how: dict[str, Any] = {"take_over": take_over, "reason": reason, "by": by}
    with connected() as connection:
        results = [(spec.name, connection.client.schedules.set(spec, **how)) for spec in read]
    _answer(results, as_json)


@schedule.command("list", epilog="Example: unstuck schedule list --json")
def list_schedules(as_json: AsJson = False) -> None:
    """List the schedules: their status, their next tick, and what each waits for."""
    with connected() as connection:
        views, unreadable = connection.client.schedules.all_and_unreadable()
    for text in unreadable.values():
        stderr.print(text, soft_wrap=True)
    if as_json:
        emit([ScheduleDocument.of_view(view) for view in views])
        return
    if not views and not unreadable:
        stderr.print(
            "No schedules. Make one with: unstuck schedule set SPEC   (a job spec with `schedule:`)"
        )
        return
    shown = table("NAME", "STATUS", "TRIGGER", "NEXT", "LAST SUCCESS", "WAITS")
    for view in views:
        ticks = view.next_ticks(1)
        record, well = view.schedule, view.schedule.last_success
        next_at = clock(ticks[0].timestamp()) if ticks else ""
        cells = (record.name, coloured(record.status), record.trigger, next_at)
        fill = record.backfill
        fills = "" if fill is None or fill.over else f"; backfill {fill.status}: {fill.progress}"
        shown.add_row(*cells, clock(well.at) if well else "", one_line(view.waits + fills))
    stdout.print(shown)


@schedule.command("show", epilog="Example: unstuck schedule show nightly --next 5")
def show_schedule(
    name: Name,
    count: Annotated[
        int, typer.Option("--next", min=0, max=1000, help="So many of its next ticks.")
    ] = 3,
    most: Annotated[
        int, typer.Option("--events", min=1, max=2000, help="So many of its last events.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show one schedule: how it stands, its next ticks, its last runs and its last events."""
    with connected() as connection:
        schedules = connection.client.schedules
        view, events, runs = (
            schedules.show(name),
            schedules.events(name, most),
            schedules.runs(name, 10),
        )
    if as_json:
        emit(WholeScheduleDocument.of_all(view, count, runs, events))
        return
    record = view.schedule
    stdout.print(f"{record.name}  ", coloured(record.status), f"  {record.trigger}", sep="")
    stdout.print(f"  {view.waits}")
    for tick in view.next_ticks(count):
        stdout.print(f"  next      {view.on_its_clock(tick)}{_told(view.params_at(tick))}")
    for fact in backlog_facts(view):
        stdout.print(f"  {fact.what:<9} {one_line(fact.text)} {clock(fact.at)}".rstrip())
    if backfill := record.backfill:
        stdout.print("  backfill  ", coloured(backfill.status), f"  {backfill.progress}", sep="")
    if well := record.last_success:
        stdout.print(
            f"  last well {clock(well.at)}  job {well.job}, version {well.version or 'none'}"
        )
    if failed := record.last_error:
        stdout.print(
            f"  failed    {clock(failed.at)}  {one_line(failed.text)}   unstuck logs {failed.job}"
        )
    for job in runs:
        submitted = f", submitted {clock(job.submitted_at)}"
        stdout.print(
            f"  run       {view.on_its_clock(job.tick)}  job {job.id}  ",
            coloured(job.status),
            submitted,
            sep="",
        )
    for event in events:
        print_event(event)


@schedule.command("why", epilog="Example: unstuck schedule why nightly")
def why_schedule(name: Name, as_json: AsJson = False) -> None:
    """Say where a schedule stands, since when and by whom; its last success, its failures, and what
    would help.
    """
    with connected() as connection:
        explanation = connection.client.schedules.why(name)
    if as_json:
        emit(ScheduleExplanationDocument.of_explanation(explanation))
        return
    stdout.print(f"{explanation.name}  ", coloured(explanation.status), sep="")
    lines = [("why", explanation.what), ("since", clock(explanation.since))]
    lines += [
        (fact.what, " ".join(filter(None, (clock(fact.at), one_line(fact.text)))))
        for fact in explanation.facts
    ]
    for label, text in [*lines, *(("try", command) for command in explanation.help)]:
        stdout.print(hanging(stdout, Text(f"  {label:<12}{text}"), 14), soft_wrap=True)


@schedule.command("export", epilog="Example: unstuck schedule export --to schedules")
def export_schedules(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Of schedules; left out: all.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="A folder, for one file of each; left out: standard output."),
    ] = None,
) -> None:
    """Write schedules as the specs that `set` reads, in YAML. Files that are there are replaced."""
    import yaml

    with connected() as connection:
        schedules = connection.client.schedules
        specs = {name: schedules.show(name).spec() for name in names or schedules.names()}
    texts = {
        name: yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
        for name, spec in specs.items()
    }
    if to is None:
        sys.stdout.write("---\n".join(texts.values()))
        return
    to.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (to / f"{name}.yaml").write_text(text, encoding="utf-8")
    stdout.print(f"{count_of(len(texts), 'schedule')} written to {to}")


def print_event(event: dict[str, Any]) -> None:
    """One event of a schedule, in a line."""
    details = " ".join(
        str(event[part]) for part in ("code", "job", "tick", "by", "text") if event.get(part)
    )
    stdout.print(f"  {clock(event['at'])}  {event['kind']}  {one_line(details)}")


def _command(command: ScheduleCommand) -> Callable[..., None]:
    def run(names: Names, reason: Because = "", by: By = None, as_json: AsJson = False) -> None:
        with connected() as connection:
            results = [
                (name, _try_command(connection.client, name, command, reason, by)) for name in names
            ]
        _answer(results, as_json)

    run.__doc__ = MEANS[command]
    return run


def _try_command(
    client: Client, name: str, command: ScheduleCommand, reason: str, by: str | None
) -> ScheduleResult | str:
    try:
        return client.schedules.command(name, command, reason=reason, by=by)
    except NoSuchSchedule as error:
        return str(error)


@schedule.command("run", epilog="Example: unstuck schedule run nightly --param day=2026-01-02")
def run_schedules(
    names: Names, param: Params = None, reason: Because = "", by: By = None, as_json: AsJson = False
) -> None:
    """Run now: try at once what has failed, or make a run that belongs to no tick.

    --param makes such a run always.
    """
    if param is None:
        _command(ScheduleCommand.RUN)(names, reason, by, as_json)
    params = params_of(param or [])
    with connected() as connection:
        schedules = connection.client.schedules
        results = [
            (name, schedules.run(name, params=params, reason=reason, by=by)) for name in names
        ]
    _answer(results, as_json)


for _simple_command in [
    command for command in ScheduleCommand if command is not ScheduleCommand.RUN
]:
    schedule.command(
        str(_simple_command), epilog=f"Example: unstuck schedule {_simple_command} nightly"
    )(_command(_simple_command))


@schedule.command(
    "backfill",
    epilog="Example: unstuck schedule backfill nightly --from 2026-01-01 --to 2026-01-31",
)
def backfill_schedule(
    name: Name,
    first: Annotated[str | None, typer.Option("--from", metavar="TIME", help=_TIME)] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Likewise; included.")
    ] = None,
    parallel: Annotated[int, typer.Option(help="So many runs may go on at once.")] = 1,
    redo: Annotated[
        Redo,
        typer.Option(help="Of ticks that had a run before: run none, the failed, or all again."),
    ] = "none",
    backwards: Annotated[
        bool, typer.Option("--backwards", help="Begin with the newest tick.")
    ] = False,
    from_here: Annotated[
        bool,
        typer.Option(
            "--from-here",
            help="Of runs that build on each other: run --from and all later ticks again.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the ticks, with the runs they had.")
    ] = False,
    pause: Annotated[
        bool, typer.Option("--pause", help="Start none of its runs until --resume.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a paused or FAILED one: failed ticks run again."),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Start no run any more, and acknowledge failed ticks.")
    ] = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Run the ticks of a time that is past, at low priority. Coordinators do so: nothing depends on
    this command.

    Given again, it goes on with what is missing: a tick that had a run is left as it is, unless
    --redo says otherwise.
    """
    commands = [
        command
        for command, is_requested in zip(BackfillCommand, (pause, resume, cancel), strict=True)
        if is_requested
    ]
    begins = first is not None and (last is None) == from_here
    if len(commands) + (first is not None or last is not None) != 1 or not (commands or begins):
        raise typer.BadParameter(
            "give --from and --to, --from and --from-here, or one of --pause, --resume, --cancel"
        )
    with connected() as connection:
        schedules = connection.client.schedules
        if commands:
            result = schedules.command_backfill(name, commands[0], reason=reason, by=by)
        elif dry_run:
            _show_ticks(connection.client, name, str(first), last, backwards, as_json)
            return
        else:
            how: dict[str, Any] = {
                "parallel": parallel,
                "redo": redo,
                "backwards": backwards,
                "from_here": from_here,
            }
            result = schedules.backfill(name, str(first), last, **how, reason=reason, by=by)
    _answer([(name, result)], as_json)


def _show_ticks(
    client: Client, name: str, first: str, last: str | None, backwards: bool, as_json: bool
) -> None:
    """Print what a backfill would run; nothing is changed."""
    ticks = client.schedules.backfill_ticks(name, first, last, backwards=backwards)
    view = client.schedules.show(name)
    if as_json:
        emit([TickDocument.of_tick(tick) for tick in ticks])
        return
    for tick in ticks:
        job = f" by job {tick.had}" if tick.had else ""
        stdout.print(
            f"  {view.on_its_clock(tick.tick)}{_told(tick.params)}  {tick.outcome}{job}",
            soft_wrap=True,
        )
    counts = Counter(tick.outcome for tick in ticks)
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
    stdout.print(f"{count_of(len(ticks), 'tick')} ({outcomes}); nothing is changed.")


@schedule.command(
    "skip",
    epilog="Example: unstuck schedule skip nightly 2026-01-02T01:30:00Z --reason 'no source'",
)
def skip_tick(
    name: Name,
    tick: Annotated[
        str, typer.Argument(metavar="TICK", help="A time with its offset, as `show` prints it.")
    ],
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Leave a tick out: it gets no run any more, and a backfill or retry that waits for it
    continues.
    """
    with connected() as connection:
        result = connection.client.schedules.skip(name, tick, reason=reason, by=by)
    _answer([(name, result)], as_json)


@schedule.command("remove", epilog="Example: unstuck schedule remove nightly")
def remove_schedules(names: Names, reason: Because = "", by: By = None) -> None:
    """Forget schedules.

    The jobs of their runs stay, and their event logs for the time of retention.
    """
    code = ExitCode.FINE
    with connected() as connection:
        for name in names:
            try:
                stdout.print(f"{connection.client.schedules.remove(name, reason=reason, by=by)}.")
            except NoSuchSchedule as error:
                stderr.print(str(error))
                code = max(code, ExitCode.NO_SUCH_JOB)
            except Refused as error:
                stderr.print(f"{error}.")
                code = ExitCode.REFUSED
    raise typer.Exit(code)


def _told(params: Mapping[str, str]) -> str:
    """The parameters that a tick gives to its job, to stand behind the tick."""
    return "".join(f"  {name}={value}" for name, value in params.items())


def _answer(results: Sequence[tuple[str, ScheduleResult | str]], as_json: bool) -> None:
    """Say what became of each schedule; leave with the worst code."""
    out, code = for_people(as_json), ExitCode.FINE
    answers = []
    for name, result in results:
        if isinstance(result, str):
            code = ExitCode.NO_SUCH_JOB
            answers.append(
                ScheduleAnswerDocument(
                    name=name, answer="NO_SUCH_SCHEDULE", status=None, text=result
                )
            )
            stderr.print(result)
            continue
        if result.answer is Answer.REFUSED:
            code = max(code, ExitCode.REFUSED)
        answers.append(ScheduleAnswerDocument.of_result(result))
        warn(f"{name}: {warning}" for warning in result.warnings)
        (stderr if result.answer is Answer.REFUSED else out).print(f"{result.text}.")
    if as_json:
        emit(answers)
    raise typer.Exit(code)
