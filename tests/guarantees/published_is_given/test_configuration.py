"""Configuration of a worker (``${env:NAME}``) is ordinary text: it may stand in data, and nothing
is made of it.
"""

from __future__ import annotations

from pathlib import Path

import redis

from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.spec.work_order import Collect
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import read_marker

PARAMS = {"debug": "${env:DEBUG}", "stage": "${env:STAGE}"}


def test_the_configuration_of_a_worker_changes_no_output_result_or_log(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    step = {"python": "secret_steps:configured", "params": PARAMS, "output": "production"}
    offer = fleet.make_offer(
        *(client, tmp_path / "w", "job"),
        {"name": "g", "spark": False, "steps": [step]},
        collect=[Collect(output="production", column="true")],
        send=False,
    )
    environ = {"DEBUG": "true", "STAGE": "production"}
    with single_runner(redis_server.url, tmp_path, offer, environ=environ) as runner:
        runner.said()
    outcome = fleet.outcome(client, offer, 0)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
    assert outcome.results == {"changed": "true", "production": ["production_new", {"true": True}]}
    assert outcome.forks == {"production.true": ["production", "long"]}
    assert outcome.staging is not None
    marker = read_marker(Files(str(tmp_path / "w")), outcome.staging)
    assert '"name":"true"' in marker.outputs["production"].schema.replace(" ", "")
    (log,) = (tmp_path / "w" / "_staging" / "job").rglob("*.log")
    assert "it is true that this is production" in log.read_text()
