"""The parts of a runner that need neither a store nor Spark."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pytest
import redis

from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.driver.driver import local_master, temporary_conf
from unstuck.tasks.errors import (
    BadStepCall,
    ForkValuesInvalid,
    InputMissing,
    OutputInvalid,
    SqlInvalid,
    StepNotFound,
)
from unstuck.tasks.frames.output import collect, read_table, stage
from unstuck.tasks.frames.spark import hadoop_uri
from unstuck.tasks.process.tree import (
    ProcessState,
    Tree,
    describe_status,
    process_state,
    working_folder,
)
from unstuck.tasks.protocol.failure import MAX_TEXT, failure_of, shorten
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.logs import attempt_log
from unstuck.tasks.runner.logs.attempt_log import AttemptLog
from unstuck.tasks.runner.runner import find_leaks
from unstuck.tasks.spec.work_order import Collect
from unstuck.tasks.steps.context import Scratch, StepContext
from unstuck.tasks.steps.execute import find, fit
from unstuck.tasks.steps.step_inputs import read_inputs
from unstuck.tasks.steps.work import Work
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Marker, write_marker
from unstuck.tasks.watchdog.cancel_channel import CancelChannel


def imported_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_a_coordinator_imports_the_celery_app_without_worker_packages() -> None:
    assert not imported_by("unstuck.tasks.celery") & {
        "pyspark",
        "pyarrow",
        "pandas",
        "unstuck.tasks.runner.runner",
    }


def test_the_watchdog_starts_without_spark_and_celery() -> None:
    assert not imported_by("unstuck.tasks.watchdog") & {
        "pyspark",
        "pyarrow",
        "pandas",
        "celery",
        "kombu",
    }


def test_runner_modules_import_spark_only_when_a_group_needs_it() -> None:
    assert not imported_by("unstuck.tasks.runner.take") & {"pyspark", "pyarrow", "pandas"}


# -- calls -----------------------------------------------------------------------------------------


def plain(spark: Any, ctx: Any, a: int, b: int = 2) -> None: ...


def greedy(spark: Any, ctx: Any, **rest: Any) -> None: ...


def by_position(spark: Any, ctx: Any, a: int, /) -> None: ...


def lonely() -> None: ...


class Unhashable(list[int]):
    def __call__(self, spark: Any, ctx: Any, a: int) -> None: ...


def test_a_step_gets_the_parameters_it_accepts() -> None:
    assert fit("m:unhashable", Unhashable(), {"a": 1, "z": 9}, own=set()) == {"a": 1}
    assert fit("m:plain", plain, {"a": 1, "z": 9}, own=set()) == {"a": 1}
    assert fit("m:greedy", greedy, {"a": 1, "z": 9, "spark": 0}, own=set()) == {"a": 1, "z": 9}


@pytest.mark.parametrize(
    ("function", "params", "own", "says"),
    [
        (plain, {}, set(), "needs a"),
        (plain, {"a": 1, "c": 2}, {"c"}, "does not take c"),
        (lonely, {}, set(), "spark and ctx"),
        (by_position, {"a": 1}, set(), "takes a by position only"),
    ],
)
def test_a_mismatched_call_reports_the_mismatch(
    function: Any, params: Any, own: set[str], says: str
) -> None:
    with pytest.raises(BadStepCall, match=says):
        fit("m:f", function, params, own=own)


@pytest.mark.parametrize(
    ("name", "allowed", "says"),
    [
        ("os:getcwd", ["steps"], "UNSTUCK_STEP_MODULES"),
        ("osx.path:join", ["os"], "UNSTUCK_STEP_MODULES"),
        ("no_such_module_here:f", [], r"on \S+:\d+: ModuleNotFoundError"),
        ("os:no_such_name", [], "AttributeError"),
        ("os:sep", [], "not a function"),
    ],
)
def test_forbidden_or_unimportable_code_is_refused(
    name: str, allowed: list[str], says: str
) -> None:
    with pytest.raises(StepNotFound, match=says):
        find(name, allowed)


def test_allowed_modules_include_their_submodules() -> None:
    assert find("os.path:join", ["os"]) is os.path.join


# -- failures --------------------------------------------------------------------------------------


def test_failures_have_a_code_a_message_and_whether_a_retry_may_help() -> None:
    assert failure_of(SqlInvalid("no such table")).code == "SQL_INVALID"
    assert not failure_of(SqlInvalid("x")).recoverable
    assert failure_of(SystemExit(3)).text == "the step called sys.exit(3)"
    assert failure_of(MemoryError()).text == "MemoryError"
    assert failure_of(ValueError("a" * 9000)).recoverable
    assert len(failure_of(ValueError("a" * 9000)).text) <= MAX_TEXT


def test_truncated_text_keeps_its_start_and_end() -> None:
    cut = shorten("begin" + "x" * 5000 + "end", 100)
    assert (cut[:5], cut[-3:], len(cut) <= 100) == ("begin", "end", True)


# -- outputs ---------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path / "warehouse"))


def test_an_arrow_output_is_counted_from_its_files_with_the_spark_schema(files: Files) -> None:
    staged = stage(files, "_staging/j/g/1-n-c/out", pa.table({"n": [1, 2, 3]}))
    assert staged.rows == 3
    assert [f.path for f in staged.files] == ["_staging/j/g/1-n-c/out/part-00000.parquet"]
    assert '"name":"n"' in staged.schema
    assert read_table(files, [staged, staged]).num_rows == 6


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, "text", object()])
def test_only_frames_are_outputs(files: Files, value: Any) -> None:
    with pytest.raises(OutputInvalid, match="wants a Spark, Arrow or pandas frame"):
        stage(files, "_staging/x", value)


def test_an_almost_tabular_value_is_refused_with_the_conversion(files: Files) -> None:
    with pytest.raises(
        OutputInvalid,
        match=r"not pyarrow.lib.RecordBatchReader. pyarrow.table\(frame\) makes an Arrow",
    ):
        stage(files, "_staging/x", pa.table({"n": [1]}).to_reader())
    with pytest.raises(
        OutputInvalid, match=r"not builtins.list. pyarrow.Table.from_pylist\(frame\) makes an Arrow"
    ):
        stage(files, "_staging/x", [{"n": 1}])
    by_name = pd.DataFrame({"name": ["a", "a"]}).groupby("name").size()
    with pytest.raises(
        OutputInvalid, match=r"not pandas.*Series. reset_index\(\) makes a pandas frame of it"
    ):
        stage(files, "_staging/x", by_name)


def test_the_first_mismatched_value_is_shown_with_its_row(
    files: Files,
) -> None:
    column = pd.Series([None, 1, 2.5, "n/a", 3, "x"], dtype=object, index=range(7, 13))
    with pytest.raises(
        OutputInvalid,
        match=r"cannot be stored: .*; row 4 is the first that does not fit: 'n/a' \(str\)",
    ):
        stage(files, "_staging/x", pd.DataFrame({"n": column}))
    with pytest.raises(
        OutputInvalid, match=r"too large.*; row 1 is the first that does not fit: 12\d+ \(int\)"
    ):
        stage(files, "_staging/x", pd.DataFrame({"n": [2**90]}))


@pytest.mark.parametrize(
    ("values", "distinct", "says"),
    [
        ([1, None], False, "null"),
        ([1, 1], False, "twice"),
        ([float("nan")], False, "value nan"),
        ([b"x"], False, "cast the column"),
        (list(range(10_001)), False, "more than 10000 values"),
        (list(range(10_001)), True, "more than 10000"),
    ],
)
def test_values_that_cannot_form_a_fork_are_refused(
    files: Files, values: list[Any], distinct: bool, says: str
) -> None:
    staged = stage(files, "_staging/x", pa.table({"v": values}))
    with pytest.raises(ForkValuesInvalid, match=says):
        collect(files, staged, Collect(output="x", column="v", distinct=distinct))


def test_values_that_python_cannot_represent_are_refused(files: Files) -> None:
    staged = stage(
        files, "_staging/x", pa.table({"v": pa.array([5_000_000], pa.date32())})
    )  # in the year 15,659
    with pytest.raises(ForkValuesInvalid, match="a value of the column v cannot be read"):
        collect(files, staged, Collect(output="x", column="v"))


def test_values_too_large_for_the_store_are_refused(files: Files) -> None:
    wanted = Collect(output="x", column="v", distinct=True)
    staged = stage(files, "_staging/x", pa.table({"v": ["a" * 50, "b" * 50, "a" * 50]}))
    assert collect(files, staged, wanted, room=104) == ["a" * 50, "b" * 50]
    with pytest.raises(ForkValuesInvalid, match=r"the values of x\.v, .* take more than 16 MB"):
        collect(files, staged, wanted, room=103)


def test_distinct_values_keep_their_order_and_an_empty_output_has_none(files: Files) -> None:
    wanted = Collect(output="x", column="v", distinct=True)
    assert collect(
        files, stage(files, "_staging/x", pa.table({"v": ["b", "a", "b", None]})), wanted
    ) == ["b", "a"]
    assert (
        collect(
            files, stage(files, "_staging/y", pa.table({"v": pa.array([], pa.int64())})), wanted
        )
        == []
    )


def test_a_missing_column_is_reported_with_the_existing_ones(files: Files) -> None:
    with pytest.raises(ForkValuesInvalid, match="no column w; it has v"):
        collect(
            files, stage(files, "_staging/x", pa.table({"v": [1]})), Collect(output="x", column="w")
        )


def test_two_needed_outputs_with_one_name_are_refused(files: Files) -> None:
    for group in ("a", "b"):
        staging = f"_staging/j/{group}/1-n-c"
        staged = stage(files, f"{staging}/rows", pa.table({"v": [1]}))
        write_marker(files, staging, Marker(f"j/{group}/1/n/c", "f", {"rows": staged}, {}, {}, 0.0))
    inputs = {group: [f"_staging/j/{group}/1-n-c"] for group in ("a", "b")}
    with pytest.raises(OutputInvalid, match="both a and b have an output named rows"):
        read_inputs(files, inputs)
    assert sorted(read_inputs(files, {"a": inputs["a"]}).datasets) == ["a", "rows"]


def test_inputs_come_with_the_results_and_sources_of_their_groups(files: Files) -> None:
    inputs: dict[str, list[str]] = {"a": [], "f": [], "g": [], "skipped": []}
    for group, n, results in (
        ("a", 1, {"x": 1}),
        ("f", 1, {"x": 2}),
        ("f", 2, {}),
        ("g", 1, {"x": 3}),
    ):
        staging = f"_staging/j/{group}/{n}-n-c"
        marker = Marker(
            f"j/{group}/{n}/n/c", "f", {}, {}, results, 0.0, sources={"flights": [n], group: [7]}
        )
        write_marker(files, staging, marker)
        inputs[group].append(staging)
    read = read_inputs(files, inputs, ("f", "g"))
    assert read.results == {"a": {"x": 1}, "f": [{"x": 2}, {}], "g": [{"x": 3}], "skipped": {}}
    assert read.sources == {"a": [7], "f": [7], "flights": [1, 2], "g": [7]}


def test_a_step_gets_its_own_mutable_copy_of_results(tmp_path: Path) -> None:
    work, ctx = context(tmp_path)
    work.recorded = {"a": {"x": [1]}}
    ctx.results("a")["x"].append(2)
    assert ctx.results("a") == {"x": [1]}
    with pytest.raises(
        InputMissing, match=r"no results of a group 'b'; there are those of: a\. Name it in needs:"
    ):
        ctx.results("b")


# -- Spark's small rules ---------------------------------------------------------------------------


def test_the_cores_of_a_machine_are_shared_by_its_runners() -> None:
    assert [local_master("local[*]", slots, 8) for slots in (1, 3, 20)] == [
        "local[8]",
        "local[2]",
        "local[1]",
    ]
    assert local_master("spark://host:7077", 4, 8) == "spark://host:7077"


def test_uris_are_spelled_as_in_hadoop() -> None:
    assert (hadoop_uri("s3://b/k"), hadoop_uri("/w/x")) == ("s3a://b/k", "/w/x")


# -- processes -------------------------------------------------------------------------------------

_FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_killing_a_tree_includes_new_process_groups_and_orphans() -> None:
    root = subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, process_group=0, text=True
    )
    assert root.stdout is not None
    child = psutil.Process(int(root.stdout.readline()))
    tree = Tree(psutil.Process(root.pid))
    tree.remember()
    root.kill()
    root.wait()
    root.stdout.close()
    assert process_state(child) is ProcessState.ALIVE
    assert tree.kill() == []
    wait_until(lambda: process_state(child) is ProcessState.GONE, 5, "the orphan to be gone")


def test_a_tree_is_killed_on_kernels_that_cannot_open_a_reaped_group_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older kernels answer EINVAL there, not ESRCH, and psutil takes that for a fault."""
    opens = os.pidfd_open

    def opened(pid: int, flags: int = 0) -> int:
        if pid == os.getpid():
            return opens(pid, flags)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pidfd_open", opened)
    root = subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, process_group=0, text=True
    )
    assert root.stdout is not None
    child = psutil.Process(int(root.stdout.readline()))
    root.stdout.close()
    assert Tree(psutil.Process(root.pid)).kill() == []
    assert process_state(child) is ProcessState.GONE
    root.wait()


