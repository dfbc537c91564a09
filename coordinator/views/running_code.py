"""Which code the workers run: finds workers that run different code of one package of steps."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.views.queues import some
from unstuck.tasks.protocol.processes import RunnerStatus

SHORT = 8  # characters of a digest that are shown
HELP = "deploy the same code everywhere and restart the workers"


def different_code(runners: Iterable[RunnerStatus]) -> dict[str, str]:
    """Packages of which ``runners`` run different code, each with a sentence that names the runners.

    A runner that has not said which code it runs, or is silent, is left out.
    """
    found: dict[str, dict[str, set[str]]] = {}  # package → digest → runners
    for one in (one for one in runners if not one.silent):
        for package, digest in one.code.items():
            found.setdefault(package, {}).setdefault(digest, set()).add(f"{one.host}:{one.pid}")
    return {
        package: f'runners run different code of "{package}": {_listed(digests)}; {HELP}'
        for package, digests in sorted(found.items())
        if len(digests) > 1
    }


def different_code_for(state: JobState, runners: Iterable[RunnerStatus]) -> str:
    """The same of one job: of what its groups that are not done run, on runners of their queues; empty if all agree."""
    wanted: dict[str, set[str]] = {}  # package → queues
    for name, planned in state.plan.groups.items():
        for package in planned.spec.packages if not state.done(name) else ():
            wanted.setdefault(package, set()).add(planned.spec.queue_name)
    known = list(runners)
    found = [
        different_code(one for one in known if queues.intersection(one.queues)).get(package, "")
        for package, queues in sorted(wanted.items())
    ]
    return "; ".join(filter(None, found))


def _listed(digests: dict[str, set[str]]) -> str:
    many = sorted(digests.items(), key=lambda one: (-len(one[1]), one[0]))
    return ", ".join(f"{digest[:SHORT]} on {some(sorted(names))}" for digest, names in many)
