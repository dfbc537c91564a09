"""A runner whose watchdog dies when no other can be started, on a real worker."""

from __future__ import annotations

import site
import venv
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind


def a_python(folder: Path) -> Path:
    """A Python of our own that has all that this one has, and that can be taken away."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    lines = [f"import site; site.addsitedir({one!r})\n" for one in site.getsitepackages()]
    (packages / "as_ours.pth").write_text("".join(lines))
    return folder / "bin" / "python"


@pytest.mark.variant
def test_a_runner_without_a_watchdog_ends_and_the_next_runner_adopts_its_finished_work(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The virtual environment is rebuilt under the worker."""
    python = a_python(tmp_path / "venv")
    with fleet.worker(redis_server.url, tmp_path, queues="light", python=python) as worker:

        def make_offer(job: str, step: str) -> fleet.Offer:
            group = {
                "name": "g",
                "spark": False,
                "queue": "light",
                "steps": [{"python": f"fleet_steps:{step}"}],
            }
            return fleet.make_offer(client, tmp_path / "w", job, group)

        runner = fleet.runner_of(client, make_offer("first", "wait_for_cancel"))
        logs = (tmp_path / "w").glob
        (log,) = wait_until(
            lambda: list(logs("_staging/first/job.logs/g.*.log")), 20, "the log of the attempt"
        )
        watchdog = worker.watchdog()
        python.rename(python.with_name("away"))
        watchdog.kill()
        wait_until(lambda: fleet.gone(runner.pid), 5, "the runner to end")
        for said in (worker.text(), log.read_text()):
            assert "no other can be started: FileNotFoundError" in said
        # The next child needs no Python for its watchdog, which it forks.
        second = make_offer("second", "my_pid")
        assert fleet.outcome(client, second, 10).kind is OutcomeKind.SUCCEEDED
