"""Jars that no package has: a person who has them names them, and the tests that need them run."""

from __future__ import annotations

import os

import pytest

NAMED_BY = "SPARK_TEST_JARS"  # a list of paths with commas between them, as spark.jars takes it


def jars_with(*words: str) -> str:
    """The jars that were named, if one for each of ``words`` is among them; else the test is skipped."""
    jars = os.environ.get(NAMED_BY, "")
    names = [os.path.basename(jar) for jar in jars.split(",")]
    if missing := [word for word in words if not any(word in name for name in names)]:
        pytest.skip(f"{NAMED_BY} names no jar of {' and '.join(missing)}")
    return jars
