"""What a decision makes of a command, where histories of the simulator and readers of the code
found it going wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.jobs.job_in_memory import LEASE, LOST, Job, failure, group
from unstuck.coordinator.command_table import Answer, Order
from unstuck.coordinator.commands.group_commands import rerun, skip
from unstuck.coordinator.commands.job_commands import Commanded, command, status_has_followed
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Environment, PublishResult
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.spec.work_order import GroupPlan

S = GroupState
RETRY = {"max": 1, "backoff": 60.0, "jitter": 0.0}
ENDING = {
    "stop": Status.STOPPED,
    "cancel": Status.CANCELED,
    "force-stop": Status.CANCELED,
}


def ask(job: Job, given: str) -> None:
    """The command as its script writes it."""
    asked = command(job.state.job, given)
    assert asked.answer is Answer.DONE
    job.state.job = replace(asked.job, intent_at=job.now, intent_by="ada")


@pytest.mark.parametrize("outcome", [failure(), LOST], ids=["failed", "lost"])
def test_a_failure_before_a_pending_resume_is_charged_to_its_budget(
    outcome: Outcome,
) -> None:
    """Found by the simulator: the attempt ended after the resume, and the coordinator saw both at
    once.
    """
    job = Job(group("a", retry=RETRY, worker_losses=2))
    job.decide()
    job.run("a", outcome)
    job.now += 100.0
    job.decide()
    job.claim("a")
    job.decide()
    ask(job, "pause")
    job.decide()
    ask(job, "resume")
    job.finish("a", outcome)
    job.decide()
    assert job.record("a").state in (S.BACKOFF, S.QUEUED)
    assert job.record("a").failures + job.record("a").losses == 1
    assert job.status() is Status.RETRYING


def test_a_group_withdrawn_by_a_pause_is_not_shown_as_paused_after_the_resume() -> None:
    """Found by the simulator: there was no room for it yet, and it was said to wait for a
    resume.
    """
    job = Job(group("a", for_each={"n": [1, 2]}), max_parallel=2)
    job.decide()
    ask(job, "pause")
    job.decide()
    assert job.reason("a[0]").code == "USER_PAUSED"
    ask(job, "resume")
    env = Environment(now=job.now, nonce="")
    assert not [told for told in explain(job.state, env, None) if "paused" in told.what], (
        "before it was decided"
    )
    decision = job.decide(dispatch_window=1)
    assert job.states() == {"a[0]": "QUEUED", "a[1]": "WAITING"}
    assert job.record("a[0]").reason is job.record("a[1]").reason is None
    assert "USER_PAUSED" not in [event.get("code") for event in decision.events]
    told = {
        told.subject: told.what
        for told in explain(job.state, replace(env, dispatch_window=1), None)
    }
    assert "1 of its offers stand ready on queue spark already" in told["a"]


def test_a_resume_ends_every_backoff() -> None:
    """Found by the simulator: handed back before the clock was set back, its time lay ahead by as
    much.
    """
    job = Job(group("a", retry=RETRY))
    job.decide()
    ask(job, "pause")
    job.now += 50.0
    job.run("a", Outcome(OutcomeKind.RELEASED))
    job.now -= 50.0
    ask(job, "resume")
    assert [offer.epoch for offer in job.decide().offers] == [2]


@pytest.mark.parametrize("given", ENDING)
def test_an_ended_job_without_outputs_is_not_finished(
    given: str,
) -> None:
    """Nothing of it stands in the log, or an ABORT does: FINISHED would be a lie about the one or
    the other.
    """
    job = Job(group("a"), publish=[])
    job.decide()
    assert job.run("a").publish
    ask(job, given)
    assert job.decide().abort is not None
    job.decide(published=PublishResult())
    assert job.status() is ENDING[given]


@pytest.mark.parametrize("given", ["pause", *ENDING])
def test_a_missing_attempt_record_does_not_block_a_command(
    given: str,
) -> None:
    """It is offered again in this decision: the store holds none yet, and would refuse any guard on
    it, for ever.
    """
    job = Job(group("a"))
    job.decide()
    job.state.attempts.clear()
    ask(job, given)
    decision = job.decide()
    assert not decision.guards
    assert not decision.offered
    assert job.status() is ENDING.get(given, Status.PAUSED)


def test_a_cancel_that_arrives_during_a_pass_gets_its_full_deadline() -> None:
    """Found by the simulator in a mend: a time ahead of a pass need not come from a clock that was
    set back.

    The coordinator was frozen between the beginning of its pass and the load, and the command came
    in between.
    """
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.decide()
    ask(job, "cancel")
    job.now -= 30.0
    job.state.attempts["a"] = replace(job.state.attempts["a"], lease=job.now + LEASE)
    job.decide()
    assert job.record("a").state is S.CANCELING


def _rerun(job: Job, group_id: str) -> Commanded:
    job.state.job = replace(job.state.job, warehouse="/nowhere")
    said = rerun(job.state, Order(word="w"), group_id)
    assert said.answer is Answer.DONE
    job.state.job = said.job
    return said


def test_successors_of_a_rerun_also_run_although_their_inputs_are_the_same() -> None:
    """Found by the simulator: it read nothing of the group that ran again, and took over its own
    marker of before.
    """
    job = Job(group("a", retry={"max": 0}), group("b"), group("c", "a", "b", join="any_succeeded"))
    job.decide()
    job.run("b")
    before = job.plan.group_plans("/nowhere", "", job.state.job.reruns)["c"]
    job.run("c")
    ask(job, "pause")
    job.run("a", failure())
    said = _rerun(job, "a")
    assert "so will what comes after it: c" in said.text
    assert "b" not in said.plans
    assert GroupPlan.model_validate_json(said.plans["c"]).rerun == "w"
    assert said.plans["c"] != before


@pytest.mark.parametrize("rows", [{}, {"x": 1}], ids=["without outputs", "with an output"])
def test_a_job_with_a_pending_request_does_not_end(rows: dict[str, int]) -> None:
    """Found by a reader: the skips filled the commit, all groups were done, and the job ended or
    was published.
    """
    job = Job(group("x"), group("f", for_each={"n": list(range(MAX_TRANSITIONS))}, retry=RETRY))
    for _ in range(2):
        job.decide(dispatch_window=5_000)
    job.run("x", rows=rows)
    job.run("f[0]", failure())
    said = skip(job.state, Order(), "f")
    assert said.answer is Answer.DONE
    job.state.job = said.job
    _rerun(job, "x")
    decision = job.decide()
    assert (decision.more, decision.publish, job.status().terminal, job.state.job.phase) == (
        True,
        False,
        False,
        "",
    )
    while job.state.job.requests:
        decision = job.decide()
    assert list(decision.forgotten) == ["x"], "it runs again"


def test_a_job_with_an_active_rerun_is_not_shown_as_retrying() -> None:
    """Found by the simulator: the records had gone, and for a moment it was shown with what they
    had said.
    """
    job = Job(group("a"), group("b", "a", retry=RETRY))
    job.decide()
    job.run("a")
    job.run("b", failure())
    assert job.status() is Status.RETRYING
    _rerun(job, "a")
    decision = job.decide()
    assert set(decision.forgotten) == {"a", "b"}
    assert decision.job.status is Status.RUNNING
    assert decision.due == job.now


def test_a_fork_member_is_not_skipped_while_its_fork_is_about_to_rerun() -> None:
    """It had a record and its siblings before it had none; a coordinator that queued them in order
    was halted.
    """
    job = Job(group("a"), group("b", "a", for_each={"n": [1, 2, 3]}), group("x", retry=RETRY))
    job.decide()
    job.run("a")
    job.run("x", failure())
    _rerun(job, "a")
    said = skip(job.state, Order(), "b[1]")
    assert said.answer is Answer.REFUSED
    assert "just being made to run again" in said.text
    assert not status_has_followed(job.state.job), "so whoever asks is given a moment"
