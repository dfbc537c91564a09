"""Settings that fit each other, also when somebody sets one of them alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.paths import ROOT
from unstuck.doctor.finding import Level
from unstuck.doctor.installation_checks import of_settings
from unstuck.tasks.settings import Settings, describe_invalid


def test_a_long_lease_changes_no_other_setting() -> None:
    long = Settings(lease_ttl=600.0)
    assert (long.lease_renew, long.sweep_every, long.lock_ttl, long.report_idle) == (
        3.0,
        1.0,
        5.0,
        5.0,
    )


@pytest.mark.parametrize("ttl", [0.5, 3.0, 10.0, 15.0, 60.0])
def test_changing_only_the_lease_keeps_the_settings_consistent(ttl: float) -> None:
    assert [
        finding for finding in of_settings(Settings(lease_ttl=ttl)) if finding.level is not Level.OK
    ] == []


@pytest.mark.parametrize(
    "said", [{"lease_renew": 2.0}, {"lock_ttl": 4.0}, {"report_idle": 7.0}, {"sweep_every": 2.0}]
)
def test_explicit_settings_are_kept(said: dict[str, Any]) -> None:
    settings = Settings(lease_ttl=3.0, **said)
    assert {name: getattr(settings, name) for name in said} == said


def test_environment_variables_are_equivalent_to_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSTUCK_LEASE_TTL", "3s")
    monkeypatch.setenv("UNSTUCK_LOCK_TTL", "2s")
    settings = Settings()
    assert (settings.lease_renew, settings.lock_ttl, settings.report_idle) == (0.6, 2.0, 1.0)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"UNSTUCK_{name.upper()}", raising=False)
    unset = Settings()
    for name in Settings.model_fields:
        monkeypatch.setenv(f"UNSTUCK_{name.upper()}", "")
    assert Settings() == unset
    assert Settings().model_fields_set == unset.model_fields_set


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h:1/0", "redis://h", "rediss://u:p%2F@h:1/15?ssl_cert_reqs=required"),
        *("unix:///run/r.sock?db=3&password=p%40w", "unix://me:p%40w@/run/r.sock"),
    ],
)
def test_a_redis_address_is_kept_as_given(url: str) -> None:
    assert Settings(redis_url=url).redis_url == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("foo", "'foo' (it does not begin with redis://"),
        ("127.0.0.1:6379", "'127.0.0.1:6379' (it does not begin with redis://"),
        ("amqp://guest:secret@h//", "amqp://guest:***@h// (it does not begin with redis://"),
        ("unix://", "(it names no socket"),
        ("redis://:6379/0", "(it names no host)"),
        ("redis://h:secret/0", "(its port is not a number"),
        ("redis://:sec/ret@h:1/0", "(its port is not a number"),
        ("redis://h:1/secret", "must be the number of a database"),
    ],
)
def test_an_invalid_redis_address_is_refused_without_its_password(url: str, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(redis_url=url)
    said = describe_invalid(caught.value)
    assert said.startswith("UNSTUCK_REDIS_URL: not the address of a Redis: ")
    assert why in said
    for text in (said, str(caught.value)):  # the second is what an app of somebody's own would log
        assert ":secret" not in text
        assert "sec/ret" not in text


@pytest.mark.variant
def test_celery_programs_report_an_invalid_setting_and_exit_with_2() -> None:
    """A bare word as address once made them try a RabbitMQ of that name for ever."""
    programs = {
        ("unstuck.tasks", "worker"): {"UNSTUCK_REDIS_URL": "foo"},
        ("unstuck.coordinator", "worker", "-P", "threads"): {
            "UNSTUCK_REDIS_URL": "foo",
            "UNSTUCK_LEASE_TTL": "banana",
        },
        ("unstuck.coordinator", "beat"): {"UNSTUCK_LEASE_TTL": "banana"},
    }
    started = [
        (
            wrong,
            subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", *program],
                cwd=ROOT,
                env={**os.environ, **wrong},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
        for program, wrong in programs.items()
    ]
    for wrong, process in started:
        out, said = process.communicate()
        assert (process.returncode, out) == (2, ""), said
        assert [line.partition(":")[0] for line in said.splitlines()] == list(wrong)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (None, (None, None)),
        ("30", (30, 30)),
        ('{"/srv/a": 30}', (30, None)),
        ('{"/srv/a/": 30, "default": 7}', (30, 7)),
        ('{"file:///srv/a": 30}', (30, None)),
    ],
)
def test_the_number_of_kept_versions_is_set_globally_or_per_warehouse(
    monkeypatch: pytest.MonkeyPatch, said: str | None, kept: tuple[int | None, int | None]
) -> None:
    if said is not None:
        monkeypatch.setenv("UNSTUCK_KEEP_VERSIONS", said)
    settings = Settings()
    assert (settings.versions_kept("/srv/a"), settings.versions_kept("s3://b/c")) == kept
    assert settings.versions_kept("file:///srv/a") == kept[0], "a job may have it as a URI"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("few", "UNSTUCK_KEEP_VERSIONS: expected a number, or JSON such as {"),
        ("[1]", "UNSTUCK_KEEP_VERSIONS: expected a number, or JSON such as {"),
        ("0", "UNSTUCK_KEEP_VERSIONS['default']: Input should be greater than or equal to 1"),
        ('{"/srv/a": "all"}', "UNSTUCK_KEEP_VERSIONS['/srv/a']: Input should be a valid integer"),
        ('{"s3://key:word@b/c": 3}', "the address s3://… holds a user or a key"),
    ],
)
def test_an_invalid_number_of_versions_is_refused(said: str, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(keep_versions=said)  # type: ignore[arg-type]
    told = describe_invalid(caught.value)
    assert why in told
    assert "word" not in told
