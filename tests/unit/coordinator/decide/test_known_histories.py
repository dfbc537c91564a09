"""Histories that once led where no history may lead, step by step.

Found by exploring (``support.state_space``).
"""

from __future__ import annotations

from tests.support.jobs.state_space import HALT, LOOK, SmallWorld, Step
from unstuck.coordinator.command_table import Answer, Order
from unstuck.coordinator.commands.group_commands import rerun, skip
from unstuck.coordinator.model.status import Status

CLAIM = Step("claim", "a")
CANCEL, PAUSE, RESUME = (Step("command", given) for given in ("cancel", "pause", "resume"))


def test_a_canceled_group_of_a_halted_job_cannot_be_skipped() -> None:
    """It is HALTED; a skip that was taken made every decision fail, and the cancel never came
    about.
    """
    world = SmallWorld("chain").play(LOOK, CLAIM, LOOK, CANCEL, LOOK, HALT)
    assert world.job.status is Status.HALTED
    for ask in (skip, rerun):
        refused = ask(world.state(), Order(word="w"), "a")
        assert refused.answer is Answer.REFUSED
        assert "cancel was asked for" in refused.text
    assert world.go_on("gone").job.status is Status.CANCELED


def test_repeating_a_pending_resume_returns_the_same_answer() -> None:
    """It said of a job that was still shown as PAUSED that it was not paused."""
    world = SmallWorld("chain").play(LOOK, PAUSE, LOOK, RESUME)
    again = world.give("resume")
    assert (again.answer, "had been asked for before" in again.text) == (Answer.ALREADY, True)
    later = world.play(LOOK).give("resume")
    assert (later.answer, "it is not paused" in later.text) == (Answer.ALREADY, True)


def test_a_fork_member_pending_a_rerun_cannot_be_skipped() -> None:
    """It was the only one with a record, so the next to be queued was taken to be itself, and every
    decision failed.
    """
    done = (Step("claim", "w[0]"), Step("finish", "w[0]", "succeeded"))
    world = SmallWorld("fork").play(LOOK, *done, LOOK, PAUSE, LOOK, Step("rerun", "w"))
    refused = skip(world.state(), Order(), "w[1]")
    assert (refused.answer, "in a moment" in refused.text) == (Answer.REFUSED, True)
    world.play(LOOK, RESUME)
    assert world.go_on().job.status is Status.FINISHED
