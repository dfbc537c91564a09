"""A local fleet asks its processes whether they are up, and goes on when the server hangs
meanwhile.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.servers import RedisServer
from unstuck.coordinator.errors import FleetFailed
from unstuck.local.home import free_port
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.process import Program


@pytest.mark.variant
@pytest.mark.timeout(60)
def test_a_hanging_server_does_not_prevent_the_end_of_the_fleet(tmp_path: Path) -> None:
    """The thread that asks is the one that ends the fleet at Ctrl-C, so a question must come
    back.
    """
    server = RedisServer(tmp_path)
    server.start()
    assert server.process is not None
    silent = Program(
        "worker", (sys.executable, "-c", "import time; time.sleep(600)"), node="nobody@here"
    )
    fleet = LocalFleet(home=tmp_path / "home", redis_url=server.url, programs=[silent], grace=0.0)
    try:
        with fleet:
            for _ in range(2):
                with pytest.raises(FleetFailed, match="no answer from worker"):
                    fleet.wait_ready(0.1)
                server.process.send_signal(signal.SIGSTOP)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()


LISTENS_LATE = """
import pathlib, socket, sys, time
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listener.accept()
"""


@pytest.mark.timeout(60)
def test_a_fleet_is_ready_only_when_its_page_can_be_opened(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    port, now = free_port(), tmp_path / "now"
    program = Program("web", (sys.executable, "-c", LISTENS_LATE, str(port), str(now)), port=port)
    with LocalFleet(
        home=tmp_path / "home", redis_url=redis_server.url, programs=[program], grace=0.0
    ) as fleet:
        with pytest.raises(FleetFailed, match="no answer from web"):
            fleet.wait_ready(2.0)
        now.touch()
        assert fleet.wait_ready()
