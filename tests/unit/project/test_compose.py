"""docker-compose.yml against the code it starts: no container may fail on a word that this
repository decides.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import pytest
import redis
import yaml
from celery.bin.celery import celery as celery_command

from tests.support.paths import ROOT
from tests.support.servers import RedisServer, free_port, server_binary, wait_until
from unstuck import Settings
from unstuck.tasks.duration import parse_duration

pytestmark = pytest.mark.variant

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CELERY = sorted(
    name for name, service in SERVICES.items() if str(service["command"]).startswith("celery ")
)


def parse(command: str) -> tuple[click.Context, click.Context]:
    """The contexts of Celery and of its subcommand, parsed by Celery itself; the app is imported,
    nothing is run.
    """
    program, *arguments = shlex.split(command)
    assert program == "celery"
    outer = celery_command.make_context("celery", arguments)
    rest = [*outer._protected_args, *outer.args]  # noqa: SLF001 - the public name is deprecated
    name, inner, rest = celery_command.resolve_command(outer, rest)
    assert inner is not None, f"celery has no command {name}"
    outer.invoked_subcommand = name
    assert celery_command.callback is not None
    with outer:
        celery_command.callback(**outer.params)  # finds and imports the app
    return outer, inner.make_context(name, rest, parent=outer)


def test_all_parts_of_a_fleet_are_defined() -> None:
    """Redis, coordinators, a beat, Spark workers and light workers; two coordinators, so that one
    may die.
    """
    assert CELERY == ["beat", "coordinator", "light", "spark"]
    assert SERVICES["coordinator"]["deploy"]["replicas"] == 2


def test_each_command_is_a_script_of_this_package_with_valid_arguments() -> None:
    (script,) = SERVICES["unstuck"]["entrypoint"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts[script].partition(":")
    code = f"from {module} import {function}; {function}()"
    said = subprocess.run(
        [sys.executable, "-c", code, *SERVICES["unstuck"]["command"]],
        capture_output=True,
        text=True,
    )
    assert (said.returncode, "submit" in said.stdout) == (0, True), said.stderr


@pytest.mark.parametrize("name", CELERY)
def test_each_celery_command_is_valid_and_its_app_can_be_imported(name: str) -> None:
    outer, inner = parse(SERVICES[name]["command"])
    app = outer.obj.app
    assert app.main == {"beat": "unstuck.coordinator", "coordinator": "unstuck.coordinator"}.get(
        name, "unstuck.tasks"
    )
    assert inner.command.name == ("beat" if name == "beat" else "worker")


def test_the_page_starts_requires_its_token_and_passes_its_health_check(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The command and the check run as they stand, but for the port and the place of the secret."""
    page, port = SERVICES["web"], str(free_port())
    assert page["secrets"] == [*COMPOSE["secrets"]]
    (tmp_path / "web-token").write_text("a-token-of-the-test\n")
    program, *words = (
        page["command"].replace("8620", port).replace("/run/secrets", str(tmp_path)).split()
    )
    kind, _, *check = page["healthcheck"]["test"]
    assert (program, kind) == ("unstuck", "CMD")
    environ = os.environ | {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path),
    }
    served = subprocess.Popen([sys.executable, "-m", "unstuck.cli", *words], env=environ)

    def is_well() -> bool:
        assert served.poll() is None
        told = [one.replace("8620", port) for one in check]
        return subprocess.run([sys.executable, *told], capture_output=True).returncode == 0

    try:
        wait_until(is_well, 60, "the page to be healthy")
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://127.0.0.1:{port}/jobs")
    finally:
        served.terminate()
        served.wait()


def test_workers_listen_to_exactly_the_queues_of_the_app() -> None:
    listened: list[str] = []
    for name in ("spark", "light"):
        outer, inner = parse(SERVICES[name]["command"])
        known = {queue.name for queue in outer.obj.app.conf.task_queues}
        listened += inner.params["queues"]
    assert sorted(listened) == sorted(known)


def test_a_spark_worker_has_one_driver_and_a_coordinator_does_not_fork() -> None:
    assert parse(SERVICES["spark"]["command"])[1].params["concurrency"] == 1
    pool = parse(SERVICES["coordinator"]["command"])[1].params["pool"]
    assert "thread" in str(pool)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"redis"}))
def test_every_variable_is_a_setting_with_a_valid_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = SERVICES[name]["environment"]
    fields = {f"UNSTUCK_{field.upper()}" for field in Settings.model_fields}
    assert set(variables) - fields == set()
    for variable, value in variables.items():
        monkeypatch.setenv(variable, str(value))
    settings = Settings()
    assert settings.redis_url == "redis://redis:6379/0"
    assert settings.warehouse == "/warehouse"


def test_every_referenced_file_exists() -> None:
    for name, service in SERVICES.items():
        for other in service.get("depends_on", {}):
            assert "healthcheck" in SERVICES[other], f"{name} waits for the health of {other}"
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"], name
    assert SERVICES["redis"]["volumes"] == [
        "redis:/data"
    ]  # where the official image keeps its data


def test_every_service_restarts_and_has_a_stop_grace_period() -> None:
    for name, service in SERVICES.items():
        if "profiles" not in service:
            assert service["restart"] == "unless-stopped", name
            assert service["stop_grace_period"].endswith("s"), name


@pytest.mark.parametrize("name", ["spark", "light"])
def test_a_worker_has_time_to_hand_back_running_attempts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(variable, str(value))
    assert parse_duration(SERVICES[name]["stop_grace_period"]) > Settings().stop_within()


def test_workers_and_coordinators_see_one_warehouse() -> None:
    assert {tuple(SERVICES[name]["volumes"]) for name in CELERY} == {("warehouse:/warehouse",)}


def test_the_server_options_persist_every_write_and_evict_nothing(tmp_path: Path) -> None:
    """The options are given to a real server, which is asked what it made of them."""
    program, *options = shlex.split(SERVICES["redis"]["command"])
    assert program == "redis-server"
    port = free_port()
    server = subprocess.Popen(
        [server_binary(), *options, "--port", str(port), "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port, decode_responses=True) as client:

            def answers() -> bool:
                try:
                    return bool(client.ping())
                except redis.RedisError:
                    return False

            wait_until(answers, 10, "the server to answer")
            program, *ping = SERVICES["redis"]["healthcheck"]["test"][1:]
            assert program == "redis-cli"  # of the official image
            assert client.execute_command(*ping), "what the health check asks"
            wanted = {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "maxmemory-policy": "noeviction",
            }
            assert client.config_get(*wanted) == wanted
    finally:
        server.kill()
        server.wait()


def test_the_image_is_built_from_existing_files_and_extras() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for line in dockerfile.splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(SERVICES["spark"]["build"]["args"]["EXTRAS"].split(",")) <= set(extras)
    assert "-c constraints.txt" in dockerfile
