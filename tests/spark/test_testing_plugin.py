"""The plugin of pytest with a real Spark, in projects of their own, as users have them: whose
warnings are errors.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.matrix import IGNORED
from tests.support.paths import ROOT

PROJECT = """
import pytest
from pyspark.sql import SparkSession

MADE = [{"sql": "CREATE TABLE made AS SELECT id FROM numbers"}, {"sql": "SELECT * FROM made", "output": "one"}]
JOB = {"name": "job", "groups": [
    {"name": "one", "inputs": {"numbers": "numbers"}, "steps": MADE},
    {"name": "two", "needs": ["one"], "spark": False, "steps": [{"python": "test_project:without", "output": "two"}]},
]}
APPLICATIONS = set()


def without(spark, ctx):
    assert spark is None
    return ctx.input("one")


@pytest.mark.parametrize("time", [1, 2])
def test_a_job_runs_in_the_one_session_and_leaves_nothing_to_the_next_test(unstuck, time):
    unstuck.publish("numbers", unstuck.spark.range(time))
    for _ in range(2):
        assert unstuck.run(JOB).frame("two", "spark").count() == time
    assert [row["id"] for row in unstuck.run(JOB).rows("one", order_by="id")] == list(range(time))
    assert unstuck.sql("SHOW TABLES").rows() == []
    unstuck.frame("numbers", "spark").createOrReplaceTempView("seen")
    assert unstuck.spark.sql("SELECT * FROM seen").count() == time
    APPLICATIONS.add(unstuck.spark.sparkContext.applicationId)
    assert len(APPLICATIONS) == 1


def test_a_session_that_somebody_stopped_is_followed_by_another(unstuck):
    unstuck.spark.stop()
    assert unstuck.sql("SELECT * FROM t", inputs={"t": [{"a": 1}]}).rows() == [{"a": 1}]


def test_a_step_gets_its_own_session_and_frames_of_it(unstuck):
    def doubled(spark, ctx):
        assert SparkSession.builder.getOrCreate() is spark
        return ctx.input("t").selectExpr("2 * a AS a")

    done = unstuck.step(doubled, inputs={"t": unstuck.spark.createDataFrame([(1,), (2,)], "a int")})
    assert done.rows(order_by="a") == [{"a": 2}, {"a": 4}]
    assert done.frame(to="spark").count() == 2
"""
OF_OTHERS = """
import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark():
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    assert session.range(3).count() == 3  # the plugin has not stopped it
    session.stop()


def test_the_session_of_another_fixture_is_used_and_left(spark, unstuck):
    assert unstuck.sql("SELECT 1 AS a").rows() == [{"a": 1}]
    assert unstuck.spark.sparkContext.applicationId == spark.sparkContext.applicationId
"""


def passes(folder: Path, count: int) -> None:
    older = [f"-W{one}" for one in IGNORED] if version("pyspark").startswith(("3.", "4.0.")) else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        *older,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{count} passed" in done.stdout


@pytest.mark.long
def test_the_example_project_passes_its_own_tests_in_a_copy(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "examples" / "shop", tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__")
    )
    passes(tmp_path / "shop", 9)


@pytest.mark.variant
def test_tests_share_one_session_without_sharing_state(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(PROJECT)
    passes(tmp_path, 4)


@pytest.mark.long
def test_a_session_of_the_user_is_used_and_not_stopped(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(OF_OTHERS)
    passes(tmp_path, 1)
