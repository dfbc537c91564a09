"""The API on a real fleet: each answer is that of the command, and fits the schema; nothing that is
sent breaks it.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import uvicorn
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from scripts import http_api_page
from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, free_port, wait_until
from unstuck import Client, JobSpec, Settings, Status
from unstuck.cli.app import app
from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect
from unstuck.web.api import job_resources
from unstuck.web.api.api_app import PREFIX
from unstuck.web.app import create_app
from unstuck.web.safety import Access

STEPS = "tests.support.steps.small_steps"
TOKEN = "a-token-of-the-test"
ROOT = "http://127.0.0.1:8620/api/v1"
SPEC = f"""\
name: sent
params: {{first: 1}}
groups:
  - name: only
    spark: false
    retry: {{max: 0}}
    steps: [{{python: "{STEPS}:three", output: sent}}]
outputs: {{sent: {{}}}}
"""


def group(name: str, step: str = "three", output: str = "", **more: Any) -> dict[str, Any]:
    called = {"python": f"{STEPS}:{step}"} | ({"output": output} if output else {})
    return {"name": name, "spark": False, "retry": {"max": 0}, "steps": [called], **more}


class Site(NamedTuple):
    """A page over a fleet on which something has happened."""

    api: TestClient
    document: dict[str, Any]
    env: dict[str, str]
    client: Client
    names: dict[str, str]

    def told(self, *command: str) -> Any:
        """The answer of a command; of several lines, a list of them."""
        in_yaml = "--yaml" in command or "export" in command
        result = CliRunner().invoke(app, [*command, *([] if in_yaml else ["--json"])], env=self.env)
        assert result.exit_code in (0, 1), result.output
        text = result.stdout
        if in_yaml:
            return yaml.safe_load(text)
        return (
            json.loads(text)
            if text[:2] in ("[\n", "{\n", "[]")
            else [json.loads(one) for one in text.splitlines()]
        )

    def fits(self, method: str, route: str, response: Any) -> Any:
        """The JSON of an answer, which fits what the OpenAPI document says of the route."""
        said = self.document["paths"][route][method]["responses"]
        found = said.get(str(response.status_code), said["default"])["content"]
        kind = response.headers["content-type"].partition(";")[0]
        assert kind in found, (route, response.status_code, kind)
        schema = {**found[kind]["schema"], "components": self.document["components"]}
        jsonschema.Draft202012Validator(schema).validate(response.json())
        return response.json()

    def fields(self, operation: dict[str, Any]) -> list[str]:
        """Those of the body of a route."""
        schema = (
            operation.get("requestBody", {"content": {}})["content"]
            .get("application/json", {})
            .get("schema", {})
        )
        name = schema.get("$ref", "").rpartition("/")[2]
        return [*self.document["components"]["schemas"].get(name, {}).get("properties", ())]


@pytest.fixture(scope="module")
def site(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("fleet")
    settings = Settings(redis_url=redis_server.url, warehouse=str(home / "warehouse"))
    environ = {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_WAREHOUSE": settings.warehouse}
    with (
        fleet.worker(
            redis_server.url,
            home,
            concurrency=2,
            environ={**environ, "UNSTUCK_SPARK_MASTER": "none"},
        ),
        coordinator_processes(home, environ) as coordinators,
        Client(settings) as client,
    ):
        coordinators.tend(1)
        app = create_app(client, Access.of("127.0.0.1", TOKEN))
        # Opened: else it starts a thread and an event loop for each request.
        with TestClient(app, ROOT, raise_server_exceptions=False) as api:
            api.headers["Authorization"] = f"Bearer {TOKEN}"
            names = _played(client)
            yield Site(
                api, api.get("/openapi.json").json(), {**environ, "COLUMNS": "200"}, client, names
            )


def _played(client: Client) -> dict[str, str]:
    """Jobs in several states, a schedule, a pool and a dead letter; the names of each."""

    def submit(*groups: dict[str, Any], **more: Any) -> str:
        return client.submit(
            JobSpec.model_validate({"name": "load", "groups": [*groups], **more}), by="tester"
        ).id

    done = submit(group("only", output="rows"), name="done", outputs={"rows": {}})
    assert client.wait(done).status is Status.FINISHED
    failed = submit(group("bad", "refuse", retry={"max": 1, "backoff": "1ms"}), name="failed")
    assert client.wait(failed).status is Status.FAILED
    held = submit(group("waits", queue="nobody"), name="held")
    client.pause(held, reason="for a test <&>", by="tester")
    wait_until(lambda: client.show(held).status is Status.PAUSED, 30, "the pause")
    client.alter(held, {"groups.waits.timeout": "2h"}, by="tester")
    schedule = {"cron": "0 2 * * *", "zone": "Europe/Berlin"}
    client.schedules.set(
        {"name": "nightly", "groups": [group("only")], "schedule": schedule}, by="tester"
    )
    client.pools.set("jdbc", 4)
    late = Expected(
        alerts={"late: 06:00": Alert(5.0, 6.0, ("ops",))},
        texts={"late: 06:00": "no run has ended well"},
    )
    with connect(client.settings.redis_url) as store:
        ExpectedJobsStore(store, Keys(client.settings.prefix)).note(
            "export", "", late.to_json(), ()
        )
    for name in ("dropped", "letter"):
        client.dead_letters.add_refused("unstuck.submit", name, {"by": "tester", "spec": "\ud800"})
    letter, dropped = (one.id for one in client.dead_letters.newest(2))
    return {"done": done, "failed": failed, "held": held, "letter": letter, "dropped": dropped}


# By route: the values in its path, its query, and the command with the same answer.
GETS: dict[str, list[tuple[dict[str, str], str, str]]] = {
    "/jobs": [
        ({}, "", "list"),
        (
            {},
            "status=FAILED&status=PAUSED&limit=1",
            "list --status FAILED --status PAUSED --limit 1",
        ),
        ({}, "name=do*&since=1h", "list --name do* --since 1h"),
    ],
    "/jobs/{job}": [({"job": one}, "", f"show {one}") for one in ("done", "failed", "held")],
    "/jobs/{job}/spec": [({"job": "held"}, "", "show held --yaml")],
    "/jobs/{job}/why": [({"job": one}, "", f"why {one}") for one in ("failed", "held")],
    "/jobs/{job}/events": [({"job": "failed"}, "", "events failed")],
    "/jobs/{job}/logs": [({"job": "failed"}, "", "logs failed")],
    "/jobs/{job}/logs/{group}": [
        ({"job": "failed", "group": "bad"}, "all=true", "logs failed bad --all")
    ],
    "/now": [({}, "", "now")],
    "/late-jobs": [({}, "", "list --late")],
    "/schedules": [({}, "", "schedule list")],
    "/schedules/{name}": [({"name": "nightly"}, "next=5", "schedule show nightly --next 5")],
    "/schedules/{name}/why": [({"name": "nightly"}, "", "schedule why nightly")],
    "/schedules/{name}/spec": [({"name": "nightly"}, "", "schedule export nightly")],
    "/schedules/{name}/ticks": [
        (
            {"name": "nightly"},
            "from=2026-01-01&to=2026-01-03",
            "schedule ticks nightly --from 2026-01-01 --to 2026-01-03",
        )
    ],
    "/datasets": [({}, "", "datasets"), ({}, "files=true", "datasets --files")],
    "/datasets/{name}": [({"name": "rows"}, "version=1", "datasets rows --version 1")],
    "/datasets/{name}/history": [({"name": "rows"}, "", "datasets rows --history")],
    "/datasets/{name}/sources": [({"name": "rows"}, "", "datasets rows --sources")],
    "/fleet": [({}, "", "fleet")],
    "/doctor": [({}, "", "doctor")],
    "/pools": [({}, "", "pool list")],
    "/notices": [({}, "", "notify list")],
    "/dead": [({}, "limit=5", "dead list --limit 5")],
    "/dead/{letter}": [({"letter": "letter"}, "", "dead show letter")],
}
PICTURES = {"/jobs/{job}/graph.svg"}


def steady(answer: Any) -> Any:
    """``answer`` without times and durations, which go on between two looks."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "AT", json.dumps(answer))
    return json.loads(re.sub(r"\b(\d+(\.\d+)?(ms|s|m|h|d))+\b|\d+\.\d+ ms", "SOME", text))


