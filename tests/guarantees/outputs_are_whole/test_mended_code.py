"""A retry after the code of a step was mended: real workers with the old code, then with the new,
one real coordinator.

Work by other code is never taken over, and each group says why it ran or did not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, NoSuchGroup, Settings, Status, published_files
from unstuck.coordinator.model.records import Reason
from unstuck.read_model.job import JobInfo

STEPS = """
import pyarrow as pa

def prices(spark, ctx):
    return pa.table({"price": [PRICE]})

def given(spark, ctx, rate=1):
    return pa.table({"rate": [rate]})

def looked(spark, ctx):
    return pa.table({"price": [ctx.params.get("price")]})

def report(spark, ctx):
    table = ctx.input("prices")
    assert table["price"][0].as_py() > 0, "a price below zero"
    return table
"""
SPEC = """
name: prices
defaults: {retry: {max: 0}}
groups:
  - {name: rates, spark: false, steps: [{python: "rates:rates", output: rates}]}
  - {name: prices, spark: false, steps: [{python: "shop.steps:prices", output: prices}]}
  - {name: report, needs: [prices, rates], spark: false, steps: [{python: "shop.steps:report", output: report}]}
"""


class DeployedProject:
    """A project with steps, and a fleet that runs them."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.folder, self._url = folder, redis_url
        self.client = Client(Settings(redis_url=redis_url, warehouse=str(folder / "warehouse")))
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        (folder / "rates.py").write_text(
            "import pyarrow as pa\ndef rates(spark, ctx):\n    return pa.table({'rate': [1]})\n"
        )

    def deploy(self, price: int) -> None:
        """New code: ``PRICE`` stands in a module that the module of the steps imports."""
        (self.folder / "shop" / "price.py").write_text(f"PRICE = {price}\n")
        (self.folder / "shop" / "steps.py").write_text(f"from shop.price import PRICE\n{STEPS}")

    @contextmanager
    def running(self) -> Iterator[None]:
        environ = {"UNSTUCK_REDIS_URL": self._url, "UNSTUCK_SPARK_MASTER": "none"}
        own = {**environ, "PYTHONPATH": str(self.folder)}
        with (
            # Each has a seed of its own for hashes, as after a restart.
            fleet.worker(self._url, self.folder, environ=own, python=sys.executable),
            coordinator_processes(self.folder, environ) as coordinators,
        ):
            coordinators.tend(1)
            yield

    def ended(self, job: str) -> JobInfo:
        return self.client.wait(job)


@pytest.fixture
def shop(redis_server: RedisServer, tmp_path: Path) -> DeployedProject:
    return DeployedProject(redis_server.url, tmp_path)


def reasons(view: JobInfo) -> dict[str, str]:
    records = {member.id: member for group in view.groups for member in group.members}
    return {name: record.reason.code if record.reason else "" for name, record in records.items()}


@pytest.mark.claim(
    "A retry reuses the work of unchanged groups, and never the output of code that changed."
)
def test_a_retry_reuses_nothing_made_by_other_code(shop: DeployedProject) -> None:
    # Given: a job that failed, and whose first groups succeeded
    shop.deploy(price=-1)
    with shop.running():
        failed = shop.ended(shop.client.submit(JobSpec.from_text(SPEC)).id)
        assert failed.status is Status.FAILED

    # When: the code is mended, the workers are started again, and the job is retried
    shop.deploy(price=7)
    with shop.running():
        retried = shop.ended(shop.client.retry(failed.id).id)

    # Then: only what the code has not made is taken over, and the rest says why it ran
    assert retried.status is Status.FINISHED
    assert reasons(retried) == {"rates": "ADOPTED", "prices": "RAN_AGAIN", "report": "RAN_AGAIN"}
    said = {group.name: group.members[0].reason for group in retried.groups}
    assert said["prices"] == Reason(
        "RAN_AGAIN", f"the code of its steps changed since job {failed.id}, so it ran again"
    )
    assert said["report"] == Reason(
        "RAN_AGAIN", f"it had not finished in job {failed.id}, so it ran again"
    )
    warehouse = str(shop.folder / "warehouse")
    assert duckdb.read_parquet(published_files(warehouse, "report")).fetchall() == [(7,)]


