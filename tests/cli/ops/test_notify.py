"""``unstuck notify``: a target is tried from here, and what was sent and what waits is shown."""

from __future__ import annotations

import json
from typing import Any

import redis

from tests.cli.conftest import Cli
from tests.support.network.receivers import notice, receiver, status
from tests.support.servers import free_port
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.tasks.protocol.keys import Keys

KEYS = Keys()


def test_a_target_is_tested_without_redis_and_its_response_is_shown(cli: Cli) -> None:
    cli.env["UNSTUCK_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    with receiver() as ops:
        setting = json.dumps({"targets": {"ops": {"webhook": f"{ops.url}/hush-hush-hush"}}})
        done = cli("notify", "test", "ops", UNSTUCK_NOTIFY=setting)
        assert (done.returncode, done.stdout) == (0, "ops: 200 OK: thanks\n")
        assert ops.received[0].text["text"].startswith("This is a test of the target ops")
        ops.answer = status(403, "not for /hook/hush-hush-hush")
        done = cli("notify", "test", "ops", UNSTUCK_NOTIFY=setting)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("ops: not sent: it answered 403 Forbidden: not for")
        assert "hush" not in done.stderr
        assert (
            json.loads(cli("notify", "test", "ops", "--json", UNSTUCK_NOTIFY=setting).stdout)[
                "sent"
            ]
            is False
        )


def test_testing_an_incident_target_leaves_no_open_incident(cli: Cli) -> None:
    with receiver() as ops:
        setting = json.dumps({"targets": {"oncall": {"pagerduty": "R0UT1NGKEY", "url": ops.url}}})
        done = cli("notify", "test", "oncall", UNSTUCK_NOTIFY=setting)
        assert (done.returncode, done.stdout) == (
            0,
            "oncall: 200 OK: thanks; its end: 200 OK: thanks\n",
        )
        began, ended = (one.text for one in ops.received)
        assert [began["event_action"], ended["event_action"]] == ["trigger", "resolve"]
        assert began["dedup_key"] == ended["dedup_key"]

        def takes_no_end(request: Any) -> None:
            status(500 if ops.received[-1].text["event_action"] == "resolve" else 200)(request)

        ops.answer = takes_no_end
        done = cli("notify", "test", "oncall", UNSTUCK_NOTIFY=setting)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            "oncall: 200 OK; its end could not be sent, so it is open there: it answered 500"
        )


def test_an_unknown_target_or_invalid_setting_is_a_usage_error(
    cli: Cli,
) -> None:
    done = cli("notify", "test", "ops")
    assert done.returncode == 2
    assert "UNSTUCK_NOTIFY is not set here" in done.stderr
    done = cli(
        "notify", "test", "ops", UNSTUCK_NOTIFY='{"targets": {"opps": {"slack": "https://h/x"}}}'
    )
    assert done.returncode == 2
    assert "did you mean 'opps'?" in done.stderr
    done = cli(
        "notify", "test", "ops", UNSTUCK_NOTIFY='{"targets": {"ops": {"slack": "hush-hush"}}}'
    )
    assert done.returncode == 2
    assert "UNSTUCK_NOTIFY:1:31: targets.ops.slack: expected an address" in done.stderr
    assert "hush" not in done.stderr


def test_the_list_shows_waiting_and_sent_notices(cli: Cli, client: redis.Redis) -> None:
    assert "No notices." in cli("notify", "list").stderr
    outbox = Outbox(client, KEYS)
    for number in (1, 2):
        client.xadd(KEYS.outbox, {"notice": notice(number, name="night\x1b[31mly").to_json()})
    outbox.spread()
    for outcome, said in (("sent", "200 OK"), ("failed", "NOT_SENT: it answered 500")):
        taken = outbox.take("ops", outcome, 10)
        assert taken is not None
        outbox.note_try(taken, outcome, outcome, said, wait=60, rest=60)
    shown = cli("notify", "list").stdout
    for word in ("WAITS FOR", "SENT TO", "200 OK", "NOT_SENT: it answered 500", "failed"):
        assert word in shown
    told = cli.json("notify", "list")
    (waits,), (sent,) = told["waiting"], told["sent"]
    assert (waits["to"], waits["tries"], waits["notice"]["id"]) == ("ops", 1, "n2")
    assert (sent["to"], sent["tries"], sent["notice"]["id"]) == ("ops", 1, "n1")


def test_an_undeliverable_notice_becomes_a_dead_letter_that_can_be_replayed(
    cli: Cli, client: redis.Redis
) -> None:
    outbox = Outbox(client, KEYS)
    for number in (1, 2):
        client.xadd(KEYS.outbox, {"notice": notice(number).to_json()})
    outbox.spread()
    for _ in range(2):
        taken = outbox.take("ops", "me", 10)
        assert taken is not None
        outbox.note_try(taken, "me", "dead", "NOT_SENT: it answered 500")
    listed = cli("dead", "list").stdout
    assert "failed of nightly, for ops" in listed
    assert "NOT_SENT: it answered 500" in listed
    second, first = (one["id"] for one in cli.json("dead", "list"))
    assert "says first_error" in cli("dead", "show", first).stdout
    told = cli.json("dead", "show", first)
    assert (told["to"], told["kind"]) == ("ops", "notice")
    assert told["fields"]["name"] == "nightly"
    assert cli("dead", "replay", first).stdout == (
        f"notice {first} waits for ops again; `unstuck notify list` shows it\n"
    )
    assert [one.notice.id for one in outbox.waiting()] == ["n1"]
    assert cli("dead", "drop", second, "--yes").stdout == f"notice {second} is gone for good\n"
    assert cli.json("dead", "list") == []