@pytest.mark.parametrize("route", GETS)
def test_each_answer_matches_its_schema_and_the_answer_of_the_command(
    site: Site, route: str
) -> None:
    for path, query, command in GETS[route]:
        values = {part: site.names.get(name, name) for part, name in path.items()}
        address = f"{route.format(**values)}?{query}"
        words = [site.names.get(word, word) for word in command.split()]

        # A process may start or end between the two answers.
        wait_until(
            partial(same_answers, site, route, address, words),
            what=f"{address} answers as {command}",
        )

        response = site.api.get(address)
        etag = response.headers["etag"]
        again = site.api.get(address, headers={"If-None-Match": etag})
        assert again.status_code == 304 or again.headers["etag"] != etag


def same_answers(site: Site, route: str, address: str, words: list[str]) -> bool:
    answer, printed = api_answer(site, route, address), command_answer(site, route, *words)
    return bool(steady(answer) == steady(printed))


def api_answer(site: Site, route: str, address: str) -> Any:
    response = site.api.get(address)
    assert response.status_code == 200, response.text
    return findings(site.fits("get", route, response), route)


def command_answer(site: Site, route: str, *words: str) -> Any:
    answer = site.told(*words)
    return findings(answer[0] if route == "/datasets/{name}" else answer, route)


def findings(answer: Any, route: str) -> Any:
    """Return an answer of `doctor` without its figures, and any other answer as it is."""
    if route != "/doctor":
        return answer
    return [(finding["code"], finding["level"]) for finding in answer["findings"]]


