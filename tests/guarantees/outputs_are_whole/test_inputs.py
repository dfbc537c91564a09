"""What a job reads: real workers and a coordinator, while other jobs publish newer versions of the
same dataset.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from tests.support import fleet
from tests.support.jobs.stored import record_of
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, JobSpec, Settings, SpecError, Status, published_files
from unstuck.cli.app import app
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.store.submissions import Submissions
from unstuck.read_model.job import JobInfo
from unstuck.tasks.warehouse.log import Warehouse

STEPS = """
import pathlib
import time
import pyarrow as pa
from unstuck import DatasetNotFound

def price_of(table):
    return table["price"][0].as_py()

def prices(spark, ctx, price):
    return pa.table({"price": [price]})

def found(spark, ctx):
    return ctx.input("prices")

def first(spark, ctx):
    ctx.result("price", price_of(ctx.input("prices")))

def each(spark, ctx, n):
    ctx.result("n", n)

def second(spark, ctx, folder, name="now"):
    seen = [ctx.results("first")["price"], price_of(ctx.input(name)), price_of(ctx.published("prices"))]
    with open(f"{folder}/seen", "a") as file:
        file.write(f"{seen}\\n")
    if not pathlib.Path(folder, "open").exists():
        raise RuntimeError("the gate is closed")
    return pa.table({"seen": seen, "members": [[each["n"] for each in ctx.results("each")]] * 3})

def both(spark, ctx, day, carrier):
    return pa.table({"day": [day], "carrier": [carrier]})

def add(spark, ctx, id, folder):
    try:
        rows = ctx.published("dim")["id"].to_pylist()
    except DatasetNotFound:
        rows = []
    while not pathlib.Path(folder, "open").exists() and not ctx.cancelled:
        time.sleep(0.01)
    return pa.table({"id": [*rows, id]})

def older(spark, ctx, version):
    return ctx.published("prices", version=version)

def missing(spark, ctx):
    try:
        ctx.published("taxes")
    except DatasetNotFound as error:
        ctx.result("said", str(error))
    return pa.table({"made": [1]})
"""
PRICES = """
name: prices
params: {price: 1}
groups:
  - {name: prices, spark: false, steps: [{python: "shop:prices", output: prices}]}
"""
REPORT = """
name: report
params: {folder: ""}
defaults: {retry: {max: 1000, backoff: 50ms, max_backoff: 50ms}}
groups:
  - {name: first, spark: false, inputs: {prices: prices}, steps: [{python: "shop:first"}]}
  - {name: each, spark: false, for_each: {n: [1, 2]}, steps: [{python: "shop:each"}]}
  - name: second
    needs: [first, each]
    spark: false
    inputs: {now: prices@latest}
    steps: [{python: "shop:second", output: report}]
"""

ADD = """
name: add
params: {id: 0, folder: ""}
groups: [{name: add, spark: false, steps: [{python: "shop:add", output: dim}]}]
"""


class JobsWithInputs:
    """A warehouse of a test's own, and what the steps of its jobs left behind."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.folder, self.warehouse = folder, str(folder / "warehouse")
        self.environ = {"UNSTUCK_REDIS_URL": redis_url, "UNSTUCK_WAREHOUSE": self.warehouse}
        self.client = Client(Settings(redis_url=redis_url, warehouse=self.warehouse))

    def submit(self, spec: str, **params: Any) -> str:
        return self.client.submit(JobSpec.from_text(spec).with_params(params)).id

    def ended(self, job: str) -> JobInfo:
        return self.client.wait(job)

    def publish(self, price: int) -> int:
        """Publish the dataset ``prices`` again. Returns its version."""
        view = self.ended(self.submit(PRICES, price=price))
        assert view.status is Status.FINISHED, view.reason
        return view.version

    @property
    def seen(self) -> list[str]:
        file = self.folder / "seen"
        return file.read_text().splitlines() if file.exists() else []

    def command(self, *arguments: str) -> Any:
        told = CliRunner().invoke(app, [*arguments, "--json"], env=self.environ)
        assert told.exit_code == 0, told.output
        return json.loads(told.stdout)


