"""Exit codes are a promise to scripts, and an error that was to be expected shows no traceback
(``Cli`` looks).
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from typer.main import get_command

from tests.cli.conftest import COMMAND, ByHand, Cli
from tests.support.machine import Limit, slowness
from tests.support.servers import RedisServer, free_port
from unstuck.cli.app import app
from unstuck.tasks.redis_url import without_password

GOOD = """\
name: good
params: {year: 2013}
groups:
  - name: only
    spark: false
    steps: [{python: "some.where:step"}]
"""
BAD = """\
name: bad
groups:
  - name: first
    needs: [nobody]
    steps: [{python: "some.where:step"}]
    tiemout: 3s
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return path


# -- 0 and 1 ---------------------------------------------------------------------------------------


@pytest.mark.variant
def test_watching_a_job_exits_with_0_on_success_and_1_on_failure(cli: Cli, hand: ByHand) -> None:
    fine = hand.finished()
    broken = hand.submit({"name": "only"})
    hand.decide(broken)
    hand.fail(broken, "only", "no such column")
    assert cli("watch", fine).returncode == 0
    done = cli("watch", broken)
    assert done.returncode == 1
    assert "no such column" in done.stdout
    assert f"unstuck show {broken}" in done.stdout


# -- 2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["submit", "validate"])
def test_an_invalid_spec_exits_with_2_and_its_position_and_stores_nothing(
    cli: Cli, bad: Path, client: redis.Redis, command: str
) -> None:
    done = cli(command, bad)
    assert done.returncode == 2
    assert f"{bad}:6:5: groups[0].tiemout" in done.stderr
    assert "did you mean 'timeout'" in done.stderr
    assert client.dbsize() == 0


def test_a_python_file_is_refused_as_a_spec_with_the_way_to_name_its_job(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("from unstuck import Job\njob = Job('shop')\n")
    done = cli("validate", "shop.py")
    assert (done.returncode, done.stderr) == (
        2,
        "shop.py: is Python: name its job, as in shop:job\n",
    )


def test_validate_in_json_lists_every_problem_with_its_place(cli: Cli, bad: Path) -> None:
    done = cli("validate", bad, "--json")
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    problem = next(p for p in answer["problems"] if p["path"] == "groups[0].tiemout")
    assert (problem["file"], problem["line"], problem["column"]) == (str(bad), 6, 5)


def test_a_parameter_of_a_wrong_type_exits_with_2(cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "daily.yaml"
    spec.write_text(GOOD.replace("{year: 2013}", "{year: 2013, day: {type: date, required: true}}"))
    for command in ("validate", "submit"):
        done = cli(command, spec, "--param", "day=soon", "--param", "year=1.5")
        assert done.returncode == 2
        assert (
            f"{spec}:2:16: params.year: expected a whole number, as in the spec, not the number 1.5"
            in done.stderr
        )
        assert (
            f"{spec}:2:27: params.day: expected a date such as 2013-12-31, not 'soon'"
            in done.stderr
        )
    assert cli("validate", spec).returncode == 0, "values are for a submit"
    assert "a value is required" in cli("submit", spec).stderr
    done = cli("validate", spec, "-p", "year=2014", "--json")
    assert done.returncode == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["path"], problem["line"]) == ("params.day", 2)
    assert "a value is required" in problem["message"]
    assert cli("validate", spec, "-p", "day=2013-12-31").returncode == 0
    job = json.loads(cli("submit", spec, "-p", "day=2013-12-31", "--json").stdout)["id"]
    assert json.loads(cli("show", job, "--json").stdout)["params"] == {
        "year": 2013,
        "day": "2013-12-31",
    }


def test_validate_needs_neither_redis_nor_a_warehouse(cli: Cli, good: Path) -> None:
    cli.env["UNSTUCK_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    done = cli("validate", good)
    assert done.returncode == 0
    assert done.stdout.startswith("OK: ")
    assert "1 group " in done.stdout
    assert not (cli.folder / "warehouse").exists()


def test_validate_prints_the_schema(cli: Cli) -> None:
    done = cli("validate", "--schema")
    assert done.returncode == 0
    assert "groups" in json.loads(done.stdout)["properties"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-command",), "no-such-command"),
        (("list", "--status", "SLEEPING"), "SLEEPING"),
        (("list", "--since", "yesterday-ish"), "2h"),
        (("submit", "nowhere.yaml"), "nowhere.yaml"),
        (("submit", "good.yaml", "--param", "year"), "NAME=VALUE"),
        (("submit", "good.yaml", "--param", "yaer=2014"), "year"),
        (("datasets", "nothing"), "There is no warehouse"),
        (("validate",), "--schema"),
    ],
)
def test_a_usage_error_exits_with_2_and_the_expected_usage(
    cli: Cli, good: Path, client: redis.Redis, arguments: tuple[str, ...], said: str
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert client.dbsize() == 0


def test_a_key_used_by_another_spec_exits_with_2_and_names_the_job(cli: Cli, good: Path) -> None:
    first = cli.json("submit", good, "--key", "k1")
    done = cli("submit", good, "--key", "k1", "--param", "year=2014")
    assert done.returncode == 2
    assert first["id"] in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UNSTUCK_LEASE_TTL", "soon"),
        ("UNSTUCK_REDIS_URL", "http://:secret@host/"),
        ("UNSTUCK_WAREHOUSE", "/data/w*rehouse"),
        ("UNSTUCK_SPARK_CONF", "{spark.driver.memory: 4g}"),
    ],
)
def test_an_invalid_setting_exits_with_2_and_is_named(
    cli: Cli, good: Path, name: str, value: str
) -> None:
    done = cli("submit", good, **{name: value})
    assert done.returncode == 2
    assert name in done.stderr or value in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("command", ["list", "doctor", "up"])
