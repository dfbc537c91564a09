"""Presents the problems that stop work, and checks processes and their versions (pure).

``views.fleet`` reads the facts. Every code has its cure in docs/troubleshooting.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.problems.problem import Problem, ProblemCode
from unstuck.coordinator.problems.queues import some
from unstuck.doctor.finding import Finding, Level, ago, ok, warning
from unstuck.tasks.identity import NO_SPARK, RunsOn, minor
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo
from unstuck.views.words import count_of

CHECKS = {
    ("fleet", ProblemCode.NO_COORDINATOR): "COORDINATORS",
    ("fleet", ProblemCode.NO_WORKER): "WORKERS",
    ("fleet", ProblemCode.DEAD_LETTERS): "DEAD_LETTERS",
    ("queue", ProblemCode.UNSERVED): "QUEUES",
    ("queue", ProblemCode.UNREAD): "QUEUES",
    ("host", ProblemCode.UNFIT): "HOSTS",
    ("pool", ProblemCode.NO_SLOTS): "POOLS",
    ("job", ProblemCode.HALTED): "JOBS_HALTED",
    ("schedule", ProblemCode.HALTED): "SCHEDULES_HALTED",
    ("schedule", ProblemCode.UNREADABLE): "SCHEDULES_HALTED",
}
MANY = ("JOBS_HALTED", "SCHEDULES_HALTED")  # checks with one finding for all problems


def of_problems(problems: Iterable[Problem], view: FleetInfo) -> Iterator[Finding]:
    """Present the problems that stop work; a check without a problem reports the present state."""
    by_check: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        if (check := CHECKS.get((problem.kind, problem.code))) is not None:
            by_check[check].append(problem)
    for check, same in by_check.items():
        if check in MANY and len(same) > 1:
            yield _together(check, same)
        else:
            yield from (_finding(check, problem) for problem in same)
    yield from (finding for finding in _well(view) if finding.code not in by_check)
    yield from _silent_and_stalled(view)


def _finding(check: str, problem: Problem) -> Finding:
    subject = "" if problem.kind in ("fleet", "queue") else f"{problem.kind} {problem.name}: "
    text = f"{subject}{problem.shown_text or problem.code}"
    level = Level(problem.severity) if problem.acknowledged is None else Level.WARNING
    return Finding(check, level, text, problem.remedy)


def _together(check: str, problems: Sequence[Problem]) -> Finding:
    names = [f"{problem.name} ({problem.text or problem.code})" for problem in problems]
    text = f"{count_of(len(problems), problems[0].kind)} cannot continue: {some(names)}"
    return Finding(check, Level.PROBLEM, text, "`unstuck now --json` has the remedy of each.")


def _well(view: FleetInfo) -> Iterator[Finding]:
    coordinators = [
        f"{process.host}:{process.pid} (last report {ago(process.read_at, view.at)})"
        for process in view.coordinators
        if not process.silent
    ]
    yield ok("COORDINATORS", some(coordinators))
    runners = [
        f"{process.host}:{process.pid} (last work {ago(process.worked_at, view.at)})"
        for process in view.runners
        if not process.silent
    ]
    yield ok("WORKERS", some(runners) or "no worker is heard of, and no job waits for one")
    queues = some([f"{queue.name} {queue.length:,}" for queue in view.queues])
    yield ok("QUEUES", queues or "no queue in use")
    yield ok("DEAD_LETTERS", "there are no dead letters")


def _silent_and_stalled(view: FleetInfo) -> Iterator[Finding]:
    if silent := [
        f"{process.host}:{process.pid}"
        for process in [*view.coordinators, *view.runners]
        if process.silent
    ]:
        cure = (
            "If they were stopped, nothing: they are forgotten after an hour. Else look at "
            "their hosts."
        )
        yield warning("SILENT", f"not heard of any more: {some(silent)}", cure)
    if stalled := [f"{stall.worker} ({ago(stall.at, view.at)})" for stall in view.stalled]:
        text = (
            f"stalled within a day, and ended themselves (UNSTUCK_STALLED_AFTER): {some(stalled)}"
        )
        cure = (
            "See that a supervisor started them again. If it comes back, look at the network "
            "between them and Redis."
        )
        yield warning("STALLED", text, cure)


def of_versions(view: FleetInfo, here: RunsOn) -> list[Finding]:
    """Check that all processes run one release and Python, and all runners one Spark and Java.

    Also compares pandas and pyarrow. For other packages than Unstuck only the minor version counts.
    ``here``: this machine.
    """
    cure = (
        "Unless an upgrade is under way: install the same versions everywhere, and restart what "
        "differs."
    )
    findings = []
    for what, versions in _names_by_version(view, here).items():
        named = [
            f"{what} {number}: {some(names)}"
            for number, names in sorted(versions.items())
            if number not in ("", NO_SPARK)
        ]
        if len(named) > 1:
            findings.append(warning("VERSIONS", "; ".join(named), cure))
    processes = _heard_of(view)
    same = sum(bool(process.runs_on.release) for process in processes)
    text = f"Unstuck {here.release or '(not installed)'} and Python {here.python} here"
    text += f"; of {len(processes):,} runners and coordinators {same:,} say that they run the same"
    return findings or [ok("VERSIONS", text)]


def _heard_of(view: FleetInfo) -> list[RunnerInfo | CoordinatorInfo]:
    processes: list[RunnerInfo | CoordinatorInfo] = [*view.coordinators, *view.runners]
    return [process for process in processes if not process.silent]


def _names_by_version(view: FleetInfo, here: RunsOn) -> dict[str, dict[str, list[str]]]:
    """Return the processes by program and version."""
    names: dict[str, dict[str, list[str]]] = {}

    def add(name: str, **versions: str) -> None:
        for program, version in versions.items():
            names.setdefault(program, {}).setdefault(version, []).append(name)

    add("this machine", Unstuck=here.release, Python=minor(here.python))
    for process in _heard_of(view):
        name, on = f"{process.host}:{process.pid}", process.runs_on
        add(name, Unstuck=on.release, Python=minor(on.python))
        if process in view.runners:
            spark, java = minor(on.spark), minor(on.java)
            add(name, Spark=spark, Java=java, pandas=minor(on.pandas), pyarrow=minor(on.pyarrow))
    return names
