"""The page of a real fleet in a real browser: what people see while work goes on, fails, and is
acted on.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests.support.fleet import gone
from tests.support.page.browser import Watched, overflow, violations, watched
from tests.support.page.web_page import ServedPage, page_of
from tests.support.servers import RedisServer, wait_until
from tests.support.streams.stream_fleet import StreamFleet, stream_fleet
from unstuck import Client

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STEPS = """
import time
from pathlib import Path
import pyarrow as pa

def gated(spark, ctx, gate):
    ctx.log.info("waits for the gate")
    looks = 0
    while not Path(gate).exists():
        looks += 1
        ctx.progress(looks, 100_000)
        time.sleep(0.1)
    return pa.table({"id": [1, 2, 3]})

def three(spark, ctx):
    return pa.table({"id": [1, 2, 3]})

def strange(spark, ctx, text):
    ctx.log.info(text)
    raise ValueError(text)
"""
# Each would do something if it were not shown as text: to a browser, to a terminal, to the
# direction of a line.
STRANGE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)> "
    "javascript:alert(4) \x1b[31mred\x1b[0m \u202egnp.exe {{ 7*7 }}"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[RedisServer]:
    server = RedisServer(home, aof=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def fleet(server: RedisServer, home: Path) -> Iterator[StreamFleet]:
    with stream_fleet(
        server, home, {"steps": STEPS}, UNSTUCK_WAREHOUSE=str(home / "warehouse")
    ) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def client(fleet: StreamFleet, home: Path) -> Iterator[Client]:
    with fleet.client(str(home / "warehouse")) as client:
        yield client


@pytest.fixture(scope="module")
def served(fleet: StreamFleet, home: Path) -> Iterator[ServedPage]:
    with page_of(
        fleet.server.url, home, environ={"UNSTUCK_WAREHOUSE": str(home / "warehouse")}
    ) as page:
        yield page


@pytest.fixture
def seen(browser: Browser, served: ServedPage) -> Iterator[Watched]:
    """A page of a new profile; what it must not do fails the test."""
    with watched(browser, served.origin) as seen:
        yield seen


def group(name: str, step: str, needs: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "spark": False,
        "needs": list(needs),
        "steps": [{"python": f"steps:{step}", **more}],
    }


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file for which the job waits; it is there after the test, so that the next job finds an
    idle runner.
    """
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


@pytest.fixture
def job(client: Client, gate: Path) -> str:
    """A job whose first group waits for the gate, and its second for the first."""
    load = group("load", "gated", params={"gate": str(gate)}, output="rows")
    return client.submit(
        {"name": "sales", "groups": [load, group("total", "three", ("load",), output="total")]}
    ).id


@contextmanager
def without_reload(page: Page) -> Iterator[None]:
    """The page is not loaded anew in this block."""
    mark = uuid4().hex
    page.evaluate("mark => { window.mark = mark }", mark)
    yield
    assert page.evaluate("window.mark") == mark


def awaits(page: Page, text: str | re.Pattern[str], timeout: float = 30) -> None:
    """Wait until the text is to be read on the page."""
    page.get_by_text(text).first.wait_for(timeout=timeout * 1000)


def node(page: Page, name: str) -> str:
    """The classes of the group's node in the graph."""
    found = page.locator("#graph g.node").filter(has_text=re.compile(rf"^\s*{name}\b"))
    return found.first.get_attribute("class") or "" if found.count() else ""


def test_a_job_view_updates_without_a_reload(
    seen: Watched, client: Client, job: str, gate: Path
) -> None:
    page = seen.page
    page.goto(f"/jobs/{job}")
    with without_reload(page):
        wait_until(lambda: "s-running" in node(page, "load"), 60, "the node to run")
        gate.touch()
        wait_until(lambda: "s-succeeded" in node(page, "total"), 60, "the node to be done")
        awaits(page, "FINISHED")
        wait_until(lambda: "FINISHED" in page.title(), 20, "the title of the tab to follow")


def test_pausing_by_the_button_is_recorded_and_the_shown_command_is_equivalent(
    seen: Watched, client: Client, job: str, gate: Path
) -> None:
    page = seen.page
    page.goto(f"/jobs/{job}")
    page.locator("summary", has_text="Pause").first.click()
    assert page.get_by_text(f"unstuck pause {job}").first.is_visible()
    page.get_by_label("Reason").locator("visible=true").fill("the source is rebuilt")
    page.locator("button:visible", has_text="Pause").click()
    wait_until(lambda: str(client.show(job).intent) == "pause", 20, "the pause")
    awaits(page, "PAUSING")
    awaits(page, "the source is rebuilt")
    (event,) = [event for _, event in client.events(job) if event["kind"] == "USER_PAUSE"]
    assert event["text"] == "the source is rebuilt"
    assert event["by"].endswith(" (page)")
    gate.touch()
    awaits(page, "PAUSED")


@pytest.mark.variant
def test_a_killed_worker_appears_as_a_lost_attempt_and_the_job_continues(
    seen: Watched, client: Client, job: str, gate: Path
) -> None:
    page = seen.page
    page.goto(f"/jobs/{job}/attempts")
    pids = wait_until(
        lambda: [one.pid for one in client.fleet().runners if one.job == job],
        30,
        "a runner of the job",
    )
    with without_reload(page):
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: gone(pids[0]), 20, "the runner to be gone")
        bar = page.locator("svg title", has_text=re.compile("attempt 1 lost"))
        bar.first.wait_for(state="attached")
        gate.touch()
        awaits(page, "FINISHED")


