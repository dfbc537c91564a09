"""``unstuck web``, as a process of its own."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import ByHand, Cli
from tests.support.machine import seconds

TOKEN = "a token that nobody guesses"


@contextmanager
def serving(cli: Cli, *options: str | Path) -> Iterator[str]:
    """The address of a page; it ends well when it is told to."""
    process = cli.start("web", "--address", "127.0.0.1:0", *options)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+)/\n", said)
        assert found is not None, said
        yield found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(seconds(20)) == 0
    finally:
        process.kill()
        process.communicate()


def get(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def test_the_page_is_served_until_stopped(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "load"}, name="night")
    with serving(cli) as address:
        assert job in get(f"{address}/jobs")
        assert 'unstuck_jobs{status="pending"} 1.0' in get(f"{address}/metrics")
        assert get(f"{address}/static/vendor/htmx.min.js").startswith("var htmx=")


@pytest.mark.variant
def test_a_page_with_a_token_requires_the_token(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving(cli, "--token-file", tmp_path / "token") as address:
        assert "No coordinator is heard of" in get(f"{address}/", Authorization=f"Bearer {TOKEN}")
        assert "unstuck_up 1.0" in get(f"{address}/metrics", Authorization=f"Bearer {TOKEN}")
        assert "Your name" in get(f"{address}/", Accept="text/html")


@pytest.mark.claim("Without a token, the web page listens on loopback addresses only.")
@pytest.mark.variant
def test_a_publicly_reachable_page_is_not_started_without_a_token(cli: Cli) -> None:
    done = cli("web", "--address", "0.0.0.0:0")
    assert done.returncode == 2
    assert "--token-file" in done.stderr
    assert cli("web", "--address", "127.0.0.1").returncode == 2


@pytest.mark.variant
def test_an_address_in_use_is_reported(cli: Cli) -> None:
    with serving(cli) as address:
        done = cli("web", "--address", address.removeprefix("http://"))
        assert (done.returncode, "cannot listen at" in done.stderr) == (2, True)
