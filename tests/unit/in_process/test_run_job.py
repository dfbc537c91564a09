"""Jobs in this process: what a fleet would have done, in milliseconds."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps.small_steps import three
from unstuck import Job, JobSpec, Settings, SpecError, Status
from unstuck.coordinator.errors import BadRequest, NoSuchGroup
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.selection import select
from unstuck.in_process.limits_of_one import notes_on_one_process
from unstuck.in_process.run_job import InProcess, JobResult
from unstuck.read_model.job import JobInfo
from unstuck.tasks.errors import HostUnfit, Unrecoverable
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow
from unstuck.views.jobs.job_lines import lines_of

STEPS = "tests.support.steps.small_steps"


def group(name: str, step: str, *needs: str, output: str = "", **more: Any) -> dict[str, Any]:
    params = more.pop("params", {})
    step_spec = {
        "python": f"{STEPS}:{step}",
        "params": params,
        **({"output": output} if output else {}),
    }
    return {"name": name, "spark": False, "needs": list(needs), "steps": [step_spec], **more}


THREE = group("rows", "three", output="rows")
DOUBLED = group("twice", "doubled", "rows", output="twice", params={"of": "rows"})


@pytest.fixture
def here(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(tmp_path / "warehouse") as made:
        yield made


def rows(here: InProcess, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_arrow(Warehouse(here.settings.warehouse), name).to_pylist()
    return found


def test_a_job_runs_and_publishes_without_redis_or_a_fleet(here: InProcess) -> None:
    ended = here.run({"name": "tiny", "groups": [THREE, DOUBLED]})
    assert ended.finished
    assert ended.results == {"twice": {"sum": 12}}
    assert rows(here, "twice") == [{"n": 2}, {"n": 4}, {"n": 6}]
    assert [event["kind"] for event in ended.events()][-2:] == ["PUBLISHING", "FINISHED"]


def test_an_unknown_table_is_refused_before_the_first_group(here: InProcess) -> None:
    typo = {
        "name": "report",
        "needs": ["rows"],
        "steps": [{"sql": "SELECT * FROM rowz", "output": "report"}],
    }
    with pytest.raises(SpecError, match=r"cannot read a table rowz: .*did you mean 'rows'"):
        here.run(
            {"name": "tiny", "groups": [THREE, typo]}
        )  # the code of `three` shows that it writes no rowz
    assert not Warehouse(here.settings.warehouse).head()


def test_a_version_lists_the_code_of_the_groups_in_its_lineage(here: InProcess) -> None:
    groups = [THREE, DOUBLED, group("other", "three", output="other")]
    here.run({"name": "tiny", "publish": ["rows", "twice", "other"], "groups": groups})
    changes = Warehouse(here.settings.warehouse).existing_entry(1).datasets
    codes = {name: [*change.steps] for name, change in changes.items()}
    assert codes == {"rows": ["rows"], "twice": ["rows", "twice"], "other": ["other"]}


def test_backoffs_are_skipped_and_retries_follow_the_spec(here: InProcess) -> None:
    flaky = {**THREE, "retry": {"max": 3, "backoff": "2h", "max_backoff": "1d", "jitter": 0}}
    began = here.clock()
    ended = here.run(
        {"name": "tiny", "groups": [flaky]}, fail={"rows": TimeoutError("no answer")}, times=3
    )
    assert ended.finished
    assert ended.group("rows").attempts == 4
    assert here.clock() - began > 3 * 7200


def test_freshness_is_measured_by_the_job_clock_without_skipped_waits(
    tmp_path: Path,
) -> None:
    made = {
        **group("now", "made_at", output="now", params={"at": "2020-01-01T00:00:00"}),
        "retry": {"backoff": "2h"},
    }
    fresh = {"now": {"expect": {"fresh": {"column": "at", "within": "1h"}}}}
    spec = {"name": "tiny", "groups": [made], "outputs": fresh}
    with InProcess(
        tmp_path / "warehouse", now=datetime.datetime(2020, 1, 1, 0, 30, tzinfo=datetime.UTC)
    ) as here:
        ended = here.run(spec, fail={"now": TimeoutError("no answer")})
        assert ended.finished, ended.why()
    with InProcess(
        tmp_path / "warehouse", now=datetime.datetime(2020, 1, 1, 2, tzinfo=datetime.UTC)
    ) as here:
        assert "2h00m old" in here.run(spec).why()


def test_a_permanently_failing_step_publishes_nothing_and_gives_a_reason(here: InProcess) -> None:
    failing = {**group("bad", "refuse", "rows"), "retry": {"max": 1}}
    ended = here.run({"name": "tiny", "groups": [THREE, failing]})
    assert (ended.status, ended.group("bad").state) == (Status.FAILED, GroupState.FAILED)
    assert "this row is not to be had" in ended.why()
    assert Warehouse(here.settings.warehouse).head() == 0


def test_a_fork_runs_each_member_and_names_a_failing_one(here: InProcess) -> None:
    fork = group("by_day", "of_member", output="days", for_each={"day": [1, 2, 3]})
    ended = here.run({"name": "tiny", "groups": [fork]}, fail={"by_day[2]": KeyError})
    assert ended.finished
    assert [ended.group(f"by_day[{n}]").attempts for n in range(3)] == [1, 1, 2]
    assert sorted(row["day"] for row in rows(here, "days")) == [1, 2, 3]


def test_a_fork_over_mappings_gives_each_member_a_mapping(
    here: InProcess,
) -> None:
    models = [{"depth": 3, "eta": 0.1}, {"depth": 5, "eta": 0.3}]
    fork = group("train", "of_model", output="models", for_each={"model": models})
    ended = here.run(
        {"name": "tiny", "groups": [fork]}, fail={"train[1]": Unrecoverable("too deep")}
    )
    assert ended.status is Status.FAILED
    assert dict(ended.group("train[0]").results) == {"depth": 3, "eta": 0.1}
    shown = [line.name for line in lines_of(ended.view, here.clock()) if line.member]
    assert shown == ["train[1] model.depth=5 model.eta=0.3"]
    assert "train[1]" in ended.why()


def test_jobs_of_one_process_share_the_warehouse(here: InProcess) -> None:
    here.run({"name": "first", "groups": [THREE]})
    reads = {
        **group("twice", "doubled", output="twice", params={"of": "rows"}),
        "inputs": {"rows": "rows"},
    }
    assert here.run({"name": "second", "groups": [reads]}).results == {"twice": {"sum": 12}}


def test_a_group_that_exceeds_its_timeout_is_interrupted(here: InProcess) -> None:
    ended = here.run(
        {"name": "tiny", "groups": [group("slow", "sleep", timeout=0.1, retry={"max": 0})]}
    )
    assert ended.status is Status.FAILED
    assert "TIMEOUT: the group ran longer than its timeout of 0.1s" in ended.why()


def test_an_injected_failure_of_a_fork_applies_to_all_members(here: InProcess) -> None:
    fork = group("by_day", "of_member", output="days", for_each={"day": [1, 2]})
    ended = here.run({"name": "tiny", "groups": [fork]}, fail={"by_day": KeyError("gone")}, times=2)
    assert [ended.group(f"by_day[{n}]").attempts for n in range(2)] == [3, 3]


def test_an_injected_failure_of_an_unknown_group_is_refused_with_a_suggestion(
    here: InProcess,
) -> None:
    with pytest.raises(NoSuchGroup, match="did you mean 'rows'"):
        here.run({"name": "tiny", "groups": [THREE]}, fail={"row": KeyError})


def test_a_run_restores_the_logging_configuration(here: InProcess) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers), [handler.level for handler in root.handlers]
    assert here.run({"name": "tiny", "groups": [THREE]}).finished
    assert (root.level, root.handlers, [handler.level for handler in root.handlers]) == before


def test_steps_use_the_configured_time_zone_and_this_process_keeps_its_own(
    here: InProcess,
) -> None:
    before = time.tzname
    here.settings.time_zone = "Asia/Tokyo"
    assert here.run({"name": "tiny", "groups": [group("zone", "zone")]}).results == {
        "zone": {"zone": "JST"}
    }
    assert time.tzname == before


def test_a_partial_run_reads_published_data_or_reports_that_it_is_missing(
    here: InProcess,
) -> None:
    job = {"name": "tiny", "groups": [THREE, DOUBLED], "publish": ["rows", "twice"]}
    with pytest.raises(BadRequest, match="group twice reads rows of group rows, which is left out"):
        here.run(job, only=["twice"])
    assert here.run(job, until=["rows"]).view.published == {"rows": 3}
    assert here.run(job, only=["twice"]).results == {"twice": {"sum": 12}}


def test_after_the_job_only_published_files_of_its_staging_remain(
    here: InProcess,
) -> None:
    ended = here.run({"name": "tiny", "groups": [THREE, DOUBLED]}, fail={"rows": KeyError})
    staging = Path(here.settings.warehouse, "_staging", ended.job_id)
    assert [path.name for path in staging.rglob("*") if path.is_file()] == [
        "_marker.json",
        "part-00000.parquet",
    ]
    assert len(rows(here, "twice")) == 3
    failed = here.run({"name": "tiny", "groups": [{**group("bad", "refuse"), "retry": {"max": 0}}]})
    assert not Path(here.settings.warehouse, "_staging", failed.job_id).exists()


def test_staging_and_logs_are_kept_on_request(here: InProcess) -> None:
    ended = here.run(
        {"name": "tiny", "groups": [{**group("bad", "refuse"), "retry": {"max": 0}}]}, keep=True
    )
    (log,) = Path(here.settings.warehouse, "_staging", ended.job_id, "job.logs").glob("bad.*.log")
    assert "this row is not to be had" in log.read_text()


def test_a_step_that_needs_a_fleet_is_refused_before_anything_runs(here: InProcess) -> None:
    compact = {"name": "small", "spark": False, "steps": [{"compact": "rows"}]}
    with pytest.raises(BadRequest, match="compact: in group small"):
        here.run({"name": "tiny", "groups": [THREE, compact]})
    assert not Path(here.settings.warehouse).exists()


def test_a_spark_job_is_refused_if_the_settings_disable_spark(
    tmp_path: Path,
) -> None:
    job = {"name": "one", "groups": [{"name": "one", "steps": [{"sql": "SELECT 1"}]}]}
    with (
        InProcess(tmp_path, settings=Settings(spark_master="none")) as here,
        pytest.raises(HostUnfit, match="--only"),
    ):
        here.run(job)


def test_spec_parts_without_effect_in_one_process_are_reported() -> None:
    spec = {
        "schedule": {"every": "1h"},
        "notify": [{"on": ["failed"], "to": "ops"}],
        "groups": [{**THREE, "fresh": True}],
    }
    told_of = list(notes_on_one_process(JobSpec.from_values({"name": "tiny", **spec}, None)))
    assert [line.partition(":")[0] for line in told_of] == ["schedule", "notify", "fresh"]


def test_a_partial_run_warns_of_missing_publishes_and_rows_of_earlier_runs() -> None:
    how = {"rows": {"mode": "append"}, "twice": {"mode": "append"}}
    spec = JobSpec.from_values(
        {"name": "tiny", "groups": [THREE, DOUBLED], "outputs": how, "publish": ["rows", "twice"]},
        None,
    )
    [sentence] = notes_on_one_process(spec, select(spec, ["twice"], (), ()))
    assert sentence.startswith(
        "twice reads all rows of rows that are published, those of earlier runs too"
    )
    fork = JobSpec.from_values(
        {"name": "tiny", "groups": [{**THREE, "for_each": {"first": [1, 2]}}]}, None
    )
    assert next(notes_on_one_process(fork, select(fork, ["rows[1]"], (), ()))).startswith(
        "nothing is published: of rows single members"
    )
    replaced = spec.model_copy(update={"outputs": {}})
    assert list(notes_on_one_process(replaced, select(replaced, ["twice"], (), ()))) == []


def test_a_job_written_in_python_can_run_itself(tmp_path: Path) -> None:
    job = Job("tiny", params={"first": int})
    job.group("rows", output="rows", spark=False)(three)
    ended = job.run({"first": 7}, warehouse=tmp_path)
    assert ended.finished
    assert read_arrow(Warehouse(str(tmp_path)), "rows")["n"].to_pylist() == [7, 8, 9]


def test_submitting_the_same_key_returns_the_same_job(here: InProcess) -> None:
    job = {"name": "tiny", "groups": [THREE]}
    assert here.run(job, key="today").job_id == here.run(job, key="today").job_id


def test_an_unwritable_warehouse_is_given_up_after_some_tries(here: InProcess) -> None:
    here.run({"name": "tiny", "groups": [THREE]})
    ended = here.run({"name": "tiny", "groups": [THREE, group("spoils", "break_log")]})
    assert not ended.finished
    assert "could not be published yet" in ended.why()


def test_the_state_of_a_wide_fork_is_not_printed_on_every_change(here: InProcess) -> None:
    fork = group("by_day", "of_member", output="days", for_each={"day": list(range(40))})
    shown: list[JobInfo] = []
    assert here.run({"name": "tiny", "groups": [fork]}, on_change=shown.append).finished
    assert shown[-1].status is Status.FINISHED


def test_a_run_keeps_the_staging_of_a_concurrent_run(here: InProcess) -> None:
    beside: list[JobResult] = []

    def run_another(view: JobInfo) -> None:
        if not beside and view.groups[0].states.get(GroupState.SUCCEEDED):
            with InProcess(here.settings.warehouse) as other:
                beside.append(other.run({"name": "beside", "groups": [THREE]}))

    assert here.run({"name": "tiny", "groups": [THREE, DOUBLED]}, on_change=run_another).finished
    assert [ended.finished for ended in beside] == [True]
    assert len(rows(here, "twice")) == 3


def test_a_long_step_causes_no_request_for_a_coordinator(here: InProcess) -> None:
    told_why: list[str] = []

    def long_step(view: JobInfo) -> None:
        told_why.append(view.why_line(view.id))
        if view.groups[0].states.get(GroupState.RUNNING):
            here.clock.jump(60)

    assert here.run({"name": "tiny", "groups": [THREE]}, on_change=long_step).finished
    assert [why for why in told_why if "coordinator" in why] == []
