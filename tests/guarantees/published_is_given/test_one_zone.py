"""One time zone for a whole fleet: a second one is refused before anything runs, and `show` tells
which it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import ByHand, Cli
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer
from unstuck import HostUnfit, JobSpec, Settings, SpecError
from unstuck.tasks.time_zone import use_zone

GROUP = {"name": "g", "steps": [{"sql": "SELECT 1 AS one", "output": "x"}]}
TOKYO = {"spark.sql.session.timeZone": "Asia/Tokyo"}


@pytest.fixture
def hand(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> ByHand:
    return ByHand(redis_server.url, client, tmp_path)


@pytest.fixture
def cli(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> Cli:
    return Cli(redis_server.url, tmp_path)


@pytest.mark.parametrize(
    "zone", ["Berlin", "Europe/Atlantis", "EST5EDT,M3.2.0", "right/Europe/Berlin", "../etc/passwd"]
)
def test_every_process_refuses_an_unknown_time_zone_at_start(cli: Cli, zone: str) -> None:
    done = cli("list", UNSTUCK_TIME_ZONE=zone)
    assert done.returncode == 2
    assert (
        f"UNSTUCK_TIME_ZONE: {zone!r} is no time zone; expected UTC, or a name of IANA"
        in done.stderr
    )


def test_a_worker_without_the_data_of_its_time_zone_does_not_start(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "UNSTUCK_TIME_ZONE": "Europe/Berlin",
        "TZDIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "celery", "-A", "unstuck.tasks", "worker", "-Q", "light"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        "this host has no data of the time zone Europe/Berlin (UNSTUCK_TIME_ZONE, or zone: of the"
        in done.stderr
    )


def test_a_process_applies_the_time_zone_or_reports_that_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        use_zone("America/New_York")
        assert time.localtime(1720000000).tm_hour == 5
        patch.setenv("TZDIR", "/nowhere")
        with pytest.raises(HostUnfit, match="tzdata"):
            use_zone("Europe/Berlin")
    time.tzset()


@pytest.mark.claim("A timestamp has the same meaning on every host.")
@pytest.mark.parametrize(
    "conf",
    [
        TOKYO,
        {"spark.executorEnv.TZ": "Asia/Tokyo"},
        {"spark.executor.extraJavaOptions": "-Xss4m -Duser.timezone=Asia/Tokyo -Da=b"},
        {"spark.driver.extraJavaOptions": '"-Duser.timezone=Asia/Tokyo"'},
    ],
)
def test_a_global_conf_with_another_time_zone_is_refused_at_start(
    conf: dict[str, str],
    cli: Cli,
) -> None:
    done = cli("list", UNSTUCK_SPARK_CONF=json.dumps(conf), UNSTUCK_TIME_ZONE="Europe/Berlin")
    assert done.returncode == 2
    assert (
        f"{next(iter(conf))} is Asia/Tokyo, and the time zone of this fleet is Europe/Berlin"
        in done.stderr
    )
    same = json.dumps(
        {key: value.replace("Asia/Tokyo", "Europe/Berlin") for key, value in conf.items()}
    )
    assert Settings(spark_conf=same, time_zone="Europe/Berlin").spark_conf  # type: ignore[arg-type]


@pytest.mark.claim("A timestamp has the same meaning on every host.")
@pytest.mark.variant
@pytest.mark.parametrize("place", ["defaults", "group"])
def test_validate_and_submit_refuse_a_conf_with_another_time_zone_at_its_place(
    cli: Cli,
    hand: ByHand,
    place: str,
) -> None:
    spec = {"name": "nightly", "groups": [GROUP], "defaults": {"conf": TOKYO}}
    if place == "group":
        spec = {"name": "nightly", "groups": [{**GROUP, "conf": TOKYO}]}
    (cli.folder / "job.json").write_text(json.dumps(spec))
    for command in ("validate", "submit"):
        done = cli(command, "job.json")
        assert done.returncode == 2
        where = "defaults.conf" if place == "defaults" else "groups[0].conf"
        assert where in done.stderr
        assert "the time zone of this fleet is UTC" in " ".join(done.stderr.split())
        assert "UNSTUCK_TIME_ZONE" in done.stderr
    assert cli.json("list") == []
    with pytest.raises(SpecError, match="time zone of this fleet is UTC"):
        hand.client.submit(spec)
    assert cli("validate", "job.json", UNSTUCK_TIME_ZONE="Asia/Tokyo").returncode == 0


def test_the_conf_must_match_the_single_time_zone_of_a_job() -> None:
    spec = {"name": "nightly", "groups": [GROUP], "zone": "Asia/Tokyo", "defaults": {"conf": TOKYO}}
    JobSpec.from_values(spec, {}).check_zone("UTC")
    berlin = {"zone": "Europe/Berlin", "cron": "30 2 * * *"}
    scheduled = {**spec, "schedule": berlin, "zone": None}
    with pytest.raises(
        SpecError, match="is Asia/Tokyo, and the time zone of this job is Europe/Berlin"
    ):
        JobSpec.from_values(scheduled, {}).check_zone("Asia/Tokyo")
    with pytest.raises(
        SpecError, match="zone: a job with a schedule uses the zone of its schedule"
    ):
        JobSpec.from_values({**spec, "schedule": berlin}, {})
    with pytest.raises(SpecError, match="zone: 'Asia/Tokio' is no time zone"):
        JobSpec.from_values({**spec, "zone": "Asia/Tokio"}, {})


def test_show_prints_the_time_zone_of_a_job(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "a"}, {"name": "b"}, name="nightly")
    hand.decide(job)
    assert cli.json("show", job)["zones"] == []
    hand.succeed(job, "a", zone="Europe/Berlin")
    assert cli.json("show", job)["zones"] == ["Europe/Berlin"]
    assert " ".join(cli("show", job).stdout.split()).count("time zone Europe/Berlin") == 1
    hand.succeed(job, "b", zone="UTC")  # a worker that was set otherwise
    assert cli.json("show", job)["zones"] == ["Europe/Berlin", "UTC"]