def test_an_invalid_address_exits_with_2_and_is_shown_as_given(cli: Cli, command: str) -> None:
    done = cli(command, UNSTUCK_REDIS_URL="127.0.0.1:17799")
    assert (done.returncode, done.stdout) == (2, "")
    assert "UNSTUCK_REDIS_URL: not the address of a Redis: '127.0.0.1:17799'" in done.stderr
    assert "Expected: redis://HOST:PORT/0" in done.stderr


def test_an_empty_address_counts_as_unset(cli: Cli) -> None:
    done = cli("list", UNSTUCK_REDIS_URL="", UNSTUCK_LEASE_TTL="")
    assert (
        "redis://localhost:6379/0" in done.stderr or done.returncode == 0
    )  # somebody's own Redis may be there


def test_an_ambiguous_id_prefix_exits_with_2_and_lists_the_jobs(cli: Cli, hand: ByHand) -> None:
    jobs = [hand.submit({"name": "only"}), hand.submit({"name": "only"})]
    done = cli("show", jobs[0][:8])
    assert done.returncode == 2
    assert all(job in done.stderr for job in jobs)


# -- 3 ---------------------------------------------------------------------------------------------


@pytest.mark.variant
@pytest.mark.parametrize("command", ["show", "watch", "events", "logs"])
@pytest.mark.parametrize("job", ["20130101T000000-aaaaaaaa", "zzz", "last"])
def test_a_missing_job_exits_with_3(cli: Cli, command: str, job: str) -> None:
    done = cli(command, job)
    assert done.returncode == 3
    assert "job" in done.stderr
    assert done.stdout == ""


# -- 5 ---------------------------------------------------------------------------------------------


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers: a frozen Redis."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_an_unreachable_redis_exits_with_5_and_a_remedy_without_the_password(cli: Cli) -> None:
    url = f"redis://someone:hunter2@127.0.0.1:{free_port()}/0"
    done = cli("list", UNSTUCK_REDIS_URL=url)
    assert done.returncode == 5
    assert "hunter2" not in done.stderr
    assert "someone:***@127.0.0.1" in done.stderr
    assert "unstuck up" in done.stderr
    assert "UNSTUCK_REDIS_URL" in done.stderr


@pytest.mark.variant
def test_an_unresponsive_redis_exits_with_5_within_five_seconds(
    cli: Cli, good: Path, silent_port: int
) -> None:
    for arguments in (("list",), ("submit", str(good))):
        limit = Limit(5.0 + 1.0)  # the second is for starting Python
        done = cli(*arguments, UNSTUCK_REDIS_URL=f"redis://127.0.0.1:{silent_port}/0")
        assert done.returncode == 5
        assert limit.kept, limit


# Every command that needs Redis, as people give it.
JOB = "20130101T000000-aaaaaaaa"
ASKS_REDIS = (
    *(
        f"{name} {JOB}"
        for name in ("show", "watch", "why", "events", "events -f", "logs", "logs -f")
    ),
    *(f"{name} {JOB}" for name in ("pause", "resume", "stop", "cancel", "force-stop", "retry")),
    *(
        "now",
        "ack schedule/nightly/FAILED",
        "list",
        "fleet",
        "metrics",
        "health worker",
        "doctor",
        "up",
        "submit good.yaml",
        "submit good.yaml --wait",
        "cancel --status RUNNING --yes",
    ),
    *(f"alter {JOB} --set max_parallel=2", f"skip {JOB} only", f"rerun {JOB} only"),
    *("dead list", "dead show 1-1", "dead replay 1-1", "dead drop 1-1", "notify list"),
    *("vacuum", "compact flights", "restore flights --version 1"),
    *("pool list", "pool set jdbc 4", "pool remove jdbc"),
    *(
        f"schedule {name} nightly"
        for name in ("show", "why", "pause", "resume", "run", "stop", "remove", "export")
    ),
    *("schedule list", "schedule backfill nightly --from 2026-01-01 --to 2026-01-03"),
)
# The page starts without Redis, says that it is away, and goes on
# when it is there.
ASKS_NOBODY = {"run", "validate", "datasets", "stream", "web"}

