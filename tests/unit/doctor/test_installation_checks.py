"""What the doctor says of facts at hand: each trouble by its code, its level and a cure; nothing
where all is well.
"""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.project.test_project_files import ROOT
from unstuck.coordinator.model.fleet import FleetInfo, QueueInfo, StalledProcess
from unstuck.coordinator.problems.detect import detect
from unstuck.coordinator.problems.problem import Limits
from unstuck.coordinator.problems.queues import some
from unstuck.coordinator.problems.state import InstallationState
from unstuck.doctor import fleet_checks as fleet_health
from unstuck.doctor import installation_checks as doctor
from unstuck.doctor.examine import of_names
from unstuck.doctor.finding import Finding, Level
from unstuck.doctor.host_facts import WarehouseFacts, warehouse_facts
from unstuck.doctor.redis_facts import JobWarehouse, RecordFacts, ServerFacts
from unstuck.tasks.host import SPARKS
from unstuck.tasks.identity import RunsOn, minor
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo, WarehouseSeen
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse

SETTINGS = Settings()
INFO = {
    "valkey_version": "9.1.2",
    "redis_version": "7.2.4",
    "role": "master",
    "aof_enabled": 1,
    "maxmemory_policy": "noeviction",
    "used_memory": 10**6,
    "maxmemory": 0,
    "total_system_memory": 10**10,
}
WELL = ServerFacts(INFO, "everysec", 0.01, 0.01)
CALM = RecordFacts(0, None, 0, None, 2, -1.0, "j", 0.5, True, ())
COORDINATOR = CoordinatorInfo(
    id="c", host="h1", pid=1, queues=("control",), heard_at=999.0, read_at=990.0, swept_at=999.0
)
RUNNER = RunnerInfo(
    id="r",
    host="h2",
    pid=2,
    queues=("spark",),
    heard_at=999.0,
    worker_pid=1,
    claimed_at=850.0,
    taken_at=900.0,
)
FLEET = FleetInfo(
    1000.0, 999.5, (RUNNER,), (COORDINATOR,), (QueueInfo("control", 0, 1), QueueInfo("spark", 3, 1))
)
PLACE = WarehouseFacts("/w", True, "id1", True)


def server(**change: object) -> ServerFacts:
    """``WELL`` with other facts; those that are no field are of INFO."""
    fields = {name: change.pop(name) for name in ("fsync", "ahead", "unsure") if name in change}
    return replace(WELL, info={**INFO, **change}, **fields)  # type: ignore[arg-type]


def of_fleet(view: FleetInfo, open_jobs: int) -> list[Finding]:
    problems = detect(InstallationState(view, open_jobs=open_jobs), Limits())
    return list(fleet_health.of_problems(problems, view))


def ill(findings: Iterable[Finding]) -> list[tuple[str, Level]]:
    """Code and level of all that is not well. Every one of those has a cure, and no other has."""
    findings = list(findings)
    for one in findings:
        assert (one.cure == "") is (one.level is Level.OK), one
        assert one.text, one
    return [(one.code, one.level) for one in findings if one.level is not Level.OK]


