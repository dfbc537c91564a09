"""The doctor judges the processes of the fleet and the queues between them (pure).

``views.fleet`` reads the facts. Every code has its cure in docs/troubleshooting.md.
"""

from __future__ import annotations

from unstuck.coordinator.doctor.finding import Finding, ago, count_of, ok, problem, warning
from unstuck.coordinator.views.fleet import FleetView, QueueView
from unstuck.coordinator.views.queues import STALLED_AFTER, left_lying, some
from unstuck.tasks.identity import RunsOn
from unstuck.tasks.protocol.keys import CONTROL_QUEUE


def of_fleet(view: FleetView, place: str, open_jobs: int, stalled_after: float = STALLED_AFTER) -> list[Finding]:
    """Who is there, and when each last consumed something; and which queue nobody empties.

    Args:
        stalled_after: UNSTUCK_STALLED_AFTER, in seconds; 0: ``views.queues.STALLED_AFTER`` holds.
    """
    coordinators = [one for one in view.coordinators if not one.silent]
    runners = [one for one in view.runners if not one.silent]
    silent = [f"{one.host}:{one.pid}" for one in view.coordinators if one.silent]
    silent += [f"{one.host}:{one.pid}" for one in view.runners if one.silent]
    found = []
    if coordinators:
        told = [f"{one.host}:{one.pid} (last report {ago(one.read_at, view.at)})" for one in coordinators]
        found.append(ok("COORDINATORS", some(told)))
    else:
        cure = "Start one: celery -A unstuck.coordinator worker -P threads (run two)"
        found.append(problem("COORDINATORS", f"no coordinator is heard of at {place}, so nothing is decided", cure))
    if runners:
        told = [f"{one.host}:{one.pid} (last hint {ago(one.taken_at, view.at)})" for one in runners]
        found.append(ok("WORKERS", some(told)))
    else:
        cure = (
            "Start one: celery -A unstuck.tasks worker. If some run, they use another UNSTUCK_REDIS_URL or "
            "UNSTUCK_PREFIX."
        )
        found.append(
            (problem if open_jobs else warning)("WORKERS", f"no worker is heard of at {place}, so nothing runs", cure)
        )
    if silent:
        cure = "If they were stopped, nothing: they are forgotten after an hour. Else look at their hosts."
        found.append(warning("SILENT", f"not heard of any more: {some(silent)}", cure))
    if view.stalled:
        told = [f"{one.worker} ({ago(one.at, view.at)})" for one in view.stalled]
        text = f"stalled within a day, and ended themselves (UNSTUCK_STALLED_AFTER): {some(told)}"
        cure = "See that a supervisor started them again. If it comes back, look at the network between them and Redis."
        found.append(warning("STALLED", text, cure))
    idle = [queue for queue in view.queues if queue.length and not queue.listeners]
    for queue in idle:
        start = (
            "celery -A unstuck.coordinator worker -P threads"
            if queue.name == CONTROL_QUEUE
            else f"celery -A unstuck.tasks worker -Q {queue.name}"
        )
        text = f"{count_of(queue.length, 'message')} on queue {queue.name}, and nobody listens to it"
        found.append(problem("QUEUES", text, f"Start a process for it: {start}"))
    standing = left_lying(view, stalled_after)
    for queue in view.queues:
        if queue.name in standing:
            found.append(
                problem("QUEUES", f"{count_of(queue.length, 'message')} on {standing[queue.name]}", _cure(queue))
            )
    if not idle and not standing:
        found.append(ok("QUEUES", some([f"{q.name} {q.length:,}" for q in view.queues]) or "no queue in use"))
    return found


def of_versions(view: FleetView, here: RunsOn) -> list[Finding]:
    """Does everybody run one release, on one Python (its first two numbers)? ``here``: this machine, where we run."""
    known = [
        ("this machine", here),
        *((f"{one.host}:{one.pid}", one.runs_on) for one in [*view.coordinators, *view.runners] if not one.silent),
    ]
    releases: dict[str, list[str]] = {}
    pythons: dict[str, list[str]] = {}
    for who, on in known:
        if on.release:
            releases.setdefault(on.release, []).append(who)
        if on.python:
            pythons.setdefault(".".join(on.python.split(".")[:2]), []).append(who)
    cure = "Unless an upgrade is under way: install one release and one Python everywhere, and restart what differs."
    found = [
        warning("VERSIONS", "; ".join(f"{what} {one}: {some(who)}" for one, who in sorted(seen.items())), cure)
        for what, seen in (("Unstuck", releases), ("Python", pythons))
        if len(seen) > 1
    ]
    silent = sum(not on.release for _, on in known[1:])
    text = f"Unstuck {here.release or '(not installed)'} and Python {here.python} here"
    text += f"; of {len(known) - 1:,} runners and coordinators {len(known) - 1 - silent:,} say that they run the same"
    return found or [ok("VERSIONS", text)]


def _cure(queue: QueueView) -> str:
    if queue.name == CONTROL_QUEUE:
        return (
            "Look at their logs and restart them: Celery has stalled in them, or all their threads hang. Submits and "
            "commands sent through Celery wait meanwhile, and so does the sweep of beat."
        )
    return (
        "Look at it with `unstuck fleet`, and restart that worker: its main process is frozen, or Celery in it has "
        "stalled. Other workers of the queue take what lies there; no job is lost by a restart."
    )
