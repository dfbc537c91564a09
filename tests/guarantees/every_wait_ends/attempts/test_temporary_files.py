"""What a runner leaves in the folder for temporary files is removed after its end, so that no disk
fills.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer

pytestmark = pytest.mark.variant


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def filling(
    client: redis.Redis, tmp_path: Path, name: str, **rest: object
) -> tuple[Offer, list[Path]]:
    """An attempt that has filled its temporary folders and waits for the file ``gate``; and what it
    made.
    """
    started = tmp_path / f"{name}-started"
    params = {"started": str(started), "gate": str(tmp_path / "gate")}
    step = {"python": "fleet_steps:fills_temporary_folders", "params": params}
    offer = fleet.make_offer(
        client, tmp_path / "w", name, {"name": "g", "spark": False, "steps": [step], **rest}
    )
    fleet.begun(client, offer, started)
    return offer, [Path(place) for place in json.loads(started.read_text())]


@pytest.mark.parametrize("fresh", [False, True], ids=["of the pool", "fresh"])
def test_temporary_files_of_a_killed_runner_are_removed_and_others_stay(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, temporary: Path, fresh: bool
) -> None:
    environ = {"TMPDIR": str(temporary)}
    with fleet.worker(redis_server.url, tmp_path, environ=environ, concurrency=2) as worker:
        other, kept = filling(client, tmp_path, "other")
        offer, places = filling(client, tmp_path, "killed", fresh=fresh)
        assert all(place.exists() and temporary in place.parents for place in (*places, *kept))
        # When
        fleet.runner_of(client, offer).kill()
        # Then
        wait_until(lambda: not any(place.exists() for place in places), 30, "all to be removed")
        assert fleet.outcome(client, offer).kind is OutcomeKind.LOST
        # And: the other one has its own until its end.
        assert all(place.exists() for place in kept)
        (tmp_path / "gate").touch()
        assert fleet.outcome(client, other).kind is OutcomeKind.SUCCEEDED
        assert fleet.stop_gently(worker) == 0
    wait_until(lambda: not [*temporary.iterdir()], 30, "the worker to leave nothing")


def test_a_removed_temporary_folder_is_created_again_for_the_next_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, temporary: Path
) -> None:
    """Hosts remove what is old in the folder for temporary files, and a runner lives for weeks."""
    (tmp_path / "gate").touch()
    with fleet.worker(redis_server.url, tmp_path, environ={"TMPDIR": str(temporary)}) as worker:
        runners = worker.runners
        for name in ("first", "next"):
            offer, (place,) = filling(client, tmp_path, name)
            assert fleet.outcome(client, offer).kind is OutcomeKind.SUCCEEDED
            assert not place.parent.exists()
            shutil.rmtree(place.parents[1])
        assert worker.runners == runners