def test_a_healthy_installation_has_no_problem_and_no_warning() -> None:
    findings = [
        *doctor.of_server(WELL, SETTINGS),
        *doctor.of_records(CALM, SETTINGS),
        *of_fleet(FLEET, 2),
        *fleet_health.of_versions(FLEET, RunsOn("0.1.0", "3.11.7")),
        *doctor.of_settings(SETTINGS),
        *doctor.of_java(17, "4.3.0"),
        doctor.of_warehouse(PLACE),
        *doctor.of_warehouse_and_jobs(PLACE, (JobWarehouse("j", "/w", "id1"),)),
        *doctor.of_warehouse_and_fleet(PLACE, FLEET),
    ]
    assert ill(findings) == []
    assert len({one.code for one in findings}) == len(findings) >= 18


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"valkey_version": "7.9.9"}, ("REDIS_VERSION", Level.PROBLEM)),
        ({"valkey_version": None, "redis_version": "6.2.14"}, ("REDIS_VERSION", Level.PROBLEM)),
        ({"cluster_enabled": 1}, ("REDIS_CLUSTER", Level.PROBLEM)),
        ({"role": "slave"}, ("REDIS_READ_ONLY", Level.PROBLEM)),
        ({"aof_enabled": 0}, ("REDIS_PERSISTENCE", Level.PROBLEM)),
        ({"fsync": "no"}, ("REDIS_PERSISTENCE", Level.PROBLEM)),
        ({"aof_last_write_status": "err"}, ("REDIS_PERSISTENCE", Level.PROBLEM)),
        ({"maxmemory_policy": "allkeys-lru"}, ("REDIS_EVICTION", Level.PROBLEM)),
        ({"used_memory": 80, "maxmemory": 100}, ("REDIS_MEMORY", Level.WARNING)),
        ({"used_memory": 95, "maxmemory": 100}, ("REDIS_MEMORY", Level.PROBLEM)),
        ({"used_memory": 95, "total_system_memory": 100}, ("REDIS_MEMORY", Level.PROBLEM)),
        ({"ahead": 30.0}, ("CLOCK", Level.WARNING)),
        ({"ahead": -30.0}, ("CLOCK", Level.WARNING)),
    ],
)
def test_a_redis_that_could_lose_data_is_reported(
    change: dict[str, object], found: tuple[str, Level]
) -> None:
    assert ill(doctor.of_server(server(**change), SETTINGS)) == [found]


@pytest.mark.parametrize(
    "change",
    [
        {"valkey_version": None, "redis_version": "7.0.0"},
        {"valkey_version": "8.0.1"},
        {"valkey_version": "10.0.0"},
        {"valkey_version": None, "redis_version": "7.10.2"},
        {"fsync": None},
        {"fsync": "always"},
        {"ahead": 30.0, "unsure": 31.0},
    ],
)
def test_harmless_conditions_are_not_reported(change: dict[str, object]) -> None:
    assert ill(doctor.of_server(server(**change), SETTINGS)) == []


def test_a_fleet_that_waits_for_replicas_needs_a_replica() -> None:
    durable = Settings(durability="replica")
    assert ill(doctor.of_server(WELL, durable)) == [("REDIS_PERSISTENCE", Level.PROBLEM)]
    assert ill(doctor.of_server(server(connected_slaves=1), durable)) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"unread_age": 15.0, "lag": 3}, ("REPORTS", Level.WARNING)),
        ({"unread_age": 100.0, "lag": None}, ("REPORTS", Level.PROBLEM)),
        ({"pending": 4, "pending_age": 40.0}, ("REPORTS", Level.WARNING)),
        ({"pending": 4, "pending_age": 400.0}, ("REPORTS", Level.PROBLEM)),
        ({"overdue": 15.0}, ("JOBS_OVERDUE", Level.WARNING)),
        ({"overdue": 90.0}, ("JOBS_OVERDUE", Level.PROBLEM)),
        ({"swept_age": 20.0}, ("SWEEP", Level.PROBLEM)),
        ({"swept_age": None}, ("SWEEP", Level.PROBLEM)),
        ({"swept_age": None, "open": 0}, ("SWEEP", Level.WARNING)),
        ({"newer": ("j9",)}, ("JOBS_NEWER", Level.WARNING)),
        ({"beat": False}, ("SWEEP", Level.WARNING)),
    ],
)
def test_work_that_waits_too_long_is_reported(
    change: dict[str, object], found: tuple[str, Level]
) -> None:
    assert ill(doctor.of_records(replace(CALM, **change), SETTINGS)) == [found]  # type: ignore[arg-type]