# Eight at once, for most of it is waiting: each in a process forked from one that has given a
# command already.
_ALL_AT_ONCE = """
import json, os, sys, time
import unstuck.client.client, unstuck.doctor.installation_checks  # most of what a command costs
import unstuck.local.local_fleet
from unstuck.cli import main

def give(line, out):
    sys.argv = ["unstuck", *line.split()]
    for stream in (1, 2):
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        return end.code or 0

lines, answers, given, told = sys.argv[1:], {}, {}, os.dup(1)
give("validate good.yaml", "warm")

def reap():
    pid, status = os.wait()
    line, out, began = given.pop(pid)
    answers[line] = (os.waitstatus_to_exitcode(status), time.monotonic() - began, open(out).read())

for n, line in enumerate(lines):
    while len(given) >= 8:
        reap()
    pid = os.fork()
    if pid == 0:
        os._exit(give(line, f"out-{n}"))
    given[pid] = (line, f"out-{n}", time.monotonic())
while given:
    reap()
os.write(told, json.dumps(answers).encode())
"""


def test_every_command_is_tested_without_redis_or_needs_none() -> None:
    assert {line.split()[0] for line in ASKS_REDIS} | ASKS_NOBODY == set(
        getattr(get_command(app), "commands", ())
    )


@pytest.mark.parametrize(
    "how", ["refuses", pytest.param("never answers", marks=pytest.mark.variant)]
)
def test_every_command_that_needs_redis_soon_exits_with_5_without_it(
    cli: Cli, good: Path, silent_port: int, how: str
) -> None:
    port = silent_port if how == "never answers" else free_port()
    env = {**cli.env, "UNSTUCK_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
    command = [COMMAND[0], "-c", _ALL_AT_ONCE, *ASKS_REDIS]
    answers = json.loads(
        subprocess.run(command, cwd=cli.folder, env=env, stdout=subprocess.PIPE).stdout
    )
    soon = (
        5.0 + 5.0
    ) * slowness()  # five seconds, and as much again because eight share the machine
    wrong = {
        line: answer
        for line, answer in answers.items()
        if answer[0] != 5
        or answer[1] > soon
        or f":{port}" not in answer[2]
        or "Traceback" in answer[2]
    }
    assert not wrong
    assert set(answers) == set(ASKS_REDIS)


def test_a_wrong_or_missing_password_exits_with_5_and_a_reason(
    cli: Cli, redis_server: RedisServer, client: redis.Redis
) -> None:
    client.config_set("requirepass", "right")
    try:
        for url in (redis_server.url, redis_server.url.replace("//", "//:hunter2@")):
            done = cli("list", UNSTUCK_REDIS_URL=url)
            assert done.returncode == 5
            assert "refuses us" in done.stderr
            assert "PASSWORD" in done.stderr
            assert "hunter2" not in done.stderr
        assert (
            cli("list", UNSTUCK_REDIS_URL=redis_server.url.replace("//", "//:right@")).returncode
            == 0
        )
    finally:
        client.auth("right")
        client.config_set("requirepass", "")


def test_a_read_only_replica_exits_with_5_and_a_reason(
    cli: Cli, good: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    replica = RedisServer(tmp_path)
    replica.start()
    try:
        with redis.Redis.from_url(replica.url) as control:
            control.replicaof("127.0.0.1", redis_server.port)
        done = cli("submit", good, UNSTUCK_REDIS_URL=replica.url)
        assert done.returncode == 5, done.stderr
        assert "read-only" in done.stderr
    finally:
        replica.stop()


# -- the rest --------------------------------------------------------------------------------------


def test_debug_shows_the_traceback_and_keeps_the_exit_code(cli: Cli) -> None:
    done = cli("list", UNSTUCK_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0", UNSTUCK_DEBUG="1")
    assert done.returncode == 5
    assert "Traceback" in done.stderr
    assert "ConnectionError" in done.stderr


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("--help", {"pydantic", "redis"}),
        ("list", {"unstuck.client.client", "unstuck.coordinator.spec.model"}),
    ],
)
def test_a_command_imports_only_what_it_needs(cli: Cli, command: str, unused: set[str]) -> None:
    unused |= {"celery", "kombu", "yaml", "fastapi", "jinja2", "pyarrow", "pandas", "pyspark"}
    code = (
        "import sys, unstuck.cli.app as c\n"
        f"try: c.app([{command!r}])\n"
        "except SystemExit as end: assert not end.code\n"
        f"print(sorted({unused} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", code],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("rediss://u:secret@h/2?password=secret", "rediss://u:***@h/2"),
        ("unix:///run/redis.sock?password=secret", "unix:///run/redis.sock"),
        ("redis://h:secret", "(an address that cannot be read)"),
        ("redis://:1/secret@h", "(an address that cannot be read)"),
        ("h:1", "'h:1'"),
        ("someone:secret@h:1", "(an address that cannot be read)"),
    ],
)
def test_no_address_is_printed_with_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.variant
@pytest.mark.parametrize("command", ["validate", "submit"])
def test_a_closed_standard_input_is_reported_as_a_usage_error(cli: Cli, command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *COMMAND, command, "-"],
        cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "standard input is closed" in done.stderr) == (2, True), done.stderr
