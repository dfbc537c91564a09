"""The page over a real Valkey, asked in this process, and a fleet that is played by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand
from tests.support.servers import RedisServer
from unstuck.web.app import create_app
from unstuck.web.safety import Access

HOST = "127.0.0.1:8620"


@pytest.fixture
def hand(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> ByHand:
    return ByHand(redis_server.url, client, tmp_path)


@pytest.fixture
def site(hand: ByHand) -> Iterator[Callable[..., TestClient]]:
    """Makes pages; ``token``, ``hosts`` and ``read_only`` are those of `unstuck web`."""
    with (
        ExitStack() as opened
    ):  # a client that is not opened starts a thread and an event loop for each request

        def make(token: str = "", hosts: tuple[str, ...] = (), **more: Any) -> TestClient:
            app = create_app(hand.client, Access.of("127.0.0.1", token, hosts), **more)
            made = TestClient(
                app, f"http://{HOST}", raise_server_exceptions=False, follow_redirects=False
            )
            return opened.enter_context(made)

        yield make


@pytest.fixture
def browser(site: Callable[..., TestClient]) -> TestClient:
    """A page without a token."""
    return site()
