"""A client over a real Valkey, and a fleet that is played by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.cli.conftest import ByHand
from tests.support.servers import RedisServer


@pytest.fixture
def hand(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> ByHand:
    return ByHand(redis_server.url, client, tmp_path)