def test_sweeps_are_judged_by_the_interval_of_the_fleet_not_of_the_shell() -> None:
    assert (
        ill(doctor.of_records(replace(CALM, period=12.0, swept_age=11.0, overdue=30.0), SETTINGS))
        == []
    )
    late = [("JOBS_OVERDUE", Level.WARNING), ("SWEEP", Level.PROBLEM)]
    assert (
        ill(doctor.of_records(replace(CALM, period=12.0, swept_age=40.0, overdue=40.0), SETTINGS))
        == late
    )
    often = replace(CALM, period=0.2, swept_age=3.0)
    assert ill(doctor.of_records(often, Settings(sweep_every=12.0))) == [("SWEEP", Level.PROBLEM)]


def test_live_processes_are_listed_with_their_last_work_and_silent_ones_named() -> None:
    text = {one.code: one.text for one in of_fleet(FLEET, 0)}
    assert text["COORDINATORS"] == "h1:1 (last report 10s ago)"
    assert text["WORKERS"] == "h2:2 (last work 1m40s ago)"
    nobody = replace(
        FLEET,
        runners=(),
        coordinators=(),
        queues=(QueueInfo("big", 4, 0), QueueInfo("control", 1, 0)),
    )
    queues = [("QUEUES", Level.PROBLEM)] * 2
    worst = [("COORDINATORS", Level.PROBLEM), ("WORKERS", Level.PROBLEM), *queues]
    assert ill(of_fleet(nobody, 1)) == worst
    cures = [one.cure for one in of_fleet(nobody, 1) if one.code == "QUEUES"]
    assert "celery -A unstuck.tasks worker -Q big" in cures[0]
    assert "celery -A unstuck.coordinator worker" in cures[1]
    assert ("WORKERS", Level.PROBLEM) not in ill(of_fleet(nobody, 0))
    gone = replace(FLEET, runners=(RUNNER, replace(RUNNER, pid=3, silent=True)))
    assert ill(of_fleet(gone, 1)) == [("SILENT", Level.WARNING)]


def lying(since: float | None, **worker: object) -> list[Finding]:
    """A queue whose oldest message lies there since then, before one runner; it is 1000 now."""
    runner = replace(RUNNER, **{"idle_since": 500.0, **worker})  # type: ignore[arg-type]
    view = replace(FLEET, runners=(runner,), queues=(QueueInfo("spark", 300, 1, since),))
    return [one for one in of_fleet(view, 1) if one.code == "QUEUES"]


def test_a_queue_ignored_by_idle_runners_is_shown_with_their_worker() -> None:
    (found,) = lying(800.0)
    assert found.level is Level.PROBLEM
    assert "Messages wait on queue spark, the oldest for 3m20s" in found.text
    assert "worker h2:1" in found.text
    assert "unstuck fleet" in found.cure
    assert "restart" in found.cure


@pytest.mark.parametrize(
    ("since", "worker", "why"),
    [
        (990.0, {}, "it filled just now"),
        (None, {}, "nobody looked"),
        (800.0, {"job": "j", "idle_since": None}, "all are at work"),
        (800.0, {"idle_since": 999.5}, "the runner has just ended something, and takes the next"),
        (800.0, {"idle_since": None}, "its worker stops, or is of an older release"),
        (800.0, {"queues": ("light",)}, "who is idle does not listen there"),
    ],
)
def test_a_long_queue_alone_is_not_a_problem(
    since: float | None, worker: dict[str, object], why: str
) -> None:
    assert ill(lying(since, **worker)) == [], why


