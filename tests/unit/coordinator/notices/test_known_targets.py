"""A target that nobody knows is told where a spec is submitted or set, and by the doctor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from tests.cli.conftest import Cli
from tests.support.network.receivers import notice
from tests.support.servers import RedisServer
from unstuck import Client, Settings
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.doctor.finding import Finding, Level
from unstuck.doctor.notice_checks import NoticeFacts, notice_facts, of_notices
from unstuck.tasks.protocol.keys import Keys

KEYS = Keys()
SPEC: dict[str, Any] = {
    "name": "nightly",
    "notify": [{"on": ["failed"], "to": ["ops", "opps"]}],
    "groups": [{"name": "a", "spark": False, "steps": [{"python": "some.where:step"}]}],
}


@pytest.fixture
def app(client: redis.Redis, redis_server: RedisServer, tmp_path: Any) -> Client:
    return Client(
        Settings(redis_url=redis_server.url, warehouse=str(tmp_path)), redis_client=client
    )


@pytest.fixture
def heard_of(client: redis.Redis) -> Callable[..., None]:
    """Lets a coordinator with these targets be heard of."""

    def make(*targets: str, name: str = "host:1:a") -> None:
        Heartbeat(client, KEYS, name, None, targets).beat(None, 0.0)

    return make


def test_submit_and_schedule_set_warn_of_an_unknown_target_without_refusing(
    app: Client, heard_of: Callable[..., None]
) -> None:
    assert app.submit(SPEC).warnings == (), "no coordinator is heard of, so nobody can say"
    heard_of("ops", "team")
    says = (
        "notify[0].to[1]: no coordinator has a target 'opps' in UNSTUCK_NOTIFY; did you mean "
        "'ops'?. Until one has, its notices are dead letters"
    )
    submitted = app.submit(SPEC)
    assert (submitted.new, submitted.warnings) == (True, (says,))
    answer = app.schedules.set({**SPEC, "schedule": {"every": "1h"}})
    assert (answer.answer, answer.warnings) == ("DONE", (says,))
    heard_of("opps", name="host:2:b")
    assert app.submit(SPEC).warnings == ()


def found(facts: NoticeFacts, view: FleetInfo) -> list[tuple[str, str]]:
    def said(one: Finding) -> tuple[str, str]:
        return one.level.value, one.text

    return [said(one) for one in of_notices(facts, view)]


def test_doctor_names_rules_with_unknown_targets_and_targets_that_fail(
    app: Client, client: redis.Redis, heard_of: Callable[..., None]
) -> None:
    heard_of("ops")
    job = app.submit(SPEC).id
    app.schedules.set({**SPEC, "schedule": {"every": "1h"}})
    outbox = Outbox(client, KEYS)
    client.xadd(KEYS.outbox, {"notice": notice(1).to_json()})
    outbox.spread()
    taken = outbox.take("ops", "me", 10)
    assert taken is not None
    outbox.note_try(taken, "me", "failed", "NOT_SENT: it answered 500", wait=60, rest=60)
    facts, view = notice_facts(client, KEYS), app.fleet()
    assert facts.named == {
        "ops": [f"job {job}", "schedule nightly"],
        "opps": [f"job {job}", "schedule nightly"],
    }
    unknown, failing = found(facts, view)
    assert unknown == (
        "problem",
        (
            f"job {job}, schedule nightly notify 'opps', which no coordinator has in UNSTUCK_NOTIFY; "
            "did "
            "you mean 'ops'?"
        ),
    )
    assert failing[0] == "warning"
    assert failing[1].endswith("NOT_SENT: it answered 500; 1 notice for it")
    assert found(NoticeFacts({"ops": ["job a"]}, {}), view) == [
        ("ok", "1 target known to the coordinators")
    ]


def test_doctor_names_coordinators_that_lack_a_target_of_others(
    app: Client, heard_of: Callable[..., None]
) -> None:
    heard_of("ops")
    heard_of(name="other:2:b")
    ((level, text),) = found(NoticeFacts({}, {}), app.fleet())
    assert (level, text) == (
        "warning",
        "the target 'ops' is not in UNSTUCK_NOTIFY of other:2, and is in that of others",
    )
    silent = replace(
        app.fleet(),
        coordinators=tuple(replace(one, silent=True) for one in app.fleet().coordinators),
    )
    assert found(NoticeFacts({"ops": ["job a"]}, {}), silent) == [
        ("ok", "0 targets known to the coordinators")
    ]


def test_doctor_reports_an_unreadable_setting_without_its_content(
    tmp_path: Any,
) -> None:
    cli = Cli(None, tmp_path)
    cli.env["UNSTUCK_REDIS_URL"] = "redis://127.0.0.1:1/0"
    done = cli("doctor", UNSTUCK_NOTIFY='{"targets": {"ops": {"slack": "hush-hush"}}}')
    assert "NOTICES: UNSTUCK_NOTIFY:1:31: targets.ops.slack: expected an address" in done.stdout
    assert "hush" not in done.stdout + done.stderr
    assert Level.PROBLEM in done.stdout
