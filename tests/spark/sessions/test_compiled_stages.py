"""A runner's session outlives many groups: what Spark has compiled for them is kept for their next
run.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.spark.jvm import end_jvm
from unstuck import Settings
from unstuck.tasks.driver.driver import Driver

pytestmark = pytest.mark.variant

BY_DEFAULT = 100  # compiled stages that Spark keeps


@pytest.mark.long
def test_stages_compiled_earlier_are_reused_by_sessions_of_later_attempts() -> None:
    driver = Driver(Settings(spark_master="local[2]"))
    try:
        first = compiled_by_attempt(driver)
        assert first > BY_DEFAULT, "more than Spark keeps by itself"
        assert compiled_by_attempt(driver) == 0
    finally:
        driver.stop()
        end_jvm()


def compiled_by_attempt(driver: Driver) -> int:
    """How many stages one attempt with many different queries has compiled."""
    with driver.attempt("job/group/1/n/c", {}) as session:
        before = compiled(session)
        for n in range(BY_DEFAULT + 10):
            query = session.sql(f"SELECT id + {n} AS sum FROM range(3) WHERE id > {n}")
            query._jdf.queryExecution().toRdd()  # compiled, and not run
        return compiled(session) - before


def compiled(session: Any) -> int:
    metrics = session._jvm.org.apache.spark.metrics.source.CodegenMetrics
    return int(metrics.METRIC_COMPILATION_TIME().getCount())
