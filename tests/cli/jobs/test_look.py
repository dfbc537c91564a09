"""What ``list``, ``show``, ``events``, ``logs``, ``datasets`` and ``dead`` answer, for people and
for scripts.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import ByHand, Cli
from tests.support.a_terminal import terminal
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.cli.jobs.listing import print_listing
from unstuck.cli.jobs.watch import waiting
from unstuck.cli.render.terminal import clock
from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.reports import ReportStream
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.failure import CUT
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.logs.attempt_log import AttemptLog
from unstuck.tasks.streams.arrived.position import FilesPosition, write_position
from unstuck.tasks.terminal_text import printable
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import Checkpoint, DataFile
from unstuck.views.jobs.job_logs import shown_line

SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
)


# -- list ------------------------------------------------------------------------------------------


def test_list_in_json_has_stable_names_and_times_in_utc(cli: Cli, hand: ByHand) -> None:
    old = hand.finished(name="nightly")
    new = hand.submit({"name": "a"}, {"name": "b", "needs": ["a"]})
    first, second = cli.json("list")
    assert (first["id"], second["id"]) == (new, old)
    whole = cli.json("show", old)
    alone = {"due_at", "damage", "params", "reads", "zones", "groups"}
    assert set(second) == set(whole) - alone
    assert second == {name: value for name, value in whole.items() if name not in alone}
    assert (second["status"], second["done"], second["total"], second["states"]) == (
        "FINISHED",
        1,
        1,
        {"SUCCEEDED": 1},
    )
    assert second["ended_at"].endswith("Z")
    assert (first["status"], first["started_at"], first["total"]) == ("PENDING", None, 2)


def test_list_late_shows_the_expected_names_that_are_late(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    assert (cli("list", "--late").stderr, cli.json("list", "--late")) == ("No job is late.\n", [])
    why = "no run has ended well by 06:00"
    late = Expected(alerts={"late: 06:00": Alert(5.0, 6.0, ("ops",))}, texts={"late: 06:00": why})
    ExpectedJobsStore(client, Keys()).note("export", "", late.to_json(), ())
    (problem,) = cli.json("list", "--late")
    assert (problem["code"], problem["name"], problem["text"]) == ("LATE", "export", why)
    assert problem["since"] == "1970-01-01T00:00:05.000Z"
    assert re.search(rf"export +\d+d.* {why}", cli("list", "--late").stdout)
    refused = cli("list", "--late", "--name", "e*")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--late lists names" in refused.stderr


def test_groups_canceled_before_they_ran_do_not_count_as_done(cli: Cli, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "a"}, {"name": "b", "needs": ["a"]}, {"name": "f", "for_each": {"m": [1, 2]}}
    )
    hand.decide(job)
    hand.succeed(job, "a")
    hand.client.force_stop(job)
    hand.decide(job)
    (listed,) = cli.json("list")
    assert (listed["status"], listed["done"], listed["total"]) == ("CANCELED", 1, 4)
    assert re.search(r"CANCELED +1/4 ▇▇▇▇▁", cli("show", job).stdout)


def test_a_multiline_error_is_shortened_everywhere_but_in_show(cli: Cli, hand: ByHand) -> None:
    """The plan of a wrong query was repeated five times, in lines of hundreds of columns."""
    plan = ["'Project ['carier]", "+- Relation [carrier, flights]"]
    job = hand.submit({"name": "only"})
    hand.decide(job)
    hand.fail(job, "only", "no column carier\n" + "\n".join(plan))
    for command in (["list"], ["events", job], ["watch", job]):
        said = cli(*command).stdout
        assert said.count("no column carier …") == 1, (command, said)
        assert not any(line in said for line in plan), command
    shown = cli("show", job).stdout
    tree, _, below = shown.partition("\n\n")
    assert (tree.count("no column carier"), below.count("no column carier")) == (1, 1), shown
    for line in plan:
        assert shown.count(line) == 1, shown
    assert any(line in cli("show", job, "--json").stdout for line in plan[1:])


@pytest.mark.variant
@pytest.mark.parametrize(
    ("text", "end"), [("E: first\nsecond", "second"), (f"{'x' * 990}{CUT}{'y' * 990}", "y" * 990)]
)
def test_an_error_that_ends_its_traceback_is_shown_only_once(
    cli: Cli, hand: ByHand, text: str, end: str
) -> None:
    job = hand.submit({"name": "only"})
    hand.decide(job)
    hand.fail(
        job,
        "only",
        text,
        traceback=f'Frames first:\n  File "a.py", line 1\n{text.replace(CUT, "z" * 9)}',
    )
    shown = cli("show", job).stdout
    assert "Frames first" in shown
    assert shown.count(end) == 1


def test_a_long_reason_does_not_fill_the_screen_while_watching(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "only"})
    hand.client.pause(job, reason="the source is away " * 200)
    hand.decide(job)
    said = waiting(hand.client.show(job, why=True))
    assert said is not None
    assert 200 < len(said.plain) < 400
    assert said.plain.endswith((" the …", " source …", " is …", " away …"))


@pytest.mark.variant
def test_list_filters_by_status_name_time_and_number(cli: Cli, hand: ByHand) -> None:
    finished = hand.finished(name="nightly-1")
    pending = [hand.submit({"name": "a"}, name=name) for name in ("nightly-2", "hourly")]

    def ids(*arguments: str) -> list[str]:
        return [job["id"] for job in cli.json("list", *arguments)]

    assert ids("--status", "finished") == [finished]
    assert set(ids("--status", "FINISHED", "--status", "PENDING")) == {finished, *pending}
    assert set(ids("--name", "nightly-*")) == {finished, pending[0]}
    assert ids("--limit", "1") == [pending[1]]
    assert len(ids("--since", "1h")) == 3
    assert ids("--since", "2999-01-01T00:00:00Z") == []


def test_list_shows_the_state_of_each_job_with_its_reason(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "a"}, name="nightly")
    hand.decide(job)
    hand.fail(job, "a", "the file is gone")
    done = cli("list")
    (line,) = [line for line in done.stdout.splitlines() if job in line]
    assert "nightly" in line
    assert "FAILED" in line
    assert "1/1" in line
    assert "the file is gone" in line


def test_list_shows_the_wait_reason_in_the_words_of_why(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    retrying = hand.submit({"name": "flaky", "retry": {"max": 3, "backoff": "1h"}})
    hand.decide(retrying)
    hand.fail(retrying, "flaky", "no network", recoverable=True)
    paused, stuck = hand.submit({"name": "a"}), hand.submit({"name": "heavy", "queue": "heavy"})
    hand.client.pause(paused, reason="night", by="anna")
    for job in (paused, stuck):
        hand.decide(job)
    groups = Keys(hand.settings.prefix).of(stuck).groups
    record = json.loads(client.hget(groups, "heavy") or "")
    client.hset(
        groups, "heavy", json.dumps({**record, "since": record["since"] - 60})
    )  # long enough to be stuck
    listed = {job["id"]: (job["status"], job["why"]) for job in cli.json("list")}
    assert listed == {
        retrying: ("RETRYING", "flaky is tried again (backoff, attempt 1) after: no network"),
        paused: ("PAUSED", "anna paused it (night)"),
        stuck: ("PENDING", "heavy: queue heavy: no worker listens on it"),
    }
    lines = cli("list").stdout.splitlines()
    for job, (status, waits) in listed.items():
        (line,) = [line for line in lines if job in line]
        assert status in line
        assert line.endswith(waits)
        assert cli.json("show", job)["why"] == waits
    why, said = cli.json("why", paused)[0], cli("why", paused).stdout
    assert (why["what"] in said, why["what"]) == (True, listed[paused][1])


def test_an_empty_result_prints_an_empty_list(cli: Cli) -> None:
    assert cli.json("list") == []
    done = cli("list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "No jobs.\n")


# -- the name of a job -----------------------------------------------------------------------------


def test_a_job_can_be_named_by_last_or_by_a_prefix_of_its_id(cli: Cli, hand: ByHand) -> None:
    hand.submit({"name": "a"}, name="first")
    job = hand.submit({"name": "a"}, name="second")
    for word in ("last", job, job[:-1], job.partition("-")[2][:5]):
        assert cli.json("show", word)["id"] == job


def test_a_job_name_means_its_newest_job_and_an_exact_id_takes_precedence(
    cli: Cli, hand: ByHand
) -> None:
    older = hand.submit({"name": "a"}, name="flights")
    newest = hand.submit({"name": "a"}, name="flights")
    named_so = hand.submit({"name": "a"}, name=older)  # somebody called a job by the id of another
    assert cli.json("show", "flights")["id"] == newest
    assert cli.json("show", older)["id"] == older
    assert cli("cancel", "flights").returncode == 0
    assert [hand.view(job).intent for job in (older, newest, named_so)] == [
        "run",
        "cancel",
        "run",
    ]
    done = cli("show", "fligths")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no job fligths is in the store" in done.stderr
    assert "no job has this name, and no id begins with it" in done.stderr


# -- show ------------------------------------------------------------------------------------------


@pytest.mark.variant
def test_piped_output_has_no_trailing_spaces(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "only"}, {"name": "other", "needs": ["only"]})
    hand.decide(job)
    hand.fail(
        job, "only", "no such column", traceback="Frames:\n  File x, line 1\n    f()\nKeyError: 'x'"
    )
    for command in (("show", job), ("list",), ("events", job), ("why", job), ("fleet",)):
        lines = cli(*command).stdout.splitlines()
        assert [line for line in lines if line != line.rstrip()] == [], command
    assert "      File x, line 1\n        f()\n    KeyError: 'x'" in cli("show", job).stdout


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.variant
def test_text_output_uses_local_times_with_offset_and_json_uses_utc(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "flaky", "retry": {"max": 3, "backoff": "1h"}})
    hand.decide(job)
    hand.fail(job, "flaky", "no network", recoverable=True)
    view = hand.view(job)
    write_log(
        hand,
        Token(job, "flaky", 1, "n", "c"),
        "2013-12-31T23:30:00.250Z INFO step: one",
        "two 23:30:00",
    )
    # POSIX counts westwards: this is five and a half hours ahead of UTC.
    cli.env["TZ"] = "Somewhere-05:30"

    def said(*arguments: str) -> str:
        with cli.start(*arguments) as process:
            return process.communicate()[0]

    ahead = datetime.timezone(datetime.timedelta(hours=5.5))
    local = datetime.datetime.fromtimestamp(view.submitted_at, ahead).isoformat(
        sep=" ", timespec="seconds"
    )
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert said("events", job).startswith(f"{local}  SUBMITTED")
    for command in ("show", "why", "events"):
        out = said(command, job)
        assert len(re.findall(stamp, out)) >= 1
        assert len(re.findall(stamp, out)) == len(re.findall(stamp + r"\+05:30", out)), out
        times = re.findall(r'"(\d{4}-\d\d-\d\dT[^"]*)"', said(command, job, "--json"))
        assert times
        assert [
            time for time in times if not re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", time)
        ] == []
    assert said("logs", job, "flaky").splitlines() == [
        "2014-01-01 05:00:00.250+05:30 INFO step: one",
        "two 23:30:00",
    ]
    assert json.loads(said("logs", job, "--json").splitlines()[0])["line"].startswith(
        "2013-12-31T23:30:00.250Z "
    )


# -- more of show ----------------------------------------------------------------------------------


def test_show_in_json_has_all_fields_of_a_fork_and_its_members(cli: Cli, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "start"}, {"name": "month", "needs": ["start"], "for_each": {"m": [7, 8, 9]}}
    )
    hand.decide(job)
    hand.succeed(job, "start", rows={"start": 12})
    token = hand.claim(job, "month[1]", "host-9:77")
    hand.progress(token, step=1, steps=2, label="counting", done=3, total=10)
    shown = cli.json("show", job)
    assert (shown["status"], shown["intent"], shown["done"], shown["total"]) == (
        "RUNNING",
        "run",
        1,
        4,
    )
    assert shown["submitted_by"] == "tester"
    start, month = shown["groups"]
    assert start["members"][0]["rows"] == {"start": 12}
    assert (month["forked"], month["needs"], month["total"]) == (True, ["start"], 3)
    assert month["states"] == {"RUNNING": 1, "QUEUED": 2}
    member = next(m for m in month["members"] if m["id"] == "month[1]")
    assert (member["value"], member["attempt"], member["worker"]) == (8, 1, "host-9:77")
    assert (member["progress"]["done"], member["progress"]["total"]) == (3, 10)


def test_show_draws_forks_running_members_and_waiting_groups(cli: Cli, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "month", "for_each": {"m": [7, 8, 9, 10]}},
        {"name": "report", "needs": ["month"]},
    )
    hand.decide(job)
    hand.succeed(job, "month[0]", rows={"month": 5})
    hand.progress(
        hand.claim(job, "month[1]", "host-9:77"),
        step=1,
        steps=2,
        label="counting",
        rows=1234,
        done=3,
        total=10,
    )
    lines = cli("show", job).stdout.splitlines()
    fork = next(line for line in lines if "month" in line and "1/4" in line)
    assert "▇▇▁▁▁▁▁▁" in fork
    assert "1 running, 2 queued" in fork
    member = next(line for line in lines if "● month[1]" in line)
    for part in ("m=8", "step 1/2 counting", "1,234 rows", "3/10", "host-9:77"):
        assert part in member
    assert "month[0]" not in "\n".join(lines)  # what has succeeded needs no look
    assert "waits for month" in next(line for line in lines if "report" in line)


def test_show_prints_the_first_and_last_error_without_markup_or_control_characters(
    cli: Cli, hand: ByHand
) -> None:
    job = hand.submit({"name": "only", "retry": {"max": 1, "backoff": "0s"}})
    hand.decide(job)
    hand.fail(
        job,
        "only",
        "[red]first[/red] \x1b[31mtrouble",
        recoverable=True,
        traceback="first.py line 1",
    )
    wait_until(
        lambda: hand.decide(job) or hand.view(job).groups[0].members[0].state == "QUEUED",
        what="the retry",
    )
    hand.fail(job, "only", "second trouble", traceback="second.py line 2")
    out = cli("show", job).stdout  # Cli looks for escapes
    assert "first error: USER_ERROR [red]first[/red]" in out
    assert "last error: USER_ERROR second trouble" in out
    assert "first.py line 1" in out
    assert "second.py line 2" in out
    (member,) = cli.json("show", job)["groups"][0]["members"]
    assert member["first_error"]["text"].startswith("[red]")
    assert member["last_error"]["traceback"] == "second.py line 2"


def test_show_prints_the_errors_of_five_groups_and_counts_the_rest(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "g", "for_each": {"n": list(range(7))}}, on_failure="finish_others")
    hand.decide(job)
    for n in range(7):
        hand.fail(job, f"g[{n}]", f"trouble {n}")
    out = cli("show", job).stdout
    assert [n for n in range(7) if f"error: USER_ERROR trouble {n}" in out] == [0, 1, 2, 3, 4]
    assert f"… and 2 more groups with errors: unstuck show {job} --json" in out


def test_show_says_when_and_why_a_retry_starts(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "only", "retry": {"max": 3, "backoff": "60s"}})
    hand.decide(job)
    hand.fail(job, "only", "flaky network", recoverable=True)
    out = cli("show", job).stdout
    assert "RETRYING" in out
    line = next(line for line in out.splitlines() if "↻ only" in line)
    assert "attempt 2 in " in line
    assert "flaky network (retry 1 of 3" in line
    assert "only is tried again (backoff, attempt 1) after: flaky network" in out


def test_show_prints_one_line_for_what_each_group_waits_for(cli: Cli, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "clean"},
        {"name": "heavy", "queue": "heavy"},
        {"name": "report", "needs": ["clean", "heavy"]},
    )
    hand.decide(job)
    hand.claim(job, "clean", "host-9:77")
    lines = cli("show", job).stdout.splitlines()
    assert "queue heavy: no worker listens on it" in next(
        line for line in lines if "◌ heavy" in line
    )
    assert "waits for clean (RUNNING), heavy (QUEUED)" in next(
        line for line in lines if "○ report" in line
    )
    assert "worker host-9:77 runs attempt 1; last heard of" in next(
        line for line in lines if "● clean" in line
    )
    shown = cli.json("show", job)
    assert shown["why"] == "waits for clean (RUNNING), heavy (QUEUED)"
    assert [group["why"] for group in shown["groups"][1:]] == [
        *("queue heavy: no worker listens on it", "waits for clean (RUNNING), heavy (QUEUED)"),
    ]
    assert shown["groups"][1]["members"][0]["why"] == shown["groups"][1]["why"]
    done = cli.json("show", hand.finished())
    assert (done["why"], done["groups"][0]["why"], done["groups"][0]["members"][0]["why"]) == (
        None,
        None,
        None,
    )


def test_a_job_without_a_coordinator_says_so(cli: Cli, hand: ByHand, client: redis.Redis) -> None:
    job = hand.submit({"name": "only"})
    key = Keys(hand.settings.prefix).of(job).job
    submitted_at = float(client.hget(key, "submitted_at") or 0)
    client.hset(key, "submitted_at", submitted_at + 60)
    assert "unstuck up" not in cli("show", job).stdout
    client.hset(key, "submitted_at", submitted_at - 60)
    assert (
        "no coordinator has looked at this job yet; start a fleet with `unstuck up`"
        in cli("show", job).stdout
    )


# -- events ----------------------------------------------------------------------------------------


def test_events_are_ordered_with_one_line_or_json_object_each(cli: Cli, hand: ByHand) -> None:
    job = hand.finished()
    kinds = [line.split()[2] for line in cli("events", job).stdout.splitlines()]
    assert kinds[0] == "SUBMITTED"
    assert kinds[-1] == "FINISHED"
    assert kinds.index("QUEUED") < kinds.index("RUNNING") < kinds.index("SUCCEEDED")
    found = [json.loads(line) for line in cli("events", job, "--json").stdout.splitlines()]
    assert [event["kind"] for event in found] == kinds
    running = next(event for event in found if event["kind"] == "RUNNING")
    assert (running["group"], running["epoch"], running["worker"]) == ("only", 1, "host-1:4242")
    assert datetime.datetime.fromisoformat(running["at"]).utcoffset() is not None


@pytest.mark.variant
def test_following_events_shows_each_event_as_it_arrives_and_ends_with_the_job(
    cli: Cli, hand: ByHand
) -> None:
    job = hand.submit({"name": "only"})
    with cli.start("events", job, "-f", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "SUBMITTED"
        hand.decide(job)
        assert json.loads(process.stdout.readline())["kind"] == "QUEUED"
        hand.succeed(job, "only")
        kinds = [json.loads(line)["kind"] for line in process.stdout]
        assert kinds[0] == "RUNNING"
        assert kinds[-1] == "FINISHED"
    assert process.returncode == 0


@pytest.mark.variant
def test_ctrl_c_while_following_prints_no_error(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "only"})
    with cli.start("events", job, "-f") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 130


# -- logs ------------------------------------------------------------------------------------------


def write_log(hand: ByHand, token: Token, *lines: str) -> Path:
    """Lines in the log of an attempt, where the attempt's own log is."""
    path = AttemptLog(Files(hand.settings.warehouse), token.log).path
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def logged(hand: ByHand) -> str:
    job = hand.submit({"name": "clean"}, {"name": "month", "for_each": {"m": [7, 8]}})
    for group, epoch, text in (
        *(("clean", 1, "first try"), ("clean", 2, "second try"), ("clean", 10, "tenth try")),
        *(("month[0]", 1, "july"), ("month[1]", 1, "august")),
    ):
        write_log(hand, Token(job, group, epoch, "n", "c"), text)
    return job