def test_each_read_route_is_compared(site: Site) -> None:
    routes = {route for route, methods in site.document["paths"].items() if "get" in methods}
    assert routes == {*GETS} | PICTURES
    picture = site.api.get(f"/jobs/{site.names['done']}/graph.svg")
    assert (picture.status_code, picture.headers["content-type"].partition(";")[0]) == (
        200,
        "image/svg+xml",
    )
    assert picture.text.startswith("<svg")


def test_each_job_route_accepts_a_name_or_an_id_prefix(site: Site) -> None:
    job = site.names["held"]
    routes = [route for route in (*GETS, *PICTURES) if "{job}" in route]
    for route in routes:
        whole, *same = (
            site.api.get(route.format(job=word, group="waits"))
            for word in (job, "held", job[:-1], "last")
        )
        assert whole.status_code == 200, whole.text
        assert [steady(one.text) for one in same] == [steady(whole.text)] * 3, route
    assert len(routes) > 5


def test_events_and_logs_are_read_in_parts(site: Site) -> None:
    job = site.names["failed"]
    every = site.api.get(f"/jobs/{job}/events").json()
    first = site.api.get(f"/jobs/{job}/events?limit=2").json()
    rest = site.api.get(f"/jobs/{job}/events?after={first[-1]['entry']}").json()
    assert first + rest == every
    assert len(rest) > 0
    lines = site.api.get(f"/jobs/{job}/logs").json()
    assert site.api.get(f"/jobs/{job}/logs?tail=1").json() == lines[-1:]


def test_the_logs_of_one_answer_are_limited_to_the_newest_attempts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = site.api.get(
            f"/jobs/{site.names['failed']}/logs?all=true"
        ).json()
        return found

    assert {one["attempt"] for one in logs()} == {1, 2}
    monkeypatch.setattr(job_resources, "MOST_LOGS", 1)
    assert {one["attempt"] for one in logs()} == {2}
    whole = len(logs())
    monkeypatch.setattr(job_resources, "MOST_IN_ALL", 200)
    assert 0 < len(logs()) < whole


