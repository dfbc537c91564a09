"""Which runners may not take the groups of a job, since it keeps to the Spark and the Python of its first claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unstuck.coordinator.explain.explanation import Unlike
from unstuck.coordinator.views.queues import some
from unstuck.tasks.identity import in_words
from unstuck.tasks.protocol.processes import RunnerStatus


def unlike_runners(bound: Mapping[str, str], runners: Iterable[RunnerStatus]) -> dict[tuple[str, bool], Unlike]:
    """By queue, and whether the group runs on Spark: the runners that listen there and may not take it.

    ``bound``: the versions of the first claim of the job, by name.
    """
    found: dict[tuple[str, bool], Unlike] = {}
    heard = [one for one in runners if not one.silent]
    for queue in {queue for one in heard for queue in one.queues}:
        there = [one for one in heard if queue in one.queues]
        for spark in (False, True):
            wanted = {name: version for name, version in bound.items() if spark or name == "python"}
            odd = [
                f"{one.host}:{one.pid} ({in_words(one.runs_on.bound)})"
                for one in there
                if any(one.runs_on.bound.get(name, version) != version for name, version in wanted.items())
            ]
            if odd:
                text = f"the job began on {in_words(wanted)} and keeps to it; it may not be taken by {some(odd)}"
                found[queue, spark] = Unlike(text, nobody=len(odd) == len(there))
    return found
