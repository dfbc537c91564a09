"""Commands over several jobs: by id or by filter, what is asked first, and what one refusal does to
the others.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import ByHand, Cli
from tests.cli.jobs.test_wait import Terminal
from unstuck.coordinator.model.status import Intent


def intents(hand: ByHand, *jobs: str) -> list[str]:
    return [str(hand.view(job).intent) for job in jobs]


def jobs(hand: ByHand, count: int, name: str = "nightly") -> list[str]:
    return [hand.submit({"name": "a"}, name=f"{name}-{n}") for n in range(count)]


def test_a_filter_selects_exactly_the_matching_jobs(cli: Cli, hand: ByHand) -> None:
    ended = hand.finished(name="nightly-x")
    meant, other = jobs(hand, 3), hand.submit({"name": "a"}, name="hourly")
    already = hand.submit({"name": "a"}, name="nightly-y")
    hand.client.cancel(already)
    done = cli("cancel", "--name", "nightly-*", "--yes")
    assert done.returncode == 0
    assert (
        done.stdout
        == "cancel: 3 on record, 1 already, 1 skipped, since cancel is not legal in their state\n"
    )
    assert all(job in done.stderr for job in (*meant, already))
    assert ended not in done.stderr
    assert intents(hand, *meant, other) == ["cancel"] * 3 + ["run"]


def test_status_and_since_filter_as_in_list(cli: Cli, hand: ByHand) -> None:
    running, pending = jobs(hand, 2)
    hand.decide(running)
    hand.claim(running, "a")
    answers = json.loads(
        cli("pause", "--status", "running", "--since", "1h", "--yes", "--json").stdout
    )
    assert [(one["target"], one["answer"], one["intent"]) for one in answers] == [
        (running, "DONE", "pause")
    ]
    assert intents(hand, pending) == ["run"]
    done = cli("pause", "--since", "2999-01-01T00:00:00Z", "--yes")
    assert (done.returncode, done.stdout) == (0, "pause: no job fits\n")


def test_a_filter_that_cannot_be_confirmed_exits_with_2_and_changes_nothing(
    cli: Cli, hand: ByHand
) -> None:
    meant = jobs(hand, 2)
    done = cli("cancel", "--name", "nightly-*")
    assert done.returncode == 2
    assert all(job in done.stderr for job in meant)
    assert "cancel would change 2 jobs" in done.stderr
    assert "--yes" in done.stderr
    assert intents(hand, *meant) == ["run", "run"]


def test_a_command_covers_more_jobs_than_a_list_shows(cli: Cli, hand: ByHand) -> None:
    meant = jobs(hand, 60)
    done = cli("force-stop", "--status", "PENDING", "--yes")
    assert done.stdout == "force-stop: 60 on record\n"
    assert "and 40 more" in done.stderr
    assert sum(job in done.stderr for job in meant) == 20
    assert {*intents(hand, *meant)} == {"force_stop"}


@pytest.mark.variant
def test_a_command_runs_only_after_confirmation(cli: Cli, hand: ByHand) -> None:
    meant = jobs(hand, 25)
    for answer, code, intent in (("n", 1, "run"), ("y", 0, "stop")):
        terminal = Terminal(cli, "stop", "--name", "nightly-*", rows=60)
        try:
            asked = terminal.shows(r"(?s)ID.*and 5 more.*stop: 25 jobs, as listed\? \[y/N\]")
            assert meant[0] in asked
            terminal.type(f"{answer}\n")
            assert terminal.end() == code
            assert ("Nothing was changed." in terminal.plain) is (answer == "n")
            assert ("stop: 25 on record" in terminal.plain) is (answer == "y")
        finally:
            terminal.close()
        assert {*intents(hand, *meant)} == {intent}


def test_an_unknown_id_exits_with_3_and_the_other_jobs_are_changed(cli: Cli, hand: ByHand) -> None:
    first, second = jobs(hand, 2)
    for unknown in ("20130101T000000-aaaaaaaa", "zzz"):
        done = cli("pause", first, unknown, second, first)
        assert done.returncode == 3
        assert f"no job {unknown}" in done.stderr
        *lines, count = done.stdout.splitlines()
        assert len(lines) == 2
        assert re.fullmatch(r"pause: 2 (on record|already), 1 not there", count)
    assert intents(hand, first, second) == ["pause", "pause"]
    answers = json.loads(cli("pause", "zzz", first, "--json").stdout)
    assert [one["answer"] for one in answers] == ["NO_SUCH_JOB", "ALREADY"]


def test_a_refusing_job_exits_with_4_and_the_other_jobs_are_changed(cli: Cli, hand: ByHand) -> None:
    ended, (first, second) = hand.finished(), jobs(hand, 2)
    done = cli("cancel", first, ended, "zzz", second)
    assert done.returncode == 4
    assert f"job {ended} is FINISHED" in done.stderr
    assert intents(hand, first, second) == [Intent.CANCEL, Intent.CANCEL]


@pytest.mark.variant
def test_a_command_whose_target_state_is_already_reached_exits_with_0(
    cli: Cli, hand: ByHand
) -> None:
    """Whoever cancels twice, or after the deadline of a script, has what was asked for."""
    canceled, stopped, paused, running = jobs(hand, 4)
    for job, command in (
        (canceled, hand.client.cancel),
        (stopped, hand.client.stop),
        (paused, hand.client.pause),
    ):
        command(job)
        hand.decide(job)
    hand.decide(running)
    hand.claim(running, "a")
    told = {
        canceled: (("cancel", "force-stop"), "CANCELED"),
        stopped: (("stop",), "STOPPED"),
        paused: (("pause",), "PAUSED"),
        running: (("resume",), "RUNNING"),
    }
    for job, (commands, status) in told.items():
        before = hand.view(job)
        for command in commands:
            (answer,) = cli.json(command, job)
            assert (answer["answer"], answer["status"]) == ("ALREADY", status)
            assert status in answer["text"]
        assert hand.view(job) == before
    assert cli("stop", canceled).returncode == cli("cancel", stopped).returncode == 4, (
        "these are other states"
    )


def test_read_commands_accept_last_and_changing_commands_do_not(cli: Cli, hand: ByHand) -> None:
    (job,) = jobs(hand, 1)
    assert cli.json("show", "last")["id"] == job
    done = cli("cancel", "last")
    assert done.returncode == 2
    assert f"The newest job is {job}" in done.stderr
    assert intents(hand, job) == ["run"]


@pytest.mark.parametrize("arguments", [(), ("last", "--name", "x")], ids=["neither", "both"])
def test_ids_and_a_filter_are_mutually_exclusive_and_one_is_required(
    cli: Cli, hand: ByHand, arguments: tuple[str, ...]
) -> None:
    (job,) = jobs(hand, 1)
    done = cli("cancel", *arguments, "--yes")
    assert done.returncode == 2
    assert "--status, --name or --since" in done.stderr
    assert intents(hand, job) == ["run"]