def test_a_control_queue_ignored_by_coordinators_is_reported_with_them() -> None:
    view = replace(FLEET, queues=(QueueInfo("control", 5000, 1, 800.0),))
    (found,) = [one for one in of_fleet(view, 1) if one.code == "QUEUES"]
    assert found.level is Level.PROBLEM
    assert "Messages wait on queue control, the oldest for 3m20s" in found.text
    assert "h1:1" in found.text
    assert "restart" in found.cure


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, ""),
        ({"used_memory": 99, "maxmemory": 100}, ""),
        ({"used_memory": 101, "maxmemory": 100}, "REDIS_MEMORY"),
        ({"rdb_last_bgsave_status": "err"}, "REDIS_PERSISTENCE"),
        ({"role": "slave"}, "REDIS_READ_ONLY"),
    ],
)
def test_processes_silent_due_to_refused_writes_are_not_reported_as_gone(
    change: dict[str, object], refused: str
) -> None:
    assert doctor.refused_writes(server(**change)) == refused
    silent = replace(FLEET, coordinators=(replace(COORDINATOR, silent=True),))
    told = {one.code: one for one in doctor.of_silence(of_fleet(silent, 1), refused)}
    assert told["COORDINATORS"].cure.startswith(
        f"First fix {refused}: " if refused else "Start one"
    )
    assert told["SILENT"].cure.startswith(
        f"First fix {refused}: " if refused else "If they were stopped"
    )
    assert told["WORKERS"].cure == ""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lease_renew": 5.0}, "UNSTUCK_LEASE_RENEW"),
        ({"lock_ttl": 6.0}, "UNSTUCK_LOCK_TTL"),
        ({"cancel_grace": 60.0}, "UNSTUCK_CANCEL_GRACE"),
        ({"sweep_every": 5.0}, "UNSTUCK_SWEEP_EVERY"),
        ({"dispatch_timeout": 1.0}, "UNSTUCK_DISPATCH_TIMEOUT"),
        ({"retention": 20.0}, "UNSTUCK_RETENTION"),
    ],
)
def test_conflicting_time_settings_are_reported_with_their_values(
    change: dict[str, float], named: str
) -> None:
    findings = doctor.of_settings(SETTINGS.model_copy(update=change))
    (found,) = [one for one in findings if one.level is Level.PROBLEM]
    assert found.code == "SETTINGS"
    assert named in found.text
    assert re.search(r"\(\d+s\)", found.text)


@pytest.mark.parametrize(
    ("change", "named", "cure"),
    [
        ({"drain_grace": 120.0}, "UNSTUCK_DRAIN_GRACE 120s", "wait 140s"),
        ({"cancel_grace": 30.0}, "UNSTUCK_CANCEL_GRACE 30s", "wait 60s"),
        ({"stalled_after": 0.0}, "UNSTUCK_STALLED_AFTER is 0", "a minute"),
    ],
)
def test_time_settings_that_need_user_attention_are_warned_about(
    change: dict[str, float], named: str, cure: str
) -> None:
    (found,) = doctor.of_settings(SETTINGS.model_copy(update=change))
    assert (found.code, found.level) == ("SETTINGS", Level.WARNING)
    assert named in found.text
    assert cure in found.cure


def test_stalled_workers_are_reported_after_they_have_ended() -> None:
    stalled = (StalledProcess("h2:9", 940.0), StalledProcess("h3:1", 400.0))
    (found,) = [
        one for one in of_fleet(replace(FLEET, stalled=stalled), 1) if one.level is not Level.OK
    ]
    assert (found.code, found.level) == ("STALLED", Level.WARNING)
    assert "h2:9 (1m00s ago), h3:1 (10m00s ago)" in found.text


def test_java_is_checked_only_where_a_worker_is_installed() -> None:
    assert ill(doctor.of_java(0, None)) == []
    assert ill(doctor.of_java(0, "4.3.0")) == [("JAVA", Level.PROBLEM)]
    assert ill(doctor.of_java(17, "4.3.0", lacks_connector=True)) == [("SPARK", Level.WARNING)]
    (old, _) = doctor.of_java(11, "4.3.0")
    assert "Java 11 is too old" in old.text


def test_an_untested_pyspark_is_reported_with_the_tested_versions() -> None:
    assert all(ill(doctor.of_java(17, f"{version}.1")) == [] for version in SPARKS)
    (_, found) = doctor.of_java(17, "4.10.0")
    assert (found.code, found.level) == ("SPARK", Level.WARNING)
    assert "PySpark 4.10.0" in found.text
    assert "3.5, 4.0, 4.3" in found.text


def test_the_server_version_is_shown() -> None:
    (version, *_) = doctor.of_server(WELL, SETTINGS)
    assert (version.code, version.text) == ("REDIS_VERSION", "Valkey 9.1.2")


