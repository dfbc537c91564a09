"""Commands as pure functions: who is refused where, and that the table says the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unstuck.coordinator.command_table import COMMANDS, Answer, TargetKind
from unstuck.coordinator.commands.job_commands import INTENTS, command, status_has_followed
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import Intent, Status

JOB = JobRecord("20131231T235959-k3f9a2xw", "job", "{}", "c")
HALTED = replace(JOB, status=Status.HALTED, halted=Reason("UNDECIDABLE", "…"))
# Every way in which a job can stand: what the user wants, and what is so.
STANDINGS = [
    *((Intent.RUN, status) for status in (Status.PENDING, Status.RUNNING, Status.RETRYING)),
    *((Intent.PAUSE, status) for status in (Status.PAUSING, Status.PAUSED)),
    (Intent.RUN, Status.HALTED),
    (Intent.STOP, Status.STOPPING),
    (Intent.CANCEL, Status.CANCELING),
    (Intent.FORCE_STOP, Status.CANCELING),
    *((Intent.RUN, status) for status in Status if status.terminal),
]


# Where a command would lead to what is so already: nobody has to be told no.
REACHED = {
    "resume": (Status.PENDING, Status.RUNNING),
    "stop": (Status.STOPPED,),
    "cancel": (Status.CANCELED,),
    "force-stop": (Status.CANCELED,),
}


@pytest.mark.parametrize("given", INTENTS)
@pytest.mark.parametrize(("intent", "status"), STANDINGS)
def test_a_command_is_refused_according_to_the_table_with_its_reason(
    given: str, intent: Intent, status: Status
) -> None:
    job = replace(
        JOB, intent=intent, status=status, halted=HALTED.halted if status is Status.HALTED else None
    )
    result = command(job, given)
    if status not in COMMANDS[TargetKind.JOB][given].legal:
        assert result.answer is (
            Answer.ALREADY if status in REACHED.get(given, ()) else Answer.REFUSED
        )
    if result.answer is Answer.REFUSED:
        assert result.job == job, "nothing changed"
        assert job.id in result.text
        assert str(status) in result.text
        assert status not in COMMANDS[TargetKind.JOB][given].legal or intent is Intent.FORCE_STOP
    if result.answer is Answer.ALREADY:
        assert result.job == job


def test_a_terminal_job_accepts_no_command() -> None:
    for status in Status:
        if status.terminal:
            assert not any(
                status in legal
                for word in INTENTS
                for legal in [COMMANDS[TargetKind.JOB][word].legal]
            )


def test_a_halted_job_can_be_resumed_without_a_pause() -> None:
    result = command(HALTED, "resume")
    assert result.answer is Answer.DONE
    assert (result.job.halted, result.job.reset_budgets, result.job.intent) == (
        None,
        True,
        Intent.RUN,
    )
    assert not status_has_followed(result.job), (
        "it is shown as HALTED until a coordinator has looked"
    )
    again = command(result.job, "resume")
    assert (again.answer, "had been asked for before" in again.text) == (Answer.ALREADY, True)
    assert command(result.job, "pause").answer is Answer.DONE


@pytest.mark.parametrize("intent", [Intent.RUN, Intent.PAUSE])
def test_a_halted_job_cannot_be_paused(
    intent: Intent,
) -> None:
    refused = command(replace(HALTED, intent=intent), "pause")
    assert (refused.answer, "is HALTED" in refused.text, "unstuck why" in refused.text) == (
        Answer.REFUSED,
        True,
        True,
    )
    assert refused.job == replace(HALTED, intent=intent)


def test_a_job_that_cannot_be_decided_after_a_cancel_names_the_command_that_ends_it() -> None:
    canceled = replace(HALTED, intent=Intent.CANCEL)
    refused = command(canceled, "resume")
    assert (refused.answer, "unstuck force-stop" in refused.text) == (Answer.REFUSED, True)
    assert command(canceled, "force-stop").answer is Answer.DONE


def test_a_refused_command_names_the_earlier_command_as_typed() -> None:
    forced = command(JOB, "force-stop").job
    assert "a force-stop cannot be taken back" in command(forced, "resume").text
    assert (
        "force-stop was asked for, which cancel does not override" in command(forced, "cancel").text
    )


def test_an_immediate_pause_after_a_pause_is_a_different_request() -> None:
    paused = command(JOB, "pause").job
    assert command(paused, "pause").answer is Answer.ALREADY
    now = command(paused, "pause", now=True)
    assert (now.answer, now.job.pause_now) == (Answer.DONE, True)
    assert command(now.job, "pause", now=True).answer is Answer.ALREADY
    assert not command(now.job, "resume").job.pause_now
