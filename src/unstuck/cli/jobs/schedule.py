"""``unstuck schedule`` repeats jobs: it sets, commands and shows schedules."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.control import show_answers
from unstuck.cli.options import AsJson, Because, By, TakeOver, read_spec
from unstuck.cli.render.terminal import (
    clock,
    coloured,
    emit,
    hanging,
    stderr,
    stdout,
    table,
    warn,
)
from unstuck.coordinator.schedules.explain import backlog_facts
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.read_model.event import EventInfo
from unstuck.read_model.schedule import json_of_schedules
from unstuck.views.words import count_of, one_line

schedule = typer.Typer(no_args_is_help=True)

JOBS_SHOWN = 10  # of the last runs of one schedule
_TIME = (
    "A time with its offset, as 2026-01-01T00:00Z, or a date: a day in the zone of the schedule."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the schedule, which is that of its spec.")
]


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
    """Create or change schedules from job specs. An unchanged spec changes nothing.

    All specs are read before any of them is set.
    """
    read = [read_spec(path, None, scheduled=True) for path in specs]
    how: dict[str, Any] = {"take_over": take_over, "reason": reason, "by": by}
    with connected() as connection:
        results = [connection.client.schedules.set(spec, **how) for spec in read]
    _answer(results, as_json)


@schedule.command("list", epilog="Example: unstuck schedule list --json")
def list_schedules(as_json: AsJson = False) -> None:
    """List the schedules: their status, their next tick, and what each waits for."""
    with connected() as connection:
        schedules, unreadable = connection.client.schedules.all_and_unreadable()
    for text in unreadable.values():
        stderr.print(text, soft_wrap=True)
    if as_json:
        emit(json_of_schedules(schedules))
        return
    if not schedules and not unreadable:
        stderr.print(
            "No schedules. Make one with: unstuck schedule set SPEC   (a job spec with `schedule:`)"
        )
        return
    shown = table("NAME", "STATUS", "TRIGGER", "NEXT", "LAST SUCCESS", "WAITS")
    for info in schedules:
        well, fill = info.last_success, info.backfill
        next_at = clock(info.next[0].tick) if info.next else ""
        cells = (info.name, coloured(info.status), info.trigger, next_at)
        fills = "" if fill is None or fill.over else f"; backfill {fill.status}: {fill.progress}"
        shown.add_row(*cells, clock(well.at) if well else "", one_line(info.waits + fills))
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
    """Show one schedule: its status, its next ticks, its last runs and its last events."""
    with connected() as connection:
        schedules = connection.client.schedules
        info = schedules.show(name, ticks=count, jobs=JOBS_SHOWN, events=most)
    if as_json:
        emit(info)
        return
    stdout.print(f"{info.name}  ", coloured(info.status), f"  {info.trigger}", sep="")
    stdout.print(f"  {info.waits}")
    for tick in info.next:
        stdout.print(f"  next      {info.on_its_clock(tick.tick)}{_params_text(tick.params)}")
    for fact in backlog_facts(info.backlog):
        stdout.print(f"  {fact.what:<9} {one_line(fact.text)} {clock(fact.at)}".rstrip())
    if backfill := info.backfill:
        stdout.print("  backfill  ", coloured(backfill.status), f"  {backfill.progress}", sep="")
    if well := info.last_success:
        stdout.print(
            f"  last well {clock(well.at)}  job {well.job}, version {well.version or 'none'}"
        )
    if failed := info.last_error:
        stdout.print(
            f"  failed    {clock(failed.at)}  {one_line(failed.text)}   unstuck logs {failed.job}"
        )
    for job in info.jobs:
        submitted = f", submitted {clock(job.submitted_at)}"
        stdout.print(
            f"  run       {info.on_its_clock(job.tick)}  job {job.id}  ",
            coloured(job.status),
            submitted,
            sep="",
        )
    for event in info.events:
        print_event(event)


@schedule.command("why", epilog="Example: unstuck schedule why nightly")
def why_schedule(name: Name, as_json: AsJson = False) -> None:
    """Explain the status of a schedule: since when, by whom, its failures, and what would help."""
    with connected() as connection:
        explanation = connection.client.schedules.why(name)
    if as_json:
        emit(explanation)
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
    """Write schedules as the specs that `set` reads, in YAML. Existing files are replaced."""
    import yaml

    with connected() as connection:
        schedules = connection.client.schedules
        specs = {name: schedules.written(name) for name in names or schedules.names()}
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


def print_event(event: EventInfo) -> None:
    """Print one event of a schedule in a line."""
    others = event.model_extra or {}
    details = " ".join(
        str(others[part]) for part in ("code", "job", "tick", "by", "text") if others.get(part)
    )
    stdout.print(f"  {clock(event.at)}  {event.kind}  {one_line(details)}")


@schedule.command(
    "ticks", epilog="Example: unstuck schedule ticks nightly --from 2026-01-01 --to 2026-01-31"
)
def show_ticks(
    name: Name,
    first: Annotated[str, typer.Option("--from", metavar="TIME", help=_TIME)],
    last: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="Likewise; included. Left out: the newest tick that has come.",
        ),
    ] = None,
    backwards: Annotated[
        bool, typer.Option("--backwards", help="Begin with the newest tick.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the ticks that a backfill would cover, with their runs. Changes nothing."""
    with connected() as connection:
        schedules = connection.client.schedules
        ticks = schedules.backfill_ticks(name, first, last, backwards=backwards)
        info = schedules.show(name)
    if as_json:
        emit(ticks)
        return
    for tick in ticks:
        job = f" by job {tick.job}" if tick.job else ""
        stdout.print(
            f"  {info.on_its_clock(tick.tick)}{_params_text(tick.params)}  {tick.outcome}{job}",
            soft_wrap=True,
        )
    counts = Counter(tick.outcome for tick in ticks)
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
    stdout.print(f"{count_of(len(ticks), 'tick')} ({outcomes}); nothing is changed.")


def _params_text(params: Mapping[str, str]) -> str:
    """Return the parameters that a tick gives to its job, as text."""
    return "".join(f"  {name}={value}" for name, value in params.items())


def _answer(results: Sequence[ScheduleResult], as_json: bool) -> None:
    """Print the result for each schedule that was set."""
    for result in results:
        warn(f"{result.target}: {warning}" for warning in result.warnings)
    show_answers("set", results, as_json)
