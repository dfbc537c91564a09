"""A session of Spark for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.spark.jvm import end_jvm
from unstuck import Settings
from unstuck.tasks.driver.driver import Driver


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    driver = Driver(Settings(spark_master="local[2]"))
    with driver.attempt("job/group/1/n/c", {"spark.sql.shuffle.partitions": "1"}) as session:
        yield session
    driver.stop()
    end_jvm()
