"""``UNSTUCK_NOTIFY``: what is read, and that an error names its place, and never what is written
there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from unstuck.coordinator.notices.channels.mail import Mail
from unstuck.coordinator.notices.channels.webhook import Webhook
from unstuck.coordinator.notices.setting import NotifySetting, notify_setting
from unstuck.local.programs import Size, program_list
from unstuck.tasks.errors import SettingsInvalid
from unstuck.tasks.settings import Settings

IMPORTS_APPRISE = pytest.mark.variant  # for seconds

WHOLE = """
targets:
  ops:
    webhook: https://hooks.example.com/${secret:OPS_PATH}
    secret: ${secret:OPS_KEY}
    timeout: 5s
  oncall: {pagerduty: R0UT1NGKEYR0UT1NGKEY}
  team: {slack: https://hooks.slack.com/services/T0/B0/hushhush}
  people:
    mail: [a@example.com, b@example.com]
    from: unstuck@example.com
    server: smtp.example.com:2525
  script: {command: [/usr/local/bin/tell, --loud]}
  task: {celery: alerts.tell, broker: "redis://:a-password@other/0", queue: alerts}
rules:
  - {on: [failed, {late: "06:00"}, recovered], to: ops}
  - {on: [failed], to: [oncall, team], names: ["nightly-*", billing]}
page: https://unstuck.example.com
"""
ENVIRON = {"OPS_PATH": "hush-path", "OPS_KEY": "hush-key-hush"}


def read(text: str, **environ: str) -> NotifySetting:
    return notify_setting(Settings(notify=text), {**ENVIRON, **environ})


def wrong(text: str, **environ: str) -> str:
    with pytest.raises(SettingsInvalid) as failed:
        read(text, **environ)
    return str(failed.value)


def targets(**named: Any) -> str:
    return json.dumps({"targets": named})


def test_an_empty_setting_has_no_targets_and_no_rules() -> None:
    assert notify_setting(Settings(), {}).targets == {}
    assert notify_setting(Settings(), {}).rules == ()


def test_the_setting_is_read_from_text_or_file_with_secrets_from_variables_and_files(
    tmp_path: Path,
) -> None:
    file = tmp_path / "notify.yaml"
    file.write_text(WHOLE)
    key = tmp_path / "key"
    key.write_text("key-of-a-file\n")
    for setting in (read(WHOLE), read(str(file))):
        assert sorted(setting.targets) == ["oncall", "ops", "people", "script", "task", "team"]
        ops, people = setting.targets["ops"], setting.targets["people"]
        assert isinstance(ops, Webhook)
        assert ops.webhook.get_secret_value() == "https://hooks.example.com/hush-path"
        assert ops.timeout == 5.0
        assert isinstance(people, Mail)
        assert people.sender == "unstuck@example.com"
        assert setting.page == "https://unstuck.example.com"
        assert [(rule.to, rule.names) for rule in setting.rules] == [
            (("ops",), ("*",)),
            (("oncall", "team"), ("nightly-*", "billing")),
        ]
        assert [one.word for one in setting.rules[0].conditions] == ["failed", "late", "recovered"]
    filed = notify_setting(
        Settings(notify=targets(ops={"webhook": "http://h/", "secret": "${secret:KEY}"})),
        {"KEY_FILE": str(key)},
    ).targets["ops"]
    assert isinstance(filed, Webhook)
    assert filed.secret is not None
    assert filed.secret.get_secret_value() == "key-of-a-file"


def test_the_printed_setting_contains_no_secret() -> None:
    setting = read(WHOLE)
    printed = (
        f"{setting!r} {setting} {Settings(notify=WHOLE)!r} {Settings(notify=WHOLE).model_dump()}"
    )
    for secret in ("hush", "R0UT1NG", "a-password"):
        assert secret not in printed
    said = setting.secrets.clean(
        "at /services/T0/B0/hushhush with R0UT1NGKEYR0UT1NGKEY, a-password and hush-key-hush"
    )
    for secret in ("hush", "R0UT1NG", "a-password"):
        assert secret not in said


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            targets(ops={"webhok": "http://h/"}),
            "UNSTUCK_NOTIFY:1:21: targets.ops: expected one of webhook, slack,",
        ),
        (
            targets(ops={"webhook": "h"}),
            "targets.ops.webhook: expected an address such as https://host/path",
        ),
        (targets(ops={"webhook": "http://h/", "slack": "http://h/"}), "not webhook and slack"),
        (
            targets(ops={"webhook": "http://h/", "secrt": "x"}),
            "unknown field 'secrt'; did you mean 'secret'?",
        ),
        (targets(ops={"mail": "a@b.c", "server": "h"}), "targets.ops: 'from' is missing"),
        (
            targets(ops={"webhook": "http://h/", "timeout": "1h"}),
            "targets.ops.timeout: expected 300 or less",
        ),
        (
            targets(ops={"webhook": "http://h/", "secret": "${secret:NO}"}),
            "${secret:NO} asks for the environment",
        ),
        (targets(**{"a b": {"slack": "http://h/"}}), "targets"),
        (
            '{"targets": {}, "rules": [{"on": ["failed"], "to": "ops"}]}',
            "there is no target 'ops'; known: none",
        ),
        ('{"targets": {}, "rules": [{"on": ["faild"], "to": "ops"}]}', "did you mean 'failed'?"),
        ('{"page": "ftp://h"}', "page: expected the address of the page"),
        (
            '{"allow": ["10.0.0.0/8"], "targets": {"ops": {"webhook": "http://127.0.0.1/"}}}',
            "which is not in allow:",
        ),
        (
            '{"allow": ["h"], "targets": {"ops": {"webhook": "http://g/"}}}',
            "g is not among the hosts of allow:",
        ),
        pytest.param(
            '{"allow": [], "targets": {"ops": {"apprise": "json://h"}}}',
            "allow: cannot restrict it",
            marks=IMPORTS_APPRISE,
        ),
        ("targets: [", "not readable as YAML"),
        (
            "/no/such/file.yaml",
            "the file '/no/such/file.yaml' cannot be read: No such file or directory",
        ),
    ],
)
def test_errors_are_reported_with_their_place(text: str, says: str) -> None:
    assert says in wrong(text)


def test_an_error_in_a_file_has_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "notify.yaml"
    file.write_text("targets:\n  ops:\n    webhook: ftp://h\n")
    assert wrong(str(file)).startswith(f"UNSTUCK_NOTIFY: {file}:3:14: targets.ops.webhook: ")


@pytest.mark.parametrize(
    "text",
    [
        targets(ops={"webhook": "hush-hush"}),
        targets(ops={"webhook": "http://h/", "secret": "hush", "timeout": "hush-hush"}),
        targets(ops={"webhook": "http://h/", "secret": "whsec_hush hush"}),
        targets(ops={"mail": "hush hush", "server": "hush/hush", "from": "hush,hush"}),
        pytest.param(targets(ops={"apprise": "hush://hush"}), marks=IMPORTS_APPRISE),
        targets(ops={"celery": "hush hush", "broker": "hush", "queue": "hush hush"}),
        targets(ops="hush-hush"),
        "targets: {ops: {pagerduty: 012345678901234567890, hush: 1}}",
        "targets:\n  ops: {webhook: http://h/, secret: hush-hush-hush, secret: hush-hush}\n",
    ],
)
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
def test_no_error_shows_the_settings_of_a_target(text: str) -> None:
    said = wrong(text)
    for secret in ("hush-hush", "hush hush", "hush://", "hush/hush", "hush,hush", "0123456789"):
        assert secret not in said


@pytest.mark.variant
def test_a_coordinator_with_an_invalid_setting_exits_with_2_and_its_place() -> None:
    env = {**os.environ, "UNSTUCK_NOTIFY": targets(ops={"slack": "hush-hush"})}
    command = [sys.executable, "-c", "import unstuck.coordinator.celery"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "UNSTUCK_NOTIFY:1:31: targets.ops.slack: expected an address such as https://host/path\n"
    )


def test_workers_of_a_local_fleet_do_not_get_the_setting() -> None:
    for one in program_list(Size(workers=2), "redis://localhost:1/0", Settings()):
        assert one.env.get("UNSTUCK_NOTIFY") == ("" if "unstuck.tasks" in one.argv else None), (
            one.name
        )


@pytest.mark.variant
def test_commands_without_notices_do_not_load_channel_libraries() -> None:
    code = (
        "import sys, unstuck.cli.control; print(*({'celery', 'apprise', 'smtplib'} & "
        "sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