@pytest.mark.claim(
    "A retry reuses the work of unchanged groups, and never the output of code that changed."
)
@pytest.mark.variant
def test_a_retry_lists_what_it_reruns_and_what_it_reuses(shop: DeployedProject) -> None:
    # Given: a job that failed in its last group, and code that has changed since
    shop.deploy(price=-1)
    with shop.running():
        failed = shop.ended(shop.client.submit(JobSpec.from_text(SPEC)).id)
    shop.deploy(price=7)

    # When: it is retried from its last group on; then with one group again
    with shop.running():
        start = shop.ended(shop.client.retry(failed.id, rerun=["report"], adopt_all=True).id)
        rerun = shop.ended(shop.client.retry(failed.id, rerun=["rates"]).id)
        again = shop.client.retry(failed.id, rerun=["rates"])

    # Then
    assert reasons(start) == {"rates": "ADOPTED", "prices": "ADOPTED", "report": "STEP_FAILED"}
    assert reasons(rerun) == {"rates": "RAN_AGAIN", "prices": "RAN_AGAIN", "report": "RAN_AGAIN"}
    (said,) = (group.members[0].reason for group in rerun.groups if group.name == "rates")
    assert said is not None
    assert said.text.startswith("it was asked to run again")
    assert (again.id, again.new) == (rerun.id, False), "the same retry twice is one job"
    with pytest.raises(NoSuchGroup, match=r"no group rate.*did you mean 'rates'"):
        shop.client.retry(failed.id, rerun=["rate"])


@pytest.mark.claim(
    "A retry reuses the work of unchanged groups, and never the output of code that changed."
)
@pytest.mark.variant
def test_a_retry_with_a_fixed_spec_reuses_unchanged_groups(shop: DeployedProject) -> None:
    shop.deploy(price=-1)
    mended = SPEC.replace("shop.steps:report", "rates:rates")
    with shop.running():
        failed = shop.ended(shop.client.submit(JobSpec.from_text(SPEC)).id)
        assert failed.status is Status.FAILED
        retried = shop.ended(shop.client.retry(failed.id, spec=JobSpec.from_text(mended)).id)
    assert retried.status is Status.FINISHED
    told = reasons(retried)
    assert (told["rates"], told["prices"]) == ("ADOPTED", "ADOPTED")
    assert told["report"] != "ADOPTED"
    warehouse = str(shop.folder / "warehouse")
    assert duckdb.read_parquet(published_files(warehouse, "report")).fetchall() == [(1,)]


@pytest.mark.variant
def test_a_retry_with_another_parameter_reuses_groups_that_did_not_read_it(
    shop: DeployedProject,
) -> None:
    # Given: groups of which one gets the rate, one looks at the price, one reads neither; and two
    # that made nothing
    plain = "spark: false"
    # What one looks at counts for the others of the job in its process, too.
    fresh = "spark: false, fresh: true"
    spec = f"""
name: prices
defaults: {{retry: {{max: 0}}}}
params: {{rate: 1, price: 1}}
publish: [looked]
groups:
  - {{name: neither, {plain}, steps: [{{python: "shop.steps:prices", output: neither}}]}}
  - {{name: given, {plain}, steps: [{{python: "shop.steps:given", output: given}}]}}
  - {{name: looked, {fresh}, steps: [{{python: "shop.steps:looked", output: looked}}]}}
  - {{name: told, {plain}, steps: [{{python: "telling:nothing"}}]}}
  - {{name: asked, {fresh}, steps: [{{python: "telling:price"}}]}}
  - {{name: after, needs: [given], {plain}, steps: [{{python: "shop.steps:prices", output: after}}]}}
  - {{name: report, needs: [neither, given, looked], {fresh}, steps: [{{python: "telling:broken"}}]}}
"""
    shop.deploy(price=7)
    (shop.folder / "telling.py").write_text(
        "def nothing(spark, ctx):\n    pass\n"
        "def price(spark, ctx):\n    ctx.params['price']\n"
        "def broken(spark, ctx):\n    assert ctx.params['rate'] == 3 or ctx.params['price'] == 3\n"
    )
    with shop.running():
        failed = shop.ended(shop.client.submit(JobSpec.from_text(spec)).id)
        assert failed.status is Status.FAILED

        # When: it is retried with another rate, or another price
        rate = shop.ended(shop.client.retry(failed.id, params={"rate": 3}).id)
        price = shop.ended(shop.client.retry(failed.id, params={"price": 3}).id)

    # Then: what read it runs again and says why, with what comes after it; nothing else does
    assert (rate.status, price.status) == (Status.FINISHED, Status.FINISHED)
    told = {"neither": "ADOPTED", "told": "ADOPTED", "report": "RAN_AGAIN"}
    same = {"looked": "ADOPTED", "asked": "ADOPTED"}
    assert reasons(rate) == {**told, **same, "given": "RAN_AGAIN", "after": "RAN_AGAIN"}
    same = {"given": "ADOPTED", "after": "ADOPTED"}
    assert reasons(price) == {**told, **same, "looked": "RAN_AGAIN", "asked": "RAN_AGAIN"}
    said = {group.name: group.members[0].reason for group in price.groups}
    assert said["looked"] == Reason(
        "RAN_AGAIN", f"its parameter price changed since job {failed.id}, so it ran again"
    )
    assert said["asked"] == said["looked"]
    warehouse = str(shop.folder / "warehouse")
    assert duckdb.read_parquet(published_files(warehouse, "looked")).fetchall() == [(3,)]