@pytest.mark.variant
def test_a_redis_outage_is_reported_and_the_page_recovers(
    seen: Watched, server: RedisServer, job: str, gate: Path
) -> None:
    page = seen.page
    page.goto(f"/jobs/{job}")
    awaits(page, "RUNNING")
    with without_reload(page):
        server.stop()
        awaits(page, re.compile("Redis"))
        server.start()
        gate.touch()
        awaits(page, "FINISHED")
    seen.forgive("503")


def test_texts_of_jobs_are_shown_as_text_on_every_screen(seen: Watched, client: Client) -> None:
    spec = {
        "name": "strange",
        "description": STRANGE,
        "params": {"text": STRANGE},
        "groups": [
            {
                "name": "load",
                "description": STRANGE,
                "spark": False,
                "retry": {"max": 0},
                "steps": [{"python": "steps:strange"}],
            }
        ],
    }
    job = client.submit(spec).id
    client.job(job).wait()
    page = seen.page
    for path in (f"/jobs/{job}", f"/jobs/{job}/groups/load"):
        page.goto(path)
        awaits(page, "<script>alert(1)</script>")
        awaits(page, "{{ 7*7 }}")
    paths = (
        "/",
        "/jobs",
        f"/jobs/{job}",
        f"/jobs/{job}/groups/load",
        f"/jobs/{job}/attempts",
        f"/jobs/{job}/spec",
    )
    for path in paths:
        page.goto(path)
        assert page.locator("img, a[href^='javascript:' i], [onload], [onerror]").count() == 0, path
        shown = page.inner_text("body")
        assert not {"\x1b", "\u202e"} & set(shown), path


HIDDEN_BY_SCROLLING = (
    "[...document.querySelectorAll('.wide')].map(table => table.scrollWidth - table.clientWidth)"
)
SCREENS = (
    *(
        "/",
        "/jobs",
        "/jobs/{job}",
        "/jobs/{job}/attempts",
        "/jobs/{job}/spec",
        "/jobs/{job}/groups/total",
    ),
    *("/schedules", "/schedules/nightly", "/datasets", "/datasets/total"),
    *("/fleet", "/fleet/doctor", "/fleet/dead", "/fleet/notices", "/nothing", "/jobs/nothing"),
)


@pytest.fixture(scope="module")
def full(client: Client) -> str:
    """A fleet with something on each screen; the job that is shown."""
    job = client.submit(
        {
            "name": "done",
            "groups": [
                group("total", "three", output="total"),
                group("after", "three", ("total",), output="after"),
            ],
        }
    )
    job.wait()
    client.schedules.set(
        {
            "name": "nightly",
            "schedule": {"cron": "30 2 * * *", "zone": "UTC"},
            "groups": [group("load", "three")],
        }
    )
    return job.id


@pytest.mark.variant
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_every_screen_passes_the_accessibility_checks(
    browser: Browser, served: ServedPage, full: str, scheme: str
) -> None:
    with watched(browser, served.origin, color_scheme=scheme) as seen:
        found = {}
        for path in SCREENS:
            seen.page.goto(path.format(job=full))
            found[path] = violations(seen.page)
        seen.page.goto("/")  # a page of a job that does not exist polls, and gets 404 each time
        seen.forgive("404")
        assert {path: told for path, told in found.items() if told} == {}


@pytest.mark.variant
@pytest.mark.parametrize("width", [400, 800, 1600])
def test_no_screen_is_wider_than_its_window(
    browser: Browser, served: ServedPage, full: str, width: int
) -> None:
    """Nor is a table wider than its place, where it would have to be scrolled."""
    with watched(browser, served.origin, viewport={"width": width, "height": 800}) as seen:
        wide = {}
        for path in SCREENS:
            seen.page.goto(path.format(job=full))
            wide[path] = max(overflow(seen.page), *seen.page.evaluate(HIDDEN_BY_SCROLLING), 0)
        seen.page.goto("/")  # a page of a job that does not exist polls, and gets 404 each time
        seen.forgive("404")
        assert {path: by for path, by in wide.items() if by > 0} == {}


@pytest.mark.variant
def test_the_page_works_without_javascript(
    browser: Browser, served: ServedPage, client: Client, job: str
) -> None:
    with watched(browser, served.origin, java_script_enabled=False) as seen:
        page = seen.page
        page.goto("/jobs")
        page.locator(f"a[href$='{job}']").first.click()
        page.locator("summary", has_text="Cancel").first.click()
        page.locator("button:visible", has_text="Cancel").click()
        wait_until(lambda: str(client.show(job).intent) == "cancel", 20, "the cancel")
        assert page.url.split("?")[0].endswith(job)


@pytest.mark.variant
def test_a_job_can_be_reached_and_paused_by_keyboard(
    seen: Watched, client: Client, job: str, gate: Path
) -> None:
    page = seen.page
    page.goto("/jobs")
    press_until(page, f"/jobs/{job}", "href")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}*")
    press_until(page, "Pause", "text")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    awaits(page, "by keyboard")
    assert str(client.show(job).intent) == "pause"


def press_until(page: Page, wanted: str, what: str) -> None:
    """Press Tab until the element is in focus, which can be seen."""
    read = (
        "document.activeElement.getAttribute('href')"
        if what == "href"
        else "document.activeElement.innerText"
    )
    for _ in range(200):
        page.keyboard.press("Tab")
        if (page.evaluate(read) or "").strip() == wanted:
            return
    raise AssertionError(f"no Tab leads to {wanted}")


@pytest.mark.variant
def test_a_read_only_page_has_no_buttons(
    browser: Browser, fleet: StreamFleet, home: Path, full: str
) -> None:
    with (
        page_of(fleet.server.url, home, "--read-only") as served,
        watched(browser, served.origin) as seen,
    ):
        seen.page.goto(f"/jobs/{full}")
        assert seen.page.locator("form[method=post]").count() == 0