class PostCase(NamedTuple):
    """One POST: its route, what is sent, and the status and the answer that are expected."""

    route: str
    values: dict[str, str]
    sent: Any
    status: int
    answer: str


def test_each_action_succeeds_and_its_answer_matches_its_schema(site: Site) -> None:
    """Given the jobs of the fleet, when each POST is sent, then it is done, done already, or
    refused.
    """
    held, failed, letter = site.names["held"], site.names["failed"], site.names["dropped"]
    by = {"by": "api-test", "reason": "seen <b>"}
    nightly = yaml.safe_load(SPEC.replace("sent", "rare")) | {
        "name": "weekly",
        "schedule": {"cron": "0 3 * * 1", "zone": "UTC"},
    }
    days = {"from": "2026-01-05", "to": "2026-01-05"}
    steps = [
        PostCase("/validate", {}, SPEC, 200, ""),
        PostCase("/jobs", {}, SPEC, 201, ""),
        PostCase(
            "/jobs/{job}/alter",
            {"job": held},
            {"values": {"groups.waits.timeout": "3h"}, **by},
            200,
            "DONE",
        ),
        PostCase(
            "/jobs/{job}/alter",
            {"job": held},
            {"values": {"groups.nobody.timeout": "3h"}},
            422,
            "SPEC_INVALID",
        ),
        PostCase("/jobs/{job}/skip", {"job": held}, {"group": "nobody"}, 404, "NO_SUCH_GROUP"),
        PostCase("/jobs/{job}/rerun", {"job": held}, {"group": "waits"}, 200, "ALREADY"),
        PostCase("/jobs/{job}/resume", {"job": held[:-1]}, by, 200, "DONE"),
        PostCase("/jobs/{job}/pause", {"job": held}, {"now": True, **by}, 200, "DONE"),
        PostCase("/jobs/{job}/pause", {"job": "held"}, None, 200, "ALREADY"),
        PostCase("/jobs/{job}/pause", {"job": held[:2]}, None, 409, "AMBIGUOUS"),
        PostCase("/jobs/{job}/pause", {"job": "last"}, None, 422, "BAD_REQUEST"),
        PostCase("/jobs/{job}/force-stop", {"job": held}, None, 200, "DONE"),
        PostCase(
            "/jobs/{job}/stop",
            {"job": "20260101T000000-aaaaaaaa"},
            None,
            404,
            "NO_SUCH_JOB",
        ),
        PostCase("/jobs/{job}/retry", {"job": failed}, {"rerun": ["bad"], **by}, 200, "DONE"),
        PostCase("/jobs/{job}/retry", {"job": site.names["done"]}, None, 409, "REFUSED"),
        PostCase(
            "/problems/{problem}/ack",
            {"problem": "pool/nobody/NO_SLOTS"},
            by,
            404,
            "NO_SUCH_PROBLEM",
        ),
        PostCase("/schedules", {}, json.dumps(nightly), 200, "DONE"),
        PostCase("/schedules", {}, json.dumps(nightly), 200, "ALREADY"),
        PostCase("/schedules/{name}/pause", {"name": "weekly"}, by, 200, "DONE"),
        PostCase("/schedules/{name}/pause", {"name": "nobody"}, by, 404, "NO_SUCH_SCHEDULE"),
        PostCase("/schedules/{name}/resume", {"name": "weekly"}, by, 200, "DONE"),
        PostCase(
            "/schedules/{name}/run", {"name": "weekly"}, {"params": {"x": 1}}, 422, "SPEC_INVALID"
        ),
        PostCase("/schedules/{name}/backfill", {"name": "weekly"}, days, 200, "DONE"),
        PostCase("/schedules/{name}/pause-backfill", {"name": "weekly"}, by, 200, "DONE"),
        PostCase("/schedules/{name}/resume-backfill", {"name": "weekly"}, by, 200, "DONE"),
        PostCase("/schedules/{name}/cancel-backfill", {"name": "weekly"}, by, 200, "DONE"),
        PostCase(
            "/schedules/{name}/skip",
            {"name": "weekly"},
            # Not a tick of the backfill, whose run may have started.
            {"tick": "2026-01-12T03:00:00Z", **by},
            200,
            "DONE",
        ),
        PostCase(
            "/schedules/{name}/skip",
            {"name": "weekly"},
            {"tick": "2026-01-05T03:00:01Z"},
            409,
            "REFUSED",
        ),
        PostCase(
            "/schedules/{name}/backfill",
            {"name": "weekly"},
            {"from": "soon", "to": "2026"},
            422,
            "BAD_REQUEST",
        ),
        PostCase("/pools/{pool}/set", {"pool": "new"}, {"slots": 2}, 200, "DONE"),
        PostCase("/pools/{pool}/set", {"pool": "new"}, {"slots": -1}, 422, "BAD_REQUEST"),
        PostCase("/pools/{pool}/remove", {"pool": "nobody"}, None, 200, "ALREADY"),
        PostCase("/datasets/{name}/restore", {"name": "rows"}, {"version": 1, **by}, 200, ""),
        PostCase("/streams/{name}/skip", {"name": "rows"}, {"file": "x"}, 409, "REFUSED"),
        PostCase(
            "/datasets/{name}/restore", {"name": "rows"}, {"version": 999}, 404, "DATASET_NOT_FOUND"
        ),
        PostCase(
            "/datasets/{name}/restore", {"name": "nobody"}, {"version": 1}, 404, "DATASET_NOT_FOUND"
        ),
        PostCase("/dead/{letter}/replay", {"letter": letter}, None, 409, "REFUSED"),
        PostCase("/dead/{letter}/drop", {"letter": letter}, None, 200, "DROPPED"),
        PostCase("/dead/{letter}/drop", {"letter": letter}, None, 200, "ALREADY"),
        PostCase("/dead/{letter}/drop", {"letter": "1-1"}, None, 404, "NO_SUCH_REPORT"),
    ]
    for step in steps:
        sent = (
            {"content": step.sent}
            if isinstance(step.sent, str)
            else {"json": step.sent}
            if step.sent
            else {}
        )
        response = site.api.post(step.route.format(**step.values), **sent)
        assert response.status_code == step.status, (step, response.text)
        answer = site.fits("post", step.route, response)
        assert step.answer in (answer.get("answer", ""), answer.get("code", "")), (step, answer)
    assert {one.name: one.slots for one in site.client.pools.all()}["new"] == 2
    assert any(
        event.get("by") == "api-test" and event.get("text") for _, event in site.client.events(held)
    )
    wait_until(lambda: _removed(site), 30, "the schedule to be without runs, and removed")
    routes = {route for route, methods in site.document["paths"].items() if "post" in methods}
    assert routes == {step.route for step in steps} | {
        "/jobs/{job}/cancel",
        "/schedules/{name}/remove",
        "/schedules/{name}/stop",
    }


