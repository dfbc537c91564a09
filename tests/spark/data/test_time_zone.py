"""The zone matrix: whatever zone a host has, the same job publishes the same rows, in the zone of
the setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pyspark
import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind

pytestmark = pytest.mark.variant

NOON = datetime(2024, 7, 1, 12)
PLACES = [
    ("America/New_York", "UTC"),
    ("America/New_York", "Europe/Berlin"),
    pytest.param(("Asia/Tokyo", "UTC"), marks=pytest.mark.long),
    pytest.param(("UTC", "UTC"), marks=pytest.mark.long),
]
WAYS = {
    "datetime",
    "pandas",
    "literal",
    "text",
    "ntz",
    "date",
    "parameter",
    "collected",
    "to_pandas",
    "arrow",
}
WAYS |= {"plain", "series"}  # by a UDF
if pyspark.__version__ < "4":
    WAYS -= {"arrow"}  # which is no frame there
OUTPUTS = ("in_spark", "without_spark")


@pytest.fixture(
    scope="module", params=PLACES, ids=lambda pair: " with ".join(pair).replace("/", "_")
)
def place(
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[str, Path, str]]:
    """A worker on a host of the first zone with the setting of the second; its queue, its folder
    and the setting.
    """
    host, zone = request.param
    home, queue = tmp_path_factory.mktemp("zone"), f"{host}-in-{zone}".replace("/", "_")
    environ = {"TZ": host} | ({} if zone == "UTC" else {"UNSTUCK_TIME_ZONE": zone})
    with fleet.worker(redis_server.url, home, queues=queue, environ=environ):
        yield queue, home, zone


def run(
    client: redis.Redis,
    place: tuple[str, Path, str],
    job: str,
    *steps: str,
    zone: str = "",
    **group: Any,
) -> Outcome:
    queue, home, _ = place
    made = [
        {"python": f"frame_steps.zones:{step}", **({"output": step} if step in OUTPUTS else {})}
        for step in steps
    ]
    work = {"name": "g", "queue": queue, "steps": made, **group}
    offer = fleet.make_offer(client, home / "warehouse", job, work, zone=zone)
    return fleet.outcome(client, offer, 120)


def rows(place: tuple[str, Path, str], outcome: Outcome, output: str) -> list[dict[str, Any]]:
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
    return pq.read_table(place[1] / "warehouse" / outcome.staging / output).to_pylist()


@pytest.mark.claim("A timestamp has the same meaning on every host.")
def test_noon_is_noon_in_the_configured_zone_for_every_kind_of_frame(
    client: redis.Redis, place: tuple[str, Path, str]
) -> None:
    outcome = run(client, place, "matrix", "in_spark")
    noon = NOON.replace(tzinfo=ZoneInfo(place[2])).astimezone(UTC)
    assert {
        row["how"]: row["at"].astimezone(UTC) for row in rows(place, outcome, "in_spark")
    } == dict.fromkeys(WAYS, noon)
    assert outcome.zone == place[2]


@pytest.mark.claim("A timestamp has the same meaning on every host.")
def test_a_group_without_spark_uses_the_configured_time_zone(
    client: redis.Redis, place: tuple[str, Path, str]
) -> None:
    outcome = run(client, place, "light", "without_spark", spark=False)
    noon = NOON.replace(tzinfo=ZoneInfo(place[2]))
    assert rows(place, outcome, "without_spark") == [
        {"naive": NOON, "aware": NOON.replace(tzinfo=UTC), "by_process": noon}
    ]


def test_process_jvm_session_and_tasks_use_one_zone_after_a_step_changed_it(
    client: redis.Redis, place: tuple[str, Path, str]
) -> None:
    run(client, place, "abroad", "goes_abroad")
    assert run(client, place, "after", "clocks").results == clocks_of(place[2])
    said = f"set spark.sql.session.timeZone to Asia/Tokyo, and Python went on with {place[2]}"
    assert said in "".join(log.read_text() for log in place[1].glob("worker-*.log"))


def clocks_of(zone: str) -> dict[str, str]:
    """What the step ``clocks`` finds in this zone."""
    first = datetime.fromtimestamp(0, ZoneInfo(zone)).replace(tzinfo=None)
    shown = NOON.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    day = datetime(2026, 3, 1, 23, 30, tzinfo=UTC).astimezone(ZoneInfo(zone)).date()
    clock = f"{zone} {first}"
    return {
        "task": clock,
        "process": clock,
        "session": zone,
        "java": zone,
        "shown": str(shown),
        "day": str(day),
    }


def test_a_job_uses_its_own_zone_and_the_next_job_the_configured_one(
    client: redis.Redis, place: tuple[str, Path, str]
) -> None:
    """`to_date(at) = :day` with a schedule in Berlin took rows of two business days on a fleet in
    UTC.
    """
    own = "Asia/Kolkata" if place[2] == "Europe/Berlin" else "Europe/Berlin"
    outcome = run(client, place, "own", "in_spark", "clocks", zone=own)
    noon = NOON.replace(tzinfo=ZoneInfo(own)).astimezone(UTC)
    found = {row["how"]: row["at"].astimezone(UTC) for row in rows(place, outcome, "in_spark")}
    assert found == dict.fromkeys(WAYS, noon)
    assert (outcome.results, outcome.zone) == (clocks_of(own), own)
    light = run(client, place, "own-light", "without_spark", spark=False, zone=own)
    assert rows(place, light, "without_spark")[0]["by_process"] == NOON.replace(
        tzinfo=ZoneInfo(own)
    )
    assert run(client, place, "own-after", "clocks").results == clocks_of(place[2])


def test_a_conf_with_another_zone_is_refused_with_a_remedy(
    client: redis.Redis, place: tuple[str, Path, str]
) -> None:
    conf = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    failure = run(client, place, "two-zones", "in_spark", conf=conf).failure
    assert failure is not None
    assert not failure.recoverable
    assert f"the time zone of this fleet is {place[2]}" in failure.text
    assert "UNSTUCK_TIME_ZONE" in failure.text
