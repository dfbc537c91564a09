"""The file that `unstuck up` writes logs a person in, and leaves the token nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.page.web_page import page_of
from tests.support.servers import RedisServer
from unstuck.local.home import Home
from unstuck.tasks.identity import user_here

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.variant
def test_the_file_written_by_up_logs_in_and_leaves_no_token_in_the_address(
    browser: Browser, redis_server: RedisServer, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    token = home.web_token().read_text().strip()
    with (
        page_of(redis_server.url, tmp_path, "--token-file", "web.token") as served,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(home.login_file(f"{served.origin}/").as_uri())
        page.wait_for_url(f"{served.origin}/")
        assert page.locator(".who").inner_text().strip() == user_here()
        page.go_back()
        assert token not in page.url
        assert token not in served.log.read_text()