def test_logs_show_the_newest_attempt_of_each_group_or_all_attempts(cli: Cli, logged: str) -> None:
    assert cli("logs", logged).stdout.splitlines() == [
        *("clean#10 | tenth try", "month[0]#1 | july", "month[1]#1 | august"),
    ]
    assert cli("logs", logged, "clean").stdout == "tenth try\n"
    assert cli("logs", logged, "clean", "--all").stdout.splitlines() == [
        *("clean#1 | first try", "clean#2 | second try", "clean#10 | tenth try"),
    ]
    assert cli("logs", logged, "month").stdout.splitlines() == [
        "month[0]#1 | july",
        "month[1]#1 | august",
    ]
    assert cli("logs", logged, "month[1]").stdout == "august\n"
    entry = json.loads(cli("logs", logged, "month[1]", "--json").stdout)
    assert (entry["group"], entry["attempt"], entry["line"]) == ("month[1]", 1, "august")
    assert Path(entry["file"]).read_text() == "august\n"


def test_logs_are_ordered_by_start_of_group_and_escape_sequences_are_removed(
    cli: Cli, hand: ByHand
) -> None:
    job = hand.submit({"name": "zebra"}, {"name": "apple", "needs": ["zebra"]})
    hand.decide(job)
    for group in ("zebra", "apple"):
        token = hand.claim(job, group)
        write_log(hand, token, f"\x1b[31m{group}\x1b[0m \x1b]0;title\x07\x07")
        hand.finish(token, Outcome(OutcomeKind.SUCCEEDED))
    assert cli("logs", job).stdout.splitlines() == [
        "zebra#1 | zebra \N{REPLACEMENT CHARACTER}",
        "apple#1 | apple \N{REPLACEMENT CHARACTER}",
    ]


