"""A real fleet on a line that loses one reply in twenty, those of handshakes included: its work is
done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.network.proxy import Proxy
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status, Unreachable
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.programs import Size

pytestmark = pytest.mark.variant

JOBS = 20
STEPS = [{"python": "fleet_steps:my_pid"}]


@pytest.fixture
def proxy(redis_server: RedisServer, client: redis.Redis) -> Iterator[Proxy]:
    """Between an empty Redis and everybody, the user included."""
    made = Proxy(redis_server.port)
    yield made
    made.close()


@pytest.fixture
def fleet(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFleet]:
    """A coordinator, a beat, and a worker with two runners, which are starting."""
    monkeypatch.setenv("UNSTUCK_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    with LocalFleet(Size(workers=0, light_slots=2), tmp_path, proxy.url, grace=3.0) as running:
        yield running


def submit(user: Client, number: int) -> str:
    """As a user does whose Redis does not answer: again, under the same key."""

    def group(name: str, *needs: str) -> dict[str, Any]:
        return {
            "name": name,
            "spark": False,
            "needs": list(needs),
            "retry": {"max": 0},
            "steps": STEPS,
        }

    spec = {"name": "small", "groups": [group("a"), group("b", "a"), group("c", "b")]}
    while True:
        try:
            return user.submit(spec, key=f"job-{number}").id
        except Unreachable:
            continue


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(False, id="the connection is closed", marks=pytest.mark.long),
        pytest.param(True, id="the connection is silent"),
    ],
)
def test_losing_one_reply_in_twenty_delays_work_but_stalls_nothing(
    redis_server: RedisServer, proxy: Proxy, fleet: LocalFleet, silent: bool
) -> None:
    proxy.lose(0.05, silent=silent)
    with (
        Client(Settings(redis_url=proxy.url)) as user,
        Client(Settings(redis_url=redis_server.url)) as onlooker,
    ):
        jobs = [submit(user, number) for number in range(JOBS)]

        def open_jobs() -> list[str]:
            return [job for job in jobs if not onlooker.show(job).status.terminal]

        wait_until(lambda: not open_jobs(), 150, "all jobs to end", every=0.5)
        assert {onlooker.show(job).status for job in jobs} == {Status.FINISHED}
        assert not onlooker.fleet().stalled
    assert proxy.lost > JOBS, "the line was bad"
    assert not [one.name for one in fleet.processes if one.deaths and one.name != "beat"]
