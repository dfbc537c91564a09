"""A fleet of two real PySparks on one queue: the newest, and 3.5 from an environment of
tests/matrix.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyspark
import pytest

from tests import matrix
from tests.support import fleet
from tests.support.jobs.stored import versions_of
from tests.support.machine import seconds
from tests.support.paths import PYTHONPATH
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status, published_files
from unstuck.tasks.identity import minor
from unstuck.tasks.warehouse.log import Warehouse

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OLD, NEW = "3.5", minor(pyspark.__version__)
STEPS = """
import time
from pathlib import Path

def sized(spark, ctx, n, folder):
    Path(folder, f"began-{ctx.params['name']}-{n}").touch()
    while not Path(folder, f"gate-{ctx.params['name']}").exists():
        time.sleep(0.05)
    return spark.sql(f"SELECT {n} AS n, size(CAST(NULL AS array<int>)) AS size, '{spark.version}' AS spark")
"""


class Two:
    """A worker of each PySpark, and a coordinator."""

    def __init__(self, client: Client, folder: Path, warehouse: str) -> None:
        self.client, self._folder, self._warehouse = client, folder, warehouse

    def submit(self, name: str, members: int, **spec: Any) -> str:
        """A fork each of whose members says how large a null array is, once its gate is open."""
        step = {
            "python": "sized_steps:sized",
            "output": name,
            "params": {"folder": str(self._folder)},
        }
        group = {
            "name": "fork",
            "queue": "spark",
            "for_each": {"n": list(range(members))},
            "steps": [step],
        }
        params = {"name": name}
        return self.client.submit({"name": name, "groups": [group], "params": params, **spec}).id

    def began(self, name: str, members: int) -> None:
        wait_until(
            lambda: len(list(self._folder.glob(f"began-{name}-*"))) == members,
            240,
            f"{members} of {name}",
        )

    def open(self, name: str) -> None:
        (self._folder / f"gate-{name}").touch()

    def finished(self, job: str, name: str) -> tuple[dict[str, set[int | None]], list[str]]:
        """By minor version of Spark, what it said of the size; and on what the published version
        was made.
        """
        ended = self.client.wait(job, timeout=seconds(90))
        assert ended.status is Status.FINISHED, ended
        rows = (
            duckdb.read_parquet(published_files(self._warehouse, name))
            .project("spark, size, n")
            .fetchall()
        )
        assert sorted(row[2] for row in rows) == list(range(len(rows)))
        sizes: dict[str, set[int | None]] = {}
        for spark, size, _ in rows:
            sizes.setdefault(minor(spark), set()).add(size)
        (entry,) = Warehouse(self._warehouse).history(name, 1)
        return sizes, [made_on.split(", ")[0] for made_on in entry.made_on[name]]


@pytest.fixture
def two(redis_server: RedisServer, tmp_path: Path) -> Iterator[Two]:
    python = matrix.made(OLD)
    if python is None:
        pytest.skip(f"no environment with PySpark {OLD} is made; `make test-long` makes it")
    if minor(pyspark.__version__) == OLD:
        pytest.skip(f"the newest is wanted beside PySpark {OLD}, and this is it")
    (tmp_path / "sized_steps.py").write_text(STEPS)
    warehouse = str(tmp_path / "warehouse")
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_MASTER": "local[1]",
        "PYTHONPATH": f"{tmp_path}:{PYTHONPATH}",
    }
    with ExitStack() as stack:
        for one in (python, Path(sys.executable)):
            path = os.pathsep.join((str(one.parent), os.environ["PATH"]))
            more = {**environ, "PATH": path}
            stack.enter_context(
                fleet.worker(
                    redis_server.url, tmp_path, queues="spark", environ=more, python=str(one)
                )
            )
        stack.enter_context(coordinator_processes(tmp_path, environ)).tend(1)
        yield Two(
            Client(Settings(redis_url=redis_server.url, warehouse=warehouse)), tmp_path, warehouse
        )


def test_a_fork_on_two_real_spark_versions_runs_on_one_unless_mixed(two: Two) -> None:
    # Given: a fork of four whose first member runs on one of the two
    one = two.submit("one", 4)
    two.began("one", 1)
    bound = versions_of(two.client, one)["spark"]
    assert bound in (OLD, NEW)
    other = NEW if bound == OLD else OLD

    # When: the runner of the other version is free, and takes work of another job
    free = two.submit("free", 1)
    two.open("free")
    sizes, _ = two.finished(free, "free")

    # Then: it takes nothing of the fork, and `why` names it
    assert list(sizes) == [other]
    why = {one.subject: one.what for one in two.client.explain(one)}["fork[1]"]
    assert "may not be taken by " in why
    assert f"(Spark {other}, " in why
    two.open("one")
    sizes, made_on = two.finished(one, "one")
    assert sizes == {bound: {-1 if bound == OLD else None}}
    assert [minor(said) for said in made_on] == [f"Spark {bound}"]

    # And: a job that is mixed has both, and its version of the dataset says so
    mixed = two.submit("mixed", 2, mixed=True)
    two.began("mixed", 2)
    two.open("mixed")
    sizes, made_on = two.finished(mixed, "mixed")
    assert sizes == {OLD: {-1}, NEW: {None}}
    assert [minor(said) for said in made_on] == [f"Spark {OLD}", f"Spark {NEW}"]
