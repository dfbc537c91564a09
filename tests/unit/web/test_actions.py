"""What the buttons do: each through the client, once, by name and with a reason, and only where it
is legal.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
import redis
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand
from unstuck.coordinator.command_table import COMMANDS, TargetKind
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.identity import user_here
from unstuck.web.actions import Answered, Answers, actions_for, job_actions

SCHEDULED = {
    "name": "nightly",
    "schedule": {"cron": "0 2 * * *", "zone": "UTC"},
    "groups": [{"name": "load", "spark": False, "steps": [{"python": "some.where:step"}]}],
}


def events(hand: ByHand, job: str, kind: str) -> list[dict[str, object]]:
    return [event for _, event in hand.client.events(job) if event["kind"] == kind]


def test_a_command_of_the_page_is_recorded_with_user_reason_and_origin(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "load"})
    answer = browser.post(
        f"/jobs/{job}/pause", data={"reason": "  the source\nis down ", "once": "a"}
    )
    assert answer.status_code == 303
    (event,) = events(hand, job, "USER_PAUSE")
    assert (event["by"], event["text"]) == (f"{user_here()} (page)", "the source is down")
    hand.decide(job)
    shown = browser.get(answer.headers["location"])
    assert shown.url.path == f"/jobs/{job}"
    assert 'role="status"' in shown.text
    assert f"unstuck resume {job}" in shown.text


def test_the_event_log_names_the_logged_in_user(
    site: Callable[..., TestClient], hand: ByHand
) -> None:
    job, page = hand.submit({"name": "load"}), site("a token that nobody guesses")
    page.post("/login", data={"user": "ann", "token": "a token that nobody guesses"})
    assert page.post(f"/jobs/{job}/cancel").status_code == 303
    assert [event["by"] for event in events(hand, job, "USER_CANCEL")] == ["ann (page)"]


def test_a_refusal_is_shown_with_its_message(browser: TestClient, hand: ByHand) -> None:
    job = hand.finished()
    for word in ("pause", "retry", "skip"):
        answer = browser.post(f"/jobs/{job}/{word}", data={"group": "only"})
        assert answer.status_code == 409
        assert f"job {job} is FINISHED" in answer.text
    assert browser.post("/jobs/none/pause").status_code == 404
    assert browser.post(f"/jobs/{job}/explode").status_code == 404


def test_each_action_has_the_effect_of_its_command(browser: TestClient, hand: ByHand) -> None:
    job = hand.submit({"name": "load"}, {"name": "clean", "needs": ["load"]})
    hand.decide(job)
    assert browser.post(f"/jobs/{job}/pause").status_code == 303
    hand.decide(job)
    assert browser.post(f"/jobs/{job}/skip", data={"group": "clean"}).status_code == 303
    hand.decide(job)
    assert hand.view(job).groups[1].members[0].state is GroupState.SKIPPED
    assert browser.post(f"/jobs/{job}/rerun", data={"group": "clean"}).status_code == 303
    assert browser.post(f"/jobs/{job}/resume").status_code == 303
    hand.decide(job)
    assert browser.post(f"/jobs/{job}/stop").status_code == 303
    hand.decide(job)
    assert hand.view(job).status is Status.STOPPED
    again = browser.post(f"/jobs/{job}/retry", data={"once": "b", "reason": "mended"})
    new = re.match(r"/jobs/([^?]+)\?", again.headers["location"])
    assert new is not None
    assert new[1] != job
    assert hand.view(new[1]).retry_of == job
    assert browser.post(f"/jobs/{new[1]}/force-stop").status_code == 303
    hand.decide(new[1])
    assert hand.view(new[1]).status is Status.CANCELED


def test_schedules_accept_their_commands(browser: TestClient, hand: ByHand) -> None:
    hand.client.schedules.set(SCHEDULED)
    for word, status in (
        ("pause", "PAUSED"),
        ("resume", "WAITING"),
        ("run", "WAITING"),
        ("stop", "STOPPED"),
    ):
        answer = browser.post(f"/schedules/nightly/{word}", data={"reason": "on call"})
        assert answer.status_code == 303, word
        assert hand.client.schedules.show("nightly").status == status
    assert browser.post("/schedules/nightly/resume").status_code == 409
    assert browser.post("/schedules/none/pause").status_code == 404
    assert {
        event["by"]
        for event in hand.client.schedules.events("nightly")
        if event["kind"] == "USER_PAUSE"
    } == {f"{user_here()} (page)"}


def test_dead_letters_can_be_dropped_and_replayed(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    hand.client.dead_letters.add_refused("unstuck.submit", "no such file", {"by": "app"})
    (letter,) = hand.client.dead_letters.all()
    assert browser.post(f"/dead/{letter.id}/replay").status_code == 409
    assert browser.post(f"/dead/{letter.id}/drop").status_code == 303
    assert hand.client.dead_letters.all() == []
    assert browser.post("/dead/1-1/drop").status_code == 404


def test_a_form_submitted_twice_acts_once(browser: TestClient, hand: ByHand) -> None:
    hand.client.schedules.set(SCHEDULED)
    sent = [browser.post("/schedules/nightly/run", data={"once": "same"}) for _ in range(2)]
    assert [answer.headers["location"] for answer in sent] == [sent[0].headers["location"]] * 2
    assert "is on record" in browser.get(sent[1].headers["location"]).text


def test_two_simultaneous_clicks_are_one_action_and_a_failed_one_can_be_repeated() -> None:
    answers, began, go_on = Answers(), threading.Event(), threading.Event()
    acted = []

    def act() -> Answered:
        acted.append(1)
        began.set()
        assert go_on.wait(60)
        return Answered(False, "done", "/")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answers.once, "a", act)
        assert began.wait(60)
        second = pool.submit(answers.once, "a", act)
        assert answers.text("a") == ""
        go_on.set()
        assert first.result() is second.result()
    assert (acted, answers.text("a")) == ([1], "done")
    with pytest.raises(ZeroDivisionError):
        answers.once("b", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert answers.once("b", act).text == "done"


def test_a_read_only_page_offers_and_performs_no_action(
    site: Callable[..., TestClient], hand: ByHand
) -> None:
    page, job = site(read_only=True), hand.submit({"name": "load"})
    hand.client.schedules.set(SCHEDULED)
    for path in (
        f"/jobs/{job}/cancel",
        f"/jobs/{job}/skip",
        "/schedules/nightly/stop",
        "/dead/1-1/drop",
    ):
        answer = page.post(path, data={"group": "load"})
        assert answer.status_code == 403
        assert "nothing was changed" in answer.text
    assert hand.view(job).status is Status.PENDING
    for path in ("/", f"/jobs/{job}", "/schedules", "/schedules/nightly", "/fleet"):
        assert 'method="post"' not in page.get(path).text


@pytest.mark.parametrize("status", Status)
def test_only_legal_actions_are_offered(status: Status) -> None:
    actions = job_actions("x", status, ["unstuck retry x"])
    offered = {action.href.rpartition("/")[2] for action in actions}
    legal = {word for word, command in COMMANDS[TargetKind.JOB].items() if status in command.legal}
    assert offered == legal - {"alter"}, "it needs values"
    assert "Retry" not in {action.label for action in job_actions("x", status, [])}


def test_a_group_can_be_skipped_or_rerun_if_its_state_permits() -> None:
    def offered(status: Status, *states: GroupState) -> list[str]:
        return [
            action.command
            for action in actions_for(TargetKind.GROUP, "x", status, "by_month[3]", states)
        ]

    skip, rerun = "unstuck skip x 'by_month[3]'", "unstuck rerun x 'by_month[3]'"
    assert offered(Status.RUNNING, GroupState.RUNNING) == []
    assert offered(Status.PAUSED, GroupState.WAITING) == [skip]
    assert offered(Status.PAUSED, GroupState.SUCCEEDED) == [rerun]
    assert offered(Status.HALTED, GroupState.SUCCEEDED, GroupState.BACKOFF) == [skip, rerun]


def test_a_job_page_shows_each_button_with_its_command(browser: TestClient, hand: ByHand) -> None:
    job = hand.submit({"name": "load"})
    text = browser.get(f"/jobs/{job}").text
    for word in ("pause", "stop", "cancel", "force-stop"):
        assert f'action="/jobs/{quote(job)}/{word}"' in text
        assert f"<code>unstuck {word} {job}</code>" in text
    assert "/resume" not in text
