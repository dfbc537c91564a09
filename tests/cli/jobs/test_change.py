"""``unstuck alter | skip | rerun | retry`` and ``show --diff``, as a user has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import ByHand, Cli


@pytest.fixture
def retrying(hand: ByHand) -> str:
    """A job whose group ``bad`` has failed once and waits for its next attempt."""
    job = hand.submit(
        {"name": "good"},
        {"name": "bad", "retry": {"max": 3, "backoff": "1h"}},
        {"name": "end", "needs": ["good", "bad"]},
        params={"table": "flights"},
    )
    hand.decide(job)
    hand.fail(job, "bad", "no such table", recoverable=True)
    return job


def test_altered_settings_are_shown_with_the_groups_that_ran_with_them(
    cli: Cli, hand: ByHand, retrying: str
) -> None:
    assert "was never altered" in cli("show", retrying, "--diff").stdout
    done = cli(
        "alter",
        retrying,
        "--set",
        "params.table=planes",
        "--set",
        "groups.bad.timeout=2h",
        "--reason",
        "typo",
    )
    assert done.returncode == 0, done.stderr
    assert "params.table" in done.stdout
    hand.succeed(retrying, "good")
    shown = cli("show", retrying, "--diff").stdout
    assert 'params.table  "flights" → "planes"' in shown
    assert "groups.bad.timeout  none → 7200s" in shown
    event = next(
        line for line in cli("events", retrying).stdout.splitlines() if "USER_ALTER" in line
    )
    assert 'groups.bad.timeout: none → 7200s, params.table: "flights" → "planes"' in event
    assert "typo" in event
    assert "typo" in shown
    assert "bad BACKOFF  ran with the spec as submitted" in shown
    assert "good SUCCEEDED  ran with the spec as it is now" in shown
    told = cli.json("show", retrying)
    assert [change["path"] for change in told["alterations"][0]["changes"]] == [
        "groups.bad.timeout",
        "params.table",
    ]
    assert told["alterations"][0]["at"].endswith("Z")
    members = [member for group in told["groups"] for member in group["members"]]
    revisions = {member["id"]: member["revision"] for member in members}
    assert (told["revision"], revisions) == (1, {"good": 1, "bad": 0})
    assert "altered" in cli("show", retrying).stdout


def test_a_timeout_changed_during_an_attempt_is_shown(cli: Cli, hand: ByHand) -> None:
    """It was said to run "with the spec as submitted", though its watchdog went by the new
    timeout.
    """
    job = hand.submit(
        {"name": "over"}, {"name": "runs"}, {"name": "other"}, {"name": "f", "for_each": {"n": [1]}}
    )
    hand.decide(job)
    hand.succeed(job, "over")
    for group in ("runs", "other", "f[0]"):
        hand.claim(job, group)
    for group in ("over", "runs", "f"):
        hand.client.alter(job, {f"groups.{group}.timeout": "2h"})
    hand.client.alter(job, {"groups.other.retry.max": 5})
    shown = cli("show", job, "--diff").stdout
    assert "over SUCCEEDED  ran with the spec as submitted\n" in shown
    assert (
        "runs RUNNING  ran with the spec as submitted, and since then the timeout of revision 2\n"
        in shown
    )
    assert (
        "f[0] RUNNING  ran with the spec as submitted, and since then the timeout of revision 3\n"
        in shown
    )
    assert "other RUNNING  ran with the spec as submitted\n" in shown


@pytest.mark.variant
@pytest.mark.parametrize(
    ("setting", "said", "code"),
    [
        ("groups.bda.timeout=1h", "did you mean 'bad'", 2),
        ("groups.bad.timeout=soon", "groups[1].timeout", 2),
        ("groups.bad.timeuot=1h", "timeuot", 2),
        ("params", "is not PATH=VALUE", 2),
        ("groups.end.needs=[good]", "never changes", 4),
        (
            "groups.end.needs=[godo]",
            "groups.end.needs is part of the job's shape, which never changes",
            4,
        ),
    ],
)
def test_an_invalid_alter_reports_the_expected_values(
    cli: Cli, retrying: str, setting: str, said: str, code: int
) -> None:
    done = cli("alter", retrying, "--set", setting)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "was never altered" in cli("show", retrying, "--diff").stdout


def test_skip_and_rerun_work_and_are_refused_in_wrong_states(
    cli: Cli, hand: ByHand, retrying: str
) -> None:
    assert cli("skip", retrying, "nobody").returncode == 2
    assert cli("skip", retrying, "bad", "--reason", "not today").returncode == 0
    hand.decide(retrying)
    events = cli("events", retrying).stdout
    assert "USER_SKIP" in events
    assert "not today" in events
    refused = cli("rerun", retrying, "bad")
    assert refused.returncode == 4
    assert "unstuck pause" in refused.stderr, "the job runs again"


def test_a_retry_does_not_create_a_missing_warehouse(
    cli: Cli, hand: ByHand, tmp_path: Path
) -> None:
    job = hand.submit({"name": "a"})
    hand.decide(job)
    hand.fail(job, "a", "no")
    here, away = tmp_path / "warehouse", tmp_path / "away"
    here.rename(away)
    refused = cli("retry", job)
    assert refused.returncode == 4
    assert f"job {job} is not retried: there is no warehouse at {here}" in refused.stderr
    assert not here.exists()

    away.rename(here)
    assert cli("retry", job).returncode == 0


def test_a_retry_of_a_failed_job_is_a_new_job(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "a"}, name="flights", params={"year": 2013})
    hand.decide(job)
    assert cli("retry", job).returncode == 4, "it has not ended"
    hand.fail(job, "a", "no")
    assert f"unstuck retry {job}" in cli("why", job).stdout
    (new,) = cli.json("retry", job, "--reason", "again")
    assert (new["retry_of"], new["answer"], new["status"]) == (job, "DONE", "PENDING")
    (again,) = cli.json("retry", job)
    assert (again["target"], again["answer"]) == (new["target"], "ALREADY")
    (chosen,) = cli.json("retry", "--status", "FAILED", "--yes")
    assert chosen["target"] == new["target"]
    shown = cli.json("show", new["target"])
    assert (shown["retry_of"], shown["name"], shown["params"]) == (job, "flights", {"year": 2013})
    assert cli("retry", job, "--param", "yaer=2014").returncode == 2
    assert "RETRIED" in cli("events", job).stdout


def test_a_retry_with_a_fixed_spec_runs_the_changed_groups_and_lists_them(
    cli: Cli, hand: ByHand, tmp_path: Path
) -> None:
    """After a wrong query, a retry ran the stored text again."""
    groups = [
        {"name": "good"},
        {"name": "bad", "needs": ["good"]},
        {"name": "end", "needs": ["bad"]},
    ]
    job = hand.submit(*groups, name="flights")
    hand.decide(job)
    hand.succeed(job, "good")
    hand.fail(job, "bad", "no such column")
    spec = hand.client.written(job)
    spec["groups"][0] |= {"timeout": "2h", "retry": {"max": 7}}  # no work of it is stale
    spec["groups"][1]["steps"] = [{"python": "some.where:mended"}]
    mended = tmp_path / "mended.yaml"
    mended.write_text(json.dumps(spec))

    told = cli("retry", job, "--spec", mended)

    assert told.returncode == 0, told.stderr
    assert "It runs bad, end, and takes over each of good unless" in " ".join(told.stdout.split())
    (new,) = cli.json("retry", job, "--spec", mended)
    assert (new["answer"], new["retry_of"]) == ("ALREADY", job), "given twice, it is one retry"
    kept, changed, _ = hand.client.written(new["target"])["groups"]
    assert changed["steps"][0]["python"] == "some.where:mended"
    assert (kept["timeout"], kept["retry"]["max"]) == (7200, 7)
    help_ = "".join(cli("why", job).stdout.split())
    assert f"unstuckretry{job}--specFILE" in help_
    mended.write_text("name: flights\n")
    assert cli("retry", job, "--spec", mended).returncode == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            [],
            (
                "It runs bad, end, and takes over each of good, other unless its code, parameters "
                "or inputs changed"
            ),
        ),
        (
            ["--from", "other"],
            (
                "It runs other, bad, end, and takes over each of good unless its parameters or "
                "inputs changed"
            ),
        ),
    ],
)
def test_a_retry_lists_the_groups_that_run_and_those_that_may_be_reused(
    cli: Cli, hand: ByHand, more: list[str], said: str
) -> None:
    job = hand.submit(
        {"name": "good"},
        {"name": "other"},
        {"name": "bad"},
        {"name": "end", "needs": ["good", "bad"]},
    )
    hand.decide(job)
    for name in ("good", "other"):
        hand.succeed(job, name)
    hand.fail(job, "bad", "no")
    answer = cli.json("retry", job, *more)[0]
    assert (
        f"job {job} is retried as job {answer['target']}. {said}. `unstuck show {answer['target']}` says "
        "of "
    ) in answer["text"]


@pytest.mark.variant
@pytest.mark.parametrize(
    ("more", "again", "adopts"),
    [
        (["--from", "b"], {"b", "end"}, True),
        (["--rerun", "a"], {"a", "b", "end"}, False),
        (["--rerun", "b", "--rerun", "c"], {"b", "c", "end"}, False),
        (["--adopt-all"], set(), True),
    ],
)
def test_a_retry_reruns_the_requested_groups(
    cli: Cli, hand: ByHand, more: list[str], again: set[str], adopts: bool
) -> None:
    job = hand.submit(
        {"name": "a"},
        {"name": "b", "needs": ["a"]},
        {"name": "c"},
        {"name": "end", "needs": ["b", "c"]},
    )
    hand.decide(job)
    for name in ("a", "b", "c"):
        hand.succeed(job, name)
    hand.fail(job, "end", "no")
    (new,) = cli.json("retry", job, *more)
    assert (new["retry_of"], new["answer"]) == (job, "DONE")
    record = hand.view(new["target"])
    assert ({*record.reruns}, record.any_code) == (again, adopts)
    (same,) = cli.json("retry", job, *more)
    assert (same["target"], same["answer"]) == (new["target"], "ALREADY")
    (also,) = cli.json("retry", job, *more, "--rerun", "a", "--adopt-all")
    assert (also["answer"], also["target"] == new["target"]) == ("DONE", False), (
        "what was asked for is another retry"
    )
    (other,) = cli.json("retry", job)
    assert other["answer"] == "DONE", "a retry without it is another one"


@pytest.mark.parametrize(
    ("more", "said"),
    [(["--from", "b"], "has no group b"), (["--param", "b=1"], "no such parameter")],
)
def test_one_job_that_cannot_be_retried_does_not_block_the_others(
    cli: Cli, hand: ByHand, more: list[str], said: str
) -> None:
    for name in ("a", "b"):
        job = hand.submit({"name": name}, params={name: 1})
        hand.decide(job)
        hand.fail(job, name, "no")
    done = cli("retry", "--status", "FAILED", "--yes", *more)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "retry: 1 on record, 1 wrong" in done.stdout
    (new,) = cli.json("list", "--status", "PENDING")
    assert cli.json("show", new["id"])["retry_of"] == job


@pytest.mark.variant
@pytest.mark.parametrize(
    ("command", "before"),
    [
        *(
            (word, None)
            for word in ("pause", "stop", "cancel", "force-stop", "alter", "skip", "rerun")
        ),
        ("resume", "pause"),
        ("retry", "force-stop"),
    ],
)
def test_the_recorded_user_of_a_command_is_the_given_name(
    cli: Cli, hand: ByHand, retrying: str, command: str, before: str | None
) -> None:
    if before is not None:
        hand.client.command(retrying, before)
        hand.decide(retrying)
    if command == "rerun":
        hand.succeed(retrying, "good")
    more = {"alter": ["--set", "groups.bad.timeout=2h"], "skip": ["bad"], "rerun": ["good"]}.get(
        command, []
    )
    done = cli(command, retrying, *more, "--by", "ada", "--reason", "it is late")
    assert done.returncode == 0, done.stderr
    last = cli("events", retrying).stdout.splitlines()[-1]
    assert "by ada" in last, last


def test_the_recorded_submitter_is_the_given_name(cli: Cli, hand: ByHand, retrying: str) -> None:
    (cli.folder / "job.json").write_text(json.dumps(hand.client.written(retrying)))
    job = cli.json("submit", "job.json", "--by", "ada")["id"]
    assert cli.json("show", job)["submitted_by"] == "ada"
