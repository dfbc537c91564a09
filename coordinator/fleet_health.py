"""Fleet health: what the doctor says of those who are there, and of the queues between them. Pure.

The facts are read in ``fleet``. Every code has its cure in docs/troubleshooting.md.
"""

from __future__ import annotations

from coordinator.finding import Finding, ago, count_of, ok, problem, some, warning
from coordinator.fleet import FleetView
from coordinator.spec_check import CONTROL_QUEUE


def of_fleet(view: FleetView, place: str, open_jobs: int) -> list[Finding]:
    """Who is there, and when each last consumed something."""
    heads = [one for one in view.coordinators if not one.silent]
    hands = [one for one in view.runners if not one.silent]
    silent = [f"{one.host}:{one.pid}" for one in view.coordinators if one.silent]
    silent += [f"{one.host}:{one.pid}" for one in view.runners if one.silent]
    found = []
    if heads:
        told = [f"{one.host}:{one.pid} (last report {ago(one.read_at, view.at)})" for one in heads]
        found.append(ok("COORDINATORS", some(told)))
    else:
        cure = "Start one: celery -A coordinator worker -P threads (run two)"
        found.append(problem("COORDINATORS", f"no coordinator is heard of at {place}, so nothing is decided", cure))
    if hands:
        told = [f"{one.host}:{one.pid} (last hint {ago(one.taken_at, view.at)})" for one in hands]
        found.append(ok("WORKERS", some(told)))
    else:
        cure = "Start one: celery -A tasks worker. If some run, they use another UNSTUCK_REDIS_URL or UNSTUCK_PREFIX."
        found.append(
            (problem if open_jobs else warning)("WORKERS", f"no worker is heard of at {place}, so nothing runs", cure)
        )
    if silent:
        cure = "If they were stopped, nothing: they are forgotten after an hour. Else look at their hosts."
        found.append(warning("SILENT", f"not heard of any more: {some(silent)}", cure))
    if view.deaf:
        told = [f"{one.worker} ({ago(one.at, view.at)})" for one in view.deaf]
        text = f"had gone deaf, within a day, and ended themselves (UNSTUCK_DEAF_AFTER): {some(told)}"
        cure = "See that a supervisor started them again. If it comes back, look at the network between them and Redis."
        found.append(warning("DEAF", text, cure))
    idle = [queue for queue in view.queues if queue.length and not queue.listeners]
    for queue in idle:
        start = (
            "celery -A coordinator worker -P threads"
            if queue.name == CONTROL_QUEUE
            else f"celery -A tasks worker -Q {queue.name}"
        )
        text = f"{count_of(queue.length, 'message')} on queue {queue.name}, and nobody listens to it"
        found.append(problem("QUEUES", text, f"Start a process for it: {start}"))
    if not idle:
        found.append(ok("QUEUES", some([f"{q.name} {q.length:,}" for q in view.queues]) or "no queue in use"))
    return found
