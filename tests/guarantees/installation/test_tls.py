"""Redis over TLS: every connection verifies the server before it says anything, and takes one set
of options.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from pydantic import ValidationError

from tests.cli.conftest import Cli
from tests.support.network.tls import Authority, TlsServer
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.programs import Size
from unstuck.tasks.settings import describe_invalid

PASSWORD = "p%w@s/?&#"
QUOTED = quote(PASSWORD, safe="")
WORKER = ("unstuck.tasks", "worker", "-Q", "light")
PROGRAMS = (WORKER, ("unstuck.coordinator", "worker"), ("unstuck.coordinator", "beat"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ours")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """With a user ``me``."""
    made = RedisServer(tmp_path_factory.mktemp("valkey"))
    made.start()
    with redis.Redis(port=made.port) as control:
        control.acl_setuser(
            "me",
            enabled=True,
            passwords=[f"+{PASSWORD}"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
        )
    yield made
    made.stop()


@pytest.fixture
def front(authority: Authority, server: RedisServer) -> Iterator[TlsServer]:
    made = TlsServer(authority.certify("localhost"), server.port)
    yield made
    made.close()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[TlsServer]:
    """Who has taken the place of our Redis, with a certificate of the right name by a CA that
    nobody knows.
    """
    made = TlsServer(Authority(tmp_path, "stranger").certify("localhost"))
    yield made
    made.close()


def address(tls: TlsServer, host: str = "localhost", options: str = "") -> str:
    return f"rediss://me:{QUOTED}@{host}:{tls.port}/0{options}"


def ends(program: tuple[str, ...], folder: Path, **environ: str) -> str:
    """What a program of a fleet says that ends with 5 by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", *program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def asked(cli: Cli, **environ: str) -> subprocess.CompletedProcess[str]:
    """What ``list`` says, once a busy machine has shaken hands in time."""

    def said() -> subprocess.CompletedProcess[str] | None:
        done = cli("list", **environ)
        return None if re.search("time(d )?out", done.stderr, re.IGNORECASE) else done

    return wait_until(said, 20, "an answer")


