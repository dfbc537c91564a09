"""A screen that stays open: it follows what happens, disturbs nobody who types, and says when it
cannot ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.page.browser import violations, watched
from tests.support.page.web_page import ServedPage, page_of
from tests.support.servers import RedisServer
from unstuck import Client, Settings
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.schedules.decide_schedule import settled
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SPEC = {
    "name": "night",
    "groups": [{"name": "load", "spark": False, "steps": [{"python": "steps:load"}]}],
}
PROVOKED = ("503", "ERR_", "htmx:")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that keeps what it has when it is stopped."""
    server = RedisServer(tmp_path_factory.mktemp("valkey"), aof=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def served(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with page_of(server.url, tmp_path_factory.mktemp("page")) as page:
        yield page


@pytest.fixture
def store(server: RedisServer, tmp_path: Path) -> Iterator[Client]:
    with Client(Settings(redis_url=server.url, warehouse=str(tmp_path / "warehouse"))) as client:
        yield client


def halt(store: Client, name: str, text: str) -> None:
    """Halt a schedule as a coordinator does."""
    with connect(store.settings.redis_url) as client:
        schedules = ScheduleStore(client, Keys(store.settings.prefix))
        record = schedules.load(name)
        assert record is not None
        halted = settled(replace(record, halted=Reason("CANNOT_RESUME", text)), record.made_at)
        change = ScheduleChange("halted", record.commit, halted, (), due=record.made_at + 9e9)
        schedules.commit(change)


def look_again(page: Page) -> None:
    """As a tab does that comes into sight; else tests would wait for the seconds between two
    looks.
    """
    page.evaluate("htmx.trigger(document.body, 'again')")


def test_a_screen_shows_changes_and_keeps_text_being_typed(
    browser: Browser, served: ServedPage, store: Client
) -> None:
    job = store.submit(SPEC)
    with watched(browser, served.origin) as seen:
        page = seen.page
        page.goto(f"/jobs/{job.id}")
        page.locator("summary", has_text="Cancel").click()
        page.locator("details[open] input[name=reason]").fill("the source is wrong")
        store.pause(job.id, by="bob")
        with page.expect_response(
            lambda answer: answer.url.endswith(job.id) and answer.status == 200
        ):
            look_again(page)
        page.get_by_text("bob paused it").first.wait_for()
        assert page.input_value("details[open] input[name=reason]") == "the source is wrong"
        assert page.evaluate("document.activeElement.name") == "reason"
        assert violations(page) == []
        page.locator("details[open] button").click()
        page.locator(".said", has_text="cancel").wait_for()
    (event,) = [event for _, event in store.events(job.id) if event["kind"] == "USER_CANCEL"]
    assert event["text"] == "the source is wrong"


def test_loading_a_part_of_a_page_keeps_the_title_of_the_page(
    browser: Browser, served: ServedPage, store: Client
) -> None:
    job = store.submit(SPEC)
    store.schedules.set({**SPEC, "schedule": {"every": "1d"}})
    with watched(browser, served.origin) as seen:
        page = seen.page
        page.goto("/schedules/night")
        page.locator(".later", has_text="put nothing aside").wait_for()
        assert page.title() == "night · Unstuck"
        page.goto(f"/jobs/{job.id}/groups/load")
        with page.expect_response(lambda answer: answer.url.endswith("/log")):
            look_again(page)
        page.evaluate("new Promise(requestAnimationFrame)")
        assert page.title() == "load of night · Unstuck"


def test_a_reason_is_visible_in_a_narrow_window(
    browser: Browser, served: ServedPage, store: Client
) -> None:
    """A filter that a person changes stays while the screen is refreshed."""
    store.schedules.set({**SPEC, "name": "weekly", "schedule": {"every": "7d"}})
    halt(store, "weekly", "the position of the stream has moved")
    groups = [{**SPEC["groups"][0], "name": f"load_{n}"} for n in range(11)]
    job = store.submit({"name": "wide", "groups": groups})
    store.pause(job.id, reason="the source is slow", by="ann")
    with watched(browser, served.origin, viewport={"width": 800, "height": 600}) as seen:
        page = seen.page
        for path, text in (
            ("/schedules", "the position of the stream has moved"),
            (f"/jobs/{job.id}/attempts", "by ann"),
            (f"/jobs/{job.id}/attempts", "the source is slow"),
        ):
            page.goto(path)
            cell = page.locator("td", has_text=text).first
            assert cell.evaluate("cell => getComputedStyle(cell).display") == "block", "in a card"
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 800, path
        page.goto(f"/jobs/{job.id}")
        page.get_by_label("State").select_option("RUNNING")
        page.locator("input[name=name]").focus()
        store.cancel(job.id, by="bob")
        look_again(page)
        page.get_by_text("bob").first.wait_for()
        assert page.get_by_label("State").input_value() == "RUNNING"
        page.get_by_role("button", name="Show groups").click()
        page.get_by_text("No groups match these filters.").wait_for()
        assert page.url.endswith("?name=&state=RUNNING&order=#groups")


def test_unchanged_content_is_not_sent_again(
    browser: Browser, served: ServedPage, store: Client
) -> None:
    with watched(browser, served.origin) as seen:
        seen.page.goto("/schedules")
        answers = []
        for _ in range(3):  # its ages may pass a step once
            with seen.page.expect_response(
                lambda answer: answer.url.endswith("/schedules")
            ) as caught:
                look_again(seen.page)
            answers.append(caught.value.status)
        assert 304 in answers


@pytest.mark.variant
def test_a_background_tab_sends_no_request(browser: Browser, served: ServedPage) -> None:
    with watched(browser, served.origin) as seen:
        seen.page.goto("/schedules")
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        seen.page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true })"
        )
        look_again(seen.page)
        seen.page.evaluate("new Promise(requestAnimationFrame)")
        assert [url for url in asked if "/static/" not in url] == []
        seen.page.evaluate("delete document.hidden")
        with seen.page.expect_response(lambda answer: answer.url.endswith("/schedules")):
            seen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


@pytest.mark.variant
def test_while_redis_is_unreachable_the_last_answer_stays_with_a_message(
    browser: Browser, server: RedisServer, served: ServedPage, store: Client
) -> None:
    job = store.submit({**SPEC, "name": "still-here"})
    with watched(browser, served.origin) as seen:
        page = seen.page
        page.goto("/jobs")
        server.stop()
        look_again(page)
        page.locator("#away", has_text="No Redis answers at").wait_for()
        assert page.get_by_text(job.id).first.is_visible()
        assert violations(page) == []
        server.start()
        look_again(page)
        page.locator("#away").wait_for(state="hidden")
        seen.forgive(*PROVOKED)


@pytest.mark.variant
def test_a_missing_page_is_reported(browser: Browser, server: RedisServer, tmp_path: Path) -> None:
    with page_of(server.url, tmp_path) as served, watched(browser, served.origin) as seen:
        seen.page.goto("/")
        served.process.kill()
        served.process.wait()
        look_again(seen.page)
        seen.page.locator("#away", has_text="The page is not responding.").wait_for()
        assert seen.page.locator("h1").first.is_visible()
        seen.forgive(*PROVOKED)
