"""Groups with Spark on one real worker: one JVM for all tests of this module, as for all attempts
of a runner.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
import redis

from tests.support import fleet
from tests.support.machine import Limit
from tests.support.programs.processes import below, command_line, lives
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.step_stack import StepStack
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.work_order import Collect
from unstuck.tasks.transport.stack_store import StackStore
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import read_marker


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    home = tmp_path_factory.mktemp("worker")
    other = (
        home / "bin" / "python3"
    )  # not activated, as most services are: the first python3 is somebody else's
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'the wrong Python' >&2\nexit 3\n")
    other.chmod(0o755)
    environ = {
        "UNSTUCK_CANCEL_GRACE": "10s",
        "UNSTUCK_STACK_EVERY": "1s",
        "UNSTUCK_SPARK_CONF": json.dumps({"spark.driver.memory": "1g"}),
        "PATH": os.pathsep.join([str(other.parent), os.environ["PATH"]]),
        "TMPDIR": str(home),
        "SPARK_FLEET_PASSWORD": "hunter2-hunter2",
        "SPARK_FLEET_TYPE": "long",
        "SPARK_FLEET_TRUE": "true",
        "SPARK_FLEET_NR": "nr",
    }
    with fleet.worker(redis_server.url, home, queues="spark", environ=environ) as running:
        yield running


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


MakeOffer = Callable[..., Offer]


@pytest.fixture
def make_offer(
    worker: fleet.FleetWorker, store: redis.Redis, tmp_path: Path
) -> Iterator[MakeOffer]:
    job = f"job-{os.urandom(4).hex()}"
    offers: list[Offer] = []

    def make(
        name: str, *steps: dict[str, Any], conf: dict[str, str] | None = None, **rest: Any
    ) -> Offer:
        group = {
            "name": name,
            "steps": steps,
            "conf": conf or {},
            "inputs": rest.pop("inputs_of", {}),
        }
        group["for_each"] = rest.pop("for_each", None)
        offers.append(fleet.make_offer(store, tmp_path / "warehouse", job, group, **rest))
        return offers[-1]

    yield make
    for offer in offers:
        record = fleet.attempt(store, offer)
        if record.get("claimant") and "outcome" not in record:  # the test has failed
            fleet.instruct(store, offer, "CANCEL")
            fleet.outcome(store, offer, 60)


def python(step: str, output: str | None = None, **params: Any) -> dict[str, Any]:
    return {"python": f"fleet_steps:{step}", "params": params, "output": output}


def sql(text: str, output: str | None = None) -> dict[str, Any]:
    return {"sql": text, "output": output}


def done(store: redis.Redis, offer: Offer) -> Any:
    outcome = fleet.outcome(store, offer, 120)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
    return outcome


def failure(store: redis.Redis, offer: Offer) -> Any:
    outcome = fleet.outcome(store, offer, 120)
    assert outcome.kind is OutcomeKind.FAILED, outcome
    return outcome.failure


def test_a_group_writes_its_output_and_a_marker_that_counts_it(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    outcome = done(store, make_offer("make", python("spark_numbers", "numbers", rows=10)))
    assert outcome.rows == {"numbers": 10}
    files = Files(str(tmp_path / "warehouse"))
    marker = read_marker(files, outcome.staging)
    assert marker is not None
    numbers = marker.outputs["numbers"]
    assert (
        sum(pq.read_metadata(tmp_path / "warehouse" / f.path).num_rows for f in numbers.files) == 10
    )
    assert all((tmp_path / "warehouse" / f.path).stat().st_size == f.bytes for f in numbers.files)
    assert [f["name"] for f in json.loads(numbers.schema)["fields"]] == ["n"]


def test_spark_uses_the_python_of_the_worker(store: redis.Redis, make_offer: MakeOffer) -> None:
    assert done(store, make_offer("g", python("whose_python"))).results == {
        "driver": sys.executable,
        "task": sys.executable,
    }


def test_sql_reads_the_output_of_a_needed_group_with_bound_parameters(
    store: redis.Redis, make_offer: MakeOffer
) -> None:
    made = done(store, make_offer("make", python("spark_numbers", "numbers", rows=10)))
    offer = make_offer(
        "pick",
        sql("CREATE TEMP VIEW big AS SELECT * FROM numbers WHERE n >= 5"),
        sql("SELECT b.n FROM big b JOIN `make` USING (n) WHERE n > :least -- :not_this", "picked"),
        params={"least": 7, "unused": {"an": "object"}},
        inputs={"make": [made.staging]},
    )
    assert done(store, offer).rows == {"picked": 2}


def test_a_mapping_is_a_struct_with_named_fields_in_sql(
    store: redis.Redis, make_offer: MakeOffer
) -> None:
    model = {"depth": 3, "eta": 0.5, "of": {"name": "x"}}
    text = (
        "SELECT :model.depth + :part.depth AS n WHERE :model.eta = 0.5 AND :model.of.name = "
        "'x' "
        "AND :part.eta = 0.1"
    )
    part = {"depth": 1, "eta": 0.1}
    offer = make_offer(
        "train",
        sql(text, "o"),
        params={"model": model},
        member="train[0]",
        for_each={"part": [part]},
        value=part,
    )
    assert done(store, offer).rows == {"o": 1}


def test_an_attempt_sees_nothing_left_by_another(store: redis.Redis, make_offer: MakeOffer) -> None:
    offer = make_offer("first", python("spark_numbers", "numbers"))
    first = done(store, offer)
    seen = done(
        store, second := make_offer("second", python("views"), inputs={"first": [first.staging]})
    ).results
    assert seen["views"] == ["first", "numbers"]
    assert seen["global"] == []
    assert seen["partitions"] == "200"
    assert seen["same"] is True
    assert [tag.rpartition("/")[0] for tag in seen["tags"]] == [str(second)]


@pytest.mark.variant
def test_pandas_frames_and_empty_frames_can_be_outputs(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    outcome = done(store, make_offer("g", python("pandas_in_spark"), python("empty", "nothing")))
    assert outcome.rows == {"small": 2, "nothing": 0}
    assert outcome.results == {"seen": 2}
    marker = read_marker(Files(str(tmp_path / "warehouse")), outcome.staging)
    assert marker is not None
    types = [(f["name"], f["type"]) for f in json.loads(marker.outputs["small"].schema)["fields"]]
    assert types == [("n", "long"), ("name", "string")]
    assert len(marker.outputs["nothing"].files) == 1
    seen = done(
        store,
        make_offer(
            "after",
            python("views"),
            sql("SELECT count(*) AS c FROM nothing", "c"),
            inputs={"g": [outcome.staging]},
        ),
    )
    assert seen.rows == {"c": 1}


def test_the_members_of_a_fork_are_read_as_one_dataset(
    store: redis.Redis, make_offer: MakeOffer
) -> None:
    step = sql("SELECT explode(sequence(1, :count)) AS n", "part")
    staged = [
        done(
            store, make_offer("by-part", step, member=f"by-part[{i}]", params={"count": count})
        ).staging
        for i, count in enumerate([2, 3])
    ]
    assert "by-part.1/" in staged[1]
    outcome = done(store, make_offer("union", python("union"), inputs={"by-part": staged}))
    assert outcome.results == {"rows": 5, "sum": 9, "by_group": 5}


def test_values_of_a_dynamic_fork_are_collected_from_the_output(
    store: redis.Redis, make_offer: MakeOffer
) -> None:
    wanted = [Collect(output="g", column="month"), Collect(output="elsewhere", column="x")]
    step = sql("SELECT explode(array(3, 1, 2)) AS month", "months")
    assert done(store, make_offer("g", step, collect=wanted)).forks == {"g.month": [3, 1, 2]}
    twice = sql("SELECT explode(array(1, 1)) AS month", "months")
    broken = failure(store, make_offer("g", twice, collect=wanted, epoch=2, nonce="n2"))
    assert (broken.code, broken.recoverable) == ("FORK_VALUES_INVALID", False)
    distinct = [Collect(output="months", column="month", distinct=True)]
    assert done(store, make_offer("g", twice, collect=distinct, epoch=3, nonce="n3")).forks == {
        "months.month": [1]
    }


@pytest.mark.variant
@pytest.mark.parametrize(
    ("steps", "code", "says"),
    [
        ([sql("SELEC 1", "x")], "SQL_INVALID", "SELEC"),
        ([sql("SELECT * FROM no_such_view", "x")], "SQL_INVALID", "no_such_view"),
        ([sql("SELECT 1 AS a WHERE 1 = :missing", "x")], "SQL_INVALID", "missing"),
        ([sql("SELECT 1 AS a")], "OUTPUT_INVALID", "output: NAME"),
        ([sql("SELECT 1 AS a", "x"), sql("SELECT 2 AS a", "x")], "OUTPUT_INVALID", "written twice"),
        ([sql("SELECT 1 AS a, 2 AS A", "x")], "OUTPUT_INVALID", "the frame has columns a and A"),
        (
            [sql("SELECT interval '1' hour AS took", "x")],
            "OUTPUT_INVALID",
            "the column took is interval hour",
        ),
        ([python("spark_numbers")], "OUTPUT_INVALID", "output: NAME"),
        ([python("spark_numbers", "x", row=1)], "BAD_STEP_CALL", "row"),
        ([python("slow_stage")], "BAD_STEP_CALL", "started"),
    ],
)
def test_unrecoverable_errors_are_reported_and_not_retried(
    store: redis.Redis, make_offer: MakeOffer, steps: list[dict[str, Any]], code: str, says: str
) -> None:
    what = failure(store, make_offer("g", *steps))
    assert (what.code, what.recoverable) == (code, False)
    assert says in what.text


@pytest.mark.parametrize(
    ("text", "recoverable", "condition", "error"),
    [
        ("SELECT id / 0 AS x FROM range(1)", True, "DIVIDE_BY_ZERO", "ArithmeticException"),
        ("SELEC 1", False, "PARSE_SYNTAX_ERROR", "ParseException"),
        ("SELECT * FROM no_such_view", False, "TABLE_OR_VIEW_NOT_FOUND", "AnalysisException"),
        ("SELECT y FROM range(1)", False, "UNRESOLVED_COLUMN", "AnalysisException"),
    ],
)
def test_a_spark_error_has_a_condition_and_class_usable_in_retry_on(
    store: redis.Redis,
    make_offer: MakeOffer,
    tmp_path: Path,
    text: str,
    recoverable: bool,
    condition: str,
    error: str,
) -> None:
    if condition == "DIVIDE_BY_ZERO" and pyspark.__version__.startswith("3."):
        pytest.skip(
            "PySpark 3.5 hands on an error of a task as a Py4JJavaError, without its condition"
        )
    what = failure(store, make_offer("g", sql(text, "x")))
    assert what.recoverable is recoverable
    assert condition in what.names
    assert RetryPolicy(retry_on=(condition,)).why_final(what) == ""
    assert RetryPolicy(retry_on=(f"pyspark.errors.{error}",)).why_final(what) == ""
    assert condition in RetryPolicy(never_retry_on=(condition,)).why_final(what)
    (log,) = (tmp_path / "warehouse").rglob("*.log")
    assert log.read_text().count(f"[{condition}") == 1, "the whole error is in the log once"


def test_a_statement_runs_with_any_strings_names_and_comments(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    rows: dict[str, dict[str, Any]] = {
        "SELECT '--' AS x, :r AS r": {"x": "--", "r": 7},
        "SELECT '/data/*' AS x, :r AS r, '*/tmp' AS y": {"x": "/data/*", "r": 7, "y": "*/tmp"},
        "/* a /* :no */ -- */ SELECT /*+ COALESCE(1) */ : r AS `a'b`, 'it''s :no' > '' AS x": {
            "a'b": 7,
            "x": True,
        },
        "SELECT r'\\' AS x, :r AS r -- don't\n, \"--\" AS y": {"x": "\\", "r": 7, "y": "--"},
    }
    steps = [sql(text, f"o{n}") for n, text in enumerate(rows)]
    done(store, offer := make_offer("g", *steps, params={"r": 7, "no": {"an": "object"}}))
    marker = read_marker(
        Files(str(tmp_path / "warehouse")), fleet.outcome(store, offer, 0).staging or ""
    )
    for n, row in enumerate(rows.values()):
        (file,) = marker.outputs[f"o{n}"].files
        assert pq.read_table(tmp_path / "warehouse" / file.path).to_pylist() == [row]


def test_a_secret_passed_to_sql_as_a_parameter_appears_in_no_reason_and_no_file(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    step = {
        **sql("SELECT :pw AS x FROM nowhere", "o"),
        "params": {"pw": "${secret:SPARK_FLEET_PASSWORD}"},
    }
    found = failure(store, make_offer("g", step))
    assert found.code == "SQL_INVALID"
    raised = {
        **sql("SELECT raise_error(concat('no login with ', :pw)) AS x", "o"),
        "params": step["params"],
    }
    found = failure(store, make_offer("h", raised))
    assert "no login with ${secret:SPARK_FLEET_PASSWORD}" in found.text + found.traceback
    assert "hunter2" not in found.text + found.traceback
    for path in (tmp_path / "warehouse").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


def test_a_column_comment_that_contains_a_secret_is_refused(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    step = {
        **python("commented"),
        "output": "o",
        "params": {"text": "by ${secret:SPARK_FLEET_PASSWORD}"},
    }
    assert failure(store, make_offer("g", step)).code == "OUTPUT_INVALID"
    for path in (tmp_path / "warehouse").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


@pytest.mark.variant
@pytest.mark.parametrize("word", ["TYPE", "TRUE", "NR"])
def test_configuration_is_not_looked_up_in_a_schema(
    store: redis.Redis, make_offer: MakeOffer, word: str
) -> None:
    text = (
        "SELECT named_struct('nr', id, 'part', :word) AS s, current_date() AS d, id AS nr FROM "
        "range(3)"
    )
    outcome = done(
        store,
        make_offer("g", {**sql(text, "o"), "params": {"word": f"${{env:SPARK_FLEET_{word}}}"}}),
    )
    assert outcome.rows == {"o": 3}


def test_the_conf_of_a_group_applies_only_to_it_and_static_conf_is_refused(
    store: redis.Redis, make_offer: MakeOffer
) -> None:
    set_here = done(
        store, make_offer("g", python("views"), conf={"spark.sql.shuffle.partitions": "7"})
    )
    assert set_here.results["partitions"] == "7"
    assert done(store, make_offer("h", python("views"))).results["partitions"] == "200"
    refused = failure(store, make_offer("i", python("views"), conf={"spark.executor.memory": "3g"}))
    assert not refused.recoverable
    assert "spark.executor.memory" in refused.text


def test_a_cancel_interrupts_a_running_stage_and_the_session_survives(
    store: redis.Redis, make_offer: MakeOffer, worker: fleet.FleetWorker, tmp_path: Path
) -> None:
    """One of three tries in under 2 s: a machine that is busy with other things may make one of
    them late, not all.
    """
    before = [runner.pid for runner in worker.runners]
    for epoch in (1, 2, 3):
        started = tmp_path / f"started{epoch}"
        offer = make_offer(
            "g", python("slow_stage", started=str(started)), epoch=epoch, nonce=f"n{epoch}"
        )
        fleet.begun(store, offer, started)
        limit = Limit(2.0)
        fleet.instruct(store, offer, "CANCEL")
        assert (
            fleet.outcome(store, offer, 9).kind is OutcomeKind.CANCELED
        )  # each in less than the grace
        in_time = limit.kept
        if in_time:
            break
    assert in_time, limit
    done(store, make_offer("h", python("spark_numbers", "numbers")))
    assert [runner.pid for runner in worker.runners] == before


@pytest.mark.variant
def test_a_cancel_between_two_actions_ends_the_step_at_the_next_action(
    store: redis.Redis, make_offer: MakeOffer, worker: fleet.FleetWorker, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    if pyspark.__version__.startswith("3."):
        pytest.skip("Spark 3.5 cancels running jobs only, so such a step is ended with its runner")
    offer = make_offer("g", python("between_actions", started=str(started)))
    before = [runner.pid for runner in worker.runners]
    fleet.begun(store, offer, started)
    fleet.instruct(store, offer, "CANCEL")
    assert fleet.outcome(store, offer, 9).kind is OutcomeKind.CANCELED  # less than the grace
    done(store, make_offer("h", python("spark_numbers", "numbers")))
    assert [runner.pid for runner in worker.runners] == before


@pytest.mark.variant
def test_a_cancel_ends_a_udf_that_ignores_every_interrupt(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    offer = make_offer("g", python("stuck_udf", started=str(started)))
    fleet.begun(store, offer, started)
    fleet.instruct(store, offer, "CANCEL")
    assert fleet.outcome(store, offer, 60).kind is OutcomeKind.CANCELED
    done(
        store, make_offer("h", python("spark_numbers", "numbers"))
    )  # and the worker takes new work


def test_a_warehouse_invisible_to_this_worker_is_refused_and_not_created(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    offer = make_offer("g", python("spark_numbers", "numbers"), warehouse_id="0" * 32)
    assert failure(store, offer).code == "WAREHOUSE_MISMATCH"
    assert not (tmp_path / "warehouse" / "_staging").exists()


@pytest.mark.variant
@pytest.mark.parametrize(("back", "code"), [(False, "WAREHOUSE_MISMATCH"), (True, "STAGING_LOST")])
def test_a_warehouse_that_disappears_during_a_write_leaves_no_partial_output(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path, back: bool, code: str
) -> None:
    """Spark makes the folders that are missing, and commits what it finds in them: it notices
    neither.
    """
    offer = make_offer(
        "g", python("taken_away", "numbers", warehouse=str(tmp_path / "warehouse"), back=back)
    )
    found = failure(store, offer)
    assert (found.code, found.recoverable) == (code, True), found.text
    assert not [*tmp_path.rglob("_marker.json")]


def test_the_record_contains_progress_with_the_application_and_its_ui(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    offer = make_offer("g", python("slow_stage", started=str(tmp_path / "started")))

    def progress() -> dict[str, Any]:
        return json.loads(fleet.attempt(store, offer).get("progress", "{}"))

    wait_until(lambda: progress().get("app"), 60, "the application in the progress")
    shown = progress()
    assert (shown["step"], shown["steps"], shown["label"]) == (1, 1, "slow_stage")
    assert shown["app"].startswith("local-")
    assert shown["ui"].startswith("http://")
    fleet.instruct(store, offer, "CANCEL")
    fleet.outcome(store, offer)


@pytest.mark.variant
def test_the_current_line_and_stage_of_a_spark_step_are_shown(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    offer = make_offer("g", python("slow_stage", started=str(started)))
    fleet.begun(store, offer, started)
    stacks = StackStore(store, fleet.KEYS)

    def shown() -> StepStack | None:
        standing = (one for one in stacks.of_job(offer.job).values() if one.stages and one.stood)
        return next((one for one in standing if one.stages[0].running), None)

    stack = wait_until(shown, 60, "the stage that runs")
    *_, own, last = stack.frames
    assert (own.function, own.source[-8:], last.function) == ("slow_stage", ".count()", "readinto")
    (stage,) = stack.stages
    assert re.fullmatch(r"count at .*/fleet_steps\.py:\d+", stage.name)
    assert (stage.tasks, stage.done, stage.failed) == (2, 0, 0)
    if not pyspark.__version__.startswith("3."):
        assert (stage.longest > 0, stage.host) == (True, "localhost")
    fleet.instruct(store, offer, "CANCEL")
    fleet.outcome(store, offer)


@pytest.mark.variant
def test_a_runner_whose_jvm_died_between_attempts_is_replaced_and_claims_nothing(
    store: redis.Redis, make_offer: MakeOffer, worker: fleet.FleetWorker
) -> None:
    done(store, make_offer("g", python("spark_numbers", "numbers")))
    (runner,) = worker.runners
    (jvm,) = [child for child in runner.children() if "java" in command_line(child)]
    jvm.kill()
    # One that is still ending may answer when the runner asks before it claims: then the attempt is
    # lost, not refused.
    wait_until(lambda: fleet.gone(jvm.pid), 30, "the JVM to end")
    # One that is awake may have asked the JVM before it died, and would claim without asking again.
    wait_until(
        lambda: fleet.gone(runner.pid) or fleet.asleep(store, runner),
        20,
        "the runner to wait for a wake-up",
    )
    offer = make_offer("h", python("spark_numbers", "numbers"))
    fleet.claimed(store, offer, wakes="spark")
    assert done(store, offer).rows == {"numbers": 10}, "the first claim is of a runner that can"


@pytest.mark.variant
def test_a_step_that_stops_the_session_is_charged_to_its_group(
    store: redis.Redis, make_offer: MakeOffer
) -> None:
    """What comes next in the group finds a session that is stopped; the next group has a new
    one.
    """
    found = failure(
        store, make_offer("g", python("stop_the_session"), python("spark_numbers", "numbers"))
    )
    assert found.code == "STEP_FAILED"
    assert done(store, make_offer("h", python("stop_the_session"), python("my_pid"))).results["pid"]
    assert done(store, make_offer("i", python("spark_numbers", "numbers"))).rows == {"numbers": 10}


@pytest.mark.variant
def test_a_runner_whose_jvm_dies_while_its_session_closes_is_replaced(
    store: redis.Redis, make_offer: MakeOffer, worker: fleet.FleetWorker
) -> None:
    done(store, make_offer("g", python("jvm_dies_when_left")))
    assert done(store, make_offer("h", python("spark_numbers", "numbers"))).rows == {"numbers": 10}
    assert "leaving the Spark session on" in worker.text()


def test_killing_the_runner_ends_jvm_and_python_workers_and_removes_temporary_files(
    store: redis.Redis, make_offer: MakeOffer, worker: fleet.FleetWorker, tmp_path: Path
) -> None:
    started, files = tmp_path / "started", tmp_path / "files"
    (gate := tmp_path / "gate").touch()
    fills = python("fills_temporary_folders", started=str(files), gate=str(gate))
    offer = make_offer("g", fills, python("slow_stage", started=str(started)))
    fleet.begun(store, offer, started)
    places = [Path(place) for place in json.loads(files.read_text())]
    assert all(place.exists() and worker.log.parent in place.parents for place in places)
    (runner,) = worker.runners
    (jvm,) = [c for c in runner.children() if "java" in command_line(c)]
    lease = fleet.attempt(store, offer)["lease"]
    wait_until(
        lambda: fleet.attempt(store, offer)["lease"] > lease, 10, "a renewal that saw the tree"
    )
    tree = [p for p in below(runner) if "unstuck.tasks.watchdog" not in command_line(p)]
    assert len(tree) >= 3, tree  # the JVM, pyspark.daemon, a Python worker
    runner.kill()
    assert fleet.outcome(store, offer, 10).kind is OutcomeKind.LOST
    wait_until(lambda: not [p for p in tree if lives(p)], 10, f"{jvm} to be gone")
    wait_until(lambda: not any(place.exists() for place in places), 60, "all files to be removed")


@pytest.mark.variant
def test_sql_reads_results_of_needed_groups_as_bound_values(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    made = done(
        store,
        make_offer("make", python("records", "numbers", least=7, word="it's :results.make.least")),
    )
    query = (
        "SELECT n, :results.make.word AS word, ':results.make.least' AS text FROM numbers "
        "WHERE n >= :results.make.least AND n < :most -- :results.make.not_this"
    )
    offer = make_offer(
        "pick", sql(query, "picked"), params={"most": 9}, inputs={"make": [made.staging]}
    )
    outcome = done(store, offer)
    marker = read_marker(Files(str(tmp_path / "warehouse")), outcome.staging)
    assert marker is not None
    rows = [
        row
        for f in marker.outputs["picked"].files
        for row in pq.read_table(tmp_path / "warehouse" / f.path).to_pylist()
    ]
    said = "it's :results.make.least"
    assert sorted(rows, key=lambda row: row["n"]) == [
        {"n": n, "word": said, "text": ":results.make.least"} for n in (7, 8)
    ]

    wrong = make_offer(
        "wrong", sql("SELECT :results.make.most AS n", "picked"), inputs={"make": [made.staging]}
    )
    failed = failure(store, wrong)
    assert failed.code == "SQL_INVALID"
    assert (
        failed.text == ":results.make.most: make recorded no such result; it recorded least, word"
    )


def test_published_inputs_are_views_at_one_version(
    store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    warehouse = Warehouse(str(tmp_path / "warehouse"))
    before: list[str] = []
    for rows in (3, 5):
        made = done(
            store, make_offer("make", python("spark_numbers", "numbers", rows=rows), epoch=rows)
        )
        marker = read_marker(warehouse.storage, made.staging)
        assert marker is not None
        staged, n = marker.outputs["numbers"], warehouse.head() + 1
        change = Change("replace", staged.files, before, staged.rows, staged.schema)
        before = [file.path for file in staged.files]
        warehouse.create_entry(
            n, Entry(n, n - 1, f"p{n}", "package", "j", "j", 0.0, datasets={"numbers": change})
        )
    read = sql(
        "SELECT (SELECT count(*) FROM here) AS here, (SELECT count(*) FROM old) AS old", "counted"
    )
    offer = make_offer("read", read, inputs_of={"here": "numbers", "old": "numbers@1"}, base=2)
    outcome = done(store, offer)
    marker = read_marker(warehouse.storage, outcome.staging)
    assert marker is not None
    (file,) = [f for f in marker.outputs["counted"].files if f.rows]
    assert pq.read_table(tmp_path / "warehouse" / file.path).to_pylist() == [{"here": 5, "old": 3}]
    assert marker.sources == {"numbers": [1, 2]}
