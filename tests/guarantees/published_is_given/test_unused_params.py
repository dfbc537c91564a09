"""A parameter that has no effect is told: by validate and submit where that can be known, and in
the attempt's log.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import Cli
from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer

STEPS = """
print("said at the import")

def price(spark, ctx, base=1):
    ctx.result("price", base)

"""
READS = """
def price(spark, ctx, base=1):
    ctx.result("price", ctx.params["lost"])
"""
SPEC = """
name: shop
params: {base: 2, lost: 3}
groups:
  - {name: prices, spark: false, steps: [{python: "MODULE:price"}]}
  - {name: report, needs: [prices], params: {day: 1}, steps: [{sql: "SELECT 1 AS one", output: report}]}
"""


@pytest.fixture
def shop(redis_server: RedisServer, client: redis.Redis, tmp_path: Path) -> Cli:
    for module, text in {"shop": STEPS, "reads": READS}.items():
        (tmp_path / f"{module}.py").write_text(text)
        (tmp_path / f"{module}.yaml").write_text(SPEC.replace("MODULE", module))
    return Cli(redis_server.url, tmp_path)


@pytest.mark.variant
def test_validate_with_imports_reports_unused_and_unfit_parameters(shop: Cli) -> None:
    done = shop("validate", "shop.yaml", "--imports", "--json")
    assert json.loads(done.stdout)["warnings"] == [
        "shop.yaml:3:25: params.lost: nothing in the job uses this parameter",
        "shop.yaml:6:51: groups[1].params.day: nothing in the group uses this parameter",
    ]
    done = shop("validate", "reads.yaml", "--imports")
    assert (done.returncode, done.stdout[:3]) == (0, "OK:")
    assert "params.lost" not in done.stderr, "the step may read it from ctx.params"

    (shop.folder / "shop.yaml").write_text(
        SPEC.replace("MODULE", "shop").replace("{base: 2", "{bass: 2")
    )
    (shop.folder / "shop.py").write_text(STEPS.replace("base=1", "base"))
    done = shop("validate", "shop.yaml", "--imports")
    assert done.returncode == 2
    assert (
        "groups[0].steps[0].python: BAD_STEP_CALL: shop:price needs base; the step has bass, lost"
        in done.stderr
    )
    (shop.folder / "shop.py").unlink()
    assert (
        "groups[0].steps[0].python: STEP_NOT_FOUND: "
        in shop("validate", "shop.yaml", "--imports").stderr
    )


def test_submit_reports_unused_parameters_known_without_the_code(shop: Cli) -> None:
    done = shop("submit", "shop.yaml", "--json")
    assert json.loads(done.stdout)["warnings"] == [
        "groups[1].params.day: nothing in the group uses this parameter"
    ]
    assert "Warning: groups[1].params.day: nothing" in done.stderr


def test_run_reports_unused_parameters_before_it_starts(shop: Cli) -> None:
    quoted = SPEC.replace("MODULE", "shop").replace("SELECT 1 AS one", "SELECT ':day' AS one")
    (shop.folder / "shop.yaml").write_text(quoted)
    done = shop("run", "shop.yaml", "--only", "prices")
    assert (
        "Warning: groups[1].steps[0].sql: ':day' in quotes is text, not a parameter; write"
        in done.stderr
    )
    assert done.returncode == 0


def test_an_attempt_warns_of_parameters_ignored_by_its_steps(
    shop: Cli, client: redis.Redis, redis_server: RedisServer
) -> None:
    offers = []
    for module in ("shop", "reads"):
        group = {"name": "g", "spark": False, "steps": [{"python": f"{module}:price"}]}
        offers.append(
            fleet.make_offer(
                client, shop.folder / "w", module, group, params={"lost": 3}, send=False
            )
        )
        plans = fleet.KEYS.of(module).plans
        stored = json.loads(client.hget(plans, "g") or "")
        client.hset(plans, "g", json.dumps({**stored, "for_python": ["base", "lost"]}))
    with single_runner(redis_server.url, shop.folder, *offers) as runner:
        assert runner.said()[-2:] == ["succeeded APPLIED", "succeeded APPLIED"]
    logs = [
        next((shop.folder / "w" / "_staging" / job).rglob("*.log")).read_text()
        for job in ("shop", "reads")
    ]
    said = "no step takes lost, so it has no effect; is the code older than the spec?"
    assert [said in log for log in logs] == [True, False]