def test_publishing_a_dataset_of_another_job_requires_take_over(site: Site) -> None:
    def submit(name: str, query: str = "") -> Any:
        spec = SPEC.replace("name: sent", f"name: {name}").replace("sent", "contested")
        return site.api.post(f"/jobs{query}", content=spec)

    site.client.wait(submit("first").json()["id"])
    refused = submit("second")
    assert (refused.status_code, site.fits("post", "/jobs", refused)["code"]) == (
        409,
        "DATASET_OWNED",
    )
    site.client.wait(submit("second", "?take_over=true").json()["id"])
    shown = site.api.get("/datasets/contested").json()
    assert (shown["owner"], shown["shared_with"]) == ("second", [])
    versions = site.api.get("/datasets/contested/history").json()
    assert [version["taken_from"] for version in versions] == ["first", ""]


def _removed(site: Site) -> bool:
    response = site.api.post("/schedules/weekly/remove")
    assert response.status_code in (200, 409), response.text
    site.fits("post", "/schedules/{name}/remove", response)
    return response.status_code == 200


def test_submitting_a_key_returns_the_same_job_and_accepts_parameters(site: Site) -> None:
    first = site.api.post("/jobs?key=k-1&param=first=7&by=me", content=SPEC)
    again = site.api.post("/jobs?key=k-1&param=first=7", content=SPEC)
    other = site.api.post("/jobs?key=k-1&param=first=8", content=SPEC)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422), other.text
    assert first.json()["id"] == again.json()["id"]
    assert other.json()["code"] == "KEY_CONFLICT"
    job = site.client.wait(first.json()["id"])
    assert (job.params["first"], job.submitted_by, job.status) == (7, "me", Status.FINISHED)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC.replace("spark: false", "sparc: false"),
        SPEC.replace("outputs: {sent: {}}", "outputs: [}"),
        '{"name": "x", "groups": [{"name": "a", "needs": ["b"], "steps": [{"python": "m:f"}]}]}',
        "",
    ],
)
def test_an_invalid_spec_is_refused_with_the_places_of_validate(
    site: Site, spec: str, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(spec)
    validated = CliRunner().invoke(app, ["validate", str(file), "--json"], env=site.env)
    told = json.loads(validated.stdout)
    told["problems"] = problems = [{**one, "file": "spec.yaml"} for one in told["problems"]]
    checked = site.api.post("/validate", content=spec)
    assert (checked.status_code, site.fits("post", "/validate", checked)) == (200, told)
    response = site.api.post("/jobs", content=spec)
    answer = site.fits("post", "/jobs", response)
    assert (response.status_code, answer["code"]) == (422, "SPEC_INVALID")
    assert answer["problems"] == problems


@pytest.mark.variant
def test_a_spec_is_validated_as_by_the_command_without_storing_or_importing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given SQL, a parameter without a value, and code whose import would leave a trace."""
    (tmp_path / "traced.py").write_text(
        f"open({str(tmp_path / 'trace')!r}, 'w').close()\ndef run(spark, ctx): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    step = {"sql": "SELECT :odd + 1 AS one", "output": "o"}
    groups = [{"name": "a", "steps": [step]}, group("b") | {"steps": [{"python": "traced:run"}]}]
    spec = {
        "name": "looked_at",
        "params": {"day": {"type": "date", "required": True}},
        "groups": groups,
    }
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec))
    told = site.told("validate", str(file))
    assert (told["ok"], told["groups"], told["sql_parsed_by"][:6]) == (True, 2, "Spark ")
    before = site.client.jobs()
    kind = {"Content-Type": "application/json"}
    answer = site.fits(
        "post", "/validate", site.api.post("/validate", content=file.read_bytes(), headers=kind)
    )
    assert answer == told | {
        "warnings": [one.replace(str(file), "spec.json") for one in told["warnings"]]
    }
    assert len(answer["warnings"]) > 0
    # No SQL in what follows, so that no parser of Spark starts for it.
    python_alone = spec | {"groups": groups[1:]}
    given = site.api.post(
        "/validate?param=day=2026-02-30", content=yaml.safe_dump(python_alone)
    ).json()
    assert (given["ok"], [one["path"] for one in given["problems"]]) == (False, ["params.day"])
    assert [job.id for job in site.client.jobs()] == [job.id for job in before]
    assert not (tmp_path / "trace").exists()
    file.write_text(json.dumps(python_alone))
    assert site.told("validate", str(file), "--imports")["ok"]
    assert (tmp_path / "trace").exists()


ODD: list[str | bytes] = [
    *(
        "\x00",
        "..",
        "../../etc/passwd",
        "%2e%2e%2f",
        "ä" * 300,
        "x" * 5000,
        "🙂",
        "a[b]",
        "a[99999999999999999999]",
        "'\"",
    ),
    *(
        "-1",
        "0",
        "1e9",
        "NaN",
        "9" * 40,
        "true",
        "null",
        "\ud800".encode("utf-8", "surrogatepass"),
        "\r\nX: y",
        " ",
    ),
]


@pytest.mark.variant
def test_odd_values_are_answered_with_a_problem_and_never_with_a_bug(site: Site) -> None:
    """Send odd values in each part of a path, each query parameter and each field of a body.

    Each method of a route takes a third of the values; neighbors take different thirds.
    """
    asked = 0
    schedule = {
        "name": "fuzzed",
        "groups": [group("only")],
        "schedule": {"cron": "0 2 * * *", "zone": "UTC"},
    }
    site.client.schedules.set(schedule)
    thirds = itertools.cycle(ODD[first::3] for first in range(3))
    for route, methods in site.document["paths"].items():
        for method, operation in methods.items():
            places = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
            known = {
                "job": site.names["done"],
                "name": "fuzzed",
                "group": "only",
                "command": "pause",
                "letter": "1-1",
                "pool": "jdbc",
                "problem": "pool/nobody/NO_SLOTS",
            }
            queries = [
                one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"
            ]
            for odd in next(thirds):
                for place in [*places, *queries]:
                    text = odd.decode(errors="surrogateescape") if isinstance(odd, bytes) else odd
                    escaped = _escaped(odd)
                    values = {name: escaped if name == place else known[name] for name in places}
                    query = f"?{place}={escaped}" if place in queries else ""
                    response = site.api.request(
                        method, route.format(**values) + query, content=text and b""
                    )
                    _sound(response, route, text)
                    asked += 1
                if method == "post":
                    for body in _bodies(odd, [*site.fields(operation), "unknown"]):
                        response = site.api.post(
                            route.format(**{name: known[name] for name in places}), **body
                        )
                        _sound(response, route, str(body))
                        asked += 1
    assert asked > 400
    assert site.client.show(site.names["done"]).status is Status.FINISHED


def _escaped(odd: str | bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in (odd if isinstance(odd, bytes) else odd.encode()))


def _bodies(odd: str | bytes, fields: list[str]) -> list[dict[str, Any]]:
    raw = odd if isinstance(odd, bytes) else odd.encode()
    text = raw.decode("utf-8", "surrogatepass")
    whole = dict.fromkeys(("group", "from", "to", "reason"), text) | {"values": {text: text}}
    return [
        {"content": raw},
        {"content": raw, "headers": {"content-type": "application/json"}},
        *(
            {"content": json.dumps({name: text}), "headers": {"content-type": "application/json"}}
            for name in fields
        ),
        {"content": json.dumps(whole), "headers": {"content-type": "application/json"}},
        {
            "content": json.dumps(
                {"name": "odd", "params": {"x": text}, "groups": [group("only", queue="nobody")]}
            )
        },
    ]


def _sound(response: Any, route: str, sent: str) -> None:
    assert response.status_code < 500, (route, sent, response.text)
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json", (
            route,
            sent,
            response.text,
        )
        assert {"type", "title", "status", "detail", "code"} <= {*response.json()}, (route, sent)


def test_without_redis_each_route_returns_the_error_of_the_command_line(
    tmp_path: Path,
) -> None:
    settings = Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", warehouse=str(tmp_path))
    with Client(settings) as client:
        api = TestClient(
            create_app(client, Access.of("127.0.0.1", TOKEN)), ROOT, raise_server_exceptions=False
        )
        api.headers["Authorization"] = f"Bearer {TOKEN}"
        response = api.get("/jobs")
        result = CliRunner().invoke(app, ["list"], env={"UNSTUCK_REDIS_URL": settings.redis_url})
    assert (response.status_code, response.json()["code"]) == (503, "REDIS_UNREACHABLE")
    assert response.json()["detail"] == str(result.exception)


def test_a_missing_warehouse_is_a_server_error(site: Site, tmp_path: Path) -> None:
    settings = Settings(
        redis_url=site.env["UNSTUCK_REDIS_URL"], warehouse=str(tmp_path / "nowhere")
    )
    with Client(settings) as client:
        api = TestClient(
            create_app(client, Access.of("127.0.0.1", "")), ROOT, raise_server_exceptions=False
        )
        response = api.get("/datasets")
        result = CliRunner().invoke(
            app, ["datasets"], env={**site.env, "UNSTUCK_WAREHOUSE": settings.warehouse}
        )
    assert (response.status_code, response.json()["code"]) == (404, "NO_WAREHOUSE")
    assert response.json()["detail"] == str(result.exception)


def test_the_api_has_the_same_protection_as_the_page(site: Site) -> None:
    """Given a token, a caller without one is refused with a problem; a foreign site can do nothing,
    cookie or not.
    """
    token = TOKEN
    made = create_app(site.client, Access.of("127.0.0.1", token))
    api = TestClient(made, ROOT, raise_server_exceptions=False)
    bearer = {"Authorization": f"Bearer {token}"}
    job = site.names["done"]
    assert api.get("/jobs", headers=bearer).status_code == 200
    unknown = api.get("/jobs")
    foreign = api.post(f"/jobs/{job}/cancel", headers={**bearer, "Sec-Fetch-Site": "cross-site"})
    elsewhere = api.post(f"/jobs/{job}/cancel", headers={**bearer, "Origin": "http://evil.example"})
    for response, status in ((unknown, 401), (foreign, 403), (elsewhere, 403)):
        assert (response.status_code, response.headers["content-type"]) == (
            status,
            "application/problem+json",
        )
    reading = create_app(site.client, Access.of("127.0.0.1", token), read_only=True)
    for route in (f"/jobs/{job}/cancel", "/validate"):
        refused = TestClient(reading, ROOT, raise_server_exceptions=False).post(
            route, headers=bearer, content=b""
        )
        assert (refused.status_code, refused.json()["code"]) == (403, "READ_ONLY")
    without = TestClient(
        create_app(site.client, Access.of("127.0.0.1", "")), ROOT, raise_server_exceptions=False
    )
    assert without.post("/validate", content=SPEC).status_code == 403


@contextmanager
def served(client: Client) -> Iterator[str]:
    """The page at a port of this host; its address."""
    port = free_port()
    made = create_app(client, Access.of("127.0.0.1", TOKEN))
    server = uvicorn.Server(uvicorn.Config(made, port=port, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, 30, "the page to listen")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.variant
def test_each_example_on_the_page_runs(site: Site, tmp_path: Path) -> None:
    load = group("load", output="sales")
    loaded = {
        "name": "sales",
        "params": {"day": "2026-01-01"},
        "groups": [load],
        "outputs": {"sales": {}},
    }
    nightly = {
        "name": "nightly",
        "groups": [group("load", output="nights")],
        "schedule": {"cron": "0 2 * * *", "zone": "Europe/Berlin"},
    }
    for name, spec in {
        "sales": loaded,
        "nightly": nightly,
        "wrong": loaded | {"grups": []},
    }.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    waits = {"name": "sales", "groups": [group("load", queue="nobody")]}
    job = site.client.submit(JobSpec.model_validate(waits)).id
    blocks = re.findall(r"```sh\n(.*?)```", http_api_page.page(), re.DOTALL)
    assert len(blocks) == 4
    with served(site.client) as address:
        first = _run(blocks[0], f"{address}{PREFIX}", job, tmp_path)
        submitted = json.JSONDecoder().raw_decode(first)[0]
        assert site.client.wait(submitted["id"]).status is Status.FINISHED
        wrong = [_run(block, f"{address}{PREFIX}", job, tmp_path) for block in blocks[1:]][-1]
    assert (submitted["name"], submitted["new"]) == ("sales", True)
    assert [
        event["by"] for _, event in site.client.events(job) if event["kind"] == "USER_PAUSE"
    ] == ["ann"]
    assert (tmp_path / "graph.svg").read_text().startswith("<svg")
    validated, end = json.JSONDecoder().raw_decode(wrong)
    assert (validated["ok"], json.loads(wrong[end:])["problems"][0]["path"]) == (True, "grups")


def _run(block: str, api: str, job: str, folder: Path) -> str:
    """The output of the commands of an example, each of which succeeds."""
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "API": api,
        "AUTH": f"Authorization: Bearer {TOKEN}",
        "JOB": job,
    }
    script = re.sub(r"^(API|AUTH)=.*$", "", block, flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, (block, done.stdout, done.stderr)
    return done.stdout
