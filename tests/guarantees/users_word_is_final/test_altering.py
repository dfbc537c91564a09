"""Alter, skip, rerun and retry: what a person may still change of a job that has begun, and what
stays as it was.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.guarantees.shown_is_true.test_states import staged
from tests.guarantees.users_word_is_final.test_commands import act
from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group, join
from unstuck import NoSuchGroup, Refused, SpecError, Status
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.spec.work_order import WorkOrder

RETRY = {"max": 3, "backoff": "1h", "jitter": 0}
KEY = {"params": {"password": "wrong"}}
OVER_AN_INPUT = group("f", for_each={"m": {"from": "s.c"}}, inputs={"s": "data"})


def order(coordinator: Coordinator, offer: Offer, claimant: str = "runner1") -> WorkOrder:
    """What a runner that claims ``offer`` is to do."""
    claim = coordinator.claim(offer, claimant)
    assert claim.answer == "CLAIMED"
    assert claim.work_order is not None
    return claim.work_order


def states(coordinator: Coordinator, job: str) -> dict[str, str]:
    return {
        member.id: str(member.state)
        for fork in coordinator.show(job).groups
        for member in fork.members
        if member.attempt
    } | {
        fork.name: "SKIPPED" for fork in coordinator.show(job).groups if fork.states.get("SKIPPED")
    }


def retrying(coordinator: Coordinator, **spec: Any) -> tuple[str, dict[str, Offer]]:
    """``bad`` has failed once and waits an hour; ``good`` runs its first attempt."""
    job = coordinator.submit(
        group("good"), group("bad", retry=RETRY), group("end", "good", "bad"), **{**KEY, **spec}
    )
    coordinator.read()
    offers = {offer.group: offer for offer in coordinator.offers()}
    coordinator.work(offers["bad"], failed())
    coordinator.claim(offers["good"])
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING
    return job, offers


# ---- alter
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.claim(
    "A change to a job is applied completely or refused, and does not disturb healthy groups."
)
def test_the_next_attempt_uses_fixed_credentials_and_healthy_siblings_continue(
    coordinator: Coordinator,
) -> None:
    job, offers = retrying(coordinator)
    answer = coordinator.client.alter(job, {"params.password": "right"}, reason="rotated")
    assert answer.answer == "DONE", answer.text
    act(coordinator, job)
    assert coordinator.lease.renew(offers["good"].held_by("runner1"), "w") == "CONTINUE", (
        "good runs on"
    )
    assert coordinator.finish(offers["good"].held_by("runner1")) == "APPLIED"

    coordinator.client.pause(job)
    act(coordinator, job)
    coordinator.client.resume(job)  # nobody waits out an hour
    act(coordinator, job)
    (again,) = coordinator.offers()
    assert (again.group, again.epoch) == ("bad", 2)
    assert order(coordinator, again).params["password"] == "right"
    view = coordinator.show(job)
    assert [g.members[0].revision for g in view.groups[:2] if g.members] == [0, 0]
    coordinator.read()
    assert coordinator.show(job).groups[1].members[0].revision == 1, (
        "and the record says what it ran with"
    )


@pytest.mark.claim(
    "A change to a job is applied completely or refused, and does not disturb healthy groups."
)
def test_an_attempt_running_in_recovery_restarts_with_the_new_values(
    coordinator: Coordinator,
) -> None:
    job, offers = retrying(coordinator)
    coordinator.client.pause(job)
    coordinator.client.resume(job)
    # Its failure is kept: it is in recovery, and its time has come.
    coordinator.redis.hset(coordinator.keys.of(job).job, "reset_budgets", "")
    record = json.loads(coordinator.redis.hget(coordinator.keys.of(job).groups, "bad"))
    coordinator.redis.hset(
        coordinator.keys.of(job).groups, "bad", json.dumps({**record, "next_at": 1})
    )
    act(coordinator, job)
    (second,) = coordinator.offers()
    order(coordinator, second)
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING

    assert coordinator.client.alter(job, {"params.password": "right"}).answer == "DONE"
    act(coordinator, job)
    assert coordinator.lease.renew(second.held_by("runner1"), "w") == "STALE", (
        "its watchdog ends it"
    )
    assert coordinator.finish(second.held_by("runner1"), failed()) == "STALE"
    (third,) = coordinator.offers()
    assert (third.group, third.epoch) == ("bad", 3)
    assert order(coordinator, third, "runner2").params["password"] == "right"
    assert coordinator.lease.renew(offers["good"].held_by("runner1"), "w") == "CONTINUE"
    record = coordinator.show(job).groups[1].members[0]
    assert record.failures == 1, "being altered is charged to nobody"


@pytest.mark.claim(
    "A change to a job is applied completely or refused, and does not disturb healthy groups."
)
def test_an_alter_with_one_invalid_field_changes_nothing(coordinator: Coordinator) -> None:
    job, _ = retrying(coordinator)
    before = coordinator.show(job)
    with pytest.raises(SpecError, match="timeout"):
        coordinator.client.alter(job, {"params.password": "right", "groups.bad.timeout": "soon"})
    with pytest.raises(SpecError, match=r"groups\.bda.*did you mean 'bad'"):
        coordinator.client.alter(job, {"params.password": "right", "groups.bda.timeout": "1h"})
    refused = coordinator.client.alter(
        job, {"params.password": "right", "groups.bad.needs": ["good"]}
    )
    assert refused.answer == "REFUSED"
    assert "groups.bad.needs is part of the job's shape" in refused.text
    assert coordinator.show(job) == before
    assert "USER_ALTER" not in coordinator.events(job)


@pytest.mark.parametrize("value", [[], None])
def test_alter_cannot_remove_the_steps_of_a_group_or_add_steps_to_a_join(
    coordinator: Coordinator, value: list[Any] | None
) -> None:
    """Runners would have the old steps all the same, and what comes after would read what comes
    before.
    """
    job = coordinator.submit(
        group("first"), group("bad", "first", retry=RETRY), join("join", "bad")
    )
    coordinator.read()
    coordinator.work(coordinator.offers()[0])
    coordinator.read()
    coordinator.work(coordinator.offers()[0], failed())
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING
    for name, steps in (("bad", value), ("join", [{"python": "m:run"}])):
        refused = coordinator.client.alter(job, {f"groups.{name}.steps": steps})
        assert (
            str(refused.answer),
            f"whether {name} has steps is part of the job's shape" in refused.text,
        ) == (
            "REFUSED",
            True,
        )


def test_a_parameter_that_defines_fork_members_cannot_be_altered(coordinator: Coordinator) -> None:
    fork = group("each", "bad", for_each={"day": {"param": "days"}})
    job = coordinator.submit(group("bad", retry=RETRY), fork, params={"days": [1, 2], "other": 1})
    coordinator.read()
    coordinator.work(coordinator.offers()[0], failed())
    coordinator.read()
    refused = coordinator.client.alter(job, {"params.days": [1, 2, 3], "params.other": 2})
    assert refused.answer == "REFUSED"
    assert (
        "the members of the fork each come from a parameter, and for_each is part of the job's "
        "shape"
    ) in refused.text
    assert coordinator.show(job).revision == 0
    coordinator.client.alter(job, {"params.other": 2})
    assert coordinator.show(job).revision == 1


@pytest.mark.variant
@pytest.mark.parametrize(
    "values",
    [
        *(
            {"groups.bad.timeout": text}
            for text in ("99999999d", "9" * 400 + "d", "1h1h", "1e-07", 1e300, True)
        ),
        *({f"groups.bad.steps.{part}.timeout": 5} for part in ("²", "٣", "7" * 5000, "-1")),
        {"groups.bad.retry.max": True},
        {"publish.name.x": 1},
        {"params.x": float("nan")},
    ],
    ids=lambda values: repr(values)[:50],
)
def test_values_that_could_not_be_read_back_are_refused(
    coordinator: Coordinator, values: dict[str, Any]
) -> None:
    job, _ = retrying(coordinator, publish=["named_o"])
    before = coordinator.show(job)
    with pytest.raises(SpecError):
        coordinator.client.alter(job, values)
    assert coordinator.show(job) == before
    assert coordinator.client.cancel(job).answer == "DONE"
    act(coordinator, job)
    assert coordinator.status(job) is Status.CANCELING


def test_the_event_of_an_alter_has_the_given_values(coordinator: Coordinator) -> None:
    """The script that writes it has 14 digits for a number, and one table for empty lists and
    mappings.
    """
    values = {
        "id": 9007199254740993,
        "share": 0.12345678901234567,
        "days": [],
        "names": {},
        "text": 'é "q" / \\u0000',
    }
    job, _ = retrying(coordinator, params=dict.fromkeys(values))
    assert (
        coordinator.client.alter(
            job, {f"params.{name}": value for name, value in values.items()}
        ).answer
        == "DONE"
    )
    (event,) = (
        event for _, event in coordinator.client.events(job) if event["kind"] == "USER_ALTER"
    )
    changes = {change["path"].removeprefix("params."): change["new"] for change in event["changes"]}
    assert json.dumps(changes, sort_keys=True) == json.dumps(values, sort_keys=True)
    assert event["at"] == pytest.approx(coordinator.show(job).alterations[-1].at, abs=60)


def test_changing_a_number_to_a_boolean_is_a_change(coordinator: Coordinator) -> None:
    job, _ = retrying(coordinator, params={"flags": [1]})
    assert coordinator.client.alter(job, {"params.flags": [True]}).answer == "DONE"
    assert coordinator.show(job).alterations[-1].changes[0].new == [True]
    assert coordinator.client.alter(job, {"params.flags": [True]}).answer == "ALREADY"


def test_parameters_keep_their_types_through_every_way_of_change(coordinator: Coordinator) -> None:
    groups = [group("bad", retry=RETRY)]
    params = {
        "day": {"type": "date", "required": True},
        "limit": 10,
        "note": {"type": "text", "default": "x"},
    }
    spec = {"name": "job", "groups": groups, "params": params}
    with pytest.raises(SpecError, match=r"^params\.day: a value is required"):
        coordinator.client.submit(spec)
    with pytest.raises(
        SpecError,
        match=r"params\.day: expected a date such as 2013-12-31, not 'soon'\nparams\.limit: ",
    ):
        coordinator.client.submit(spec, params={"day": "soon", "limit": "many"})
    assert not coordinator.client.jobs()
    job = coordinator.client.submit(spec, params={"day": "2013-12-31"}).id
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer, failed())
    coordinator.read()
    assert order_of(coordinator, job) == {"day": "2013-12-31", "limit": 10, "note": "x"}

    for path, value in {"params.day": "tomorrow", "params.limit": "many", "params.note": 1}.items():
        with pytest.raises(SpecError, match=rf"^{path}: expected "):
            coordinator.client.alter(job, {path: value})
    with pytest.raises(SpecError, match=r"^params\.day: a value is required"):
        coordinator.client.alter(job, {"params.day": None})
    said = coordinator.client.alter(
        job, {"params.day": "2014-01-01", "params.limit": 20, "params.note": None}
    )
    assert said.answer == "DONE", said.text
    assert order_of(coordinator, job) == {"day": "2014-01-01", "limit": 20, "note": None}

    coordinator.client.force_stop(job)
    coordinator.read()
    with pytest.raises(SpecError, match=r"^params\.limit: expected a whole number"):
        coordinator.client.retry(job, params={"limit": "many"})
    again = coordinator.client.retry(job, params={"limit": 30}).id
    assert order_of(coordinator, again) == {"day": "2014-01-01", "limit": 30, "note": None}


def order_of(coordinator: Coordinator, job: str) -> dict[str, Any]:
    """The parameters that the runners of a job get from now on."""
    return dict(json.loads(str(coordinator.redis.hget(coordinator.keys.of(job).job, "params"))))


@pytest.mark.variant
@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({"params.password": "right"}, "REFUSED"),
        ({"groups.a.steps.0.params.x": 1}, "REFUSED"),
        ({"groups.a.conf.spark.sql.shuffle.partitions": "1"}, "REFUSED"),
        ({"groups.a.timeout": "2h"}, "DONE"),
        ({"groups.a.retry.max": 5}, "DONE"),
        ({"defaults.retry.max": 5}, "DONE"),
        ({"max_parallel": 1}, "DONE"),
        ({"groups.b.queue": "heavy"}, "DONE"),
        ({"groups.a.queue": "heavy"}, "REFUSED"),
        ({"name": "other"}, "REFUSED"),
    ],
    ids=str,
)
def test_while_running_only_policies_can_be_altered(
    coordinator: Coordinator, values: dict[str, Any], answer: str
) -> None:
    job = coordinator.submit(group("a"), group("b", "a"), **KEY)
    coordinator.read()
    coordinator.claim(coordinator.offers()[0])
    coordinator.read()
    said = coordinator.client.alter(job, values)
    assert said.answer == answer, said.text
    if answer == "REFUSED":
        assert "RUNNING" in said.text
    assert coordinator.events(job).count("USER_ALTER") == (answer == "DONE")
    act(coordinator, job)
    assert coordinator.client.alter(job, values).answer == (
        "ALREADY" if answer == "DONE" else "REFUSED"
    )


def test_a_fork_over_an_input_cannot_change_its_queue_before_its_values_are_read(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(OVER_AN_INPUT)
    coordinator.read()
    said = coordinator.client.alter(job, {"groups.f.queue": "other"})
    assert (
        said.answer,
        "groups.f.queue can change only while f-values is not queued" in said.text,
    ) == (
        "REFUSED",
        True,
    )
    coordinator.client.pause(job)
    act(coordinator, job)
    assert coordinator.client.alter(job, {"groups.f.queue": "other"}).answer == "DONE"
    coordinator.client.resume(job)
    act(coordinator, job)
    assert [
        (offer.group, order(coordinator, offer).group.queue) for offer in coordinator.offers()
    ] == [("f-values", "other")]


def test_a_paused_group_moves_to_another_queue_with_its_new_offer(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", queue="nobody"))
    coordinator.read()
    coordinator.offers()
    coordinator.client.pause(job)
    act(coordinator, job)
    assert coordinator.client.alter(job, {"groups.a.queue": "light"}).answer == "DONE"
    coordinator.client.resume(job)
    act(coordinator, job)
    events = [e for _, e in coordinator.client.events(job) if e["kind"] == "QUEUED"]
    assert [e["queue"] for e in events] == ["nobody", "light"]
    (offer,) = coordinator.redis.zrange(coordinator.keys.ready("light"), 0, -1)
    assert Offer.parse(offer).group == "a"
    assert not coordinator.redis.exists(coordinator.keys.ready("nobody"))
    assert coordinator.drive(job) is Status.FINISHED


def test_the_event_records_user_change_and_reason(coordinator: Coordinator) -> None:
    job, _ = retrying(coordinator)
    coordinator.client.alter(job, {"params.password": "right"}, reason="rotated", by="ann")
    (event,) = [e for _, e in coordinator.client.events(job) if e["kind"] == "USER_ALTER"]
    assert (event["by"], event["text"], event["was"]) == ("ann", "rotated", "RETRYING")
    assert event["changes"] == [{"path": "params.password", "old": "wrong", "new": "right"}]
    (alteration,) = coordinator.show(job).alterations
    assert (alteration.by, alteration.reason) == ("ann", "rotated")


# ---- skip and rerun
# ------------------------------------------------------------------------------------------------


def test_a_skipped_group_never_runs_and_its_successors_follow_their_rules(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(
        group("good"),
        group("bad", retry=RETRY),
        {**group("tolerant", "good", "bad"), "join": "none_failed"},
        group("strict", "bad"),
        on_failure="finish_others",
    )
    coordinator.read()
    offers = {offer.group: offer for offer in coordinator.offers()}
    coordinator.work(offers["bad"], failed())
    coordinator.read()
    assert coordinator.client.skip(job, "bad", reason="not today").answer == "DONE"
    assert coordinator.client.skip(job, "bad").answer == "ALREADY"
    coordinator.work(offers["good"])
    assert coordinator.drive(job) is Status.FINISHED
    view = {fork.name: fork.states for fork in coordinator.show(job).groups}
    assert view["bad"] == {"SKIPPED": 1}
    assert view["strict"] == {"SKIPPED": 1}
    assert view["tolerant"] == {"SUCCEEDED": 1}
    assert coordinator.events(job).count("USER_SKIP") == 1


def test_a_running_attempt_of_a_skipped_group_is_stale_even_if_it_succeeds(
    coordinator: Coordinator,
) -> None:
    job, offers = retrying(coordinator)
    assert coordinator.client.skip(job, "good").answer == "DONE"
    coordinator.finish(offers["good"].held_by("runner1"))  # before any coordinator has looked
    act(coordinator, job)
    assert states(coordinator, job)["good"] == "SKIPPED"
    assert coordinator.finish(offers["good"].held_by("runner1")) == "STALE"


def test_skip_and_rerun_are_refused_in_wrong_states(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a"), group("w", "a", for_each={"n": [1, 2]}))
    coordinator.read()
    for give in (coordinator.client.skip, coordinator.client.rerun):
        refused = give(job, "a")
        assert refused.answer == "REFUSED"
        assert "PAUSED, HALTED or RETRYING" in refused.text
        with pytest.raises(NoSuchGroup, match="has no group aa"):
            give(job, "aa")
        with pytest.raises(NoSuchGroup, match="2 members"):
            give(job, "w[7]")
    assert coordinator.drive(job) is Status.FINISHED
    assert "ended never changes" in coordinator.client.skip(job, "a").text


def test_a_rerun_repeats_the_group_and_its_successors_without_old_markers(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a"), group("b", "a"), group("c"), group("d", "b", "c"))
    coordinator.read()
    first = {offer.group: offer for offer in coordinator.offers()}
    fingerprint = order(coordinator, first["a"]).fingerprint
    coordinator.finish(first["a"].held_by("runner1"), staged(coordinator, first["a"], "a"))
    coordinator.work(first["c"])
    coordinator.read()
    (b,) = coordinator.offers()
    coordinator.claim(b)
    coordinator.read()
    coordinator.client.pause(job)
    act(coordinator, job)
    assert coordinator.status(job) is Status.PAUSING
    assert coordinator.client.rerun(job, "a").answer == "REFUSED", "b runs"
    coordinator.finish(b.held_by("runner1"))
    act(coordinator, job)
    assert coordinator.status(job) is Status.PAUSED

    said = coordinator.client.rerun(job, "a", reason="the source was wrong")
    assert (said.answer, "b" in said.text) == ("DONE", True)
    assert coordinator.client.rerun(job, "a").answer == "ALREADY"
    act(coordinator, job)
    assert states(coordinator, job) == {"c": "SUCCEEDED"}
    coordinator.client.resume(job)
    act(coordinator, job)
    (again,) = coordinator.offers()
    assert again.group == "a"
    assert coordinator.claim(first["a"], "late").answer == "REFUSED"
    assert order(coordinator, again).fingerprint != fingerprint
    coordinator.finish(again.held_by("runner1"), staged(coordinator, again, "a"))
    coordinator.read()
    (b2,) = coordinator.offers()
    assert order(coordinator, b2).frozen.inputs == {"a": (again.held_by("runner1").staging,)}, (
        "of the new attempt"
    )
    coordinator.finish(b2.held_by("runner1"))
    assert coordinator.drive(job) is Status.FINISHED


def test_one_member_of_a_fork_can_rerun_alone(coordinator: Coordinator) -> None:
    job = coordinator.submit(
        group("w", for_each={"n": [10, 20, 30]}), join("end", "w"), group("after", "end")
    )
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.work(offer)
    coordinator.read()
    coordinator.offers()
    coordinator.client.pause(job)
    act(coordinator, job)
    assert coordinator.client.rerun(job, "w[1]").answer == "DONE"
    coordinator.client.resume(job)
    act(coordinator, job)
    (again,) = coordinator.offers()
    assert (again.group, again.epoch) == ("w[1]", 2)
    assert order(coordinator, again).params["n"] == 20
    coordinator.finish(again.held_by("runner1"))
    assert coordinator.drive(job) is Status.FINISHED


@pytest.mark.parametrize(
    ("made_by", "groups"),
    [
        ("s", [group("s"), group("f", "s", for_each={"m": {"from": "s.c"}})]),
        ("f-values", [OVER_AN_INPUT]),
    ],
)
def test_a_dynamic_fork_is_expanded_again_after_a_rerun_of_its_source(
    coordinator: Coordinator, made_by: str, groups: list[dict[str, Any]]
) -> None:
    job = coordinator.submit(*groups, join("end", "f"))
    coordinator.read()
    (source,) = coordinator.offers()
    coordinator.work(source, replace(SUCCEEDED, forks={"s.c": [1, 2, 3]}))
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.work(offer)
    coordinator.client.pause(job)
    act(coordinator, job)
    assert coordinator.client.rerun(job, made_by).answer == "DONE"
    coordinator.client.resume(job)
    act(coordinator, job)
    (source,) = coordinator.offers()
    assert source.group == made_by
    coordinator.work(source, replace(SUCCEEDED, forks={"s.c": [7]}))
    coordinator.read()
    (member,) = coordinator.offers()
    assert order(coordinator, member).params["m"] == 7
    coordinator.finish(member.held_by("runner1"))
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.show(job).groups[1].total == 1


@pytest.mark.variant
def test_a_wide_rerun_is_split_into_commits_and_succeeds(coordinator: Coordinator) -> None:
    job = coordinator.submit(
        group("a"), group("w", "a", for_each={"n": list(range(1200))}), join("end", "w")
    )
    coordinator.read()
    while offers := coordinator.offers():
        for offer in offers:
            coordinator.work(offer)
        coordinator.read()
        if coordinator.show(job).groups[1].states.get(GroupState.SUCCEEDED, 0) > 1100:
            break
    coordinator.client.pause(job)
    act(coordinator, job)
    assert coordinator.status(job) is Status.PAUSED
    assert coordinator.client.rerun(job, "a").answer == "DONE"
    act(coordinator, job)
    assert not coordinator.redis.hlen(coordinator.keys.of(job).groups)
    assert not coordinator.redis.hlen(coordinator.keys.of(job).inputs)
    coordinator.offers()  # of before the pause: stale
    coordinator.client.resume(job)
    assert coordinator.drive(job) is Status.FINISHED


# ---- retry
# ---------------------------------------------------------------------------------------------------------


def failed_job(coordinator: Coordinator, **spec: Any) -> tuple[str, dict[str, str]]:
    """``a`` has succeeded, ``b`` has failed for good. Returns what each of them was given to do."""
    job = coordinator.submit(group("a"), group("b", "a", retry={"max": 0}), group("c", "b"), **spec)
    coordinator.read()
    prints = {}
    (a,) = coordinator.offers()
    prints["a"] = order(coordinator, a).fingerprint
    coordinator.finish(a.held_by("runner1"), staged(coordinator, a, "data"))
    coordinator.read()
    (b,) = coordinator.offers()
    prints["b"] = order(coordinator, b).fingerprint
    coordinator.finish(
        b.held_by("runner1"), Outcome(OutcomeKind.FAILED, failure=Failure("STEP_FAILED", "no"))
    )
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    return job, prints


def test_a_retry_is_a_new_job_whose_runners_find_the_old_markers(
    coordinator: Coordinator,
) -> None:
    job, prints = failed_job(coordinator, params={"year": 2013})
    before = coordinator.show(job)
    again = coordinator.client.retry(job, reason="the disk is back")
    assert again.new
    twice = coordinator.client.retry(job).submitted
    assert twice == replace(again.submitted, new=False), "asked twice, it is one new job"
    assert coordinator.show(job) == before, "and the old one stays as it ended"
    assert "RETRIED" in coordinator.events(job)
    new = coordinator.show(again.id)
    assert (new.retry_of, new.status) == (job, Status.PENDING)
    coordinator.read()
    (a,) = coordinator.offers(again.id)
    given = order(coordinator, a)
    assert given.plan.adopts == (job,)
    assert given.fingerprint == prints["a"]


@pytest.mark.claim("A retry with another parameter reuses no work that read the old value.")
def test_a_retry_with_another_parameter_reuses_no_work(
    coordinator: Coordinator,
) -> None:
    job, prints = failed_job(coordinator, params={"year": 2013})
    same, other = (
        coordinator.client.retry(job),
        coordinator.client.retry(job, params={"year": 2014}),
    )
    assert same.id != other.id
    coordinator.read()
    (a,) = coordinator.offers(other.id)
    assert order(coordinator, a).fingerprint != prints["a"]
    with pytest.raises(SpecError, match="yaer"):
        coordinator.client.retry(job, params={"yaer": 2014})


def test_only_an_unsuccessful_job_can_be_retried(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a"))
    with pytest.raises(Refused, match="PENDING"):
        coordinator.client.retry(job)
    assert coordinator.drive(job) is Status.FINISHED
    with pytest.raises(Refused, match="FINISHED"):
        coordinator.client.retry(job)


def test_a_retry_of_a_retry_finds_the_markers_of_both_jobs(coordinator: Coordinator) -> None:
    job, _ = failed_job(coordinator)
    second = coordinator.client.retry(job).id
    coordinator.client.cancel(second)
    act(coordinator, second)
    assert coordinator.status(second) is Status.CANCELED
    third = coordinator.client.retry(second).id
    coordinator.read()
    (a,) = coordinator.offers(third)
    assert order(coordinator, a).plan.adopts == (second, job)