OURS = RunsOn("0.1.0", "3.11.7")


def running(coordinator: RunsOn, worker: RunsOn) -> FleetInfo:
    return replace(
        FLEET,
        coordinators=(replace(COORDINATOR, runs_on=coordinator),),
        runners=(replace(RUNNER, runs_on=worker),),
    )


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (RunsOn("0.2.0", "3.11.7"), "Unstuck 0.1.0: this machine, h1:1; Unstuck 0.2.0: h2:2"),
        (RunsOn("0.1.0", "3.13.1"), "Python 3.11: this machine, h1:1; Python 3.13: h2:2"),
    ],
)
def test_a_fleet_with_several_releases_or_pythons_is_reported(worker: RunsOn, said: str) -> None:
    (found,) = fleet_health.of_versions(running(OURS, worker), OURS)
    assert (found.code, found.level, found.text) == ("VERSIONS", Level.WARNING, said)
    assert found.cure
    gone = running(OURS, worker)
    gone = replace(gone, runners=(replace(gone.runners[0], silent=True),))
    assert ill(fleet_health.of_versions(gone, OURS)) == [], "what the dead ran is no trouble"


@pytest.mark.parametrize(
    ("what", "older", "newer", "patch"),
    [
        ("Spark", "3.5.9", "4.3.0", "4.3.1"),
        ("Java", "17", "21", "21"),
        ("pandas", "2.2.3", "2.3.3", "2.3.4"),
        ("pyarrow", "25.0.0", "26.0.1", "26.0.2"),
    ],
)
def test_runners_with_several_versions_of_data_libraries_are_reported(
    what: str, older: str, newer: str, patch: str
) -> None:
    """Of runners alone: a coordinator, and the machine of who asks, make no rows."""
    name = what.lower()

    def runners(*versions: str) -> FleetInfo:
        those = [
            replace(RUNNER, host=f"h{number}", runs_on=replace(OURS, **{name: version}))
            for number, version in enumerate(versions, 2)
        ]
        return replace(running(OURS, OURS), runners=tuple(those))

    for here in (OURS, replace(OURS, **{name: "1.2.3"})):
        (found,) = fleet_health.of_versions(runners(older, newer, patch, ""), here)
        said = f"{what} {minor(older)}: h2:2; {what} {minor(newer)}: h3:2, h4:2"
        assert (found.level, found.text) == (Level.WARNING, said)
    assert ill(fleet_health.of_versions(runners(newer, patch, ""), OURS)) == []


def test_six_of_many_names_are_shown_and_the_rest_counted() -> None:
    said = {number: some([f"h{n}" for n in range(number)]) for number in (1, 6, 7, 1006)}
    assert said[1] == "h0"
    assert said[6] == (six := "h0, h1, h2, h3, h4, h5")
    assert said[7] == f"{six} and 1 more"
    assert said[1006] == f"{six} and 1,000 more"


def test_this_machine_may_be_the_different_one() -> None:
    (found,) = fleet_health.of_versions(running(OURS, OURS), RunsOn("0.2.0", "3.11.7"))
    assert (found.level, found.text) == (
        Level.WARNING,
        "Unstuck 0.1.0: h1:1, h2:2; Unstuck 0.2.0: this machine",
    )


def test_python_patch_versions_and_unknown_versions_are_ignored() -> None:
    (found,) = fleet_health.of_versions(running(RunsOn("0.1.0", "3.11.9"), RunsOn()), OURS)
    assert found.level is Level.OK
    assert "of 2 runners and coordinators 1 say that they run the same" in found.text


# -- the warehouse ---------------------------------------------------------------------------------


