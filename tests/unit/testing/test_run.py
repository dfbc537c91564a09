"""A job of a test runs to its end in this process, and its run says what became of it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck import BadRequest, DatasetNotFound, Job, JobSpec, NoSuchGroup, SpecError, Unrecoverable
from unstuck.testing import Unstuck

SCHEMA = "id BIGINT, region INT"
STEPS = "tests.unit.testing.shop_steps"
ONE, TWO, THREE = ({"id": n, "region": region} for n, region in ((1, 2), (2, 3), (3, 2)))


def group(name: str, function: str, output: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "spark": False,
        "steps": [{"python": f"{STEPS}:{function}", "output": output}],
        **more,
    }


def shop(format: str = "json", **stream: Any) -> dict[str, Any]:
    events = {"stream": "/landing/orders", "format": format, "schema": SCHEMA, **stream}
    regions = {
        "needs": ["load"],
        "for_each": {"region": [2, 3]},
        "retry": {"max": 2, "backoff": "10m"},
    }
    return {
        "name": "shop",
        "schedule": {"cron": "30 2 * * *", "zone": "Europe/Berlin"},
        "params": {"day": {"type": "date", "default": "tick"}},
        "outputs": {"orders": {"mode": "append"}},
        "publish": ["orders", "total"],
        "groups": [
            group("load", "load", "orders", inputs={"events": events}),
            group("by_region", "of_region", "by_region", **regions),
            group("total", "total", "total", needs=["by_region"]),
        ],
    }


DAY = {"day": "2026-01-01"}


def test_a_finished_run_has_its_outputs_results_and_groups(
    unstuck: Unstuck, told: list[str]
) -> None:
    unstuck.arrive("events", [ONE, TWO])
    run = unstuck.run(shop(), DAY)
    assert run.finished
    assert (str(run.status), run.params, run.published) == ("FINISHED", DAY, ["orders", "total"])
    assert run.rows("total") == [{"orders": 2}]
    assert run.rows("orders", order_by="id") == [{**ONE, **DAY}, {**TWO, **DAY}]
    assert list(run.frame("by_region")["region"]) == [
        2,
        3,
    ]  # not published: as its groups have written it
    assert run.results["load"]["rows"] == 2
    member = run.group("by_region[1]")
    assert (member.state, member.attempts, member.results) == ("SUCCEEDED", 1, {})
    assert run.events()[0]["kind"] == "SUBMITTED"
    assert told == [run.why()]
    with pytest.raises(NoSuchGroup, match="has no group by_regoin"):
        run.group("by_regoin[0]")
    with pytest.raises(DatasetNotFound, match=r"made an output 'totla'; did you mean 'total'\?"):
        run.rows("totla")


def test_a_group_fails_the_requested_number_of_times_without_waiting(unstuck: Unstuck) -> None:
    unstuck.arrive("events", [ONE, TWO])
    run = unstuck.run(shop(), DAY, fail={"by_region[1]": TimeoutError("no answer")}, times=2)
    assert run.finished
    assert (run.group("by_region[0]").attempts, run.group("by_region[1]").attempts) == (1, 3)
    waited = [event["at"] for event in run.events()]
    assert waited[-1] - waited[0] > 400  # on the clock of the job


def test_an_injected_failure_of_a_fork_fails_each_member(
    unstuck: Unstuck,
) -> None:
    unstuck.arrive("events", [ONE, TWO])
    run = unstuck.run(shop(), DAY, fail={"by_region": TimeoutError})
    assert [run.group(f"by_region[{n}]").attempts for n in (0, 1)] == [2, 2]
    with pytest.raises(NoSuchGroup, match=r"no group by_regoin\[0\]; did you mean"):
        unstuck.run(shop(), DAY, fail={"by_regoin[0]": TimeoutError})


@pytest.mark.parametrize(
    ("error", "attempts"), [(TimeoutError("no answer"), 3), (Unrecoverable("no such shop"), 1)]
)
def test_a_failed_run_has_a_reason_and_publishes_nothing(
    unstuck: Unstuck, told: list[str], error: Exception, attempts: int
) -> None:
    unstuck.arrive("events", [ONE, TWO])
    run = unstuck.run(shop(), DAY, fail={"by_region[1]": error}, times=9)
    assert not run.finished
    failed = run.group("by_region[1]")
    assert failed.reason is not None
    assert (failed.state, failed.attempts) == ("FAILED", attempts)
    assert str(error) in failed.reason.text
    assert str(error) in repr(run)
    assert str(error) in told[-1]
    assert run.published == []
    with pytest.raises(DatasetNotFound, match="nothing yet"):
        unstuck.rows("total")
    assert run.rows("orders", order_by="id") == [
        {**ONE, **DAY},
        {**TWO, **DAY},
    ]  # what was done can be looked at


def test_a_late_file_is_read_by_the_next_run_and_each_file_once(unstuck: Unstuck) -> None:
    unstuck.arrive("events", [ONE])
    unstuck.arrive("events", [TWO])
    assert unstuck.run(shop(), DAY).rows("total") == [{"orders": 2}]
    unstuck.arrive("/landing/orders", [THREE], file="late.json")
    late = unstuck.run(shop(), {"day": "2026-01-02"})
    assert late.rows("total") == [{"orders": 1}]
    assert [row["id"] for row in unstuck.rows("orders", order_by="id")] == [1, 2, 3]
    assert not unstuck.run(shop(), DAY).results["load"]["rows"]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("json", {}),
        ("json", {"multiLine": "true"}),
        ("csv", {"header": "true"}),
        (
            "csv",
            {"sep": ";", "encoding": "ISO-8859-1", "nullValue": "-"},
        ),  # without names: by place
        ("parquet", {}),
        ("orc", {}),
    ],
)
def test_rows_arrive_in_the_format_of_the_stream(
    unstuck: Unstuck, format: str, options: dict[str, str]
) -> None:
    schema = "id BIGINT, name STRING, at TIMESTAMP, new BOOLEAN"
    moment = datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.UTC)
    rows = [
        {"id": 1, "name": 'a "b", c;\nü', "at": moment, "new": True},
        {"id": 2, "name": "none", "at": None, "new": None},
    ]
    unstuck.arrive("events", [dict(reversed(row.items())) for row in rows])
    run = unstuck.run(shop(format, schema=schema, options=options), DAY)
    assert run.rows("orders", order_by="id") == [{**row, **DAY} for row in rows], run.why()


@pytest.mark.parametrize("format", ["json", "csv", "text"])
def test_lines_arrive_unchanged(unstuck: Unstuck, format: str) -> None:
    schema = "value STRING" if format == "text" else "id BIGINT, region INT"
    unstuck.arrive("events", ['{"id": 1, "region": 2}'] if format == "json" else ["1,2"])
    run = unstuck.run(shop(format, schema=schema), DAY)
    assert run.rows("orders") == [{**({"value": "1,2"} if format == "text" else ONE), **DAY}]


def test_the_content_of_a_file_arrives_unchanged(unstuck: Unstuck, tmp_path: Path) -> None:
    unstuck.arrive("events", '{"id": 1, "region": 2}\n{"id": 2, "reg', file="broken{1}.json")
    run = unstuck.run(shop(), DAY)
    assert "broken{1}.json" in run.why()
    assert "line 2" in run.why()
    unstuck.arrive("events", parquet([ONE]))
    (tmp_path / "mine.parquet").write_bytes(parquet([TWO]))
    unstuck.arrive("events", tmp_path / "mine.parquet")
    run = unstuck.run(shop("parquet", schema=f"{SCHEMA}, _file STRING", ignore=["broken*"]), DAY)
    assert run.rows("total") == [{"orders": 2}]
    assert sorted(Path(row["_file"]).name for row in run.rows("orders")) == [
        "000002.parquet",
        "mine.parquet",
    ]


def test_arrivals_for_an_unknown_stream_are_refused_before_the_run(unstuck: Unstuck) -> None:
    unstuck.arrive("event", [ONE])
    with pytest.raises(
        ValueError, match=r"arrive\('event'\): the job shop has no such stream; there are: events"
    ):
        unstuck.run(shop(), DAY)
    with pytest.raises(TypeError, match="is a list of rows"):
        unstuck.arrive("events", 7)


def test_a_kafka_topic_is_refused_with_the_testable_alternative(unstuck: Unstuck) -> None:
    spec = shop()
    topic = {"stream": "kafka://broker/orders", "format": "json", "schema": "id BIGINT"}
    spec["groups"][0]["inputs"] = {"events": topic}
    with pytest.raises(NotImplementedError, match=r"Kafka topic.* inputs=\{'events': rows\}"):
        unstuck.run(spec, DAY)


def test_a_published_dataset_is_readable_and_a_failed_expectation_is_reported(
    unstuck: Unstuck,
) -> None:
    spec = {
        "name": "regions",
        "outputs": {"one": {"expect": {"rows": {"min": 2}}}},
        "groups": [
            group("one", "of_region", "one", inputs={"orders": "orders"}, params={"region": 3})
        ],
    }
    unstuck.publish("orders", [ONE, TWO])
    refused = unstuck.run(spec)
    assert not refused.finished
    assert "at least 2 are expected" in refused.why()
    unstuck.publish("orders", [TWO], mode="append")
    assert unstuck.run(spec).rows("one") == [TWO, TWO]


job = Job("python", params={"region": int})


@job.group(name="one", output="one", inputs={"orders": "orders"}, spark=False)
def of_region(spark: None, ctx: Any, region: int) -> Any:
    return ctx.input("orders")


def test_a_job_is_given_as_a_value_a_file_or_a_name(unstuck: Unstuck, tmp_path: Path) -> None:
    unstuck.publish("orders", [ONE])
    (tmp_path / "job.json").write_text(json.dumps(job.spec().dumped()))
    spec = JobSpec.from_file(tmp_path / "job.json")
    for one in (
        job,
        f"{__name__}:job",
        tmp_path / "job.json",
        str(tmp_path / "job.json"),
        spec,
        spec.dumped(),
    ):
        assert unstuck.run(one, {"region": 2}).rows("one") == [ONE]
    with pytest.raises(SpecError, match="cannot be read"):
        unstuck.run("none.yaml")
    with pytest.raises(SpecError, match="a value is required"):
        unstuck.run(job)


def test_a_partial_run_reads_published_outputs_of_other_groups(unstuck: Unstuck) -> None:
    spec = shop()
    spec["groups"][0]["inputs"] = {
        "events": {"stream": "kafka://b/t", "format": "json", "schema": SCHEMA}
    }
    unstuck.publish("orders", [ONE, TWO, THREE])
    run = unstuck.run(spec, DAY, only="by_region")
    assert len(run.rows("by_region")) == 3
    assert run.group("by_region[0]").state == "SUCCEEDED"
    run = unstuck.at("2026-01-01 02:30", spec).run(from_=["by_region"])
    assert run.rows("total") == [{"orders": 3}]
    with pytest.raises(BadRequest, match="reads by_region of group by_region, which is left out"):
        unstuck.run(spec, DAY, only=["total"])
    with pytest.raises(NoSuchGroup, match="by_regoin"):
        unstuck.run(spec, DAY, until="by_regoin")


# -- schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "tick"),
    [
        ("2026-03-29 02:30", "2026-03-29T03:00:00+02:00"),  # the clock goes from 02:00 to 03:00
        ("2026-03-29 02:00", "2026-03-29T03:00:00+02:00"),
        ("2026-03-29 01:59", "2026-03-28T02:30:00+01:00"),
        ("2026-10-25 02:30", "2026-10-25T02:30:00+02:00"),  # the first of two
        ("2026-10-25 02:30+01:00", "2026-10-25T02:30:00+02:00"),
        ("2026-10-25T23:00:00Z", "2026-10-25T02:30:00+02:00"),
        (datetime.datetime(2026, 1, 1, 2, 30), "2026-01-01T02:30:00+01:00"),
    ],
)
def test_a_run_at_an_instant_uses_the_newest_tick_of_the_schedule(
    unstuck: Unstuck, when: Any, tick: str
) -> None:
    run = unstuck.at(when, shop())
    assert run.tick.isoformat() == tick
    assert run.params == {"day": tick[:10]}


def test_the_job_of_a_tick_runs_with_its_parameters_at_its_time(unstuck: Unstuck) -> None:
    unstuck.arrive("events", [ONE])
    run = unstuck.at("2026-03-29 02:30", shop()).run(fail={"load": TimeoutError})
    assert run.finished
    assert run.rows("orders") == [{**ONE, "day": "2026-03-29"}]
    began = datetime.datetime.fromtimestamp(run.events()[0]["at"], datetime.UTC)
    assert began.isoformat()[:16] == "2026-03-29T01:00"


def test_freshness_in_the_run_of_a_tick_is_measured_at_the_tick(unstuck: Unstuck) -> None:
    """`over: 1d` counts the rows of the day before the tick, though all runs are of today."""
    rules = {"rules": {"ok": "n > 0"}, "max_rejected_ratio": 0.2, "over": "1d"}
    spec = {
        "name": "counted",
        "schedule": {"cron": "0 6 * * *", "zone": "UTC"},
        "params": {"good": 9},
        "outputs": {"counted": {"mode": "append", "quality": rules}},
        "groups": [group("count", "counted", "counted", retry={"max": 0})],
    }
    assert unstuck.at("2026-01-01 06:00", spec).run().finished
    next_day = unstuck.at("2026-01-02 05:59", spec, {"good": 1})
    assert next_day.tick.day == 1
    assert next_day.run().finished
    alone = unstuck.at("2026-01-03 06:00", spec, {"good": 1}).run()
    assert "1 of 2 rows of counted were rejected in 1 runs" in alone.why()


def test_steps_of_a_tick_use_the_time_zone_of_their_schedule(unstuck: Unstuck) -> None:
    step = {"sql": "SELECT current_timezone() AS zone", "output": "zones"}
    berlin = {"cron": "30 2 * * *", "zone": "Europe/Berlin"}
    spec = {"name": "zones", "schedule": berlin, "groups": [{"name": "a", "steps": [step]}]}
    assert unstuck.at("2026-03-29 02:30", spec).run().rows("zones") == [{"zone": "Europe/Berlin"}]


def test_a_tick_repeated_by_daylight_saving_occurs_once(unstuck: Unstuck) -> None:
    for night in ("2026-03-28", "2026-03-29", "2026-10-25"):
        end = (datetime.date.fromisoformat(night) + datetime.timedelta(days=1)).isoformat()
        assert len(unstuck.ticks(shop(), night, end)) == 1
    hourly = {**shop(), "schedule": {"every": "1h"}}
    found = unstuck.ticks(hourly, "2026-01-01", "2026-01-01 03:00")
    assert [tick.hour for tick in found] == [0, 1, 2]


def test_a_job_without_a_schedule_cannot_run_at_an_instant(unstuck: Unstuck) -> None:
    spec = {name: value for name, value in shop().items() if name not in ("schedule", "params")}
    with pytest.raises(ValueError, match="the job shop has no schedule:"):
        unstuck.at("2026-01-01", spec)
    with pytest.raises(ValueError, match="Invalid isoformat"):
        unstuck.at("tomorrow", shop())


def added(spark: Any, ctx: Any) -> pa.Table:
    return pa.concat_tables([ctx.input("before"), pa.table({"id": [ctx.input("before").num_rows]})])


def test_an_optional_input_has_its_columns_and_no_rows_until_published(
    unstuck: Unstuck,
) -> None:
    before = {"dataset": "numbers", "if_absent": "id BIGINT"}
    spec = {"name": "job", "groups": [group("add", "added", "numbers", inputs={"before": before})]}
    spec["groups"][0]["steps"][0]["python"] = f"{__name__}:added"  # type: ignore[index]
    for count in (1, 2, 3):
        assert unstuck.run(spec).rows("numbers", order_by="id") == [{"id": n} for n in range(count)]


def test_invalid_columns_of_an_absent_input_are_refused(unstuck: Unstuck) -> None:
    inputs = {"before": {"dataset": "numbers", "if_absent": "id"}}
    with pytest.raises(SpecError, match="'id' is no column; expected names and types"):
        unstuck.run({"name": "job", "groups": [group("add", "load", "numbers", inputs=inputs)]})


def test_streams_with_one_name_are_distinguished_by_their_groups(unstuck: Unstuck) -> None:
    streams = [
        {"events": {"stream": f"/in/{n}", "format": "json", "schema": SCHEMA}} for n in (1, 2)
    ]
    groups = [
        group(f"load{n}", "rows_of", f"made{n}", inputs=inputs) for n, inputs in enumerate(streams)
    ]
    for one in groups:
        one["steps"][0]["python"] = f"{__name__}:events"
    spec = {
        "name": "job",
        "groups": groups,
        "outputs": {f"made{n}": {"mode": "append"} for n in (0, 1)},
    }
    unstuck.arrive("load1.events", [ONE])
    run = unstuck.run(spec)
    assert (run.rows("made0"), run.rows("made1")) == ([], [ONE])


def events(spark: Any, ctx: Any) -> Any:
    return ctx.input("events")


def forked(publish: list[str], more: int) -> dict[str, Any]:
    needs = {"needs": ["load"]}
    groups = [
        group("load", "nothing", "orders"),
        group("branch", "nothing", "extra", **needs, when=f"results.load.rows > {more}"),
        group("by_id", "nothing", "by_id", **needs, for_each={"id": {"from": "orders.id"}}),
        group("after", "nothing", "behind", needs=["branch"]),
    ]
    for one in groups:
        one["steps"][0]["python"] = f"{__name__}:nothing"
    return {"name": "quiet", "publish": publish, "groups": groups}


def nothing(spark: Any, ctx: Any) -> pa.Table:
    ctx.result("rows", 0)
    return pa.table({"id": pa.array([], pa.int64())})


def test_an_output_of_a_skipped_group_is_not_missing_and_stays_unchanged(unstuck: Unstuck) -> None:
    unstuck.publish("extra", [{"id": 9}])
    quiet = unstuck.run(forked(["orders", "extra", "by_id", "behind"], more=0))
    assert (quiet.finished, quiet.published) == (True, ["orders"])
    assert unstuck.rows("extra") == [{"id": 9}]
    idle = unstuck.run(forked(["extra"], more=0))
    assert (
        "there is no new version: the groups of its outputs were skipped"
        in idle.events()[-1]["text"]
    )
    assert unstuck.run(forked(["extra", "behind"], more=-1)).published == ["extra", "behind"]


def test_an_output_is_missing_if_its_group_was_skipped_for_a_failure(unstuck: Unstuck) -> None:
    spec = forked(["orders", "by_id", "behind"], more=-1)
    spec["groups"][1]["optional"] = True
    spec["groups"][3]["join"] = "all_done"
    run = unstuck.run(spec, fail={"branch": Unrecoverable}, times=9)
    assert "is to publish by_id, which none of its groups made" in run.why()


def branches(**outputs: Any) -> dict[str, Any]:
    groups = [
        group("load", "nothing", "orders"),
        group("full", "nothing", "full", needs=["load"], when="results.load.rows > 0"),
        group("more", "nothing", "more", needs=["full"]),
        group("short", "nothing", "short", needs=["load"], when="results.load.rows == 0"),
        group("both", "both", "both", needs=["full", "more", "short"], join="none_failed"),
    ]
    for one in groups:
        one["steps"][0]["python"] = (
            f"{__name__}:{one['name'] if one['name'] in ('both', 'short') else 'nothing'}"
        )
    return {"name": "branches", "publish": ["both"], "outputs": outputs, "groups": groups}


def short(spark: Any, ctx: Any) -> pa.Table:
    return pa.table({"id": [7]})


def both(spark: Any, ctx: Any) -> pa.Table:
    return pa.concat_tables([ctx.input(name) for name in ("full", "more", "short")])


def test_the_output_of_an_untaken_branch_is_empty_with_its_declared_columns(
    unstuck: Unstuck, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"columns": {"id": "bigint"}}
    with caplog.at_level("INFO"):
        assert unstuck.run(branches(full=columns, more=columns)).rows("both") == [{"id": 7}]
    assert "the group more was skipped, so its output more is read without rows" in caplog.messages
    assert not unstuck.run(branches()).finished
    assert "there is no input 'full'" in told[-1]


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ({"schedule": {"cron": "30 2 * * *", "zone": "Europe/Berlin"}}, "2026-03-02"),
        ({"zone": "Asia/Tokyo"}, "2026-03-02"),
        ({"zone": "America/New_York"}, "2026-03-01"),
        ({}, "2026-03-01"),
    ],
    ids=str,
)
def test_a_day_is_bounded_in_the_zone_of_the_schedule_or_job(
    unstuck: Unstuck, zone: dict[str, Any], day: str
) -> None:
    at = datetime.datetime(2026, 3, 1, 23, 30, tzinfo=datetime.UTC)
    unstuck.publish(
        "visits", pa.table({"id": [1], "at": pa.array([at], pa.timestamp("us", "UTC"))})
    )
    run = unstuck.run(
        {
            "name": "visits",
            **zone,
            "groups": [group("days", "days", "days", inputs={"visits": "visits"})],
        }
    )
    assert run.rows("days") == [{"id": 1, "by_arrow": day, "by_pandas": day, "by_process": day}]
