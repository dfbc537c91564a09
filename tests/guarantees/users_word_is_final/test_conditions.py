"""Conditions on a real store: from what a step recorded to what a person is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.coordinator import SUCCEEDED, Coordinator, group, join
from unstuck import Status
from unstuck.read_model.job import JobInfo


def record(view: JobInfo, name: str) -> Any:
    (found,) = [member for fork in view.groups for member in fork.members if member.id == name]
    return found


def test_recorded_results_of_a_step_decide_conditions_in_any_coordinator(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator()
    job = coordinator.submit(
        group("clean"),
        group("train", "clean", when="results.clean.rows > 1000 or params.full"),
        group("tell", "clean", when="results.clean.rows <= 1000"),
        group(
            "each",
            "train",
            for_each={"n": [1, 2]},
            join="all_done",
            when="results.clean.rows > 1000",
        ),
        join("end", "train", "tell", "each", rule="none_failed"),
        params={"full": False},
    )
    coordinator.read()
    explained = {one.subject: one.what for one in coordinator.client.explain(job)}
    assert explained["tell"].endswith("then its condition decides: `results.clean.rows <= 1000`")
    (offer,) = coordinator.offers()
    coordinator.work(offer, replace(SUCCEEDED, results={"rows": 12}))
    other = make_coordinator()  # it has the job from the store alone
    other.read()
    view = other.show(job)
    skipped = record(view, "train")
    assert (skipped.state, skipped.reason.code) == ("SKIPPED", "CONDITION_FALSE")
    assert skipped.reason.text == (
        "its condition is false: `results.clean.rows > 1000 or params.full`, "
        "with results.clean.rows = 12, params.full = false"
    )
    assert record(view, "each").state == "SKIPPED"
    assert {one.subject: one.what for one in other.client.explain(job)}[
        "train"
    ] == skipped.reason.text
    assert [
        event["code"] for _, event in other.client.events(job) if event["kind"] == "SKIPPED"
    ] == ["CONDITION_FALSE"] * 2
    assert other.drive(job) is Status.FINISHED
    assert record(other.show(job), "end").state == "SUCCEEDED"


def test_a_condition_that_cannot_be_evaluated_ends_the_job_with_a_reason(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(
        group("clean"),
        group("train", "clean", when="results.clean.row > 0"),
        group("long", "clean"),
    )
    coordinator.read()
    coordinator.work(coordinator.offers()[0], replace(SUCCEEDED, results={"rows": 12}))
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    assert record(coordinator.show(job), "train").reason.code == "WHEN_FAILED"
    assert record(coordinator.show(job), "long").state == "CANCELED"
    reason = coordinator.show(job).reason
    assert reason is not None
    assert reason.text.startswith(
        "group train failed: its condition cannot be evaluated, and is not tried again: none > 0"
    )
    assert "results.clean.row = none (group clean did not record it)" in reason.text


def test_the_store_keeps_a_satisfied_condition(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """c waits for room while b records what would make its condition false, and coordinators come
    and go.
    """
    coordinator = make_coordinator()
    coordinator.submit(
        *(
            group("a"),
            group("b"),
            group("c", "a", "b", join="any_succeeded", when="results.b.n is none"),
        ),
        max_parallel=1,
    )
    coordinator.read()
    coordinator.work(coordinator.offers()[0])
    coordinator.read()
    (offer,) = coordinator.offers()
    assert offer.group == "b"
    other = make_coordinator()
    other.work(offer, replace(SUCCEEDED, results={"n": 1}))
    other.read()
    assert [offer.group for offer in other.offers()] == ["c"]
