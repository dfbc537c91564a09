"""The owner of a dataset: the first job name that publishes it, until another one takes it over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.failpoints import Death, Died, Once, armed
from tests.unit.coordinator.publishing.test_publish_outputs import FLIGHTS, StagedJob
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.restore import restore
from unstuck.coordinator.schedules.run_outcome import seen_in_log
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.spec.outputs import REJECTED, OutputSpec
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import SNAPSHOT_EVERY, Warehouse
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, write_marker


class Team:
    """Publishes the dataset ``flights`` from jobs of several names, into one warehouse."""

    def __init__(self, root: str) -> None:
        self.root, self.jobs = root, 0

    def publish(
        self, name: str, *, rows: int = 1, shared_with: tuple[str, ...] = (), **more: Any
    ) -> PublishResult:
        """Publish as a new job of this name."""
        return self.again(self.job(name, rows), shared_with=shared_with, **more)

    def job(self, name: str, rows: int = 1) -> StagedJob:
        self.jobs += 1
        job = StagedJob(self.root, f"job-{self.jobs}", name=name)
        job.stage("load", rows=rows, flights=10)
        return job

    def again(
        self, job: StagedJob, *, shared_with: tuple[str, ...] = (), **more: Any
    ) -> PublishResult:
        spec = OutputSpec(shared_with=shared_with)
        request = job.request(
            sources=job.sources, published_by={"load"}, outputs={"flights": spec}, **more
        )
        return publish(request)

    @property
    def owner(self) -> tuple[str, list[str]]:
        owner = Warehouse(self.root).dataset("flights").owner
        assert owner is not None
        return owner.job_name, owner.shared_with

    @property
    def rows(self) -> int:
        return Warehouse(self.root).dataset("flights").rows


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(str(tmp_path / "warehouse"))


def test_a_job_with_another_name_is_refused_with_both_names_and_a_remedy(team: Team) -> None:
    team.publish("daily", rows=33)

    failed = team.publish("typo", rows=1).failed

    assert failed is not None
    assert failed.code == "DATASET_OWNED"
    assert "job typo may not publish flights, which job daily owns" in failed.text
    assert "list typo in shared_with: of the output flights of job daily" in failed.text
    assert "submit typo with --take-over" in failed.text
    assert (team.rows, team.owner) == (33, ("daily", []))
    assert team.publish("daily", rows=34).version == 3, (
        "the owner publishes again, whichever of its jobs"
    )


def test_a_schedule_halts_after_an_unrecoverable_failure(team: Team) -> None:
    team.publish("daily")
    assert seen_in_log(team.publish("typo"), 0.0).final


@pytest.mark.parametrize(
    ("pattern", "name"), [("night", "night"), ("night_*", "night_late"), ("[ab]*", "b1")]
)
def test_a_dataset_is_shared_by_names_and_patterns_and_keeps_its_owner(
    team: Team, pattern: str, name: str
) -> None:
    team.publish("daily", shared_with=(pattern,))

    assert team.publish(name, rows=5, shared_with=("typo",)).version == 2
    assert (team.rows, team.owner) == (5, ("daily", [pattern])), (
        "who shares it cannot share it further"
    )
    assert team.publish("typo").failed

    team.publish("daily")
    failed = team.publish(name).failed
    assert failed is not None, "the newest version of the owner says who may publish"
    assert failed.code == "DATASET_OWNED"


def test_a_takeover_changes_the_owner_and_the_log_names_the_previous_one(
    team: Team,
) -> None:
    team.publish("daily", shared_with=("night",))

    result = team.publish("renamed", rows=7, take_over=True)

    assert (result.version, result.taken_over) == (2, {"flights": "daily"})
    assert (team.rows, team.owner) == (7, ("renamed", []))
    assert Warehouse(team.root).existing_entry(2).datasets["flights"].taken_from == "daily"
    assert team.publish("daily").failed
    assert team.publish("renamed", take_over=True).taken_over == {}, "it owns the dataset already"


def test_the_first_of_two_concurrent_publishers_owns_a_new_dataset(team: Team) -> None:
    loser = team.job("loser", rows=1)
    with armed(Once(lambda: team.publish("winner", rows=33), [Point.BEFORE_ENTRY])):
        failed = team.again(loser).failed

    assert failed is not None
    assert failed.code == "DATASET_OWNED"
    assert (team.rows, team.owner) == (33, ("winner", []))


def test_a_takeover_whose_reply_was_lost_returns_the_same_answer(team: Team) -> None:
    team.publish("daily")
    job = team.job("renamed")
    with armed(Death([Point.AFTER_ENTRY])), pytest.raises(Died):
        team.again(job, take_over=True)
    team.publish("third", take_over=True)

    assert team.again(job, take_over=True).taken_over == {"flights": "daily"}
    assert team.owner == ("third", []), "a message that comes twice takes nothing back"


def test_user_commands_and_rows_without_a_job_keep_the_owner(
    team: Team, client: redis.Redis
) -> None:
    team.publish("", rows=1)
    team.publish("daily", rows=2, shared_with=("night",))
    warehouse = Warehouse(team.root)
    restore(warehouse, StagingIndex(client, Keys()), "flights", 1, by="anna")
    assert team.publish("", rows=3).version == 4

    assert (team.rows, team.owner) == (3, ("daily", ["night"]))
    assert team.publish("typo").failed


def test_a_log_snapshot_contains_the_owner(team: Team) -> None:
    team.publish("daily", shared_with=("night",))
    team.publish("renamed", take_over=True)
    for _ in range(SNAPSHOT_EVERY):
        team.publish("renamed", shared_with=("night",))

    assert team.owner == ("renamed", ["night"])
    assert team.publish("daily").failed


def test_rejected_rows_belong_to_the_owner_of_their_output(team: Team) -> None:
    def publish_with_rejected(job_id: str, name: str) -> PublishResult:
        job, files = StagedJob(team.root, job_id, name=name), Files(team.root)
        staging, made = f"_staging/{job_id}/load/1-n-c", {}
        for output, of in (("flights", ""), (f"flights{REJECTED}", "flights")):
            files.write_durable(path := f"{staging}/{output}/part-0.parquet", b"x" * 10)
            made[output] = StagedOutput([DataFile(path, 1, 10)], 1, FLIGHTS, rejected_of=of)
        write_marker(files, staging, Marker(f"{job_id}/load", "same", made, {}, {}, 1.0))
        job.sources["load"] = (staging,)
        return team.again(job, shared_with=("night",))

    team.publish("daily", shared_with=("night",))
    assert publish_with_rejected("night-1", "night").version == 2
    assert publish_with_rejected("daily-1", "daily").version == 3
    rejected = Warehouse(team.root).dataset(f"flights{REJECTED}").owner
    assert rejected is not None
    assert rejected.job_name == "daily"