@pytest.mark.claim("A retry with another parameter reuses no work that read the old value.")
@pytest.mark.variant
def test_params_read_by_a_group_count_for_the_next_group_in_its_process(
    shop: DeployedProject,
) -> None:
    # Given: two groups, of which the second reads what the first has kept for their job, such as a
    # connection
    (shop.folder / "keeping.py").write_text(
        "import pyarrow as pa\nkept = {}\n"
        "def one(spark, ctx):\n    job = ctx.token.partition('/')[0]\n"
        "    if job not in kept:\n        kept[job] = ctx.params['url']\n    return "
        "pa.table({'url': [kept[job]]})\n"
        "def broken(spark, ctx):\n    assert ctx.params['url'] == 2\n"
    )
    step = '{python: "keeping:one"'
    spec = f"""
name: kept
defaults: {{retry: {{max: 0}}}}
params: {{url: 1}}
groups:
  - {{name: a, spark: false, steps: [{step}, output: a}}]}}
  - {{name: b, spark: false, steps: [{step}, output: b}}]}}
  - {{name: end, needs: [a, b], spark: false, steps: [{{python: "keeping:broken"}}]}}
"""
    with shop.running():
        failed = shop.ended(shop.client.submit(JobSpec.from_text(spec)).id)
        retried = shop.ended(shop.client.retry(failed.id, params={"url": 2}).id)
    assert retried.status is Status.FINISHED
    assert reasons(retried) == {"a": "RAN_AGAIN", "b": "RAN_AGAIN", "end": "RAN_AGAIN"}


@pytest.mark.variant
def test_a_code_version_replaces_the_source_digest(shop: DeployedProject) -> None:
    spec = JobSpec.from_text(
        SPEC.replace("name: prices, spark", "name: prices, code_version: v1, spark")
    )
    shop.deploy(price=-1)
    with shop.running():
        failed = shop.ended(shop.client.submit(spec).id)
    shop.deploy(price=7)
    with shop.running():
        retried = shop.ended(shop.client.retry(failed.id).id)

    assert reasons(retried) == {"rates": "ADOPTED", "prices": "ADOPTED", "report": "STEP_FAILED"}


def test_code_fixed_while_workers_run_is_used_and_counted(
    shop: DeployedProject,
) -> None:
    # Given: a runner that has imported a module for another step, before the module is mended on
    # disk
    shop.deploy(price=-1)
    rates = shop.folder / "rates.py"
    rates.write_text(f"import shop.price\n{rates.read_text()}")
    group = {
        "name": "rates",
        "spark": False,
        "steps": [{"python": "rates:rates", "output": "rates"}],
    }
    first = {"name": "rates", "groups": [group]}
    with shop.running():
        assert shop.ended(shop.client.submit(first).id).status is Status.FINISHED
        shop.deploy(price=7)
        # When: its own step runs there for the first time
        ended = shop.ended(shop.client.submit(JobSpec.from_text(SPEC)).id)
    with shop.running():
        again = shop.ended(shop.client.submit(JobSpec.from_text(SPEC)).id)

    # Then: no restart was needed, and other workers find the same code. A runner that waited for
    # its next offer while the code was mended has given that offer back, which is no failure.
    assert (ended.status, again.status) == (Status.FINISHED, Status.FINISHED)
    assert [view.groups[0].members[0].failures for view in (ended, again)] == [0, 0]
    assert again.groups[0].members[0].attempt == 1
    assert duckdb.read_parquet(
        published_files(str(shop.folder / "warehouse"), "report")
    ).fetchall() == [(7,)]