@pytest.fixture(scope="module")
def running(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One fleet for the jobs of all tests; the URL of its Redis."""
    home = tmp_path_factory.mktemp("fleet")
    (home / "shop.py").write_text(STEPS)
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_STEP_MODULES": "shop",
        "PYTHONPATH": str(home),
    }
    with (
        fleet.worker(redis_server.url, home, environ=environ),
        coordinator_processes(home, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield redis_server.url


@pytest.fixture
def shop(running: str, tmp_path: Path) -> JobsWithInputs:
    return JobsWithInputs(running, tmp_path)


def reasons(view: JobInfo) -> dict[str, str]:
    records = {member.id: member for group in view.groups for member in group.members}
    return {name: record.reason.text if record.reason else "" for name, record in records.items()}


@pytest.mark.claim("All groups and attempts of a job read one version of a published dataset.")
def test_a_job_reads_one_version_and_its_retry_reads_the_newest(
    shop: JobsWithInputs,
) -> None:
    # Given: a job whose second group fails, again and again, while a newer version is published
    assert shop.publish(price=1) == 1
    job = shop.submit(REPORT, folder=str(shop.folder))
    wait_until(lambda: shop.seen, 60, "the first attempt")
    assert shop.publish(price=2) == 2
    told = shop.command("vacuum", "--keep", "1", "--older-than", "0s")
    assert (told["files"], told["kept_for"]) == (0, job), "the files that the job reads stay"
    before = len(shop.seen)
    wait_until(lambda: len(shop.seen) > before, 60, "an attempt after the newer version")

    # When
    (shop.folder / "open").touch()

    # Then: nothing of it read the newer version, and what it read is on record
    ended = shop.ended(job)
    assert ended.status is Status.FINISHED
    assert set(shop.seen) == {"[1, 1, 1]"}
    rows = duckdb.read_parquet(published_files(shop.warehouse, "report")).fetchall()
    assert rows == [(1, [1, 2])] * 3
    (entry,) = Warehouse(shop.warehouse).history("report", 10)
    assert entry.datasets["report"].inputs == {"prices": [1]}
    (shown,) = shop.command("datasets", "report", "--history")
    assert shown["inputs"] == {"prices": [1]}
    assert list(shown["code"]) == ["second"]
    assert shown["code"]["second"].startswith("shop:")

    # And: the next job reads the newer one; the old files may go now
    ended = shop.ended(shop.submit(REPORT, folder=str(shop.folder)))
    assert shop.seen[-1] == "[2, 2, 2]"
    assert Warehouse(shop.warehouse).history("report", 1)[0].datasets["report"].inputs == {
        "prices": [2]
    }
    assert shop.command("vacuum", "--keep", "1", "--older-than", "0s")["kept_for"] == ""


@pytest.mark.claim("All groups and attempts of a job read one version of a published dataset.")
def test_a_vacuum_keeps_versions_read_by_a_job_it_does_not_know(
    shop: JobsWithInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a client that has looked at the warehouse, while a newer version is published and the
    # older one removed
    assert shop.publish(price=1) == 1
    store, vacuums = Submissions.submit, []

    def submit(*arguments: Any) -> tuple[str, bool]:
        if not vacuums:
            monkeypatch.setattr(Submissions, "submit", store)
            assert shop.publish(price=2) == 2
            vacuums.append(shop.command("vacuum", "--keep", "1", "--older-than", "0s"))
        return store(*arguments)

    monkeypatch.setattr(Submissions, "submit", submit)
    (shop.folder / "open").touch()

    # When: it stores the job
    ended = shop.ended(shop.submit(REPORT, folder=str(shop.folder)))

    # Then: it has looked again
    assert [(told["oldest"], told["files"], told["kept_for"]) for told in vacuums] == [(2, 1, "")]
    assert ended.status is Status.FINISHED, ended.reason
    assert record_of(shop.client, ended.id).base == 2
    assert set(shop.seen) == {"[2, 2, 2]"}


@pytest.mark.claim("All groups and attempts of a job read one version of a published dataset.")
@pytest.mark.variant
def test_a_version_named_by_a_job_survives_a_vacuum_during_the_submit(
    shop: JobsWithInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a vacuum that has found no job which reads the first version
    for price in (1, 2):
        shop.publish(price)
    named, keep_from = REPORT.replace("now: prices@latest", "now: prices@1"), Warehouse.keep_from
    jobs: list[str] = []

    def submitting(self: Warehouse, n: int) -> None:
        if not jobs:
            jobs.append(shop.submit(named, folder=str(shop.folder)))
        keep_from(self, n)

    monkeypatch.setattr(Warehouse, "keep_from", submitting)

    # When: a job that names it is stored right before the vacuum writes that it goes
    told = shop.command("vacuum", "--keep", "1", "--older-than", "0s")

    # Then: the vacuum has seen it, and so have later ones
    assert (told["files"], told["kept_for"]) == (0, jobs[0])
    assert shop.command("vacuum", "--keep", "1", "--older-than", "0s")["kept_for"] == jobs[0]
    wait_until(lambda: shop.seen, 60, "the first attempt")
    (shop.folder / "open").touch()
    ended = shop.ended(jobs[0])
    assert ended.status is Status.FINISHED, ended.reason
    assert set(shop.seen) == {"[2, 1, 2]"}

    # And: once it has ended, the files go, and a job that names the version is refused
    assert shop.command("vacuum", "--keep", "1", "--older-than", "0s")["files"] == 1
    expected = (
        r"groups\[2\]\.inputs\.now: .* no version 1; the oldest that can be read is 3, the newest 3"
    )
    with pytest.raises(SpecError, match=expected):
        shop.submit(named, folder=str(shop.folder))


@pytest.mark.variant
@pytest.mark.parametrize("late", [False, True], ids=["before the vacuum", "as it begins"])
def test_a_version_read_by_a_retry_survives_a_vacuum(
    shop: JobsWithInputs, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    for price in (1, 2):
        shop.publish(price)
    named = REPORT.replace("now: prices@latest", "now: prices@1").replace("max: 1000", "max: 0")
    failed: list[str] = []

    def fail() -> None:
        failed.append(shop.submit(named, folder=str(shop.folder)))
        assert shop.ended(failed[0]).status is Status.FAILED

    keep_from = Warehouse.keep_from

    def failing(self: Warehouse, n: int) -> None:
        fail()
        keep_from(self, n)

    if late:
        monkeypatch.setattr(Warehouse, "keep_from", failing)
    else:
        fail()
    told = shop.command("vacuum", "--keep", "1", "--older-than", "0s")
    assert (told["files"], told["kept_for"]) == (0, failed[0])

    (shop.folder / "open").touch()
    ended = shop.ended(shop.client.retry(failed[0]).id)
    assert ended.status is Status.FINISHED, reasons(ended)
    assert shop.seen[-1] == "[2, 1, 2]"


@pytest.mark.variant
def test_a_job_that_failed_for_a_missing_version_does_not_block_vacuum(
    shop: JobsWithInputs,
) -> None:
    """As one of an earlier release, or of another fleet at the same warehouse."""
    for price in (1, 2):
        shop.publish(price)
    named = REPORT.replace("now: prices@latest", "now: prices@1").replace("max: 1000", "max: 0")
    job = shop.submit(named, folder=str(shop.folder))
    assert shop.ended(job).status is Status.FAILED
    Warehouse(shop.warehouse).finish_vacuum(2)
    shop.publish(3)
    told = shop.command("vacuum", "--keep", "1", "--older-than", "0s")
    assert (told["files"], told["kept_for"]) == (1, "")


def test_a_retry_reuses_only_groups_that_read_the_newest_version(shop: JobsWithInputs) -> None:
    shop.publish(price=1)
    once = REPORT.replace("max: 1000", "max: 0")
    failed = shop.ended(shop.submit(once, folder=str(shop.folder)))
    assert failed.status is Status.FAILED
    same = shop.ended(shop.client.retry(failed.id).id)
    assert reasons(same)["first"] == "an earlier attempt had finished this work; nothing was run"

    shop.publish(price=2)
    (shop.folder / "open").touch()
    again = shop.ended(shop.client.retry(same.id).id)
    assert again.status is Status.FINISHED
    assert reasons(again)["first"] == (
        f"the dataset prices was published again since job {failed.id}, so it ran again"
    )
    assert reasons(again)["each[0]"] == "an earlier attempt had finished this work; nothing was run"
    assert shop.seen == ["[1, 1, 1]", "[1, 1, 1]", "[2, 2, 2]"]


@pytest.mark.claim("Jobs that read and publish one dataset lose no row of each other.")
def test_jobs_that_extend_the_dataset_they_read_lose_no_rows_of_each_other(
    shop: JobsWithInputs,
) -> None:
    """Three are submitted before one has published: the first publishes, and a retry of each other
    reads its rows.
    """
    jobs = [shop.submit(ADD, id=n, folder=str(shop.folder)) for n in range(3)]
    (shop.folder / "open").touch()
    views = {job: shop.ended(job) for job in jobs}
    overtaken = [job for job, view in views.items() if view.status is Status.FAILED]
    assert len(overtaken) == 2
    (first,) = set(jobs) - set(overtaken)
    for job in overtaken:
        reason = views[job].reason
        assert reason is not None
        assert reason.code == "DATASET_CHANGED"
        assert f"job {first} has published version 1 of it" in reason.text
        assert shop.ended(shop.client.retry(job).id).status is Status.FINISHED
    rows = duckdb.read_parquet(published_files(shop.warehouse, "dim")).fetchall()
    assert sorted(rows) == [(0,), (1,), (2,)]
    assert [
        entry.datasets["dim"].inputs for entry in Warehouse(shop.warehouse).history("dim", 10)
    ] == [
        {"dim": [4]},
        {"dim": [1]},
        {},
    ]


def test_an_overtaken_run_of_a_schedule_is_retried_and_loses_no_row(
    shop: JobsWithInputs,
) -> None:
    """The run is submitted while the other job has not published, and begins when it has."""
    other = shop.submit(ADD, id=0, folder=str(shop.folder))
    wait_until(
        lambda: shop.client.show(other).status is Status.RUNNING, 30, "the other job to begin"
    )
    spec = JobSpec.from_text(ADD).with_params({"id": 1, "folder": str(shop.folder)})
    schedules, name = shop.client.schedules, "add"
    schedules.set(
        {**json.loads(spec.to_json()), "schedule": {"every": "1h", "retry": {"backoff": "100ms"}}}
    )
    tick = tick_text((time.time() // 3600 - 2) * 3600)
    assert schedules.backfill(name, tick, tick).answer == "DONE"
    wait_until(lambda: bool(schedules.runs(name)), 30, "the run to be submitted")
    (shop.folder / "open").touch()
    wait_until(
        lambda: schedules.show(name).last_success is not None,
        60,
        "the retry of the schedule",
    )
    told = [(event["kind"], event.get("code")) for event in schedules.events(name)]
    assert told[-5:] == [
        ("RUN_SUBMITTED", None),
        ("BACKFILL_RUN_FAILED", "DATASET_CHANGED"),
        ("RUN_SUBMITTED", None),
        ("BACKFILL_RUN_FINISHED", "DONE"),
        ("BACKFILL_ENDED", None),
    ]
    assert schedules.show(name).status == "WAITING"
    rows = duckdb.read_parquet(published_files(shop.warehouse, "dim")).fetchall()
    assert sorted(rows) == [(0,), (1,)]


def test_a_version_can_be_read_by_its_number(shop: JobsWithInputs) -> None:
    for price in (1, 2, 3):
        shop.publish(price)
    (shop.folder / "open").touch()
    spec = REPORT.replace("prices@latest", "prices@2")
    assert shop.ended(shop.submit(spec, folder=str(shop.folder))).status is Status.FINISHED
    assert shop.seen == ["[3, 2, 3]"]
    assert Warehouse(shop.warehouse).history("report", 1)[0].datasets["report"].inputs == {
        "prices": [2, 3]
    }


def test_a_step_reads_its_requested_version(shop: JobsWithInputs) -> None:
    for price in (10, 20, 30):
        shop.publish(price)
    spec = """
name: older
params: {version: 1}
groups: [{name: older, spark: false, retry: {max: 0}, steps: [{python: "shop:older", output: older}]}]
"""
    for version, price in ((1, 10), (2, 20), (3, 30)):
        assert shop.ended(shop.submit(spec, version=version)).status is Status.FINISHED
        assert duckdb.read_parquet(published_files(shop.warehouse, "older")).fetchall() == [
            (price,)
        ]
        assert Warehouse(shop.warehouse).history("older", 1)[0].datasets["older"].inputs == {
            "prices": [version]
        }
    ended = shop.ended(shop.submit(spec, version=100))
    assert ended.status is Status.FAILED
    assert "version 100" in reasons(ended)["older"]


def test_an_unpublished_dataset_fails_the_group_and_lists_published_ones(
    shop: JobsWithInputs,
) -> None:
    shop.publish(price=1)
    asked = REPORT.replace("inputs: {prices: prices}", "inputs: {prices: price}")
    ended = shop.ended(shop.submit(asked, folder=str(shop.folder)))
    assert ended.status is Status.FAILED
    text = reasons(ended)["first"]
    assert text.startswith(
        "no dataset 'price' was published at version 1 of the warehouse, the newest one when this "
        "job was submitted. There were: prices. Submit the job again once it is published"
    )
    assert text.endswith("(not worth a retry)")

    # A step may find out by itself; what it did not find counts as read.
    look = (
        'name: look\ngroups: [{name: look, spark: false, steps: [{python: "shop:missing", '
        "output: made}]}]"
    )
    ended = shop.ended(shop.submit(look))
    assert ended.status is Status.FINISHED
    assert "no dataset 'taxes'" in ended.groups[0].members[0].results["said"]
    assert Warehouse(shop.warehouse).history("made", 1)[0].datasets["made"].inputs == {}


def test_a_fork_runs_once_per_combination_of_submitted_lists(shop: JobsWithInputs) -> None:
    spec = """
name: both
params: {days: {type: list}}
groups:
  - name: both
    spark: false
    for_each: {day: {param: days}, carrier: [UA, AA]}
    steps: [{python: "shop:both", output: both}]
"""
    job = shop.submit(spec, days=[2, 1])
    assert shop.ended(job).status is Status.FINISHED
    rows = duckdb.read_parquet(published_files(shop.warehouse, "both")).fetchall()
    assert sorted(rows) == [(1, "AA"), (1, "UA"), (2, "AA"), (2, "UA")]
    (shown,) = shop.command("show", job)["groups"]
    assert [member["value"] for member in shown["members"]] == [
        {"carrier": carrier, "day": day} for carrier in ("UA", "AA") for day in (2, 1)
    ]


LABELS = """
name: labels
groups:
  - name: label
    spark: false
    inputs: {prices: prices}
    for_each: {price: {from: prices.price}}
    steps: [{python: "shop:prices", output: labels}]
"""


def test_a_fork_runs_once_per_value_in_a_published_dataset(shop: JobsWithInputs) -> None:
    version = shop.publish(price=3)
    job = shop.submit(LABELS)
    shop.publish(price=4)
    assert shop.ended(job).status is Status.FINISHED
    assert duckdb.read_parquet(published_files(shop.warehouse, "labels")).fetchall() == [(3,)]
    reader, label = shop.command("show", job)["groups"]
    assert (reader["name"], label["name"]) == ("label-values", "label")
    assert [member["value"] for member in label["members"]] == [3]
    # The group that read the values stands for nothing else in the job.
    (entry,) = Warehouse(shop.warehouse).history("labels", 10)
    assert entry.datasets["labels"].inputs == {"prices": [version]}


@pytest.mark.parametrize(
    ("price", "source", "message"),
    [
        (None, "prices.price", "prices.price has a null; drop it, or say distinct: true"),
        (3, "prices.cost", "prices.cost: the output has no column cost; it has price"),
    ],
)
def test_invalid_fork_values_in_a_published_dataset_fail_the_job_immediately(
    shop: JobsWithInputs, price: int | None, source: str, message: str
) -> None:
    shop.ended(shop.submit(PRICES.replace("price: 1", "price: null"), price=price))
    view = shop.ended(shop.submit(LABELS.replace("prices.price", source)))
    assert view.status is Status.FAILED
    assert message in reasons(view)["label-values"]
