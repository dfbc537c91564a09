"""Force-stop needs nothing of a job but its record: no worker, no readable spec, no readable state
of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from tests.guarantees.users_word_is_final.test_commands import running
from tests.support.coordinator import Coordinator, group
from unstuck import Refused, Status
from unstuck.coordinator.commands.job_commands import INTENTS
from unstuck.coordinator.model.records import JobRecord
from unstuck.read_model.command_result import CommandResult

GARBAGE = '{"'
OTHERS: dict[str, Callable[[Coordinator, str], CommandResult]] = {
    **{
        given: lambda coordinator, job, given=given: coordinator.client.command(job, given)
        for given in INTENTS
    },  # type: ignore[misc]
    "alter": lambda coordinator, job: coordinator.client.alter(job, {"max_parallel": 2}),
    "skip": lambda coordinator, job: coordinator.client.skip(job, "a"),
    "rerun": lambda coordinator, job: coordinator.client.rerun(job, "a"),
}
del OTHERS["force-stop"]
# ``schema``: what claims to be of a later release is left to it.
RECORD = [item.name for item in fields(JobRecord) if item.name != "schema"]
DAMAGES: dict[str, tuple[str, str, str | None]] = {
    "a group that is no JSON": ("groups", "a", GARBAGE),
    "a group in a state that cannot be": ("groups", "a", '{"state":"SUCCEEDED","epoch":"x"}'),
    "a group that is not in the spec": ("groups", "zz", '{"state":"RUNNING"}'),
    "an attempt": ("attempts", "a", GARBAGE),
    "a fork": ("forks", "a", "["),
    "a spec that is none": ("job", "spec", '{"name":"x"}'),
    "a duration that no release reads": (
        *("job", "spec"),
        '{"groups":[{"name":"a","steps":[{"python":"m:f"}],"timeout":8.64e12}],"name":"x"}',
    ),
    "a spec nested too deep": ("job", "spec", "[" * 100_000),
    **{
        f"{name} missing": ("job", name, None)
        for name in ("id", "name", "spec", "commit", "status", "intent")
    },
    **{f"{name} garbage": ("job", name, GARBAGE) for name in RECORD},
}


def damage(coordinator: Coordinator, job: str, key: str, name: str, text: str | None) -> None:
    if text is None:
        coordinator.redis.hdel(getattr(coordinator.keys.of(job), key), name)
    else:
        coordinator.redis.hset(getattr(coordinator.keys.of(job), key), name, text)


def act(coordinator: Coordinator, job: str) -> None:
    """Let the coordinator bring about what is on record.

    Not by reports, for which a coordinator waits a while.
    """
    coordinator.redis.zadd(coordinator.keys.due, {job: 0}, xx=True)
    coordinator.sweep.run()


def looked_at(coordinator: Coordinator, job: str) -> str:
    """Everything that anybody may ask of a job; what is said of its damage."""
    view = coordinator.client.show(job, why=True)
    (explained, *_) = coordinator.client.explain(job)
    list(coordinator.client.events(job))
    assert job in {listed.id for listed in coordinator.client.jobs()}
    assert explained.what
    return view.damage


@pytest.mark.claim(
    "A damaged job is shown as damaged, can be ended by force, and blocks no other job."
)
@pytest.mark.variant
@pytest.mark.parametrize("which", DAMAGES)
def test_a_damaged_job_is_shown_and_can_be_ended_by_force(
    coordinator: Coordinator, which: str
) -> None:
    job = running(coordinator)
    damage(coordinator, job, *DAMAGES[which])
    looked_at(coordinator, job)
    for _ in range(3):
        act(coordinator, job)
    told = looked_at(
        coordinator, job
    )  # a commit that was missing is there again: the job was halted
    answers = {name: do(coordinator, job) for name, do in OTHERS.items()} if told else {}
    assert coordinator.client.force_stop(job, reason="it is broken").answer == "DONE"
    act(coordinator, job)

    for name, answer in answers.items():
        assert answer.answer == "REFUSED", f"{name} would never come about"
        assert f"`unstuck force-stop {job}` ends it" in answer.text, name
    assert coordinator.status_of_record(job) is Status.CANCELED
    assert job in {listed.id for listed in coordinator.client.jobs(status=[Status.CANCELED])}
    assert not coordinator.redis.zscore(coordinator.keys.due, job)
    looked_at(coordinator, job)
    assert coordinator.client.force_stop(job).answer == "ALREADY", "it has ended so"


@pytest.mark.variant
@pytest.mark.parametrize("which", ["a spec that is none", "a group that is no JSON"])
def test_a_damaged_job_with_any_pending_command_can_be_ended_by_force(
    coordinator: Coordinator, which: str
) -> None:
    """Found by a reader: the request that stood on its record named a group of a spec that nobody
    could read.
    """
    job = coordinator.submit(group("a"), group("b"))
    assert coordinator.client.pause(job).answer == "DONE"
    act(coordinator, job)
    assert coordinator.client.skip(job, "a").answer == "DONE"
    damage(coordinator, job, *DAMAGES[which])
    assert coordinator.client.force_stop(job).answer == "DONE"
    act(coordinator, job)
    assert coordinator.status_of_record(job) is Status.CANCELED


@pytest.mark.claim(
    "A damaged job is shown as damaged, can be ended by force, and blocks no other job."
)
@pytest.mark.parametrize("key", ["plans", "groups", "forks", "inputs", "attempts", "events"])
def test_a_job_with_a_missing_key_can_be_ended_by_force(coordinator: Coordinator, key: str) -> None:
    job = running(coordinator)
    coordinator.redis.delete(getattr(coordinator.keys.of(job), key))
    assert coordinator.client.force_stop(job).answer == "DONE"
    act(coordinator, job)
    assert coordinator.status_of_record(job) is Status.CANCELED
    looked_at(coordinator, job)


@pytest.mark.variant
@pytest.mark.parametrize("begun", [False, True], ids=["pending", "running"])
def test_a_damaged_job_larger_than_one_commit_can_be_ended_by_force(
    coordinator: Coordinator, begun: bool
) -> None:
    job = coordinator.submit(*(group(f"g{number}") for number in range(1200)), name="wide")
    if begun:
        coordinator.read()
        coordinator.claim(coordinator.offers()[0])
    damage(coordinator, job, "job", "paused_at", GARBAGE)
    assert coordinator.client.force_stop(job).answer == "DONE"
    act(coordinator, job)
    assert coordinator.status_of_record(job) is Status.CANCELED
    kinds = coordinator.events(job)
    assert kinds.count("CANCELED") == 1201, "each group once, and the job"


@pytest.mark.variant
def test_a_damaged_job_shows_its_unreadable_part_and_a_remedy(coordinator: Coordinator) -> None:
    job = running(coordinator)
    damage(coordinator, job, *DAMAGES["a duration that no release reads"])
    told = looked_at(coordinator, job)
    assert told.startswith(
        f"the stored spec of job {job} cannot be read (SpecError: groups[0].timeout: expected a"
    )
    assert coordinator.client.explain(job)[0].help == (f"unstuck force-stop {job}",)
    coordinator.client.force_stop(job)
    act(coordinator, job)
    with pytest.raises(Refused, match=r"is CANCELED, and the stored spec of job .* cannot be read"):
        coordinator.client.retry(job)


@pytest.mark.claim(
    "A damaged job is shown as damaged, can be ended by force, and blocks no other job."
)
@pytest.mark.variant
def test_a_damaged_job_does_not_block_explanations_or_sweeps_of_others(
    coordinator: Coordinator,
) -> None:
    first = running(coordinator)
    act(coordinator, first)
    second = running(coordinator)
    damage(coordinator, first, *DAMAGES["a group that is no JSON"])
    assert coordinator.client.explain(second)
    assert coordinator.client.fleet().queues is not None
    coordinator.client.force_stop(first)
    coordinator.sweep.run()
    coordinator.client.force_stop(second)
    coordinator.sweep.run()
    assert coordinator.status_of_record(second) is Status.CANCELED


def test_force_ends_a_healthy_job_with_all_its_groups(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a"), group("b", "a"), group("f", for_each={"x": [1, 2]}))
    coordinator.read()
    assert coordinator.client.force_stop(job).answer == "DONE"
    act(coordinator, job)
    view = coordinator.show(job)
    census: dict[Any, int] = {}
    for fork in view.groups:
        for state, number in fork.states.items():
            census[state] = census.get(state, 0) + number
    assert (view.status, view.damage, census) == (Status.CANCELED, "", {"CANCELED": 4})


@pytest.mark.parametrize("name", ["status", "params", "ended_at", "fields"])
def test_an_ended_job_stays_ended_although_its_record_is_damaged(
    coordinator: Coordinator, name: str
) -> None:
    job = running(coordinator)
    coordinator.client.cancel(job)
    coordinator.read()
    coordinator.client.force_stop(job)
    act(coordinator, job)
    damage(coordinator, job, "job", name, None)
    before = coordinator.redis.hgetall(coordinator.keys.of(job).job)
    for _ in range(3):
        coordinator.redis.zadd(coordinator.keys.due, {job: 0})
        coordinator.sweep.run()
    assert coordinator.redis.hgetall(coordinator.keys.of(job).job) == before
    assert name in coordinator.show(job).damage
