"""A local fleet asks its processes whether they are up, and goes on when the server hangs meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.servers import RedisServer
from unstuck.coordinator.local.local_fleet import LocalFleet


@pytest.mark.timeout(60)
def test_a_server_that_hangs_does_not_keep_the_fleet_from_ending(tmp_path: Path) -> None:
    """The thread that asks is the one that ends the fleet at Ctrl-C, so a question must come back."""
    server = RedisServer(tmp_path)
    server.start()
    fleet = LocalFleet(home=tmp_path / "home", programs=[])
    fleet.redis_url = server.url
    assert server.process is not None
    try:
        assert fleet._ping(["nobody@here"]) == []
        server.process.send_signal(signal.SIGSTOP)
        assert fleet._ping(["nobody@here"]) == []
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()
