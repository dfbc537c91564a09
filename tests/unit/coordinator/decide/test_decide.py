"""How groups go: queueing and its limits, forks and joins, frozen inputs, offers, and what a
failure takes with it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs.job_in_memory import LEASE, LOST, NO_JITTER, Job, failure, group
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Decision, Environment
from unstuck.coordinator.model.records import AttemptRecord, Reason
from unstuck.coordinator.model.status import GroupState, IllegalMove, Status
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan

S = GroupState
WIDE = list(range(1200))


def offered(decision: Decision) -> list[str]:
    return [offer.group for offer in decision.offers]


def inputs(decision: Decision, name: str) -> dict[str, tuple[str, ...]]:
    return FrozenInputs.model_validate_json(decision.frozen[name]).inputs


# ---- limits
# --------------------------------------------------------------------------------------------------


def test_a_commit_has_at_most_500_transitions_and_the_rest_follow_immediately() -> None:
    job = Job(group("g", for_each={"n": WIDE}))
    counts = []
    for _ in range(3):
        decision = job.decide(dispatch_window=10_000)
        counts.append(decision.moves)
        assert decision.more == (len(counts) < 3)
        assert decision.due == job.now if decision.more else decision.due > job.now  # type: ignore[operator]
    assert counts == [500, 500, 200]


def test_groups_claimed_and_ended_count_twice_toward_the_limit_of_500() -> None:
    job = Job(group("g", for_each={"n": WIDE}), group("odd"))
    for _ in range(4):
        job.decide(dispatch_window=10_000)
    job.claim("odd")
    job.decide(["odd"])
    for name in list(job.state.attempts):
        job.claim(name)
        job.finish(name, failure())
    moves = []
    while (decision := job.decide(dispatch_window=10_000)).more:
        moves.append(decision.moves)
    assert max(moves) <= MAX_TRANSITIONS
    assert job.count(S.BACKOFF) == 1201


@pytest.mark.parametrize(
    "rest",
    [
        [group(f"g{i}", "first") for i in range(1199)],
        [group("wide", "first", for_each={"n": WIDE})],
        [group("running", for_each={"n": WIDE})],
    ],
    ids=["many groups", "one that never began", "all queued"],
)
def test_canceling_other_groups_respects_the_limit_of_500(rest: list[dict[str, Any]]) -> None:
    job = Job(group("first", retry={"max": 0}), *rest)
    for _ in range(4):
        job.decide(dispatch_window=10_000)
    decision = job.run("first", failure())
    moves = [decision.moves]
    while decision.more:
        decision = job.decide()
        moves.append(decision.moves)
    assert max(moves) <= MAX_TRANSITIONS
    assert job.status() is Status.FAILED
    assert not job.state.attempts


def test_the_window_limits_unclaimed_offers_per_queue() -> None:
    job = Job(
        group("a", for_each={"n": [1, 2, 3, 4]}),
        group("b", for_each={"n": [1, 2, 3]}, queue="heavy"),
    )
    assert offered(job.decide(dispatch_window=2)) == ["a[0]", "a[1]", "b[0]", "b[1]"]
    job.claim("a[0]")
    assert offered(job.decide(dispatch_window=2)) == ["a[2]"], (
        "a claimed offer makes room, on its own queue"
    )


def test_the_window_grows_with_listening_slots_and_is_at_least_64() -> None:
    job = Job(group("g", for_each={"n": WIDE}))
    assert len(job.decide().offers) == 64
    assert len(job.decide(runners={"spark": 100}).offers) == 400 - 64


def test_max_parallel_counts_every_unfinished_attempt() -> None:
    job = Job(group("g", for_each={"n": [1, 2, 3, 4]}), max_parallel=2)
    assert len(job.decide().offers) == 2
    job.claim("g[0]", "g[1]")
    assert not job.decide().offers
    assert offered(job.run("g[0]")) == ["g[2]"]


def test_retries_precede_groups_that_never_ran() -> None:
    job = Job(group("g", for_each={"n": [1, 2, 3]}, retry=NO_JITTER), max_parallel=1)
    job.decide()
    job.run("g[0]", failure())
    assert job.states() == {"g[0]": "BACKOFF", "g[1]": "QUEUED"}
    job.now += 10.0
    assert offered(job.run("g[1]")) == ["g[0]"]


def test_retries_waiting_for_capacity_run_in_order_of_their_due_time() -> None:
    job = Job(group("g", for_each={"n": [1, 2, 3, 4]}, retry=NO_JITTER), max_parallel=2)
    job.decide()
    for failing in ("g[1]", "g[0]"):
        job.run(failing, failure())
        job.now += 1.0
    job.claim("g[3]")
    job.now += 10.0
    assert offered(job.run("g[2]")) == ["g[1]"]
    assert offered(job.run("g[1]")) == ["g[0]"]


# ---- offers
# ---------------------------------------------------------------------------------------------------


def test_an_unclaimed_offer_is_repeated_as_the_same_offer() -> None:
    job = Job(group("a"), group("b", "a", for_each={"n": [1, 2, 3]}), group("c"))
    first = job.decide().offers
    job.now += 3.0
    first |= job.run("a").offers  # b[...] are queued three seconds after c
    job.now += 7.0
    assert offered(job.decide()) == ["c"]
    job.now += 3.0
    again = job.decide()
    assert offered(again) == ["c", "b[0]", "b[1]", "b[2]"]
    assert again.offers.items() <= first.items(), (
        "the same offers on the same queues, not new attempts"
    )
    assert again.empty, "nothing of it is put on record"
    job.claim("c", "b[1]")
    assert offered(job.decide()) == ["b[0]", "b[2]"]


def test_an_offer_is_not_repeated_before_its_time() -> None:
    job = Job(group("a"))
    job.decide()
    job.now += 9.9
    assert not job.decide().offers
    job.now += 0.2
    assert len(job.decide().offers) == 1


def test_a_resume_repeats_every_unclaimed_offer_immediately() -> None:
    """Runners that took them while the job was paused or halted have dropped them."""
    for halted in (None, Reason("UNDECIDABLE", "a bug")):
        job = Job(group("a"), group("b"))
        job.decide()
        job.claim("b")
        if halted is None:
            job.tell("pause")  # and nobody looks before the resume
        else:
            job.state.job = replace(job.state.job, halted=halted, status=Status.HALTED)
        job.now += 1.0
        job.tell("resume")
        decision = job.decide()
        assert offered(decision) == ["a"]
        assert job.states() == {"a": "QUEUED", "b": "RUNNING"}
        assert not job.decide().offers, "once"


@pytest.mark.parametrize("given", ["pause", "stop", "cancel", "force-stop"])
def test_a_withdrawn_unclaimed_offer_leaves_its_queue(given: str) -> None:
    job = Job(group("a"), group("b", queue="heavy"), group("c"))
    offers = job.decide().offers
    job.claim("c")
    job.tell(given)
    decision = job.decide()
    assert not decision.offers
    assert decision.withdrawn == {
        offer: queue for offer, queue in offers.items() if offer.group in ("a", "b")
    }
    assert set(decision.withdrawn.values()) == {"spark", "heavy"}


def test_a_missing_attempt_record_is_repaired() -> None:
    """A store restored in part: an unclaimed attempt is offered again, a running one counts as
    lost.
    """
    job = Job(group("a"), group("b"))
    job.decide()
    job.claim("b")
    job.decide()
    job.state.attempts.clear()
    decision = job.decide()
    assert decision.offered["a"] == AttemptRecord(1, "n1", spark=True)
    assert job.record("a").state is S.QUEUED
    assert (job.record("b").epoch, job.record("b").losses) == (2, 1)
    assert job.record("b").last_error is not None
    assert job.record("b").last_error.code == "ATTEMPT_GONE"  # type: ignore[union-attr]


# ---- forks
# ---------------------------------------------------------------------------------------------------


def test_an_empty_fork_is_skipped_with_a_reason_and_its_join_decides() -> None:
    job = Job(
        group("none", for_each={"n": []}),
        group("all", "none"),
        group("fine", "none", join="none_failed"),
    )
    job.decide()
    assert job.states() == {"all": "SKIPPED", "fine": "QUEUED", "none": "SKIPPED"}
    assert job.reason("none").code == "EMPTY_FORK"
    assert job.reason("all").code == "UPSTREAM_SKIPPED"


def test_a_dynamic_fork_runs_one_member_per_collected_value() -> None:
    job = Job(group("a"), group("d", "a", for_each={"month": {"from": "a.month"}}))
    job.decide()
    decision = job.run("a", forks={"a.month": [3, 7]})
    assert offered(decision) == ["d[0]", "d[1]"]
    assert decision.collected == {"d": (3, 7)}
    assert [json.loads(decision.frozen[f"d[{i}]"])["value"] for i in (0, 1)] == [3, 7]


def test_an_outcome_that_feeds_more_forks_than_a_commit_holds_is_accepted() -> None:
    forks = [group(f"d{n}", "a", for_each={"month": {"from": "a.month"}}) for n in range(600)]
    job = Job(group("a"), *forks)
    job.decide()
    decision = job.run("a", forks={"a.month": [3]})
    assert job.states()["a"] == "SUCCEEDED"
    assert len(decision.collected) == 600
    for _ in range(20):
        if not decision.more:
            break
        decision = job.decide()
    assert not decision.more
    assert job.count(GroupState.QUEUED) == 64, "as many as are offered at once"


def test_an_outcome_that_feeds_too_many_forks_does_not_block_later_outcomes() -> None:
    """A look that ends where there is no room for it would starve the others while each look finds
    a fresh claim.
    """
    forks = [group(f"d{n}", "a", for_each={"n": {"from": f"a.c{n}"}}) for n in range(498)]
    job = Job(group("a"), group("w", for_each={"n": list(range(10))}), *forks)
    job.decide()
    for name in ("a", "w[0]"):
        job.claim(name)
        job.decide()
    job.finish("w[0]", Outcome(OutcomeKind.SUCCEEDED))
    job.claim("w[1]")
    job.decide()
    assert job.record("w[0]").state is GroupState.SUCCEEDED


def test_a_fork_over_a_missing_column_fails_with_a_reason() -> None:
    job = Job(group("a"), group("d", "a", for_each={"month": {"from": "a.month"}}))
    job.decide()
    job.run("a")
    assert job.reason("d").code == "FORK_SOURCE_MISSING"
    assert job.status() is Status.FAILED


def test_a_fork_waits_for_its_values_although_its_join_is_satisfied() -> None:
    """any_succeeded holds with the other need; the values are still being made.

    Found by the simulator.
    """
    job = Job(
        group("a"),
        group("b"),
        group("d", "a", "b", join="any_succeeded", for_each={"n": {"from": "a.n"}}),
    )
    job.decide()
    job.run("b")
    assert "d" not in job.states()
    job.run("a", forks={"a.n": [1]})
    assert job.record("d[0]").state is S.QUEUED


def test_a_fork_without_values_fails_after_every_need_has_ended() -> None:
    job = Job(
        group("a", retry={"max": 0}),
        group("b"),
        group("d", "a", "b", join="any_succeeded", for_each={"n": {"from": "a.n"}}),
    )
    job.decide()
    job.run("b")
    job.run("a", failure())
    assert job.reason("d").code == "FORK_SOURCE_MISSING"


def test_the_data_a_runner_reads_per_claim_does_not_grow_with_the_fork() -> None:
    sizes = []
    for width in (1, 10_000):
        plans = Job(group("g", for_each={"n": list(range(width))})).plan.group_plans("/w", None)
        assert GroupPlan.model_validate_json(plans["g"]).group.fork_params == ("n",)
        sizes.append(len(plans["g"]))
    assert sizes[0] == sizes[1]


# ---- inputs
# --------------------------------------------------------------------------------------------------


def test_inputs_are_fixed_once_for_all_later_attempts() -> None:
    job = Job(
        group("a"), group("b"), group("c", "a", "b", join="any_succeeded", retry={"backoff": 0})
    )
    job.decide()
    first = job.run("a")
    assert inputs(first, "c") == {"a": ("_staging/j/a/1",), "b": ()}
    job.run("b")
    again = job.run("c", failure())
    assert offered(again) == ["c"]
    assert "c" not in again.frozen, "b has succeeded since, and c must go on reading what it read"


def test_inputs_are_read_through_joins() -> None:
    job = Job(
        group("a", for_each={"n": [1, 2]}),
        group("b"),
        group("inner", "a", "b", steps=[]),
        group("outer", "inner", steps=[]),
        group("last", "outer"),
    )
    job.decide()
    for name in ("a[1]", "b"):
        job.run(name)
    assert inputs(job.run("a[0]"), "last") == {
        "a": ("_staging/j/a[0]/1", "_staging/j/a[1]/1"),
        "b": ("_staging/j/b/1",),
    }


def test_members_of_a_fork_share_one_input_entry() -> None:
    job = Job(group("a", for_each={"n": [1, 2]}), group("b", "a", for_each={"m": [7, 8]}))
    job.decide()
    job.run("a[0]")
    decision = job.run("a[1]")
    assert set(decision.frozen) == {"b", "b[0]", "b[1]"}
    assert len(inputs(decision, "b")["a"]) == 2
    assert not inputs(decision, "b[0]")


# ---- joins and failures
# ---------------------------------------------------------------------------------------


def test_a_failure_cancels_other_groups_and_makes_their_attempts_stale() -> None:
    job = Job(group("a", retry={"max": 0}), group("b"), group("c"), group("d", "c"))
    job.decide()
    job.claim("b")
    job.decide()
    decision = job.run("a", failure())
    assert job.states() == {"a": "FAILED", "b": "CANCELED", "c": "CANCELED", "d": "CANCELED"}
    assert set(decision.dropped) == {"a", "b", "c"}
    assert job.reason("b").code == "SIBLING_FAILED"
    assert job.status() is Status.FAILED
    assert decision.due is None


def test_with_finish_others_independent_groups_continue_after_a_failure() -> None:
    job = Job(
        group("a", retry={"max": 0}),
        group("b"),
        group("after_a", "a"),
        group("after_b", "b"),
        on_failure="finish_others",
    )
    job.decide()
    job.run("a", failure())
    assert job.states() == {"a": "FAILED", "after_a": "SKIPPED", "b": "QUEUED"}
    job.run("b")
    assert job.status() is Status.RUNNING
    job.run("after_b")
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert "group a failed: BOOM" in job.state.job.reason.text


def test_a_failure_tolerated_by_its_successors_does_not_fail_the_job() -> None:
    job = Job(group("a", retry={"max": 0}), group("b"), group("c", "a", "b", join="all_done"))
    job.decide()
    job.run("a", failure())
    assert job.record("b").state is S.QUEUED
    job.run("b")
    assert job.run("c").publish


def test_an_unreachable_quorum_fails_immediately_and_cancels_other_groups() -> None:
    job = Job(
        group("a", retry={"max": 0}),
        group("b"),
        group("long"),
        group("two", "a", "b", steps=[], join={"at_least": 2}),
    )
    job.decide()
    job.run("a", failure())
    assert job.reason("two").code == "JOIN_IMPOSSIBLE"
    assert job.record("long").state is S.CANCELED
    assert job.status() is Status.FAILED


def test_a_failed_optional_group_does_not_fail_the_job_but_counts_in_joins() -> None:
    job = Job(
        group("extra", retry={"max": 0}, optional=True),
        group("main"),
        group("strict", "extra"),
        group("lenient", "extra", "main", steps=[], join="all_done"),
    )
    job.decide()
    job.run("extra", failure())
    assert job.record("strict").state is S.SKIPPED
    assert job.record("main").state is S.QUEUED, "nothing is canceled"
    job.run("main")
    assert job.record("lenient").state is S.SUCCEEDED
    assert job.state.job.phase == "publishing", "the job is about to finish well"


def test_an_illegal_move_is_refused_before_it_is_stored() -> None:
    job = Job(group("a"))
    job.decide()
    job.state.put("a", replace(job.record("a"), state=S.SUCCEEDED))
    job.state.joins_judged = False
    job.state.by_state[S.BACKOFF]["a"] = None  # a state that lies, as after a bug
    with pytest.raises(IllegalMove, match="group a: SUCCEEDED → QUEUED"):
        job.decide()


def test_an_ended_job_gets_no_decisions() -> None:
    job = Job(group("a", retry={"max": 0}))
    job.decide()
    job.run("a", failure())
    assert job.status() is Status.FAILED
    after = decide(job.state, None, Environment(now=job.now + 100, nonce="late"))
    assert after.empty
    assert after.due is None


# ---- due
# -----------------------------------------------------------------------------------------------------


def test_every_wait_is_due_at_its_end() -> None:
    job = Job(group("a", retry=NO_JITTER))
    assert job.decide().due == job.now + 10.0, "the offer's dispatch_timeout"
    job.claim("a")
    assert job.decide(dispatch_timeout=60.0).due == pytest.approx(job.now + LEASE, abs=0.05), (
        "the lease"
    )
    decision = job.run("a", failure())
    assert decision.due == job.record("a").next_at == job.now + 10.0, "the backoff"
    job.now += 10.0
    job.decide()
    decision = job.run("a")
    assert decision.due == job.now + 30.0, "publishing is looked at again"


def test_a_lease_about_to_expire_is_checked_when_it_expires() -> None:
    """Found by the simulator (seed 21846): a look just before put the next one off by half a
    second, past a sweep.
    """
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    lapses = job.now + LEASE
    job.now = lapses - 0.2
    assert job.decide(dispatch_timeout=60.0).due == pytest.approx(lapses, abs=0.05)


def test_overdue_work_that_must_wait_is_checked_again_soon_but_not_in_a_loop() -> None:
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.decide()
    job.now += LEASE + 1
    assert job.decide(takeover=False).due == job.now + 0.5


def test_a_job_with_a_lost_worker_is_shown_as_retrying_with_the_reason() -> None:
    job = Job(group("a"))
    job.decide()
    assert job.status() is Status.PENDING
    job.claim("a")
    job.decide()
    assert job.status() is Status.RUNNING
    job.run("a", LOST)
    assert job.status() is Status.RETRYING
    job.run("a")
    assert job.status() is Status.RUNNING
