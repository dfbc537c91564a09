"""Fixtures for streams of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def guest() -> Iterator[Path]:
    """A folder in which this process has the rights of an ordinary account, also if root runs the
    tests.
    """
    root = os.geteuid() == 0
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        if root:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)
