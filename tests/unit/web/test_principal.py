"""Who is on record for an action: the person who is logged in, whatever name the request itself
carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import yaml
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand
from unstuck.tasks.identity import user_here
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry

TOKEN = "a token that nobody guesses"
CLAIMED = {"by": "mallory", "reason": "why not"}
GROUP = {"name": "load", "spark": False, "steps": [{"python": "some.where:step"}]}
SCHEDULED = {"name": "nightly", "schedule": {"cron": "0 2 * * *", "zone": "UTC"}, "groups": [GROUP]}
SCHEMA = '{"type":"struct","fields":[]}'


class Request(NamedTuple):
    """A POST to the API. ``body``: beside the claimed name; None for a spec, whose name is in the
    query.
    """

    route: str
    values: dict[str, str]
    body: dict[str, Any] | None


@dataclass(frozen=True)
class Subjects:
    """The jobs that requests are about, by the state in which they are taken."""

    running: str
    paused: str
    skipped: str
    failed: str

    def requests(self) -> Iterator[Request]:
        """A request that is accepted for each route of the API that takes a name."""
        days = {"from": "2026-01-05", "to": "2026-01-05"}
        of_job: list[tuple[str, str, dict[str, Any]]] = [
            ("alter", self.paused, {"values": {"groups.load.timeout": "2h"}}),
            ("skip", self.paused, {"group": "clean"}),
            ("rerun", self.skipped, {"group": "clean"}),
            ("retry", self.failed, {}),
            *((word, self.running, {}) for word in ("pause", "resume", "stop")),
            *((word, self.running, {}) for word in ("cancel", "force-stop")),
        ]
        yield Request("/jobs", {}, None)
        yield from (
            Request(f"/jobs/{{job}}/{word}", {"job": job}, body) for word, job, body in of_job
        )
        yield Request("/schedules", {}, None)
        yield Request("/schedules/{name}/backfill", {"name": "nightly"}, days)
        yield Request(
            "/schedules/{name}/skip", {"name": "nightly"}, {"tick": "2026-01-05T02:00:00Z"}
        )
        for word in (
            *("pause-backfill", "resume-backfill", "cancel-backfill"),
            *("pause", "resume", "run", "stop", "remove"),
        ):
            yield Request(f"/schedules/{{name}}/{word}", {"name": "nightly"}, {})
        yield Request("/datasets/{name}/restore", {"name": "rows"}, {"version": 1})
        problem = "fleet/coordinators/NO_COORDINATOR"
        yield Request("/problems/{problem}/ack", {"problem": problem}, {})


@pytest.fixture
def subjects(hand: ByHand) -> Subjects:
    running = hand.submit(GROUP)
    paused, skipped, failed = (
        hand.submit(GROUP, {"name": "clean", "needs": ["load"]}) for _ in range(3)
    )
    for job in (paused, skipped):
        hand.client.pause(job, by="tester")
        hand.decide(job)
    hand.client.skip(skipped, "clean", by="tester")
    hand.decide(skipped)
    hand.decide(failed)
    hand.fail(failed, "load", "it broke")
    hand.client.schedules.set({**SCHEDULED, "priority": "low"}, by="tester")
    warehouse = Warehouse(hand.settings.warehouse)
    warehouse.ensure_id()
    for n, rows in ((1, 1), (2, 2)):
        change = {
            "rows": Change(
                "replace", [], [], rows, SCHEMA.replace("[]", f'[{{"name":"c{n}","type":"long"}}]')
            )
        }
        assert warehouse.create_entry(
            n, Entry(n, n - 1, f"job-{n}", "package", f"job-{n}", "load", 1e9, {}, change)
        )
    return Subjects(running, paused, skipped, failed)


@pytest.fixture
def api(site: Callable[..., TestClient]) -> TestClient:
    return site(TOKEN)


def names_on_record(hand: ByHand) -> list[str]:
    """The names in all event logs, in the warehouse log and of acknowledgements, but that of the
    test itself.
    """
    jobs = [job.id for job in hand.client.jobs()]
    events = [event for job in jobs for _, event in hand.client.events(job)]
    events += hand.client.schedules.events("nightly")
    warehouse = Warehouse(hand.settings.warehouse)
    restored = [warehouse.existing_entry(n).job_name for n in range(3, warehouse.head() + 1)]
    return [
        *(str(event["by"]) for event in events if event.get("by", "tester") != "tester"),
        *restored,
        *(each.acknowledged.by for each in hand.client.problems() if each.acknowledged),
    ]


def send(api: TestClient, request: Request, claimed: dict[str, str]) -> None:
    """Send the request, which must be accepted."""
    path = f"/api/v1{request.route.format(**request.values)}"
    if request.body is None:
        spec = SCHEDULED if request.route == "/schedules" else {"name": "sent", "groups": [GROUP]}
        query = {"by": claimed["by"]} if "by" in claimed else {}
        response = api.post(path, params=query, content=yaml.safe_dump(spec))
    else:
        response = api.post(path, json={**request.body, **claimed})
    assert response.status_code in (200, 201), (request, response.text)


def test_the_logged_in_user_is_recorded_regardless_of_the_name_in_an_api_request(
    api: TestClient, subjects: Subjects, hand: ByHand
) -> None:
    api.post("/login", data={"user": "ann", "token": TOKEN})
    for request in subjects.requests():
        before = len(names_on_record(hand))
        send(api, request, CLAIMED)
        assert len(names_on_record(hand)) > before, request
    names = names_on_record(hand)
    assert [name for name in names if "ann (api)" not in name or "mallory" in name] == []


def test_a_program_with_the_token_is_recorded_by_its_given_name(
    api: TestClient, subjects: Subjects, hand: ByHand
) -> None:
    api.headers["Authorization"] = f"Bearer {TOKEN}"
    for request in subjects.requests():
        send(api, request, {"by": "ci"})
    assert [name for name in names_on_record(hand) if name.split()[-1] != "ci"] == []


def test_a_program_without_a_name_is_recorded_as_the_user_of_the_page(
    api: TestClient, subjects: Subjects, hand: ByHand
) -> None:
    api.headers["Authorization"] = f"Bearer {TOKEN}"
    for request in subjects.requests():
        send(api, request, {})
    own = f"{user_here()} (api)"
    assert [name for name in names_on_record(hand) if not name.endswith(own)] == []


def test_each_api_route_that_accepts_a_name_is_tested(api: TestClient) -> None:
    api.headers["Authorization"] = f"Bearer {TOKEN}"
    document = api.get("/api/v1/openapi.json").json()
    bodies = document["components"]["schemas"]

    def takes_a_name(operation: dict[str, Any]) -> bool:
        schema = (
            operation.get("requestBody", {"content": {}})["content"]
            .get("application/json", {})
            .get("schema", {})
        )
        reference = str(schema.get("$ref") or schema.get("allOf", [{}])[0].get("$ref", ""))
        fields = bodies.get(reference.rpartition("/")[2], {}).get("properties", {})
        return "by" in fields or any(one["name"] == "by" for one in operation.get("parameters", ()))

    routes = {
        route
        for route, methods in document["paths"].items()
        if takes_a_name(methods.get("post", {}))
    }
    # The routes of all commands are one function, so those that need more than a job are left out.
    others = {"/dead/{letter}/replay", "/dead/{letter}/drop", "/streams/{name}/skip"}
    assert routes - others == {request.route for request in Subjects("", "", "", "").requests()}


def test_a_name_in_a_form_of_the_page_is_ignored(
    api: TestClient, subjects: Subjects, hand: ByHand
) -> None:
    api.post("/login", data={"user": "ann", "token": TOKEN})
    paths = (
        *(
            f"/jobs/{subjects.running}/pause",
            f"/jobs/{subjects.skipped}/rerun",
            f"/jobs/{subjects.failed}/retry",
        ),
        "/schedules/nightly/pause",
    )
    for path in paths:
        fields = {"by": "mallory", "user": "mallory", "who": "mallory", "group": "clean"}
        assert api.post(path, params=fields, data=fields).status_code == 303, path
    assert {*names_on_record(hand)} == {"ann (page)"}
