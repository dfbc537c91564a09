"""``unstuck why``, as people and as scripts read it: all that is said of a wait, each with its
line.
"""

from __future__ import annotations

import datetime

from tests.cli.conftest import ByHand, Cli
from unstuck.cli.render.terminal import clock
from unstuck.read_model.group import Member


def blocks(out: str) -> dict[str, list[tuple[str, str]]]:
    """What is said of each subject: its first line, then the label and the text of each line."""
    found: dict[str, list[tuple[str, str]]] = {}
    subject = ""
    for line in out.splitlines():
        if line.startswith("  "):
            label, _, text = line.strip().partition(" ")
            found[subject].append((label, text.strip()))
        else:
            subject, _, state = line.partition("  ")
            found[subject] = [("state", state)]
    return found


def record_of(hand: ByHand, job: str, name: str) -> Member:
    return next(m for g in hand.view(job).groups for m in g.members if m.id == name)


def test_each_cause_of_a_wait_has_a_line(cli: Cli, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "flaky", "retry": {"max": 3, "backoff": "1h"}},
        {"name": "heavy", "queue": "heavy", "queue_timeout": "2h"},
        {"name": "report", "needs": ["flaky"]},
    )
    hand.decide(job)
    hand.fail(job, "flaky", "no network", recoverable=True)
    told, view = blocks(cli("why", job).stdout), hand.view(job)
    assert list(told) == [job, "flaky", "heavy", "report"]

    flaky, heavy = record_of(hand, job, "flaky"), record_of(hand, job, "heavy")
    assert told["flaky"] == [
        ("state", "BACKOFF"),
        ("why", flaky.reason.text if flaky.reason else ""),
        ("since", clock(flaky.since)),
        ("tried", "failed 1 time; first error: USER_ERROR: no network"),
        ("next", f"{clock(flaky.next_at)}: attempt 2"),
        ("ends", "after 3 retries, or 3 workers lost in a row"),
        ("try", f"unstuck logs {job} flaky"),
        ("try", f"unstuck cancel {job}"),
    ]
    assert told["heavy"] == [
        ("state", "QUEUED"),
        ("why", "queue heavy: no worker listens on it"),
        ("since", clock(heavy.since)),
        (
            "next",
            f"{clock(view.due_at or 0)}: the job is looked at again; each sweep wakes idle runners",
        ),
        ("ends", f"FAILED by its queue_timeout of 2h00m, at {clock(heavy.since + 7200)}"),
        ("try", "celery -A unstuck.tasks worker -Q heavy"),
    ]
    assert view.due_at is not None
    assert told["report"] == [
        ("state", "WAITING"),
        ("why", "all_succeeded: 1 of 1 not done; waits for flaky (BACKOFF)"),
        ("since", clock(view.submitted_at)),
        ("next", f"{clock(view.due_at)}: what it needs is looked at again"),
        ("ends", "when its join can no longer be satisfied"),
        ("try", f"unstuck cancel {job}"),
    ]
    assert told[job][2] == ("since", clock(view.started_at))


def test_a_paused_job_shows_resume_instead_of_its_next_attempt(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "flaky", "retry": {"max": 3, "backoff": "1h"}})
    hand.decide(job)
    hand.fail(job, "flaky", "no network", recoverable=True)
    assert cli("pause", job).returncode == 0
    hand.decide(job)
    told = blocks(cli("why", job).stdout)
    assert ("next", "attempt 2, when the job is resumed") in told["flaky"]
    assert ("ends", "a person decides") in told["flaky"]
    for subject in (job, "flaky"):
        assert ("try", f"unstuck resume {job}") in told[subject]
    assert "attempt 2 when the job is resumed: USER_ERROR: no network" in cli("show", job).stdout
    assert "attempt 2 in" not in cli("show", job).stdout


def test_a_multiline_error_is_indented_without_escape_sequences(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "flaky", "retry": {"max": 3, "backoff": "1h"}})
    hand.decide(job)
    hand.fail(
        job, "flaky", "\x1b[31mno\x1b[0m network\n\x1b]0;mine\x07on two\rlines\n", recoverable=True
    )
    out = cli("why", job).stdout  # Cli looks for escapes
    assert "  why     no network\n          on two\N{REPLACEMENT CHARACTER}lines" in out
    assert "first error: USER_ERROR: no network\n          on two" in out
    assert {line[:2] for line in out.splitlines()} == {job[:2], "fl", "  "}
    assert cli.json("why", job)[1]["what"].startswith("\x1b[31mno"), "a program reads what was said"


def test_json_times_are_in_utc_and_unknown_values_are_null(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "heavy", "queue": "heavy"})
    hand.decide(job)
    record, due = record_of(hand, job, "heavy"), hand.view(job).due_at
    assert due is not None
    about, heavy = cli.json("why", job)
    assert (about["subject"], about["state"]) == (job, "PENDING")
    assert (heavy["subject"], heavy["state"]) == ("heavy", "QUEUED")
    assert heavy["what"] == "queue heavy: no worker listens on it"
    for text, at in ((heavy["since"], record.since), (heavy["next"]["at"], due)):
        assert text.endswith("Z")
        assert abs(datetime.datetime.fromisoformat(text).timestamp() - at) < 1
    assert datetime.datetime.fromisoformat(about["since"]).timestamp() > 0
    assert heavy["tried"] == ""
    assert heavy["ends"] == {"what": "never by itself: a worker may come at any time", "at": None}
    assert heavy["help"] == ["celery -A unstuck.tasks worker -Q heavy"]


def test_groups_that_wait_for_the_same_reason_share_one_explanation(cli: Cli, hand: ByHand) -> None:
    groups = [{"name": name, "queue": "heavy"} for name in ("clean", "load", "send")]
    job = hand.submit(
        *groups, {"name": "month", "queue": "heavy", "for_each": {"m": [1, 2]}}, {"name": "other"}
    )
    hand.decide(job)
    said = cli("why", job).stdout.splitlines()
    assert "clean, load, send, month[0], month[1]  QUEUED" in said
    assert "other  QUEUED" in said
    assert [line for line in said if "queue heavy" in line] == [
        "  why     queue heavy: no worker listens on it"
    ]
    assert len(cli.json("why", job)) == 7  # a program finds each group by its name