def test_foreign_files_in_the_log_folder_are_ignored(cli: Cli, hand: ByHand, logged: str) -> None:
    staging = Path(hand.settings.warehouse) / "_staging" / logged
    (staging / ".DS_Store").write_bytes(b"of a file manager")
    (staging / "lost+found").mkdir()
    (staging / "job.logs" / ".DS_Store").write_bytes(b"of a file manager")
    (staging / "job.logs" / "lost+found").mkdir()
    (staging / "job.logs" / "notes.1.log").write_text("a log of nobody")
    assert cli("logs", logged).stdout.count(" | ") == 3
    assert cli("logs", logged, "clean").stdout == "tenth try\n"


def test_logs_of_an_unknown_group_exit_with_2_and_list_the_groups(cli: Cli, logged: str) -> None:
    done = cli("logs", logged, "claen")
    assert done.returncode == 2
    assert "clean, month" in done.stderr


def test_missing_logs_are_reported_without_an_error(cli: Cli, hand: ByHand) -> None:
    done = cli("logs", hand.submit({"name": "only"}))
    assert (done.returncode, done.stdout) == (0, "")
    assert "No logs" in done.stderr
    assert "PENDING" in done.stderr


def test_following_logs_shows_whole_lines_and_finally_the_unfinished_line(
    cli: Cli, hand: ByHand
) -> None:
    job = hand.submit({"name": "only"})
    hand.decide(job)
    token = hand.claim(job, "only")
    path = write_log(hand, token, "one")
    with cli.start("logs", job, "-f") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "only#1 | one\n"
        with path.open("a") as file:
            file.write("two\nthr")
            file.flush()
            assert process.stdout.readline() == "only#1 | two\n"
            file.write("ee")

        hand.finish(token, Outcome(OutcomeKind.SUCCEEDED))
        assert process.stdout.read() == "only#1 | three\n"
    assert process.returncode == 0


