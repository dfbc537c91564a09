"""Alter, skip, rerun and retry: what a person may still change of a job that has begun, and what stays as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.guarantees.shown_is_true.test_states import staged
from tests.guarantees.users_word_is_final.test_commands import act
from tests.support.coordinator import SUCCEEDED, Head, failed, group, join
from unstuck.coordinator.errors import NoSuchGroup, Refused
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.spec.model import SpecError
from unstuck.tasks.protocol.group import WorkOrder
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Hint

RETRY = {"max": 3, "backoff": "1h", "jitter": 0}
KEY = {"params": {"password": "wrong"}}


def order(head: Head, hint: Hint, claimant: str = "runner1") -> WorkOrder:
    """What a runner that claims ``hint`` is to do."""
    claim = head.claim(hint, claimant)
    assert claim.answer == "CLAIMED"
    assert claim.order is not None
    return claim.order


def states(head: Head, job: str) -> dict[str, str]:
    return {
        member.id: str(member.state) for fork in head.show(job).groups for member in fork.members if member.record.epoch
    } | {fork.name: "SKIPPED" for fork in head.show(job).groups if fork.census.get("SKIPPED")}


def retrying(head: Head, **spec: Any) -> tuple[str, dict[str, Hint]]:
    """``bad`` has failed once and waits an hour; ``good`` runs its first attempt."""
    job = head.submit(group("good"), group("bad", retry=RETRY), group("end", "good", "bad"), **{**KEY, **spec})
    head.read()
    hints = {hint.group: hint for hint in head.hints()}
    head.work(hints["bad"], failed())
    head.claim(hints["good"])
    head.read()
    assert head.status(job) is Status.RETRYING
    return job, hints


# ---- alter ---------------------------------------------------------------------------------------------------------


def test_fixed_credentials_are_used_by_the_next_attempt_and_healthy_siblings_are_left_alone(head: Head) -> None:
    job, hints = retrying(head)
    answer = head.client.alter(job, {"params.password": "right"}, reason="rotated")
    assert answer.answer == "DONE", answer.text
    act(head, job)
    assert head.lease.renew(hints["good"].held_by("runner1"), "w") == "CONTINUE", "good runs on"
    assert head.finish(hints["good"].held_by("runner1")) == "APPLIED"

    head.client.pause(job)
    act(head, job)
    head.client.resume(job)  # nobody waits out an hour
    act(head, job)
    (again,) = head.hints()
    assert (again.group, again.epoch) == ("bad", 2)
    assert order(head, again).params["password"] == "right"
    view = head.show(job)
    assert [g.members[0].record.revision for g in view.groups[:2] if g.members] == [0, 0]
    head.read()
    assert head.show(job).groups[1].members[0].record.revision == 1, "and the record says what it ran with"


def test_an_attempt_in_recovery_that_runs_is_ended_and_started_with_the_new_values(head: Head) -> None:
    job, hints = retrying(head)
    head.client.pause(job)
    head.client.resume(job)
    head.redis.hset(head.keys.of(job).job, "renewed", "")  # keep its failure: it is in recovery, and its time has come
    record = json.loads(head.redis.hget(head.keys.of(job).groups, "bad"))
    head.redis.hset(head.keys.of(job).groups, "bad", json.dumps({**record, "next_at": 1}))
    act(head, job)
    (second,) = head.hints()
    order(head, second)
    head.read()
    assert head.status(job) is Status.RETRYING

    assert head.client.alter(job, {"params.password": "right"}).answer == "DONE"
    act(head, job)
    assert head.lease.renew(second.held_by("runner1"), "w") == "STALE", "its watchdog ends it"
    assert head.finish(second.held_by("runner1"), failed()) == "STALE"
    (third,) = head.hints()
    assert (third.group, third.epoch) == ("bad", 3)
    assert order(head, third, "runner2").params["password"] == "right"
    assert head.lease.renew(hints["good"].held_by("runner1"), "w") == "CONTINUE"
    record = head.show(job).groups[1].members[0].record
    assert record.failures == 1, "being altered is charged to nobody"


def test_one_good_and_one_bad_field_change_nothing(head: Head) -> None:
    job, _ = retrying(head)
    before = head.show(job).job
    with pytest.raises(SpecError, match="timeout"):
        head.client.alter(job, {"params.password": "right", "groups.bad.timeout": "soon"})
    with pytest.raises(SpecError, match=r"groups\.bda.*did you mean 'bad'"):
        head.client.alter(job, {"params.password": "right", "groups.bda.timeout": "1h"})
    refused = head.client.alter(job, {"params.password": "right", "groups.bad.needs": ["good"]})
    assert refused.answer == "REFUSED"
    assert "groups.bad.needs is part of the job's shape" in refused.text
    assert head.show(job).job == before
    assert "USER_ALTER" not in head.events(job)


@pytest.mark.parametrize(
    "values",
    [
        *({"groups.bad.timeout": text} for text in ("99999999d", "9" * 400 + "d", "1h1h", "1e-07", 1e300, True)),
        *({f"groups.bad.steps.{part}.timeout": 5} for part in ("²", "٣", "7" * 5000, "-1")),
        {"groups.bad.retry.max": True},
        {"publish.name.x": 1},
        {"params.x": float("nan")},
    ],
    ids=lambda values: repr(values)[:50],
)
def test_what_could_not_be_read_back_is_refused_and_the_job_stays_as_it_was(head: Head, values: dict[str, Any]) -> None:
    job, _ = retrying(head, publish=["named_o"])
    before = head.show(job).job
    with pytest.raises(SpecError):
        head.client.alter(job, values)
    assert head.show(job).job == before
    assert head.client.cancel(job).answer == "DONE"
    act(head, job)
    assert head.status(job) is Status.CANCELING


def test_a_number_that_becomes_a_truth_value_is_a_change(head: Head) -> None:
    job, _ = retrying(head, params={"password": 1})
    assert head.client.alter(job, {"params.password": True}).answer == "DONE"
    assert head.show(job).job.alterations[-1].changes[0].new is True
    assert head.client.alter(job, {"params.password": True}).answer == "ALREADY"


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
def test_in_running_only_policy_can_be_altered(head: Head, values: dict[str, Any], answer: str) -> None:
    job = head.submit(group("a"), group("b", "a"), **KEY)
    head.read()
    head.claim(head.hints()[0])
    head.read()
    said = head.client.alter(job, values)
    assert said.answer == answer, said.text
    if answer == "REFUSED":
        assert "RUNNING" in said.text
    assert head.events(job).count("USER_ALTER") == (answer == "DONE")
    act(head, job)
    assert head.client.alter(job, values).answer == ("ALREADY" if answer == "DONE" else "REFUSED")


def test_a_paused_group_moves_to_another_queue_and_its_new_hint_goes_there(head: Head) -> None:
    job = head.submit(group("a", queue="nobody"))
    head.read()
    head.hints()
    head.client.pause(job)
    act(head, job)
    assert head.client.alter(job, {"groups.a.queue": "light"}).answer == "DONE"
    head.client.resume(job)
    act(head, job)
    events = [e for _, e in head.client.queries.events(job) if e["kind"] == "QUEUED"]
    assert [e["queue"] for e in events] == ["nobody", "light"]
    assert head.drive(job) is Status.FINISHED


def test_the_event_says_who_altered_what_and_why(head: Head) -> None:
    job, _ = retrying(head)
    head.client.alter(job, {"params.password": "right"}, reason="rotated", by="ann")
    (event,) = [e for _, e in head.client.queries.events(job) if e["kind"] == "USER_ALTER"]
    assert (event["by"], event["text"], event["was"]) == ("ann", "rotated", "RETRYING")
    assert event["changes"] == [{"path": "params.password", "old": "wrong", "new": "right"}]
    (alteration,) = head.show(job).job.alterations
    assert (alteration.by, alteration.reason) == ("ann", "rotated")


# ---- skip and rerun ------------------------------------------------------------------------------------------------


def test_a_skipped_group_never_runs_and_what_comes_after_goes_by_its_rule(head: Head) -> None:
    job = head.submit(
        group("good"),
        group("bad", retry=RETRY),
        {**group("tolerant", "good", "bad"), "join": "none_failed"},
        group("strict", "bad"),
        on_failure="finish_others",
    )
    head.read()
    hints = {hint.group: hint for hint in head.hints()}
    head.work(hints["bad"], failed())
    head.read()
    assert head.client.skip(job, "bad", reason="not today").answer == "DONE"
    assert head.client.skip(job, "bad").answer == "ALREADY"
    head.work(hints["good"])
    assert head.drive(job) is Status.FINISHED
    view = {fork.name: fork.census for fork in head.show(job).groups}
    assert view["bad"] == {"SKIPPED": 1}
    assert view["strict"] == {"SKIPPED": 1}
    assert view["tolerant"] == {"SUCCEEDED": 1}
    assert head.events(job).count("USER_SKIP") == 1


def test_a_running_attempt_that_is_skipped_is_stale_although_it_succeeds(head: Head) -> None:
    job, hints = retrying(head)
    assert head.client.skip(job, "good").answer == "DONE"
    head.finish(hints["good"].held_by("runner1"))  # before any coordinator has looked
    act(head, job)
    assert states(head, job)["good"] == "SKIPPED"
    assert head.finish(hints["good"].held_by("runner1")) == "STALE"


def test_skip_and_rerun_are_refused_where_they_make_no_sense(head: Head) -> None:
    job = head.submit(group("a"), group("w", "a", for_each={"n": [1, 2]}))
    head.read()
    for give in (head.client.skip, head.client.rerun):
        refused = give(job, "a")
        assert refused.answer == "REFUSED"
        assert "PAUSED or RETRYING" in refused.text
        with pytest.raises(NoSuchGroup, match="has no group aa"):
            give(job, "aa")
        with pytest.raises(NoSuchGroup, match="2 members"):
            give(job, "w[7]")
    assert head.drive(job) is Status.FINISHED
    assert "ended never changes" in head.client.skip(job, "a").text


def test_a_rerun_runs_the_group_and_what_comes_after_it_anew_and_no_marker_of_before_counts(head: Head) -> None:
    job = head.submit(group("a"), group("b", "a"), group("c"), group("d", "b", "c"))
    head.read()
    first = {hint.group: hint for hint in head.hints()}
    fingerprint = order(head, first["a"]).fingerprint
    head.finish(first["a"].held_by("runner1"), staged(head, first["a"], "a"))
    head.work(first["c"])
    head.read()
    (b,) = head.hints()
    head.claim(b)
    head.read()
    head.client.pause(job)
    act(head, job)
    assert head.status(job) is Status.PAUSING
    assert head.client.rerun(job, "a").answer == "REFUSED", "b runs"
    head.finish(b.held_by("runner1"))
    act(head, job)
    assert head.status(job) is Status.PAUSED

    said = head.client.rerun(job, "a", reason="the source was wrong")
    assert (said.answer, "b" in said.text) == ("DONE", True)
    assert head.client.rerun(job, "a").answer == "ALREADY"
    act(head, job)
    assert states(head, job) == {"c": "SUCCEEDED"}
    head.client.resume(job)
    act(head, job)
    (again,) = head.hints()
    assert again.group == "a"
    assert head.claim(first["a"], "late").answer == "STALE"
    assert order(head, again).fingerprint != fingerprint
    head.finish(again.held_by("runner1"), staged(head, again, "a"))
    head.read()
    (b2,) = head.hints()
    assert order(head, b2).frozen.inputs == {"a": (again.held_by("runner1").staging,)}, "of the new attempt"
    head.finish(b2.held_by("runner1"))
    assert head.drive(job) is Status.FINISHED


def test_one_member_of_a_fork_runs_again_alone(head: Head) -> None:
    job = head.submit(group("w", for_each={"n": [10, 20, 30]}), join("end", "w"), group("after", "end"))
    head.read()
    for hint in head.hints():
        head.work(hint)
    head.read()
    head.hints()
    head.client.pause(job)
    act(head, job)
    assert head.client.rerun(job, "w[1]").answer == "DONE"
    head.client.resume(job)
    act(head, job)
    (again,) = head.hints()
    assert (again.group, again.epoch) == ("w[1]", 2)
    assert order(head, again).params["n"] == 20
    head.finish(again.held_by("runner1"))
    assert head.drive(job) is Status.FINISHED


def test_a_dynamic_fork_is_expanded_anew_after_a_rerun_of_its_source(head: Head) -> None:
    job = head.submit(group("s"), group("f", "s", for_each={"m": {"from": "s.c"}}), join("end", "f"))
    head.read()
    (source,) = head.hints()
    head.work(source, replace(SUCCEEDED, forks={"s.c": [1, 2, 3]}))
    head.read()
    for hint in head.hints():
        head.work(hint)
    head.client.pause(job)
    act(head, job)
    assert head.client.rerun(job, "s").answer == "DONE"
    head.client.resume(job)
    act(head, job)
    (source,) = head.hints()
    assert source.group == "s"
    head.work(source, replace(SUCCEEDED, forks={"s.c": [7]}))
    head.read()
    (member,) = head.hints()
    assert order(head, member).params["m"] == 7
    head.finish(member.held_by("runner1"))
    assert head.drive(job) is Status.FINISHED
    assert head.show(job).groups[1].total == 1


def test_a_wide_rerun_is_cut_into_commits_and_ends_well(head: Head) -> None:
    job = head.submit(group("a"), group("w", "a", for_each={"n": list(range(1200))}), join("end", "w"))
    head.read()
    while hints := head.hints():
        for hint in hints:
            head.work(hint)
        head.read()
        if head.show(job).groups[1].census.get(GroupState.SUCCEEDED, 0) > 1100:
            break
    head.client.pause(job)
    act(head, job)
    assert head.status(job) is Status.PAUSED
    assert head.client.rerun(job, "a").answer == "DONE"
    act(head, job)
    assert not head.redis.hlen(head.keys.of(job).groups)
    assert not head.redis.hlen(head.keys.of(job).inputs)
    head.hints()  # of before the pause: stale
    head.client.resume(job)
    assert head.drive(job) is Status.FINISHED


# ---- retry ---------------------------------------------------------------------------------------------------------


def failed_job(head: Head, **spec: Any) -> tuple[str, dict[str, str]]:
    """``a`` has succeeded, ``b`` has failed for good. Returns what each of them was given to do."""
    job = head.submit(group("a"), group("b", "a", retry={"max": 0}), group("c", "b"), **spec)
    head.read()
    prints = {}
    (a,) = head.hints()
    prints["a"] = order(head, a).fingerprint
    head.finish(a.held_by("runner1"), staged(head, a, "data"))
    head.read()
    (b,) = head.hints()
    prints["b"] = order(head, b).fingerprint
    head.finish(b.held_by("runner1"), Outcome(OutcomeKind.FAILED, failure=Failure("STEP_FAILED", "no")))
    head.read()
    assert head.status(job) is Status.FAILED
    return job, prints


def test_a_retry_is_a_new_job_whose_runners_find_the_markers_of_the_old(head: Head) -> None:
    job, prints = failed_job(head, params={"year": 2013})
    before = head.show(job).job
    again = head.client.retry(job, reason="the disk is back")
    assert again.new
    assert head.client.retry(job) == replace(again, new=False), "asked twice, it is one new job"
    assert head.show(job).job == before, "and the old one stays as it ended"
    assert "RETRIED" in head.events(job)
    new = head.show(again.id).job
    assert (new.retry_of, new.status) == (job, Status.PENDING)
    head.read()
    (a,) = head.hints(again.id)
    given = order(head, a)
    assert given.plan.adopts == (job,)
    assert given.fingerprint == prints["a"]


def test_a_retry_with_another_parameter_is_another_job_and_other_work(head: Head) -> None:
    job, prints = failed_job(head, params={"year": 2013})
    same, other = head.client.retry(job), head.client.retry(job, params={"year": 2014})
    assert same.id != other.id
    head.read()
    (a,) = head.hints(other.id)
    assert order(head, a).fingerprint != prints["a"]
    with pytest.raises(SpecError, match="yaer"):
        head.client.retry(job, params={"yaer": 2014})


def test_only_a_job_that_ended_badly_can_be_retried(head: Head) -> None:
    job = head.submit(group("a"))
    with pytest.raises(Refused, match="PENDING"):
        head.client.retry(job)
    assert head.drive(job) is Status.FINISHED
    with pytest.raises(Refused, match="FINISHED"):
        head.client.retry(job)


def test_a_retry_of_a_retry_finds_the_markers_of_both(head: Head) -> None:
    job, _ = failed_job(head)
    second = head.client.retry(job).id
    head.client.cancel(second)
    act(head, second)
    assert head.status(second) is Status.CANCELED
    third = head.client.retry(second).id
    head.read()
    (a,) = head.hints(third)
    assert order(head, a).plan.adopts == (second, job)
