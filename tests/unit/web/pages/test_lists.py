"""The screens of schedules, datasets and the fleet: bounded, in order, and standing whatever is
away or damaged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import redis
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand
from tests.guarantees.nothing_is_forgotten.test_hanging_warehouse import silent
from tests.unit.web.conftest import HOST
from unstuck.coordinator.model.schedule_record import Run
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.doctor.examine import Doctor
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.warehouse.dataset_owner import Owner
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.views.dataset_views import Datasets
from unstuck.web.app import create_app
from unstuck.web.pages import fleet, schedules
from unstuck.web.safety import Access

KEYS = Keys()
EVIL = '<script>alert("1")</script>\u202e'


def spec(name: str, **schedule: Any) -> dict[str, Any]:
    group = {"name": "load", "steps": [{"python": "some.where:step"}], "spark": False}
    return {"name": name, "groups": [group], "schedule": schedule or {"every": "1d"}}


def links(text: str, inside: str) -> list[str]:
    """The addresses that begin with ``inside``, in their order."""
    return [
        unescape(found) for found in re.findall(r'href="([^"]+)"', text) if found.startswith(inside)
    ]


# -- schedules -------------------------------------------------------------------------------------


def test_unhealthy_schedules_come_first_and_ended_ones_last(
    browser: TestClient, hand: ByHand
) -> None:
    known = hand.client.schedules
    for name in ("b_well", "a_ended", "z_paused"):
        known.set(spec(name))
    known.stop("a_ended")
    known.pause("z_paused", reason="the source moves", by="ann")
    answer = browser.get("/schedules")
    assert links(answer.text, "/schedules/") == [
        "/schedules/b_well",
        "/schedules/z_paused",
        "/schedules/a_ended",
    ]
    assert "by ann" in answer.text
    one = browser.get("/schedules/z_paused").text
    assert "the source moves" in one
    assert "unstuck schedule resume z_paused" in one
    assert [info.name for info in schedules.in_order(known.all())] == [
        "b_well",
        "z_paused",
        "a_ended",
    ]


def test_each_run_of_a_schedule_shows_its_tick_and_each_next_tick_its_parameters(
    browser: TestClient, hand: ByHand
) -> None:
    known = hand.client.schedules
    nightly = spec("nightly", cron="30 2 * * *", zone="Asia/Tokyo")
    known.set(nightly | {"params": {"day": {"type": "date", "default": "tick"}}})
    info = known.show("nightly", ticks=schedules.TICKS)
    run = Run(tick=1_800_000_000.0)
    job = JobInfo(
        id="j1",
        name="nightly",
        status=Status.FINISHED,
        submitted_at=1.0,
        started_at=2.0,
        ended_at=3.0,
        key=run.key("nightly"),
        schedule="nightly",
    )
    assert "FINISHED j1, of 2027-01-15 17:00:00+09:00, submitted" in str(
        schedules.row_of(info, [job]).strip
    )
    times = [info.on_its_clock(tick.tick) for tick in info.next]
    assert len(times) == schedules.TICKS
    one = browser.get("/schedules/nightly").text
    assert re.findall(r"day=[\d-]+", one) == [f"day={time[:10]}" for time in times]
    assert re.findall(r">(\d{4}-[^<]+)</time> day", one) == times
    for shown in (one, browser.get("/schedules").text):
        assert f"its next tick is {times[0]}" in shown, "as a sentence has it in UTC"


def test_a_long_list_has_pages_and_a_filter(browser: TestClient, hand: ByHand) -> None:
    for n in range(schedules.MOST + 3):
        hand.client.schedules.set(spec(f"load_{n:03}"))
    first = browser.get("/schedules").text
    assert len(links(first, "/schedules/")) == schedules.MOST
    assert f"Page 1 of 2: {schedules.MOST + 3} schedules" in first
    (further,) = links(first, "?")
    assert len(links(browser.get(f"/schedules{further}").text, "/schedules/")) == 3
    assert links(browser.get("/schedules?name=D_052").text, "/schedules/") == [
        "/schedules/load_052"
    ]
    for odd in ("page=9999999999999", "page=-1", "page=x", "page=0", "name=%00%ff&page=2"):
        assert browser.get(f"/schedules?{odd}").status_code == 200
    assert "No schedule name contains “&lt;i&gt;”." in browser.get("/schedules?name=<i>").text


def test_a_damaged_or_removed_schedule_is_reported_and_hides_no_other(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    known = hand.client.schedules
    for name in ("well", "torn", "gone"):
        known.set(spec(name))
    known.remove("gone", reason="not needed", by="ann")
    client.hset(KEYS.of_schedule("torn").schedule, "record", "{")
    listed = browser.get("/schedules").text
    assert links(listed, "/schedules/") == ["/schedules/well"]
    assert "the record of schedule torn cannot be read" in listed
    torn = browser.get("/schedules/torn")
    assert (torn.status_code, "unstuck schedule remove torn" in torn.text) == (500, True)
    gone = browser.get("/schedules/gone")
    assert gone.status_code == 404
    assert "ann removed schedule gone at" in gone.text


# -- datasets --------------------------------------------------------------------------------------


def publish(hand: ByHand, *names: str, inputs: dict[str, list[int]] | None = None) -> int:
    place = Warehouse(hand.settings.warehouse)
    place.ensure_id()
    n = place.head() + 1
    made = [
        DataFile(f"_staging/job/load/1-n-c/{n}-{i}.parquet", 7, 100, {"day": f"d{n}"})
        for i in range(len(names))
    ]
    schema = '{"type": "struct", "fields": [{"name": "x", "type": "long"}]}'
    owner = Owner("night", ["load_*"])
    lineage: dict[str, Any] = {"inputs": inputs or {}, "owner": owner, "taken_from": "before"}
    changes = {
        name: Change("append", [file], [], 7, schema, **lineage)
        for name, file in zip(names, made, strict=True)
    }
    entry = Entry(n, n - 1, f"job-{n}", "package", f"job-{n}", "night", time.time(), {}, changes)
    assert place.create_entry(n, entry)
    return n


def test_a_dataset_with_any_name_is_found_by_its_link(browser: TestClient, hand: ByHand) -> None:
    odd = [
        "plain",
        "a/b c",
        "50%",
        "who?x=1#y",
        "ünïcødé",
        EVIL,
        "&amp;",
        "'\"",
        "x__rejected",
        "__rejected",
    ]
    publish(hand, *odd)
    text = browser.get("/datasets").text
    assert "<script>alert" not in text
    found = [link for link in links(text, "/datasets/") if "?version=" not in link]
    assert len(found) == len(odd)
    for link in found:
        answer = browser.get(link)
        assert answer.status_code == 200
        assert "Version 1, 7 rows in 1 file" in answer.text
        assert "<script>alert" not in answer.text
        assert browser.get(f"{link}?version=1").status_code == 200
        assert browser.get(f"{link}?version=9").status_code == 404
    assert browser.get("/datasets/none").status_code == 404


def test_a_dataset_shows_its_versions_in_pages_with_their_inputs(
    browser: TestClient, hand: ByHand
) -> None:
    publish(hand, "flights", "flights__rejected")
    publish(hand, "report", inputs={"flights": [1]})
    for _ in range(23):
        publish(hand, "flights")
    listed = browser.get("/datasets").text
    assert len(links(listed, "/datasets/flights__rejected")) == 1, "in the line of its dataset"
    one = browser.get("/datasets/flights").text
    assert [int(link[9:]) for link in links(one, "?version=")] == list(range(25, 5, -1))
    assert "7 rejected rows" in one
    assert "Owned by job night, which shares it with load_*." in one
    assert "taken over from job before" in browser.get("/datasets/flights?version=1").text
    assert "24 partitions" in one
    (older,) = links(one, "?from=")
    assert [
        int(link[9:]) for link in links(browser.get(f"/datasets/flights{older}").text, "?version=")
    ] == [5, 4, 3, 1]
    report = browser.get("/datasets/report").text
    assert "/datasets/flights?version=1" in links(report, "/datasets/")
    assert "flights@1" in report


@pytest.fixture
def away(hand: ByHand) -> Iterator[TestClient]:
    """A page whose warehouse hangs, and which waits for it half a second."""
    app = create_app(hand.client, Access.of("127.0.0.1", "", ()))
    app.state.datasets = Datasets(hand.settings.warehouse, CircuitBreaker(), 0.5)
    app.state.doctor = Doctor(hand.settings, timeout=1)
    with silent(Path(hand.settings.warehouse)):
        yield TestClient(app, f"http://{HOST}", raise_server_exceptions=False)


def test_a_hanging_warehouse_is_reported_and_the_rest_of_the_page_works(
    hand: ByHand, away: TestClient
) -> None:
    hand.client.schedules.set(spec("nightly"))
    for path in ("/datasets", "/datasets/flights", "/datasets", "/datasets"):
        answer = away.get(path)
        assert answer.status_code == 503
        assert "does not answer" in answer.text or "has not answered within 0.5s" in answer.text
        assert '<a href="/fleet">' in answer.text
    assert "/schedules/nightly" in links(away.get("/schedules").text, "/schedules/")
    assert away.get("/schedules/nightly").status_code == 200
    findings = away.get("/fleet/doctor")
    assert findings.status_code == 200
    assert "has not answered within 1s" in findings.text
    assert away.get("/fleet").status_code == 200


def test_a_missing_warehouse_is_distinguished_from_an_empty_one(
    browser: TestClient, hand: ByHand
) -> None:
    assert "There is no warehouse at" in browser.get("/datasets").text
    Warehouse(hand.settings.warehouse).ensure_id()
    assert "Nothing is published in" in browser.get("/datasets").text


# -- the fleet -------------------------------------------------------------------------------------


def test_an_empty_fleet_shows_the_commands_to_start_one(browser: TestClient) -> None:
    text = browser.get("/fleet").text
    assert "0 runners and 0 coordinators report to" in text
    for command in (
        "celery -A unstuck.tasks worker",
        "celery -A unstuck.coordinator worker -P threads",
        "unstuck up",
    ):
        assert f"<code>{command}</code>" in text


def test_waiting_work_shows_the_age_of_its_oldest_group(browser: TestClient, hand: ByHand) -> None:
    hand.client.pools.set("jdbc", 1)
    for name, queue in (("first", "nobody_listens"), ("second", "light"), ("third", "light")):
        hand.decide(hand.submit({"name": "load", "queue": queue}, name=name))
    hand.decide(hand.submit({"name": "load", "pool": "jdbc"}))
    offers = hand.client.offers()
    assert [(one.queue, one.pool, one.count) for one in offers][:2] == [
        ("nobody_listens", "", 1),
        ("light", "", 2),
    ]
    assert [one.oldest_since for one in offers] == sorted(one.oldest_since or 0 for one in offers)
    text = browser.get("/fleet").text
    assert text.index("nobody_listens") < text.index("Pools")
    assert '<th scope="row">jdbc</th><td class="n" data-label="Free">1</td>' in text


def test_dead_letters_have_pages_and_actions_and_are_shown_as_text(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    for n in range(fleet.LETTERS + 2):
        client.xadd(
            KEYS.dead, {"reason": f"UNREADABLE: {n}", "report": '{"kind": "' + EVIL[:8] + '"}'}
        )
    hand.client.dead_letters.add_refused("unstuck.submit", EVIL, {"spec": EVIL})
    assert f"{fleet.LETTERS + 3} dead letters" in browser.get("/fleet").text
    first = browser.get("/fleet/dead").text
    assert "<script>alert" not in first
    (older,) = links(first, "?")
    rest = browser.get(f"/fleet/dead{older}").text
    assert [f"UNREADABLE: {n}" in rest for n in (0, 1, 2, 3)] == [True, True, True, False]
    assert first.count("/drop") >= fleet.LETTERS
    assert "/replay" not in first, "none of them could be applied"
    for odd in ("before=x", "before=1-1-1", "before=99999999999999999999999-0", "before=0-0"):
        assert browser.get(f"/fleet/dead?{odd}").status_code == 200


def test_waiting_and_sent_notices_are_shown(browser: TestClient) -> None:
    text = browser.get("/fleet/notices").text
    assert "No notices are waiting." in text
    assert "No notices were sent." in text
