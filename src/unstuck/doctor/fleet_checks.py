"""The doctor judges the processes of the fleet and the queues between them (pure).

``views.fleet`` reads the facts. Every code has its cure in docs/troubleshooting.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from unstuck.doctor.finding import Finding, ago, ok, problem, warning
from unstuck.tasks.identity import NO_SPARK, RunsOn, minor
from unstuck.tasks.protocol.keys import CONTROL_QUEUE
from unstuck.views.fleet_view import FleetView
from unstuck.views.queues import STALLED_AFTER, some, unfit_runners, unread_messages
from unstuck.views.words import count_of

RESTART_COORDINATOR = (
    "Look at their logs and restart them: Celery has stalled in them, or all their threads hang. "
    "Submits and commands sent through Celery wait meanwhile, and so does the sweep of beat."
)
RESTART_WORKER = (
    "Look at it with `unstuck fleet`, and restart that worker: its main process is frozen, or "
    "Celery in it has stalled. Other workers of the queue take what lies there; no job is lost by "
    "a restart."
)


def of_fleet(
    view: FleetView, place: str, open_jobs: int, stalled_after: float = STALLED_AFTER
) -> Iterator[Finding]:
    """Check the processes, and when each last consumed something; find queues that nobody empties.

    Args:
        stalled_after: UNSTUCK_STALLED_AFTER, in seconds; 0: ``views.queues.STALLED_AFTER`` holds.
    """
    yield _coordinators(view, place)
    yield _runners(view, place, open_jobs)
    yield from _unfit_hosts(view)
    yield from _silent_and_stalled(view)
    yield from _queues(view, stalled_after)


def _coordinators(view: FleetView, place: str) -> Finding:
    coordinators = [coordinator for coordinator in view.coordinators if not coordinator.silent]
    if coordinators:
        shown = [
            f"{coordinator.host}:{coordinator.pid} "
            f"(last report {ago(coordinator.read_at, view.at)})"
            for coordinator in coordinators
        ]
        return ok("COORDINATORS", some(shown))
    cure = "Start one: celery -A unstuck.coordinator worker -P threads (run two)"
    return problem(
        "COORDINATORS", f"no coordinator is heard of at {place}, so nothing is decided", cure
    )


def _runners(view: FleetView, place: str, open_jobs: int) -> Finding:
    runners = [runner for runner in view.runners if not runner.silent]
    if runners:
        shown = [
            f"{runner.host}:{runner.pid} (last work {ago(runner.worked_at, view.at)})"
            for runner in runners
        ]
        return ok("WORKERS", some(shown))
    text = f"no worker is heard of at {place}, so nothing runs"
    cure = (
        "Start one: celery -A unstuck.tasks worker. If some run, they use another "
        "UNSTUCK_REDIS_URL or "
    )
    return (problem if open_jobs else warning)("WORKERS", text, f"{cure}UNSTUCK_PREFIX.")


def _unfit_hosts(view: FleetView) -> Iterator[Finding]:
    if unfit := [f"{host} ({why})" for host, why in unfit_runners(view).items()]:
        cure = (
            "Mend these hosts. Their runners try again every 30s while work stands ready; "
            "nothing need be restarted."
        )
        yield problem("HOSTS", f"unfit for Spark, so they take no such work: {some(unfit)}", cure)


def _silent_and_stalled(view: FleetView) -> Iterator[Finding]:
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


def _queues(view: FleetView, stalled_after: float) -> Iterator[Finding]:
    unserved = [queue for queue in view.queues if queue.length and not queue.listeners]
    for queue in unserved:
        text = (
            f"{count_of(queue.length, 'message')} on queue {queue.name}, and nobody listens to it"
        )
        start = f"celery -A unstuck.tasks worker -Q {queue.name}"
        if queue.name == CONTROL_QUEUE:
            start = "celery -A unstuck.coordinator worker -P threads"
        yield problem("QUEUES", text, f"Start a process for it: {start}")
    unread = unread_messages(view, stalled_after)
    for queue in view.queues:
        if queue.name in unread:
            cure = RESTART_COORDINATOR if queue.name == CONTROL_QUEUE else RESTART_WORKER
            yield problem(
                "QUEUES", f"{count_of(queue.length, 'message')} on {unread[queue.name]}", cure
            )
    if not unserved and not unread:
        yield ok(
            "QUEUES",
            some([f"{queue.name} {queue.length:,}" for queue in view.queues]) or "no queue in use",
        )


def of_versions(view: FleetView, here: RunsOn) -> list[Finding]:
    """Does everybody run one release, on one Python, and do all runners have one Spark, Java,
    pandas and pyarrow?

    Of what is not ours, the first two numbers of a version count. ``here``: this machine, where
    we run.
    """
    everybody = [
        (f"{process.host}:{process.pid}", process.runs_on)
        for process in [*view.coordinators, *view.runners]
        if not process.silent
    ]
    names_by_version: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for name, on in [("this machine", here), *everybody]:
        names_by_version["Unstuck"][on.release].append(name)
        names_by_version["Python"][minor(on.python)].append(name)
    for runner in [runner for runner in view.runners if not runner.silent]:
        on = runner.runs_on
        installed = {"Spark": on.spark, "Java": on.java, "pandas": on.pandas, "pyarrow": on.pyarrow}
        for what, version in installed.items():
            names_by_version[what][minor(version)].append(f"{runner.host}:{runner.pid}")
    cure = (
        "Unless an upgrade is under way: install the same versions everywhere, and restart "
        "what "
        "differs."
    )
    findings = []
    for what, versions in names_by_version.items():
        named = [
            f"{what} {number}: {some(names)}"
            for number, names in sorted(versions.items())
            if number not in ("", NO_SPARK)
        ]
        if len(named) > 1:
            findings.append(warning("VERSIONS", "; ".join(named), cure))
    same = sum(bool(on.release) for _, on in everybody)
    text = f"Unstuck {here.release or '(not installed)'} and Python {here.python} here"
    text += f"; of {len(everybody):,} runners and coordinators {same:,} say that they run the same"
    return findings or [ok("VERSIONS", text)]
