"""The screens of one job: the sentences of `unstuck why`, forks folded, logs by their end, and odd
cases as text.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.logs.attempt_log import AttemptLog
from unstuck.tasks.spec.outputs import REJECTED
from unstuck.tasks.warehouse.files import Files
from unstuck.views.jobs.job_logs import TAIL, tail_of
from unstuck.web.pages import job_model


def text_of(browser: TestClient, path: str) -> str:
    """The words of a page, without its tags."""
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def write_log(hand: ByHand, token: Token, data: bytes) -> Path:
    path = AttemptLog(Files(hand.settings.warehouse), token.log).path
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def failed_fork(hand: ByHand) -> str:
    """A job with a fork of 20 members, of which one has failed and one runs."""
    job = hand.submit(
        {"name": "src"},
        {"name": "by_m", "needs": ["src"], "retry": {"max": 0}, "for_each": {"m": list(range(20))}},
        {"name": "all", "needs": ["by_m"], "steps": [], "join": "all_done"},
        name="night",
    )
    hand.decide(job)
    hand.succeed(job, "src", rows={"orders": 7})
    hand.fail(
        job,
        "by_m[3]",
        "no column <b>carier</b>",
        traceback="Traceback:\n  File x\nKeyError: carier",
    )
    hand.claim(job, "by_m[4]")
    hand.succeed(job, "by_m[5]")
    return job


def test_a_job_word_redirects_to_the_screens_of_its_id(browser: TestClient, hand: ByHand) -> None:
    first = hand.submit({"name": "a"}, name="night")
    job = hand.client.submit(hand.client.written(first), key="2013-12-31").id
    for below in ("", "/attempts", "/spec", "/groups/a", "/groups/a%5B7%5D/log?attempt=1&x=%2F"):
        for word in ("night", "last", "2013-12-31", job.rpartition("-")[2]):
            answer = browser.get(f"/jobs/{word}{below}")
            assert (answer.status_code, answer.headers.get("location")) == (
                302,
                f"/jobs/{job}{below}",
            ), answer.text
    answer = browser.get(f"/jobs/{job[:8]}/attempts")
    assert answer.status_code == 409
    assert re.search(
        f"fits 2 jobs; name one of them:.*{job}  night  PENDING.*{first}", answer.text, re.DOTALL
    )


def test_the_sentences_and_commands_of_why_are_on_the_screen(
    browser: TestClient, hand: ByHand, failed_fork: str
) -> None:
    said = text_of(browser, f"/jobs/{failed_fork}")
    job, *groups = hand.client.explain(failed_fork)
    assert " ".join(job.what.split()) in said
    for command in job.help:
        assert command in said
    waits = next(one for one in groups if one.subject == "all")
    assert " ".join(waits.what.split()) in said


def test_a_fork_is_folded_into_counts_and_its_problem_members(
    browser: TestClient, failed_fork: str
) -> None:
    said = text_of(browser, f"/jobs/{failed_fork}")
    assert "by_m[3] m=3" in said
    assert "by_m[4] m=4" in said
    assert "by_m[5]" not in said
    assert "no column <b>carier</b>" in said
    whole = text_of(browser, f"/jobs/{failed_fork}/groups/by_m")
    assert "20 members" in whole
    assert whole.index("by_m[3] m=3") < whole.index("by_m[4] m=4") < whole.index("by_m[5] m=5"), (
        "what needs a look first"
    )


def test_a_click_on_a_group_of_the_graph_leads_to_its_line(
    browser: TestClient, failed_fork: str
) -> None:
    text = browser.get(f"/jobs/{failed_fork}").text
    for name in ("src", "by_m", "all"):
        assert f'<a href="#group-{name}">' in text
        assert f'<tr id="group-{name}">' in text


def test_a_group_offers_its_legal_actions_and_shows_its_error(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "flaky", "retry": {"max": 3, "backoff": "1h"}})
    hand.decide(job)
    hand.fail(
        job, "flaky", "no network", recoverable=True, traceback="Traceback:\n  File x\nNo: network"
    )
    said = text_of(browser, f"/jobs/{job}/groups/flaky")
    assert f"unstuck skip {job} flaky" in said
    assert "Traceback: File x No: network" in said


def test_a_large_job_is_shown_in_pages_with_problems_first(
    browser: TestClient, hand: ByHand
) -> None:
    groups: list[dict[str, Any]] = [{"name": f"g{n}", "retry": {"max": 0}} for n in range(351)]
    groups[120]["queue"] = "other"  # so that it is on offer although so many are before it
    job = hand.submit(*groups)
    hand.decide(job)
    hand.fail(job, "g120", "broken")
    text = browser.get(f"/jobs/{job}").text
    assert text.count('<tr id="group-') == job_model.A_PAGE
    assert text.index('id="group-g120"') < text.index('id="group-g0"')
    assert "The 351 groups are folded by level and state" in text
    assert re.findall(r'<a href="([^"]*)"><g class="node', text) == [
        "?state=CANCELED#groups",
        "#group-g120",
    ]
    last = browser.get(f"/jobs/{job}?page=4").text
    assert last.count('<tr id="group-') == 51
    assert "Page 4 of 4: 351 groups" in last
    assert re.findall(r'href="(\?page=[^"]*)"', last) == ["?page=3"]


def test_groups_are_filtered_by_name_and_state_and_sorted(
    browser: TestClient, hand: ByHand, failed_fork: str
) -> None:
    def shown(query: str) -> list[str]:
        text = browser.get(f"/jobs/{failed_fork}?{query}").text
        return re.findall(r'<tr id="group-(\w+)"', text)

    plan = ["src", "by_m", "all"]
    assert shown("") == shown("order=x") == shown("order=plan") == plan
    assert shown("order=name") == ["all", "by_m", "src"]
    assert shown("order=attention") == ["by_m", "src", "all"]
    assert shown("order=longest")[-1] == "all"
    assert shown("name=BY_m") == shown("name=by_m[19]") == shown("state=FAILED") == ["by_m"]
    assert shown("state=succeeded") == ["src", "by_m"], "a member of the fork has succeeded"
    assert shown("state=FAILED&name=src") == []
    none = browser.get(f"/jobs/{failed_fork}?state=FAILED&name=src").text
    assert "No groups match these filters." in none
    assert "Page 1 of 1: 0 of 3 groups" in none
    assert "<option selected>FAILED</option>" in none
    members = browser.get(f"/jobs/{failed_fork}/groups/by_m?state=SUCCEEDED").text
    assert re.findall(r'<tr id="group-([^"]+)"', members) == ["by_m[5]"]


def test_attempts_and_events_are_shown_newest_first_in_pages(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "f", "for_each": {"m": list(range(60))}})
    hand.decide(job)
    for n in range(30):
        hand.succeed(job, f"f[{n}]")
    text = browser.get(f"/jobs/{job}/attempts").text
    assert 'aria-label="The attempts of job job over time"' in text
    assert "SUBMITTED" not in text
    (older,) = re.findall(r'href="([^"]*before=[^"]*)"', text)
    assert "SUBMITTED" in browser.get(older).text
    for odd in ("x", "0-0"):
        assert browser.get(f"/jobs/{job}/attempts?before={odd}").status_code == 422


def test_the_spec_is_shown_with_its_parameters_and_alterations(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "a", "timeout": "1h"}, params={"day": "<today>"})
    hand.client.alter(job, {"groups.a.timeout": "2h"}, reason="too <short>", by="tester")
    said = text_of(browser, f"/jobs/{job}/spec")
    assert "day <today>" in said
    assert "groups.a.timeout" in said
    assert "too <short>" in said
    assert "name: job" in said


def test_the_end_of_a_log_is_shown_without_terminal_control_sequences(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "a"})
    hand.decide(job)
    token = hand.claim(job, "a")
    write_log(
        hand,
        token,
        (
            b"\x1b[31mred\x1b[0m <i>\n\xff\xfe broken\n2026-11-27T21:30:00.250Z INFO step: "
            b"one\nhalf "
            b"a "
            b"l"
        ),
    )
    answer = browser.get(f"/jobs/{job}/groups/a")
    assert (
        "red &lt;i&gt;\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} broken\n" in answer.text
    )
    assert "\x1b" not in answer.text
    assert "half a l" in answer.text
    part = browser.get(f"/jobs/{job}/groups/a/log")
    assert 'id="log"' in part.text
    same = browser.get(f"/jobs/{job}/groups/a/log", headers={"If-None-Match": part.headers["etag"]})
    assert same.status_code in (304, 200)
    assert ">Log of attempt 1</h2>" in part.text
    without = browser.get(f"/jobs/{job}/groups/a/log?attempt=7").text
    assert "No log of attempt 7" in without
    assert ">Log</h2>" in without


def test_a_hanging_log_is_reported_and_the_rest_of_the_screen_works(
    browser: TestClient, hand: ByHand
) -> None:
    app: Any = browser.app
    app.state.log_breaker = CircuitBreaker(0.2)
    job = hand.submit({"name": "a"})
    hand.decide(job)
    path = write_log(hand, hand.claim(job, "a"), b"")
    path.unlink()
    os.mkfifo(path)  # to open it waits until somebody writes
    said = text_of(browser, f"/jobs/{job}/groups/a")
    assert "the log of a cannot be shown" in said
    assert "worker host-1:4242 runs attempt 1" in said
    with path.open("wb"):
        pass


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    with path.open("wb") as file:
        file.truncate(2**30)
        file.seek(0, 2)
        file.write(b"\nlast line but one\nlast line\n")
    tail = tail_of(Files(str(tmp_path)), "big.log")
    assert tail.lines[-2:] == ["last line but one", "last line"]
    assert tail.size - tail.skipped < TAIL
    assert tail_of(Files(str(tmp_path)), "gone.log") == ([], 0, 0)


@pytest.mark.parametrize(
    "group", ["<script>", "by_m[20]", "by_m[x]", "by_m[²]", "src[0]", "by_m[3", "nothing"]
)
def test_a_missing_group_is_reported_with_the_existing_ones(
    browser: TestClient, failed_fork: str, group: str
) -> None:
    answer = browser.get(f"/jobs/{failed_fork}/groups/{group}")
    assert answer.status_code == 404
    assert "<script>" not in re.sub(r"<script src=[^>]*>", "", answer.text)
    assert "it has: src, by_m, all" in answer.text


@pytest.mark.parametrize(
    "job", ["gone", "a%20b", "%3Cscript%3E", "%ff", "{x}", "*", "20261127T000000-" + "a" * 300]
)
def test_a_missing_job_is_reported_in_the_words_of_the_command_line(
    browser: TestClient, job: str
) -> None:
    for below in ("", "/attempts", "/spec", "/groups/a", "/groups/a/log"):
        answer = browser.get(f"/jobs/{job}{below}")
        assert answer.status_code == 404
        assert "is in the store at" in answer.text
        assert "<script>" not in re.sub(r"<script src=[^>]*>", "", answer.text)


def test_a_damaged_record_is_shown_as_on_the_command_line(
    browser: TestClient, hand: ByHand, client: redis.Redis, failed_fork: str
) -> None:
    keys = Keys(hand.settings.prefix).of(failed_fork)
    client.xadd(keys.events, {"event": "{"})
    assert "the stored event" in text_of(browser, f"/jobs/{failed_fork}/attempts")
    client.hset(keys.groups, "<script>", "{")
    view = hand.client.show(failed_fork)
    assert view.damage
    assert " ".join(view.damage.split()) in text_of(browser, f"/jobs/{failed_fork}")
    assert "<script>alert" not in browser.get(f"/jobs/{failed_fork}").text
    assert browser.get(f"/jobs/{failed_fork}/groups/src").status_code == 404
    client.hset(keys.job, "spec", "{")
    assert "the stored spec of job" in text_of(browser, f"/jobs/{failed_fork}/spec")


def test_an_unexpanded_fork_is_drawn(browser: TestClient, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "a"}, {"name": "dyn", "needs": ["a"], "for_each": {"x": {"from": "a.x"}}}
    )
    said = text_of(browser, f"/jobs/{job}?page=99")
    assert "dyn: waiting; after a (all_succeeded)" in said
    assert "The members are not known yet" in text_of(browser, f"/jobs/{job}/groups/dyn")


def test_jobs_are_filtered_by_status_name_and_time_as_on_the_command_line(
    browser: TestClient, hand: ByHand
) -> None:
    done, waits = hand.finished(name="daily"), hand.submit({"name": "a"}, name="nightly")
    assert {one in browser.get("/jobs").text for one in (done, waits)} == {True}
    for query, shown in (
        ("status=finished", done),
        ("name=night*", waits),
        ("since=1h&status=PENDING", waits),
    ):
        text = browser.get(f"/jobs?{query}").text
        assert [one in text for one in (done, waits)] == [shown is done, shown is waits], query
    assert "No job matches these filters." in browser.get("/jobs?name=x").text
    for wrong in ("status=done", "since=soon"):
        answer = browser.get(f"/jobs?{wrong}")
        assert answer.status_code == 422
        assert wrong.partition("=")[2] in answer.text


def test_outputs_are_shown_with_rows_and_rejected_rows_by_rule(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "a"}, {"name": "b"})
    hand.decide(job)
    rejected = {"orders": {"positive": 2, "known": 1}}
    hand.succeed(job, "a", rows={"orders": 1007, f"orders{REJECTED}": 3}, rejected=rejected)
    said = text_of(browser, f"/jobs/{job}")
    assert "orders 1,007 3 positive 2, known 1" in said
    assert f"orders{REJECTED}" not in said


def test_a_secret_is_shown_only_by_its_name(
    browser: TestClient, hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2-of-the-database")
    step = {
        "python": "m:f",
        "params": {"password": "${secret:DB_PASSWORD}", "also": "${env:DB_PASSWORD}"},
    }
    job = hand.submit({"name": "a", "steps": [step]})
    hand.decide(job)
    for below in ("", "/attempts", "/spec", "/groups/a"):
        assert "hunter2" not in browser.get(f"/jobs/{job}{below}").text
    assert "${secret:DB_PASSWORD}" in browser.get(f"/jobs/{job}/spec").text
