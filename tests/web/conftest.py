"""One browser for each file of tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium; a machine without one skips the tests that ask for it."""
    from tests.support.page import browser

    if browser.chromium() is None:
        pytest.skip(browser.WITHOUT)
    with browser.browser() as started:
        yield started