@pytest.mark.variant
def test_closing_the_output_pipe_early_is_not_an_error(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "only"})
    write_log(hand, Token(job, "only", 1, "n", "c"), *("a line" for _ in range(100_000)))
    with cli.start("logs", job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "only#1 | a line\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.variant
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_unread_output_is_not_an_error(cli: Cli, hand: ByHand, as_json: bool) -> None:
    hand.finished()
    reader, writer = os.pipe()
    os.close(reader)
    with cli.start("list", *(["--json"] if as_json else []), stdout=writer) as process:
        os.close(writer)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


# -- datasets --------------------------------------------------------------------------------------


@pytest.fixture
def published(cli: Cli) -> Warehouse:
    """Two versions of one dataset, and another one."""
    warehouse = Warehouse(cli.env["UNSTUCK_WAREHOUSE"])
    warehouse.ensure_id()
    one, two = (DataFile(f"_staging/j/{n}.parquet", n, 1000 * n) for n in (1, 2))
    for n, datasets in (
        (1, {"monthly": Change("replace", [one], [], 1, SCHEMA)}),
        (
            2,
            {
                "monthly": Change("append", [two], [], 2, SCHEMA),
                "report": Change("replace", [one], [], 1, SCHEMA),
            },
        ),
    ):
        assert warehouse.create_entry(
            n, Entry(n, n - 1, f"job{n}", "package", f"job{n}", "flights", 1e9, {}, datasets)
        )
    return warehouse


@pytest.mark.variant
def test_views_for_bi_tools_are_printed_written_or_kept_in_the_warehouse(
    cli: Cli, published: Warehouse, tmp_path: Path
) -> None:
    printed = cli("datasets", "--export-views", "duckdb").stdout
    assert printed.startswith(f"-- unstuck: version 2 of {cli.env['UNSTUCK_WAREHOUSE']}")
    assert ('VIEW "monthly" AS' in printed, 'VIEW "report" AS' in printed) == (True, True)
    one = cli(
        "datasets",
        "monthly",
        "--version",
        "1",
        "--export-views",
        "spark",
        "--to",
        tmp_path / "views.sql",
    )
    assert (one.returncode, one.stdout) == (0, "")
    text = (tmp_path / "views.sql").read_text()
    assert ("VIEW `monthly` (`n` bigint)" in text, "`report`" in text, "version 1 of" in text) == (
        True,
        False,
        True,
    )
    assert [path.name for path in tmp_path.glob(".views*")] == []
    assert (
        "Each publish rewrites it" in cli("datasets", "--export-views", "duckdb", "--keep").stdout
    )
    assert Path(published.storage.uri("_views/duckdb.sql")).read_text() == printed
    for wrong in (
        ("--version", "0", "--export-views", "spark", "--keep"),
        ("monthly", "--export-views", "spark", "--keep"),
        ("--keep",),
        ("--to", "x.sql"),
    ):
        assert cli("datasets", *wrong).returncode == 2


def test_datasets_are_shown_without_redis(cli: Cli, published: Warehouse) -> None:
    cli.env["UNSTUCK_REDIS_URL"] = "redis://127.0.0.1:1/0"
    monthly, report = cli.json("datasets")
    assert (monthly["dataset"], monthly["version"], monthly["rows"], monthly["files"]) == (
        "monthly",
        2,
        3,
        2,
    )
    assert (monthly["bytes"], monthly["job"], monthly["columns"]) == (
        3000,
        "job2",
        [{"name": "n", "type": "long"}],
    )
    assert report["dataset"] == "report"
    out = cli("datasets").stdout
    assert "job2 (flights)" in next(line for line in out.splitlines() if line.startswith("monthly"))


def test_a_dataset_is_shown_at_an_older_version_with_its_files(
    cli: Cli, published: Warehouse
) -> None:
    (old,) = cli.json("datasets", "monthly", "--version", "1", "--files")
    assert old["paths"] == [published.storage.uri("_staging/j/1.parquet")]
    out = cli("datasets", "monthly", "--files").stdout
    assert published.storage.uri("_staging/j/2.parquet") in out.splitlines()


def test_the_history_of_a_dataset_shows_the_input_versions_of_each_version(
    cli: Cli, published: Warehouse
) -> None:
    change = {
        name: Change("append", [DataFile(f"_staging/k/{name}.parquet", 3, 1000)], [], 3, SCHEMA)
        for name in ("monthly", "report")
    }
    mixed = ["Spark 3.5.9, Python 3.11.7, pandas 2.3.3", "Spark 4.3.0, Python 3.11.7, pandas 2.3.3"]
    made_on = {"monthly": mixed, "report": ["Python 3.12.1"]}
    assert published.create_entry(
        3, Entry(3, 2, "job3", "package", "job3", "flights", 1e9, {}, change, made_on=made_on)
    )
    said = [
        (one["version"], one["made_on"]) for one in cli.json("datasets", "monthly", "--history")
    ]
    assert said == [(3, mixed), (2, []), (1, [])], "the newest first; the other two noted none"
    header, *rows = cli("datasets", "monthly", "--history", COLUMNS="300").stdout.splitlines()
    assert [row[header.index("MADE ON") :].strip() for row in rows] == ["; ".join(mixed), "", ""]
    assert (
        "Python 3.12.1"
        in cli("datasets", "report", "--history", "--limit", "1", COLUMNS="300").stdout
    )


def test_the_source_files_of_a_stream_are_listed_and_can_be_skipped(
    cli: Cli, published: Warehouse, tmp_path: Path
) -> None:
    (landing := tmp_path / "in").mkdir()
    file = landing / "a.json"
    file.write_text("{}")
    path = "_staging/job3/load/1-n-c/events.position"
    position = FilesPosition({str(file): f"2 {file.stat().st_mtime_ns}"}, {str(file): 5})
    size = write_position(published.storage, path, position)
    checkpoint = Checkpoint(path, size, str(landing), 1, "", "files", {"looked": 1, "files": 1})
    change = {"monthly": Change("append", [], [], 0, SCHEMA, checkpoint=checkpoint)}
    assert published.create_entry(
        3, Entry(3, 2, "job3", "package", "job3", "flights", 1e9, {}, change)
    )
    read = {"version": 3, "source": str(file), "rows": 5, "bytes": 2, "put_aside": ""}
    assert cli.json("datasets", "monthly", "--sources") == [read]
    assert cli.json("datasets", "monthly", "--sources", "--version", "2") == []
    assert cli.json("datasets", "monthly", "--history")[0]["stream"]["counts"] == {
        "looked": 1,
        "files": 1,
    }
    (landing / "b.json").write_text("{{")
    words = ("stream", "skip", "monthly", "b.json", "--reason", "cut short", "--by", "anna")
    (done,) = cli.json(*words)
    assert done.pop("text").startswith(str(landing / "b.json"))
    assert done == {
        "answer": "DONE",
        "path": str(landing / "b.json"),
        "version": 4,
        "new": True,
        "target": "monthly",
    }
    assert "nothing to skip" in cli("stream", "skip", "monthly", "b.json").stdout
    out = cli("datasets", "monthly", "--sources", COLUMNS="300").stdout
    assert "skipped by anna: cut short" in next(
        line for line in out.splitlines() if str(landing / "b.json") in line
    )
    assert cli("stream", "skip", "monthly", "c.json").returncode == 4


@pytest.mark.parametrize(
    "edited", ['["_staging/../../etc"]', "[" * 100_000 + "]" * 100_000], ids=["..", "deep"]
)
def test_a_log_edited_by_hand_is_reported_with_its_entry(
    cli: Cli, published: Warehouse, tmp_path: Path, edited: str
) -> None:
    entry = Path(published.storage.uri("_log/000000000002.json"))
    entry.write_text(
        re.sub(r'"removed": \[.*?\]', lambda _: f'"removed": {edited}', entry.read_text())
    )
    for command in (
        ["datasets"],
        ["datasets", "monthly", "--history"],
        ["vacuum", "--keep", "1", "--dry-run"],
    ):
        done = cli(*command)
        assert done.returncode not in (0, 70), done.stderr
        assert f"the log entry {entry} cannot be read" in done.stderr


def test_a_missing_warehouse_exits_with_2_and_is_not_shown_as_empty(
    cli: Cli, tmp_path: Path
) -> None:
    for more in ((), ("--json",), ("total",), ("total", "--head", "3"), ("total", "--history")):
        done = cli("datasets", "--warehouse", "elsewhere", *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"There is no warehouse at {tmp_path / 'elsewhere'}" in done.stderr
        assert "mounted" in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_an_empty_warehouse_is_reported_with_its_address(cli: Cli, tmp_path: Path) -> None:
    Warehouse(str(tmp_path / "elsewhere")).ensure_id()
    assert cli.json("datasets", "--warehouse", "elsewhere") == []
    done = cli("datasets", "--warehouse", "elsewhere")
    assert (done.returncode, done.stdout) == (0, "")
    assert str(tmp_path / "elsewhere") in done.stderr


# -- dead ------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_with_their_reason_and_content(
    cli: Cli, client: redis.Redis
) -> None:
    assert cli.json("dead", "list") == []
    keys = Keys()
    stream = ReportStream(client, keys, "tester")
    stream.open()
    client.xadd(keys.reports, {"v": "1", "kind": "succeeded", "token": "gone/a/1/n/c"})
    assert stream.dead_letter(stream.read(1, 1.0), "no such job: gone", "UNKNOWN_JOB") == 1
    (report,) = cli.json("dead", "list")
    assert (report["reason"], report["fields"]["token"]) == ("no such job: gone", "gone/a/1/n/c")
    assert "no such job: gone" in cli("dead", "list").stdout


def test_only_terminals_get_colors_and_json_never_does(cli: Cli, hand: ByHand) -> None:
    hand.finished()
    done = cli("list", "--json", FORCE_COLOR="1")
    assert json.loads(done.stdout)[0]["status"] == "FINISHED"
    assert os.linesep in done.stdout


@pytest.mark.parametrize(
    "line",
    ["0000-00-00T00:00:00.000Z x", "9999-12-31T23:59:59.999Z x", "0001-01-01T00:00:00.000Z x"],
)
def test_a_line_that_resembles_a_timestamp_is_shown_unchanged(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for zone in ("Europe/Berlin", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert shown_line(line, clock).endswith(" x")
    monkeypatch.undo()
    time.tzset()


def test_printable_strips_terminal_control_sequences_and_keeps_spaces_and_emoji() -> None:
    assert printable("1\u00a0000 €\u202f\U0001f468\u200d\U0001f4bb \x1b[31mred\x1b[0m\x07") == (
        "1\u00a0000 €\u202f\U0001f468\u200d\U0001f4bb red\N{REPLACEMENT CHARACTER}"
    )


def test_a_job_of_a_newer_release_does_not_hide_others_in_the_list(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    newer = hand.submit({"name": "a"})
    other = hand.submit({"name": "a"})
    client.hset(Keys().of(newer).job, "schema", 99)
    listed = {job["id"]: job["why"] for job in cli.json("list")}
    assert set(listed) == {newer, other}
    assert "its schema is 99" in listed[newer]


def test_a_dataset_with_many_small_files_is_shown_with_the_remedy(
    cli: Cli, hand: ByHand, published: Warehouse
) -> None:
    many = [DataFile(f"_staging/k/{n}.parquet", 1, 1000) for n in range(600)]
    change = {"events": Change("replace", many, [], 600, SCHEMA)}
    assert published.create_entry(
        3, Entry(3, 2, "job3", "package", "job3", "load", 1e9, {}, change)
    )
    hint = "events has 600 small files, which slows its readers: unstuck compact events"
    assert hint in cli("datasets").stdout
    job = hand.submit({"name": "a", "inputs": {"mine": "events", "monthly": "monthly"}})
    assert cli("show", job).stdout.splitlines()[-1] == hint
    assert "small files" not in cli("show", hand.submit({"name": "a"})).stdout
    found = {one["code"]: one for one in json.loads(cli("doctor", "--json").stdout)["findings"]}
    assert "events (600)" in found["SMALL_FILES"]["text"]
    assert "monthly" not in found["SMALL_FILES"]["text"]
    assert "unstuck compact events" in found["SMALL_FILES"]["cure"]


def test_the_list_shows_keys_and_parameters_and_read_commands_accept_a_key(
    cli: Cli, hand: ByHand
) -> None:
    other = hand.submit({"name": "a"})
    assert "PARAMS" not in cli("list").stdout
    key = other[:8]  # a date, with which ids begin, too
    params = {"day": "2013-01-01", "some": "x" * 300}
    step = {"python": "some.where:step"}
    spec = {
        "name": "night",
        "params": params,
        "groups": [{"name": "a", "spark": False, "steps": [step]}],
    }
    job = hand.client.submit(spec, key=key).id
    assert [(one["id"], one["key"]) for one in cli.json("list")] == [(job, key), (other, None)]
    told = cli("list", COLUMNS="200").stdout
    assert "day=2013-01-01" in told
    assert len(told) < 4000

    shown = cli("show", key).stdout
    assert f"day=2013-01-01, some={'x' * 300}" in shown.replace("\n", "").replace(" " * 13, "")
    assert (cli.json("show", key)["id"], cli.json("show", key)["params"]) == (job, params)
    assert cli.json("show", "night")["id"] == cli.json("why", key)[0]["subject"] == job
    assert cli("logs", key).returncode == cli("events", key).returncode == 0

    hand.client.submit({**spec, "params": {"day": "2013-01-02"}}, key="night-2")
    done = cli("cancel", "night-2")
    assert (done.returncode, "night-2 is the key of job" in done.stderr) == (3, True), done.stderr
    done = cli("cancel", key)
    assert (done.returncode, f"{key} fits 3 jobs" in done.stderr) == (2, True), done.stderr
    assert not [one for one in cli.json("list") if one["status"] != "PENDING"]
    hand.client.force_stop(job)
    hand.decide(job)
    assert cli.json("show", key)["id"] == job
    again = hand.client.retry(job).id
    assert cli.json("show", key)["id"] == again != job, "a key follows its retries"


LONG_REASON = (
    "group load failed: ValueError: the file "
    "/data/landing/2026-11-27/customers_export_of_the_whole_year.csv "
) + ("has a header that is not expected, " * 9)


@pytest.mark.parametrize("width", [40, 80, 120, 1000])
def test_narrow_terminals_do_not_split_ids_or_words_and_reasons_are_truncated(
    width: int,
) -> None:
    job = JobInfo(
        id="20261127T074024-fa8esaga",
        name="sales_of_all_regions_nightly",
        status=Status.FAILED,
        submitted_at=1e9,
        started_at=1e9,
        ended_at=1e9 + 44,
        states={"SUCCEEDED": 3},
        total=12,
        version=0,
        reason=Reason("GROUP_FAILED", LONG_REASON),
        key="sales-2026-11-27-europe-west",
        params_text="day=2026-11-27, region=europe-west",
    )
    console, told = terminal(width)
    print_listing(console, [[job], [replace(job, id="20261127T074024-bbbbbbbb")]], {}, 1e9 + 50)
    words = told.getvalue().split()
    for word in (
        job.id,
        job.name,
        job.key,
        "20261127T074024-bbbbbbbb",
        "region=europe-west",
        *LONG_REASON[:190].split()[:-1],
    ):
        assert word in words
    assert max(map(len, told.getvalue().splitlines())) < 450
    assert told.getvalue().count("…") == 2