def test_testing_the_warehouse_leaves_it_unchanged(tmp_path: Path) -> None:
    known = Warehouse(str(tmp_path)).ensure_id()
    before = sorted(tmp_path.rglob("*"))
    seen = warehouse_facts(str(tmp_path), "word")
    made_at = (tmp_path / "_warehouse_id").stat().st_mtime
    room = replace(seen, free=None, disk=None)
    assert room == WarehouseFacts(str(tmp_path), True, known, True, made_at=made_at)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_warehouse_is_not_created(tmp_path: Path) -> None:
    seen = warehouse_facts(str(tmp_path / "not" / "there"), "word")
    assert ill([doctor.of_warehouse(seen)]) == [("WAREHOUSE", Level.WARNING)]
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("below", ["", "warehouse", "a/b"])
def test_a_file_in_place_of_the_warehouse_is_a_problem(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("a report")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, what in (
        ("file", "is a file, not a folder"),
        ("link", "is a link that leads nowhere"),
    ):
        seen = warehouse_facts(str(tmp_path / name / below).rstrip("/"), "word")
        found = doctor.of_warehouse(seen)
        assert (found.level, found.text.endswith(f"{tmp_path}/{name} {what}")) == (
            Level.PROBLEM,
            True,
        ), found.text
        assert doctor.of_warehouse_and_jobs(seen, (JobWarehouse("j", seen.uri, "id"),)) == []


def test_an_unusable_warehouse_is_a_problem_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "_warehouse_id").mkdir()  # cannot be read as a file
    found = doctor.of_warehouse(warehouse_facts(str(tmp_path), "word"))
    assert (found.code, found.level) == ("WAREHOUSE", Level.PROBLEM)
    assert "IsADirectoryError" in found.text
    unsafe = doctor.of_warehouse(replace(PLACE, creates_once=False))
    assert ill([unsafe]) == [("WAREHOUSE", Level.PROBLEM)]


def test_open_jobs_of_another_warehouse_at_the_same_path_are_reported() -> None:
    jobs = (
        JobWarehouse("j1", "/w", "id1"),
        JobWarehouse("j2", "/w", "other"),
        JobWarehouse("j3", "/elsewhere", "id3"),
    )
    (found,) = doctor.of_warehouse_and_jobs(PLACE, jobs)
    assert (found.code, found.level) == ("WAREHOUSE_ID", Level.PROBLEM)
    assert "j2 (other)" in found.text
    assert "j1" not in found.text
    assert ill(doctor.of_warehouse_and_jobs(PLACE, (jobs[0], jobs[2]))) == []
    assert ill(doctor.of_warehouse_and_jobs(WarehouseFacts("/w"), jobs)) == [
        ("WAREHOUSE_ID", Level.PROBLEM)
    ]


def test_a_full_warehouse_is_reported_with_the_remedy() -> None:
    for full in (errno.ENOSPC, errno.EDQUOT):
        found = doctor.of_warehouse(
            WarehouseFacts("/w", trouble=f"OSError: {OSError(full, os.strerror(full))}")
        )
        assert (found.level, found.cure) == (
            Level.PROBLEM,
            (
                "Make room: unstuck vacuum --dry-run, or a shorter UNSTUCK_RETENTION "
                "(docs/operate.md, "
                "free the disk)."
            ),
        )


def test_a_nearly_full_disk_is_reported_with_numbers_and_a_remedy(
    tmp_path: Path,
) -> None:
    nearly = replace(PLACE, free=9 * 10**9, disk=100 * 10**9)
    (found,) = doctor.of_disk(nearly)
    assert (found.code, found.level) == ("DISK", Level.WARNING)
    assert "/w has 9.0 GB of 100.0 GB free (91% full)" in found.text
    assert "unstuck vacuum" in found.cure
    assert ill(doctor.of_disk(replace(nearly, free=11 * 10**9))) == []
    assert doctor.of_disk(PLACE) == [], "a bucket has no disk"
    Warehouse(str(tmp_path)).ensure_id()
    assert [one.code for one in doctor.of_disk(warehouse_facts(str(tmp_path), "word"))] == ["DISK"]


def seeing(coordinator: WarehouseSeen, worker: WarehouseSeen) -> FleetInfo:
    return replace(
        FLEET,
        coordinators=(replace(COORDINATOR, warehouse=coordinator),),
        runners=(replace(RUNNER, warehouse=worker),),
    )


