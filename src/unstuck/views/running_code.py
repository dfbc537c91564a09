"""Finds runners that differ in the code of a package, or in the versions that a job needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unstuck.coordinator.explain.explanation import Unlike
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.problems.queues import some
from unstuck.tasks.identity import NO_SPARK, RunsOn, in_words
from unstuck.tasks.protocol.process_info import RunnerInfo

SHORT = 8  # characters of a digest that are shown
HELP = (
    "deploy the same code everywhere; a runner that has not worked since a deploy takes it in "
    "before it works again"
)


def different_code(runners: Iterable[RunnerInfo]) -> dict[str, str]:
    """Return packages of which ``runners`` run different code, each with a sentence.

    Runners that are silent or have not reported their code are left out.
    """
    runners_by_package: dict[str, dict[str, set[str]]] = {}  # package → digest → runners
    for runner in (runner for runner in runners if not runner.silent):
        for package, digest in runner.code.items():
            runners_by_package.setdefault(package, {}).setdefault(digest, set()).add(
                f"{runner.host}:{runner.pid}"
            )
    return {
        package: f'runners run different code of "{package}": {_listed(digests)}; {HELP}'
        for package, digests in sorted(runners_by_package.items())
        if len(digests) > 1
    }


def different_code_for(state: JobState, runners: Iterable[RunnerInfo]) -> str:
    """Return a sentence if runners of the queues of a job run different code for it.

    Only groups that are not done count. Empty if all runners agree.
    """
    queues_by_package: dict[str, set[str]] = {}  # package → queues
    for name, planned in state.plan.groups.items():
        for package in planned.spec.packages if not state.done(name) else ():
            queues_by_package.setdefault(package, set()).add(planned.spec.queue_name)
    all_runners = list(runners)
    sentences = [
        different_code(runner for runner in all_runners if queues.intersection(runner.queues)).get(
            package, ""
        )
        for package, queues in sorted(queues_by_package.items())
    ]
    return "; ".join(filter(None, sentences))


def unlike_runners(
    bound: Mapping[str, str], runners: Iterable[RunnerInfo]
) -> dict[tuple[str, bool], Unlike]:
    """Return the runners that listen on a queue and must not take a job.

    A job keeps to the Spark and the Python of its first claim. A worker may run no Spark.

    Args:
        bound: those versions, by name.

    Returns: by queue, and by whether the group runs on Spark.
    """
    heard = [runner for runner in runners if not runner.silent]
    unlike: dict[tuple[str, bool], Unlike] = {}
    for queue in {queue for runner in heard for queue in runner.queues}:
        listening = [runner for runner in heard if queue in runner.queues]
        for spark in (False, True):
            if (kind := _unlike(bound, listening, spark)) is not None:
                unlike[queue, spark] = kind
    return unlike


def _unlike(
    bound: Mapping[str, str], listening: Sequence[RunnerInfo], spark: bool
) -> Unlike | None:
    """Return those of ``listening`` that must not take a group; None if all may."""
    began = dict(bound) if spark else {n: bound[n] for n in ("python",) if n in bound}
    needed = {"spark": "", **began} if spark else began
    odd = [runner for runner in listening if not runner.runs_on.may_run(needed)]
    if not odd:
        return None
    sparkless = [runner for runner in odd if runner.runs_on.spark == NO_SPARK]
    reasons = []
    if sparkless:
        reasons.append("the group runs on Spark")
    if len(sparkless) < len(odd):
        reasons.append(f"the job began on {in_words(began)} and keeps to it")
    names = [f"{runner.host}:{runner.pid} ({_runs(runner.runs_on)})" for runner in odd]
    text = f"{', and '.join(reasons)}; it may not be taken by {some(names)}"
    return Unlike(text, nobody=odd == list(listening), no_spark=sparkless == odd)


def _runs(on: RunsOn) -> str:
    return "runs no Spark" if on.spark == NO_SPARK else in_words(on.bound)


def _listed(digests: dict[str, set[str]]) -> str:
    many = sorted(digests.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return ", ".join(f"{digest[:SHORT]} on {some(sorted(names))}" for digest, names in many)
