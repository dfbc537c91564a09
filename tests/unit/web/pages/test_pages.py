"""What the screens say, and that texts of others stay texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand
from tests.support.servers import RedisServer
from tests.unit.web.conftest import HOST
from unstuck import Client, Settings
from unstuck.web.app import create_app
from unstuck.web.safety import Access

EVIL = "<script>alert(1)</script>\u202e\x1b[31m\ud800"


@pytest.mark.parametrize("path", ["/", "/jobs", "/schedules", "/datasets", "/fleet"])
def test_each_screen_works_with_an_empty_store_and_is_marked_as_current(
    browser: TestClient, path: str
) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert f'<a href="{path}" aria-current="page">' in answer.text


def test_text_of_a_job_is_shown_as_text_everywhere(browser: TestClient, hand: ByHand) -> None:
    job = hand.submit({"name": "load", "retry": {"max": 0}}, name="night")
    hand.decide(job)
    hand.fail(job, "load", EVIL)
    for path in ("/", "/jobs", f"/jobs/{job}"):
        text = browser.get(path).text
        assert "<script>alert" not in text
        assert not {"\u202e", "\x1b"} & set(text)
    assert "&lt;script&gt;alert(1)" in browser.get(f"/jobs/{job}").text


def test_an_unchanged_page_is_not_rendered_again(browser: TestClient, hand: ByHand) -> None:
    job = hand.submit({"name": "load"})
    first = browser.get("/")
    known = {"If-None-Match": first.headers["etag"]}
    assert job in first.text
    same = browser.get("/", headers=known)
    assert (same.status_code, same.content) in [
        (304, b""),
        (200, first.content),
    ]  # its ages may have passed a step
    hand.client.cancel(job)
    hand.decide(job)
    changed = browser.get("/", headers=known)
    assert changed.status_code == 200
    assert changed.headers["etag"] != known["If-None-Match"]


def test_an_unreachable_redis_is_reported_and_its_return_is_detected(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with Client(Settings(redis_url=server.url, warehouse=str(tmp_path / "warehouse"))) as client:
        browser = TestClient(
            create_app(client, Access()), f"http://{HOST}", raise_server_exceptions=False
        )
        assert browser.get("/").status_code == 200
        server.stop()
        answer = browser.get("/")
        assert answer.status_code == 503
        assert "No Redis answers at" in answer.text
        server.start()
        assert browser.get("/").status_code == 200
    server.stop()


def test_a_missing_page_is_404_with_a_message(browser: TestClient) -> None:
    assert (browser.get("/nowhere").status_code, browser.get("/jobs/none").status_code) == (
        404,
        404,
    )
    assert "no job none is in the store" in browser.get("/jobs/none").text
    assert "no schedule none is in the store" in browser.get("/schedules/none").text