def test_killing_a_tree_spares_the_killer() -> None:
    tree = Tree(psutil.Process())
    tree.remember()
    assert psutil.Process() not in tree.living()[1:]


def test_the_end_of_a_process_is_described_in_words() -> None:
    assert describe_status(9) == "was killed by signal SIGKILL"
    assert describe_status(3 << 8) == "ended with exit code 3"
    assert "not known" in describe_status(None)


def test_state_left_by_an_attempt_is_detected() -> None:
    before = threading.enumerate()
    assert find_leaks(before) == []
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="mine")
    thread.start()
    try:
        assert find_leaks(before) == ["the thread 'mine'"]
    finally:
        stop.set()
        thread.join()


def test_a_working_directory_unknown_to_its_mount_counts_as_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stale() -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "getcwd", stale)
    assert working_folder() is None


def test_leaked_descriptors_are_detected_before_they_run_out() -> None:
    before = threading.enumerate()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    opened: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        assert find_leaks(before) == ["256 open files, of 256 that it may have"]
        while len(opened) > 128:
            os.close(opened.pop())
        (left,) = find_leaks(before)
        assert "open files, of 256" in left
        while opened:
            os.close(opened.pop())
        assert find_leaks(before) == []
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- the log ---------------------------------------------------------------------------------------


