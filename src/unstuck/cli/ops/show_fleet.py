"""``unstuck fleet``: the processes, what runners run, and the length of the queues."""

from __future__ import annotations

from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import TextTable, emit, stderr, stdout, table
from unstuck.coordinator.model.fleet import FleetInfo, QueueInfo
from unstuck.coordinator.problems.detect import detect_in_fleet
from unstuck.coordinator.problems.problem import Limits
from unstuck.doctor.finding import ago
from unstuck.doctor.fleet_checks import of_versions
from unstuck.tasks.duration import format_duration
from unstuck.tasks.identity import RunsOn
from unstuck.tasks.protocol.process_info import ProcessInfo
from unstuck.views.installation import limits_of
from unstuck.views.running_code import SHORT, different_code
from unstuck.views.words import one_line


def fleet(as_json: AsJson = False) -> None:
    """Show runners and their attempts, coordinators and their last work, and the queues."""
    with connected() as connection:
        view = connection.client.fleet()
        limits = limits_of(connection.client.settings)
    if as_json:
        emit(view)
        return
    tables = [
        *([_runners(view)] if view.runners else []),
        *([_coordinators(view)] if view.coordinators else []),
        *([_queues(view.queues)] if view.queues else []),
    ]
    for number, listing in enumerate(tables):
        if number:
            stdout.print()
        stdout.print(listing)
    for text in advice(view, limits):
        stderr.print(text, soft_wrap=True)


def advice(view: FleetInfo, limits: Limits) -> list[str]:
    """Yield the problems of the fleet and their remedies."""
    problems = detect_in_fleet(view, limits)
    lines = [f"{problem.text}. {problem.remedy}" for problem in problems]
    lines += [
        f"{sentence[0].upper()}{sentence[1:]}."
        for sentence in different_code(view.runners).values()
    ]
    lines += [
        f"The fleet is mixed: {finding.text}. {finding.cure}"
        for finding in of_versions(view, RunsOn())
        if finding.cure
    ]
    if view.stalled:
        last = view.stalled[0]
        lines.append(
            (
                f"The worker or coordinator {last.worker} stalled and ended itself "
                f"{ago(last.at, view.at)}"
            )
            + (f" ({len(view.stalled)} such ends within a day)" if len(view.stalled) > 1 else "")
            + ". Its supervisor should have started another; see its log."
        )
    return lines


def _runners(view: FleetInfo) -> TextTable:
    columns = ("CODE",) if any(runner.code for runner in view.runners) else ()
    shown = table(
        "RUNNER", "QUEUES", "RUNS", "SINCE", "LAST WORK", "HEARD OF", *columns, right=("SINCE",)
    )
    for runner in view.runners:
        runs = (
            f"{runner.job} {runner.group}#{runner.attempt}"
            if runner.job
            else "unfit for Spark"
            if runner.unfit
            else "idle"
        )
        step = f" {one_line(runner.step)}" if runner.step else ""
        shown.add_row(
            f"{runner.host}:{runner.pid}",
            ",".join(runner.queues),
            Text(runs + step, "" if runner.job else "dim"),
            "" if runner.since is None else format_duration(max(0.0, view.at - runner.since)),
            ago(runner.worked_at, view.at),
            _heard(runner, view.at),
            *(
                [
                    " ".join(
                        f"{name}:{digest[:SHORT]}" for name, digest in sorted(runner.code.items())
                    )
                ]
                if columns
                else []
            ),
        )
    return shown


def _coordinators(view: FleetInfo) -> TextTable:
    shown = table("COORDINATOR", "QUEUES", "LAST REPORT", "LAST SWEEP", "HEARD OF")
    for coordinator in view.coordinators:
        shown.add_row(
            f"{coordinator.host}:{coordinator.pid}",
            ",".join(coordinator.queues),
            ago(coordinator.read_at, view.at),
            ago(coordinator.swept_at, view.at),
            _heard(coordinator, view.at),
        )
    return shown


def _queues(queues: tuple[QueueInfo, ...]) -> TextTable:
    shown = table("QUEUE", "LENGTH", "LISTENERS", right=("LENGTH", "LISTENERS"))
    for queue in queues:
        shown.add_row(
            queue.name,
            f"{queue.length:,}",
            Text(str(queue.listeners), "" if queue.listeners else "bold red"),
        )
    return shown


def _heard(process: ProcessInfo, now: float) -> Text:
    if process.silent:
        return Text(f"not heard of for {format_duration(now - process.heard_at)}", "bold red")
    return Text(ago(process.heard_at, now))
