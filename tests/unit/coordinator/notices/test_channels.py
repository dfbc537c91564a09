"""Each channel against a real receiver: what arrives there, what is refused, and that no receiver
holds it for ever.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook as Verifier

from tests.support.network.receivers import (
    ConnectProxy,
    MailServer,
    Receiver,
    drips,
    hangs,
    notice,
    receiver,
    status,
)
from tests.support.network.tls import Authority
from tests.support.servers import RedisServer, wait_until
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.apprise import AppriseTarget
from unstuck.coordinator.notices.channels.celery_task import CeleryTask
from unstuck.coordinator.notices.channels.channel import NoticeChannel, SendFailed
from unstuck.coordinator.notices.channels.command import CommandTarget
from unstuck.coordinator.notices.channels.http import seconds_of
from unstuck.coordinator.notices.channels.mail import Mail
from unstuck.coordinator.notices.channels.pagerduty import PagerDuty, pagerduty_event
from unstuck.coordinator.notices.channels.slack import Slack, slack_message
from unstuck.coordinator.notices.channels.webhook import Webhook
from unstuck.coordinator.notices.message import message_of

NOW = 1_388_534_500.0
EVERYWHERE = Allowed()


def send(
    channel: NoticeChannel,
    told: Notice | None = None,
    allowed: Allowed = EVERYWHERE,
    at: float = NOW,
) -> str:
    return channel.send(message_of(told or notice(), "https://page.example.com", at), allowed)


def refused(channel: NoticeChannel, allowed: Allowed = EVERYWHERE) -> str:
    with pytest.raises(SendFailed) as failed:
        send(channel, allowed=allowed)
    return str(failed.value)


@pytest.fixture
def ops() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


# -- webhook ---------------------------------------------------------------------------------------


def webhook(ops: Receiver, **more: Any) -> Webhook:
    return Webhook.model_validate({"webhook": ops.url, **more})


def test_a_webhook_receives_the_notice_as_json_with_title_and_page_link(
    ops: Receiver,
) -> None:
    assert send(webhook(ops, headers={"Authorization": "Bearer key"})) == "200 OK: thanks"
    (one,) = ops.received
    assert one.headers["Authorization"] == "Bearer key"
    assert one.headers["Content-Type"] == "application/json"
    assert one.text["title"] == "job nightly failed"
    assert one.text["text"] == "FAILED, since group clean failed three times."
    assert one.text["link"] == "https://page.example.com/jobs/20131231T235959-k3f9a2x1"
    assert one.text["commands"] == ["unstuck why last", "unstuck retry last"]


@pytest.mark.parametrize(
    "secret", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a secret, as people write them"]
)
def test_webhook_signatures_are_accepted_by_the_standard_webhooks_library(
    ops: Receiver, secret: str
) -> None:
    import base64
    import time

    send(webhook(ops, secret=secret), at=time.time())
    (one,) = ops.received
    key = secret if secret.startswith("whsec_") else base64.b64encode(secret.encode()).decode()
    headers = {name.lower(): value for name, value in one.headers.items()}
    assert Verifier(key).verify(one.body, headers)["id"] == "n1"
    with pytest.raises(Exception, match="No matching signature"):
        Verifier(key).verify(one.body.replace(b"clean", b"other"), headers)


def test_a_redirect_is_not_followed(ops: Receiver) -> None:
    with receiver() as other:
        ops.answer = status(307, Location=other.url)
        assert f"a redirect to {other.url}, which is never followed" in refused(webhook(ops))
        assert other.received == []


def test_a_refusal_is_reported_with_the_response_and_the_retry_delay(
    ops: Receiver,
) -> None:
    ops.answer = status(503, "later\nplease", Retry_After="90")
    with pytest.raises(SendFailed, match="503 Service Unavailable: later please") as failed:
        send(webhook(ops))
    assert failed.value.wait == 90.0
    assert not failed.value.permanent


@pytest.mark.parametrize("code", [301, 308, 410])
def test_redirects_and_gone_responses_are_permanent_failures(ops: Receiver, code: int) -> None:
    ops.answer = status(code)
    with pytest.raises(SendFailed) as failed:
        send(webhook(ops))
    assert failed.value.permanent


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("90", 90.0),
        ("Thu, 01 Jan 1970 00:17:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", 0.0),
        ("", 0.0),
        ("-5", 0.0),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(header: str, seconds: float) -> None:
    assert seconds_of(header, 1000.0) == seconds


@pytest.mark.parametrize("answer", [hangs, drips])
def test_a_receiver_that_hangs_or_responds_slowly_times_out(ops: Receiver, answer: Any) -> None:
    ops.answer = answer
    assert "no whole answer within 0.5s" in refused(webhook(ops, timeout="500ms"))


def test_an_absent_receiver_is_reported_by_its_host_only() -> None:
    away = Receiver()
    assert refused(Webhook.model_validate({"webhook": f"{away.url}/with-a-key"})) == (
        "127.0.0.1: [Errno 111] Connection refused"
    )


def test_https_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path, "ca")
    made = Receiver()
    made.start(authority.certify("localhost"))
    try:
        target = Webhook.model_validate({"webhook": f"https://localhost:{made.port}/hook"})
        assert "CERTIFICATE_VERIFY_FAILED" in refused(target)
        assert made.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert send(target) == "200 OK: thanks"
    finally:
        made.stop()


def test_the_proxy_of_the_environment_and_no_proxy_are_respected(
    ops: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{ops.port}")
    target = Webhook.model_validate({"webhook": "http://far.example.com/hook"})
    send(target)
    assert ops.received[0].path == "http://far.example.com/hook"
    assert "not among the hosts of allow:" in refused(target, allowed=Allowed(["near.example.com"]))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    send(webhook(ops))
    assert ops.received[1].path == "/hook"


def test_https_uses_a_proxy_tunnel_with_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, far, proxy = Authority(tmp_path, "ca"), Receiver(), ConnectProxy()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    far.start(authority.certify("localhost"))
    proxy.start()
    try:
        monkeypatch.setenv("https_proxy", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
        assert (
            send(Webhook.model_validate({"webhook": f"https://localhost:{far.port}/hook"}))
            == "200 OK: thanks"
        )
    finally:
        proxy.stop()
        far.stop()
    assert proxy.asked == [(f"localhost:{far.port}", "Basic dXNlcjpwQHNz")]
    assert far.received[0].headers["Host"] == f"localhost:{far.port}"
    assert "Proxy-Authorization" not in far.received[0].headers


def test_the_allow_list_is_checked_against_the_connected_address(ops: Receiver) -> None:
    local = Webhook.model_validate({"webhook": f"http://localhost:{ops.port}/hook"})
    assert "which is not in allow:" in refused(local, allowed=Allowed(["10.0.0.0/8"]))
    assert ops.received == []
    for entries in (["127.0.0.0/8"], ["local*"], ["10.0.0.0/8", "localhost"]):
        send(local, allowed=Allowed(entries))
    assert len(ops.received) == 3


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "0.0.0.0"]
)
def test_cloud_metadata_addresses_are_refused_unless_explicitly_allowed(host: str) -> None:
    target = Webhook.model_validate({"webhook": f"http://{host}/latest"})
    assert "name it in allow:" in refused(target)
    # Connects to an address that may never answer.
    impatient = target.model_copy(update={"timeout": 0.2})
    allowed = Allowed(["169.254.0.0/16", "fd00::/8", "0.0.0.0"])
    assert "allow:" not in refused(impatient, allowed=allowed)


@pytest.mark.parametrize(
    "wrong",
    [
        "ftp://host/x",
        "host/path",
        "http://user:key@host/",
        "http:///x",
        "http://host/a b",
        "http://host:x/",
    ],
)
def test_an_invalid_address_is_refused_without_being_shown(wrong: str) -> None:
    with pytest.raises(ValidationError) as failed:
        Webhook.model_validate({"webhook": wrong})
    assert "address" in failed.value.errors()[0]["msg"]


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"X": "a\r\nY: b"}, {"X": "ä"}])
def test_a_header_with_a_line_break_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Webhook.model_validate({"webhook": "http://host/", "headers": headers})


# -- the shapes of Slack and PagerDuty -------------------------------------------------------------


def test_slack_messages_escape_slack_markup(
    ops: Receiver,
) -> None:
    told = notice(name="a<b>&c", text="x" * 5000)
    send(Slack.model_validate({"slack": ops.url}), told)
    text = ops.received[0].text
    assert text["text"] == "job a&lt;b&gt;&amp;c failed"
    (attachment,) = text["attachments"]
    assert len(attachment["text"]) < 3100
    assert attachment["footer"] == "unstuck · n1"
    assert "|Open the page>" in attachment["text"]
    well = slack_message(message_of(notice(event="recovered"), "", NOW))["attachments"]
    assert well[0]["color"] != attachment["color"]  # type: ignore[index]


def test_pagerduty_gets_an_incident_and_its_end_under_one_key(ops: Receiver) -> None:
    target = PagerDuty.model_validate({"pagerduty": "R0UT1NGKEY", "url": ops.url})
    ops.answer = status(202, '{"status":"success"}')
    begins, ends = notice(1, problem="p" * 300), notice(2, problem="p" * 300, event="recovered")
    assert send(target, begins).startswith("202")
    send(target, ends)
    first, last = (one.text for one in ops.received)
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"]
    assert len(first["dedup_key"]) <= 255
    assert first["routing_key"] == "R0UT1NGKEY"
    assert first["payload"]["severity"] == "error"
    assert first["payload"]["timestamp"] == "2014-01-01T00:00:00.250000+00:00"
    assert first["payload"]["custom_details"]["commands"] == [
        "unstuck why last",
        "unstuck retry last",
    ]
    assert first["links"] == [{"href": first["client_url"], "text": "Open the page"}]


def test_a_pagerduty_summary_respects_the_length_limit() -> None:
    event: Any = pagerduty_event(message_of(notice(name="n" * 5000), "", NOW), "key")
    assert len(event["payload"]["summary"]) == 1024
    assert "links" not in event


# -- mail ------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    made = Authority(tmp_path, "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


def mail(server: str, **more: Any) -> Mail:
    return Mail.model_validate(
        {
            "mail": ["a@example.com", "b@example.com"],
            "from": "unstuck@example.com",
            "server": server,
            **more,
        }
    )


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_mail_is_sent_over_tls_and_mails_of_a_problem_form_one_thread(
    authority: Authority, tls: str
) -> None:
    server = MailServer(authority, implicit=tls == "implicit", login=("unstuck", "a password"))
    try:
        target = mail(server.address, tls=tls, user="unstuck", password="a password")
        assert send(target, notice(1, problem="p", name="näch\r\ntlich")) == "accepted"
        send(target, notice(2, problem="p", event="recovered"))
        assert "535" in refused(
            mail(server.address, tls=tls, user="unstuck", password="another one")
        )
    finally:
        server.stop()
    first, last = server.mails
    assert first["Subject"] == "job näch tlich failed"
    assert first["Message-ID"] == "<n1@unstuck.invalid>"
    assert first["References"] == last["References"]
    assert "KeyError: 'amount'" in str(first.get_payload())
    assert server.recipients[0] == ["a@example.com", "b@example.com"]


def test_a_mail_server_with_an_untrusted_certificate_gets_no_password_and_no_mail(
    tmp_path: Path,
) -> None:
    server = MailServer(Authority(tmp_path, "stranger"), login=("unstuck", "a password"))
    try:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(
            mail(server.address, user="unstuck", password="a password")
        )
    finally:
        server.stop()
    assert server.mails == []


def test_a_mail_server_that_hangs_inside_tls_times_out(
    authority: Authority,
) -> None:
    server = MailServer(authority)
    server.hangs = True
    try:
        assert (
            refused(mail(server.address, timeout="1s"))
            == f"{server.address}: no whole answer within 1s"
        )
    finally:
        server.stop()


def test_lone_surrogates_in_an_error_reach_every_channel(
    ops: Receiver, authority: Authority
) -> None:
    told = notice(first_error="bad \ud800 text", text="\udfff")
    server = MailServer(authority)
    try:
        assert send(mail(server.address), told) == "accepted"
    finally:
        server.stop()
    assert (
        send(webhook(ops), told)
        == send(Slack.model_validate({"slack": ops.url}), told)
        == "200 OK: thanks"
    )


def test_a_refused_recipient_is_named_and_others_get_the_mail(
    authority: Authority,
) -> None:
    server = MailServer(authority)
    server.refuses = {"b@example.com": "550 no such person"}
    try:
        assert (
            send(mail(server.address)) == "accepted, but not for b@example.com: 550 no such person"
        )
        server.refuses["a@example.com"] = "550 nor this one"
        assert "a@example.com: 550 nor this one" in refused(mail(server.address))
    finally:
        server.stop()
    assert len(server.mails) == 1


def test_a_silent_mail_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert refused(mail(address, timeout="300ms")) == f"{address}: no whole answer within 0.3s"


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": "u"},
        {"tls": "none", "user": "u", "password": "p"},
        {"server": "smtp://host"},
        {"mail": ["Ops <a@example.com>"]},
        {"from": "a@example.com\r\nBcc: b@example.com"},
    ],
)
def test_a_mail_that_cannot_be_sent_correctly_is_refused(wrong: dict[str, Any]) -> None:
    given = {"mail": ["a@example.com"], "from": "u@example.com", "server": "host", **wrong}
    with pytest.raises(ValidationError):
        Mail.model_validate(given)


# -- command ---------------------------------------------------------------------------------------


def command(code: str, **more: Any) -> CommandTarget:
    return CommandTarget.model_validate({"command": [sys.executable, "-c", code], **more})


def test_a_command_gets_the_notice_on_standard_input_without_secret_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "UNSTUCK_NOTIFY", "targets: {other: {slack: 'https://hooks.example.com/secret'}}"
    )
    into = tmp_path / "told.json"
    code = (
        "import json, os, sys; told = json.load(sys.stdin); told['env'] = 'UNSTUCK_NOTIFY' in "
        f"os.environ; open({str(into)!r}, 'w').write(json.dumps(told)); print('done')"
    )
    assert send(command(code)) == "ended with 0: done"
    told = json.loads(into.read_text())
    assert (told["id"], told["title"], told["env"]) == ("n1", "job nightly failed", False)


def test_a_failing_command_is_reported_with_its_code_and_last_line() -> None:
    assert refused(command("import sys; print('no route'); sys.exit(3)")).endswith(
        "ended with 3: no route"
    )
    assert "by signal 9" in refused(command("import os; os.kill(os.getpid(), 9)"))
    assert "cannot be started: No such file" in refused(
        CommandTarget.model_validate({"command": ["/no/such/program"]})
    )


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    into = tmp_path / "pid"
    target = {"command": ["/bin/sh", "-c", f"sleep 600 & echo $! > {into}; wait"], "timeout": "2s"}
    assert "and was killed" in refused(CommandTarget.model_validate(target))
    child = int(into.read_text())

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{child}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"

    wait_until(gone, 5, "the child of the command to be gone")


def test_a_command_runs_without_a_shell(tmp_path: Path) -> None:
    target = CommandTarget.model_validate({"command": ["/bin/echo", "$HOME; rm -rf x"]})
    assert send(target) == "ended with 0: $HOME; rm -rf x"
    with pytest.raises(ValidationError):
        CommandTarget.model_validate({"command": "echo one text"})


# -- a task of the user's --------------------------------------------------------------------------


def test_a_celery_task_of_the_user_runs_with_the_notice_under_its_id(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    app = Celery("theirs", broker=redis_server.url, set_as_current=False)
    told: list[tuple[str, str]] = []

    @app.task(name="alerts.tell", bind=True)  # type: ignore[untyped-decorator]
    def tell(task: Any, given: dict[str, Any]) -> None:
        told.append((task.request.id, given["title"]))

    app.conf.task_default_queue = "alerts"
    target = CeleryTask.model_validate(
        {"celery": "alerts.tell", "broker": redis_server.url, "queue": "alerts"}
    )
    assert send(target) == "the broker has it, on the queue alerts"
    setup_logging.connect(
        as_it_is := lambda **_: None
    )  # else a worker takes the handlers and the level of root
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
            wait_until(lambda: told, 10, "the task to run")
    finally:
        setup_logging.disconnect(as_it_is)
        app.close()
    assert told == [("n1", "job nightly failed")]


def test_an_unreachable_broker_is_refused_without_hanging() -> None:
    away = Receiver()
    target = CeleryTask.model_validate(
        {"celery": "alerts.tell", "broker": f"redis://127.0.0.1:{away.port}/0", "timeout": "1s"}
    )
    assert "the broker did not take it" in refused(target)


# -- Apprise ---------------------------------------------------------------------------------------


@pytest.mark.variant
@pytest.mark.filterwarnings(
    "ignore:'imghdr' is deprecated:DeprecationWarning"
)  # of its shim for PGP
def test_apprise_sends_to_known_services_and_reports_failures(ops: Receiver) -> None:
    target = AppriseTarget.model_validate({"apprise": f"json://127.0.0.1:{ops.port}/hook"})
    assert send(target) == "sent by Apprise"
    assert ops.received[0].text["title"] == "job nightly failed"
    ops.answer = status(500)
    assert "Apprise could not send it" in refused(target)
    with pytest.raises(ValidationError, match="address 1 is none that Apprise can read"):
        AppriseTarget.model_validate({"apprise": "nosuch://x"})


def test_printed_targets_contain_no_secret() -> None:
    for target in (
        Webhook.model_validate(
            {"webhook": "https://h/hush", "secret": "hush-hush", "headers": {"A": "hush"}}
        ),
        Slack.model_validate({"slack": "https://h/hush"}),
        PagerDuty.model_validate({"pagerduty": "hush"}),
        mail("h", user="u", password="hush"),
        CeleryTask.model_validate({"celery": "a.b", "broker": "redis://:hush@h/0"}),
    ):
        assert "hush" not in f"{target!r} {target} {target.model_dump()} {target.model_dump_json()}"
        assert any("hush" in secret for secret in target.secrets())