@pytest.mark.claim("With TLS, no process sends anything before it has verified the server.")
@pytest.mark.variant
def test_a_fleet_runs_a_job_over_tls_with_a_private_ca_and_a_client_certificate(
    authority: Authority, server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinator, beat, worker, watchdog, step, client, command line and ``up`` itself."""
    front = TlsServer(authority.certify("localhost"), server.port, clients_of=authority)
    certificate, key = authority.certify("a-client")
    own = {
        "UNSTUCK_REDIS_CA": authority.file,
        "UNSTUCK_REDIS_CERT": certificate,
        "UNSTUCK_REDIS_KEY": key,
    }
    for name, value in own.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("UNSTUCK_WAREHOUSE", str(tmp_path / "warehouse"))
    steps = [{"python": "fleet_steps:my_pid"}]
    with LocalFleet(Size(workers=0, light_slots=1), tmp_path / "home", address(front)) as fleet:
        assert fleet.wait_ready()
        with Client(
            Settings(redis_url=address(front), warehouse=str(tmp_path / "warehouse"))
        ) as client:
            job = client.submit(
                {"name": "tls", "groups": [{"name": "g", "spark": False, "steps": steps}]}
            ).id
            wait_until(
                lambda: client.show(job).status is Status.FINISHED, 30, "the job to be FINISHED"
            )
        cli = Cli(address(front), tmp_path)
        cli.env |= {name: str(value) for name, value in own.items()}
        assert "FINISHED" in cli("show", job).stdout
        with redis.Redis(port=server.port) as store:
            wait_until(lambda: store.exists("unstuck:beat::lock"), 30, "beat to hold its lock")
            seen = {one["user"] for one in store.client_list()} - {"default"}
        assert seen == {"me"}
    front.close()


@pytest.mark.claim("With TLS, no process sends anything before it has verified the server.")
def test_every_program_refuses_an_untrusted_server_before_sending_anything(
    stranger: TlsServer, tmp_path: Path
) -> None:
    told = (
        f"The server at rediss://me:***@localhost:{stranger.port}/0 does not prove that it is "
        "your Redis"
    )
    done = asked(Cli(address(stranger), tmp_path))
    said = [
        done.stderr,
        *(ends(one, tmp_path, UNSTUCK_REDIS_URL=address(stranger)) for one in PROGRAMS),
    ]
    assert done.returncode == 5
    for one in said:
        assert told in one
        assert "unable to get local issuer certificate" in one
        assert "UNSTUCK_REDIS_CA" in one
    assert stranger.handshakes >= len(said)
    assert stranger.heard == b""


@pytest.mark.claim("With TLS, no process sends anything before it has verified the server.")
@pytest.mark.variant
def test_celery_verifies_a_broker_address_from_its_command_line(
    stranger: TlsServer, server: RedisServer, tmp_path: Path
) -> None:
    program = ("unstuck.tasks", "-b", address(stranger), "worker", "-Q", "light")
    said = ends(program, tmp_path, UNSTUCK_REDIS_URL=server.url)
    assert f"The server at rediss://me:***@localhost:{stranger.port}/0 does not prove" in said
    assert stranger.handshakes
    assert stranger.heard == b""


@pytest.mark.variant
@pytest.mark.parametrize("as_option", [True, False], ids=["in the address", "as a setting"])
def test_a_wrong_host_name_is_reported_with_the_names_in_the_certificate(
    authority: Authority, front: TlsServer, tmp_path: Path, as_option: bool
) -> None:
    given = f"?ssl_ca_certs={authority.file}" if as_option else ""
    environ = {} if as_option else {"UNSTUCK_REDIS_CA": str(authority.file)}
    wrong = address(front, "127.0.0.1", given)
    for said in (
        asked(Cli(wrong, tmp_path), **environ).stderr,
        ends(WORKER, tmp_path, UNSTUCK_REDIS_URL=wrong, **environ),
    ):
        assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in said
        assert "Name it in UNSTUCK_REDIS_URL as the certificate does" in said
    assert front.heard == b""
    unchecked = f"{wrong}{'&' if as_option else '?'}ssl_check_hostname=false"
    assert asked(Cli(unchecked, tmp_path), **environ).returncode == 0


def test_certificate_checks_are_disabled_only_explicitly(front: TlsServer, tmp_path: Path) -> None:
    assert asked(Cli(address(front), tmp_path)).returncode == 5
    assert asked(Cli(address(front), tmp_path), UNSTUCK_REDIS_VERIFY="none").returncode == 0
    assert asked(Cli(address(front, options="?ssl_cert_reqs=CERT_NONE"), tmp_path)).returncode == 0


def test_tls_on_only_one_side_is_reported(
    authority: Authority, server: RedisServer, front: TlsServer, tmp_path: Path
) -> None:
    asks = TlsServer(authority.certify("localhost"), server.port, clients_of=authority)
    tried = {
        f"rediss://127.0.0.1:{server.port}/0": "does not speak TLS there",
        f"redis://127.0.0.1:{front.port}/0": "speaks TLS there: write rediss://",
        address(asks, options=f"?ssl_ca_certs={authority.file}"): "UNSTUCK_REDIS_CERT",
    }
    for url, told in tried.items():
        done = Cli(url, tmp_path)("list")
        assert (done.returncode, told in done.stderr) == (5, True), done.stderr
    asks.close()


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        (
            "redis://h:1/0",
            {"redis_ca": "{ca}"},
            "UNSTUCK_REDIS_CA is for TLS, and redis://h:1/0 is without",
        ),
        ("redis://h:1/0?ssl_cert_reqs=none", {}, "ssl_cert_reqs is for TLS"),
        ("rediss://h:1/0?ssl_cert_reqs=none", {"redis_verify": "full"}, "leave one of them out"),
        ("rediss://h:1/0?ssl_ca_certs={ca}", {"redis_ca": "/other"}, "leave one of them out"),
        (
            "rediss://h:1/0?ssl_cert_reqs=maybe",
            {},
            "the option ssl_cert_reqs is one of required, optional, none",
        ),
        ("rediss://h:1/0?ssl_ciphers=A", {}, "the address has the option ssl_ciphers"),
        ("redis://h:1/?db=3", {}, "The number of a database comes after the host"),
        (
            "rediss://h:1/0",
            {"redis_ca": "/nowhere"},
            "UNSTUCK_REDIS_CA (ssl_ca_certs), /nowhere: no PEM files",
        ),
        ("rediss://h:1/0", {"redis_ca": __file__}, "no PEM files that can be used"),
        (
            "rediss://h:1/0",
            {"redis_key": "{ca}"},
            "UNSTUCK_REDIS_CERT (ssl_certfile), None, with UNSTUCK_REDIS_KEY",
        ),
    ],
)
def test_contradictory_or_unusable_tls_options_are_refused(
    authority: Authority, url: str, more: dict[str, str], why: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(
            redis_url=url.replace("{ca}", str(authority.file)),
            **{name: value.replace("{ca}", str(authority.file)) for name, value in more.items()},
        )
    assert why in describe_invalid(caught.value)


def test_tls_settings_are_part_of_the_address_of_all_connections(
    authority: Authority,
) -> None:
    said = Settings(
        redis_url="rediss://h:1/0?ssl_cert_reqs=CERT_REQUIRED", redis_ca=str(authority.file)
    )
    assert said.redis_url == f"rediss://h:1/0?ssl_cert_reqs=required&ssl_ca_certs={authority.file}"
    assert Settings(redis_url=said.redis_url, redis_ca=str(authority.file)) == said


@pytest.mark.parametrize("password", ["", f":{QUOTED}@"])
def test_the_command_printed_by_up_can_be_pasted(
    authority: Authority, tmp_path: Path, password: str
) -> None:
    url = f"rediss://{password}[::1]:6380/0?ssl_ca_certs={authority.file}&ssl_check_hostname=false"
    fleet = LocalFleet(Size(workers=0), tmp_path, url)
    fleet.redis_url = url
    said = fleet.welcome()
    line = (
        next(one for one in said.splitlines() if "submit" in one)
        .partition("submit")[2]
        .partition("   (")[0]
    )
    words = shlex.split(line)
    assert words[-4:] == ["unstuck", "submit", "SPEC", "--wait"]
    assert (f"UNSTUCK_REDIS_URL={url}" in words) == (not password)
    assert ("with this UNSTUCK_REDIS_URL" in said) == bool(password)
    assert QUOTED not in said
    assert f"on rediss://{':***@' if password else ''}[::1]:6380/0" in said
