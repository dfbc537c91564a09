"""``unstuck dead``: what is shown of a dead letter, what is put back, and what is asked before one
is removed.
"""

from __future__ import annotations

import json
import re

import pytest
import redis

from tests.cli.conftest import ByHand, Cli
from tests.cli.jobs.test_wait import Terminal
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.reports import DeadLetter, ReportStream
from unstuck.tasks.protocol.keys import Keys

KEYS = Keys()


def make_dead_letter(client: redis.Redis, job: str, **fields: str) -> str:
    """A dead letter of ``job``, without the ``fields`` that are empty; its id on the dead
    stream.
    """
    stream = ReportStream(client, KEYS, "tester")
    stream.open()
    said = {
        "v": "1",
        "id": "e",
        "token": f"{job}/a/1/n/c",
        "kind": "succeeded",
        "at": "1388534400",
        **fields,
    }
    said = {name: value for name, value in said.items() if value}
    client.xadd(KEYS.reports, said)  # type: ignore[arg-type]
    assert (
        stream.dead_letter(
            [entry for entry in stream.read(10, 1.0) if entry.fields == said],
            "UNKNOWN_JOB: it",
            "X",
        )
        == 1
    )
    return dead_letters(client)[0].id


def dead_letters(client: redis.Redis) -> list[DeadLetter]:
    return DeadLetters(client, KEYS).newest()


def test_show_prints_the_reason_deliveries_and_full_content_of_a_report(
    cli: Cli, client: redis.Redis
) -> None:
    report = make_dead_letter(client, "gone", **{"strange\x1b[31m": "pay\x1bload"})
    shown = cli("dead", "show", report)
    assert shown.returncode == 0
    for word in (
        "UNKNOWN_JOB: it",
        "gone/a/1/n/c",
        "deliveries",
        "pay�load",
        f"unstuck dead replay {report}",
    ):
        assert word in shown.stdout
    answer = cli.json("dead", "show", report)
    assert (answer["deliveries"], answer["unreadable"]) == (1, None)
    assert json.loads(answer["raw"]["report"])["kind"] == "succeeded"


def test_a_refused_submit_is_shown_with_all_errors_and_is_not_replayed(
    cli: Cli, client: redis.Redis
) -> None:
    reason = "SPEC_INVALID: groups[0].neds: unknown field\nparams.day: a value is required"
    DeadLetters(client, KEYS).add_refused(
        "unstuck.submit", reason, {"spec": "{…}", "by": "a Celery task"}
    )
    (letter,) = dead_letters(client)
    shown = cli("dead", "show", letter.id).stdout
    assert re.search(
        r"reason +SPEC_INVALID: groups\[0\].neds: unknown field *\n +params.day: a value is", shown
    )
    assert all(word in shown for word in ("unstuck.submit", "says by", "must correct"))
    assert "unstuck.submit" in cli("dead", "list").stdout
    refused = cli("dead", "replay", letter.id)
    assert (
        refused.returncode,
        "stays a dead letter: the sender" in refused.stdout + refused.stderr,
    ) == (4, True)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("", "a report needs a schema version in the field 'v', and this one has none"),
        (
            "one",
            "its schema version is 'one', and this release reads 1; once all coordinators have the "
            "release that sent it, `unstuck dead replay --all` applies it",
        ),
    ],
)
def test_a_report_with_an_unreadable_version_is_explained_in_words(
    cli: Cli, client: redis.Redis, version: str, why: str
) -> None:
    assert (
        cli.json("dead", "show", make_dead_letter(client, "gone", v=version))["unreadable"] == why
    )


def test_show_of_an_unknown_dead_letter_exits_with_3(cli: Cli, client: redis.Redis) -> None:
    for word in ("1-0", "rubbish"):
        done = cli("dead", "show", word)
        assert done.returncode == 3
        assert "unstuck dead list" in done.stderr


@pytest.mark.variant
@pytest.mark.parametrize("field", ["token", "kind", "at", "v", "strange"])
def test_a_huge_report_is_cut_in_the_list_and_complete_in_show_and_json(
    cli: Cli, client: redis.Redis, field: str
) -> None:
    value = "begin" + "x" * 5_000_000 + "end"
    report = make_dead_letter(client, "gone", **{field: value})
    listed = cli("dead", "list")
    assert report in listed.stdout
    assert len(listed.stdout) < 2000
    shown = cli("dead", "show", report)
    assert shown.stdout.count(value) == 1, "whole, and once"
    assert cli.json("dead", "show", report)["fields"][field] == value
    assert cli.json("dead", "list")[0]["fields"][field] == value
    refused = cli("dead", "replay", report)
    assert refused.returncode == 4
    assert len(refused.stderr) < 2000


def test_replay_processes_what_it_can_and_explains_the_rest(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    job = hand.submit({"name": "a"})
    good, unknown, broken = (
        make_dead_letter(client, job),
        make_dead_letter(client, "gone"),
        make_dead_letter(client, job, kind="exploded"),
    )

    done = cli("dead", "replay", broken, unknown, good, "1-0")

    assert done.returncode == 4
    assert f"report {good} is on its way" in done.stdout
    assert "exploded" in done.stderr
    assert "no job gone is in the store" in done.stderr
    assert "there is no dead letter 1-0" in done.stderr
    assert [one.id for one in dead_letters(client)] == [broken, unknown]
    assert "REPORT_REPLAYED" in cli("events", job).stdout
    assert cli("dead", "replay", "1-0").returncode == 3
    again = cli("dead", "replay", good)
    assert (again.returncode, "replayed before" in again.stdout) == (0, True)


@pytest.mark.variant
def test_drop_and_replay_all_require_confirmation(
    cli: Cli, hand: ByHand, client: redis.Redis
) -> None:
    job = hand.submit({"name": "a"})
    reports = [make_dead_letter(client, job) for _ in range(3)]
    for arguments in (("drop", reports[0]), ("drop", "--all"), ("replay", "--all")):
        done = cli("dead", *arguments)
        assert done.returncode == 2
        assert "--yes" in done.stderr
        assert reports[0] in done.stderr
    assert len(dead_letters(client)) == 3

    assert cli("dead", "drop", reports[0], "--yes").returncode == 0
    done = cli("dead", "replay", "--all", "--yes")
    assert (done.returncode, done.stdout) == (0, "replay: 2 replayed\n")
    assert dead_letters(client) == []
    assert cli("dead", "drop", "--all").stdout == "drop: no dead letter fits\n"


@pytest.mark.variant
def test_declining_the_confirmation_drops_nothing(cli: Cli, client: redis.Redis) -> None:
    report = make_dead_letter(client, "gone")
    for answer, code, left in (("n", 1, 1), ("y", 0, 0)):
        terminal = Terminal(cli, "dead", "drop", report)
        try:
            terminal.shows(r"drop: 1 dead letter, as listed\? \[y/N\]")
            terminal.type(f"{answer}\n")
            assert terminal.end() == code
        finally:
            terminal.close()
        assert len(dead_letters(client)) == left


@pytest.mark.parametrize("arguments", [(), ("1-0", "--all")], ids=["neither", "both"])
def test_ids_and_all_are_mutually_exclusive_and_one_is_required(
    cli: Cli, arguments: tuple[str, ...]
) -> None:
    done = cli("dead", "drop", *arguments, "--yes")
    assert done.returncode == 2
    assert "--all" in done.stderr