@pytest.mark.parametrize(
    ("worker", "named"),
    [
        (WarehouseSeen("/w", "id2"), "h2:2 (id2)"),
        (WarehouseSeen("/w", ""), "h2:2 (none)"),
        (WarehouseSeen("/w", trouble="no answer for 12s"), "h2:2 (no answer for 12s)"),
    ],
)
def test_processes_that_see_another_warehouse_at_the_same_path_are_reported(
    worker: WarehouseSeen, named: str
) -> None:
    well = WarehouseSeen("/w", "id1")
    for place in (PLACE, WarehouseFacts("/w")):  # also where this machine is the one without it
        (found,) = doctor.of_warehouse_and_fleet(place, seeing(well, worker))
        assert (found.code, found.level) == ("WAREHOUSE_SHARED", Level.PROBLEM)
        assert named in found.text
        assert "h1:1 (" not in found.text
        assert "id1" in found.text
    gone = seeing(well, worker)
    gone = replace(gone, runners=(replace(gone.runners[0], silent=True),))
    assert ill(doctor.of_warehouse_and_fleet(PLACE, gone)) == [], (
        "what a dead runner saw is no trouble"
    )


def test_processes_that_cannot_identify_the_warehouse_are_distinguished() -> None:
    well = WarehouseSeen("/w", "id1")
    (found,) = doctor.of_warehouse_and_fleet(PLACE, seeing(well, well))
    assert (found.level, found.text) == (
        Level.OK,
        "2 of 2 runners and coordinators say that they see the same there",
    )
    for silent in (WarehouseSeen(), WarehouseSeen("/w")):
        (found,) = doctor.of_warehouse_and_fleet(PLACE, seeing(well, silent))
        assert found.level is Level.OK
        assert "1 of 2 runners and coordinators say" in found.text
        assert "1 cannot say" in found.text
    none = WarehouseSeen("/w", "")
    assert ill(doctor.of_warehouse_and_fleet(WarehouseFacts("/w"), seeing(none, none))) == [], (
        "nobody has submitted yet"
    )


def test_processes_set_to_another_path_are_reported_with_it() -> None:
    (found,) = doctor.of_warehouse_and_fleet(
        PLACE, seeing(WarehouseSeen("/w", "id1"), WarehouseSeen("/mnt/w", "id1"))
    )
    assert (found.code, found.level) == ("WAREHOUSE_SHARED", Level.WARNING)
    assert "h2:2 (/mnt/w)" in found.text


def test_an_unknown_setting_variable_is_reported_with_a_suggestion() -> None:
    fine = ["UNSTUCK_LEASE_TTL", "UNSTUCK_DEBUG", "UNSTUCK_ARM", "unstuck_prefix", "PATH"]
    assert of_names(fine) == []
    (found,) = of_names([*fine, "UNSTUCK_LEAS_TTL"])
    assert (found.code, found.level) == ("SETTINGS", Level.WARNING)
    assert found.text.startswith("UNSTUCK_LEAS_TTL is set and is no setting")
    assert "did you mean 'UNSTUCK_LEASE_TTL'?" in found.text


# -- the page --------------------------------------------------------------------------------------


def test_every_code_has_a_remedy_on_the_troubleshooting_page() -> None:
    page = (
        (ROOT / "docs" / "troubleshooting.md").read_text().partition("## What the doctor finds")[2]
    )
    rows = set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE))
    codes = set()
    for path in (
        "src/unstuck/doctor/installation_checks.py",
        "src/unstuck/doctor/fleet_checks.py",
        "src/unstuck/doctor/examine.py",
    ):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(
                r"[A-Z]{3,}(_[A-Z]+)*", str(node.value)
            ):
                codes.add(node.value)
    codes = {code for code in codes if not code.startswith("UNSTUCK_")}  # settings
    assert rows == codes - {"CHECK", "FOUND", "NOAUTH"}  # heads of columns, and a word of Redis