def test_the_log_is_bounded_and_reports_truncation(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "MAX_BYTES", 2_000)
    log = AttemptLog(files, "_staging/j/job.logs/g.1-n-c.log")
    with log.open():
        for _ in range(100):
            log.logger.info("x" * 100)
    assert log.path is not None
    text = log.path.read_text()
    assert len(text) < 2_400
    assert text.rstrip().endswith("MiB")


class Heard(logging.Handler):
    """What a console shows."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_the_log_restores_the_logging_configuration(files: Files) -> None:
    root, quiet = logging.getLogger(), logging.getLogger("py4j")
    heard = Heard()
    root.addHandler(heard)

    def now() -> list[Any]:
        handlers = [(one, one.level, list(one.filters)) for one in root.handlers]
        return [root.level, quiet.level, handlers, sys.stdout, sys.stderr]

    before = now()
    assert root.level == logging.WARNING
    try:
        with AttemptLog(files, "_staging/j/job.logs/g.1-n-c.log").open() as log:
            assert sys.stdout is not before[3]
            log.logger.info("the file has this, the console has not")
            log.logger.warning("both")
        assert now() == before
    finally:
        root.removeHandler(heard)
    assert heard.lines == ["both"]
    assert log.path is not None
    assert [line.partition(": ")[2] for line in log.path.read_text().splitlines()] == [
        "the file has this, the console has not",
        "both",
    ]


def test_an_unwritable_log_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "_staging").write_text("a file where a folder should be")
    with AttemptLog(Files(str(tmp_path)), "_staging/j/job.logs/g.1-n-c.log").open() as log:
        log.logger.info("unheard")


# -- results ---------------------------------------------------------------------------------------


def context(tmp_path: Path) -> tuple[Work, StepContext]:
    work = Work(Files(str(tmp_path)), Token("job", "g", 1, "n", "c"), None, {})
    log = logging.getLogger("step")
    return work, StepContext(
        work,
        {},
        log=log,
        scratch=Scratch(tmp_path),
        is_cancelled=lambda: False,
        report=lambda done, total: None,
    )


def test_results_are_small_json_values_and_an_invalid_one_changes_no_other(
    tmp_path: Path,
) -> None:
    work, ctx = context(tmp_path)
    ctx.result("rows", 3)
    ctx.result("names", ("a", None, True))
    ctx.result("rows", 4)
    endless: list[Any] = []
    for _ in range(100_000):
        endless = [endless]
    for wrong in (object(), {1, 2}, b"x", float("nan"), float("inf"), endless):
        with pytest.raises(OutputInvalid, match="the result 'bad' is not a JSON value"):
            ctx.result("bad", wrong)
    ctx.result("most", "x" * 65_000)
    with pytest.raises(
        OutputInvalid,
        match="with 'more' the results of this attempt are over 64 KiB; write a frame",
    ):
        ctx.result("more", "x" * 1000)
    assert {**work.results, "most": ""} == {"rows": 4, "names": ["a", None, True], "most": ""}


def test_a_lost_connection_is_handled_like_an_instruction(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    """Redis may have been rolled back to before the claim: whoever holds the attempt should be the
    first to say so.
    """
    with connect(redis_server.url) as mine:
        channel = CancelChannel(mine, Keys())
        channel.follow("job")
        wait_until(
            lambda: client.pubsub_numsub(Keys().cancel("job"))[0][1] == 1, 5, "the subscription"
        )
        assert not channel.received()
        client.publish(Keys().cancel("job"), "1")
        wait_until(channel.received, 5, "the order")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(channel.received, 5, "the loss")
        assert not channel.received(), "heard once"


def test_an_instruction_that_arrives_with_the_answer_to_the_subscription_is_received(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    with connect(redis_server.url) as mine:
        channel = CancelChannel(mine, Keys())
        for job in ("first", "second"):
            channel.follow(job)
            wait_until(
                lambda job=job: client.pubsub_numsub(Keys().cancel(job))[0][1] == 1,
                5,
                "the subscription",
            )
            client.publish(Keys().cancel(job), "1")
            assert select.select([channel.socket()], [], [], 60)[0]
            # At once: no further message will make the socket readable.
            assert channel.received()


def test_a_temporary_folder_configured_for_java_by_the_user_stays() -> None:
    folder = Path("/tmp/with a space/unstuck-runner-1")
    ours = temporary_conf(folder, "local[2]", {"JAVA_TOOL_OPTIONS": "-Xshare:auto"})
    assert f'"-Djava.io.tmpdir={folder}"' in ours["spark.driver.defaultJavaOptions"]
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        theirs = temporary_conf(folder, "local[2]", {name: "-Djava.io.tmpdir=/big"})
        assert "java.io.tmpdir" not in theirs["spark.driver.defaultJavaOptions"]


def test_executors_on_other_hosts_do_not_get_the_folder_of_the_driver() -> None:
    assert "spark.hadoop.hadoop.tmp.dir" in temporary_conf(Path("/tmp/a"), "local[*]", {})
    assert "spark.hadoop.hadoop.tmp.dir" not in temporary_conf(
        Path("/tmp/a"), "spark://host:7077", {}
    )
