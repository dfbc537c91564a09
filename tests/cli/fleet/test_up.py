"""The local fleet as a user meets it: real processes, a real Valkey, real signals.

Most tests run stand-ins for the Celery programs, which start at once and misbehave on order; the
last ones run the real fleet.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from examples.demo.flights_demo import further
from tests.cli.conftest import Cli
from tests.support.paths import PYTHONPATH
from tests.support.programs.foreground import IGNORES_SIGTERM, PLAIN, Up
from tests.support.servers import free_port, wait_until
from unstuck import Client, Settings
from unstuck.cli.render.terminal import program
from unstuck.coordinator.fleet_address import with_local_fleet
from unstuck.local.home import Home
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.process import FIRST_DELAY, LONGEST_DELAY, restart_delay
from unstuck.local.programs import Size, program_list


@pytest.mark.variant
def test_ctrl_c_ends_every_process_and_removes_the_fleet_address(up: Callable[..., Up]) -> None:
    fleet = up(programs={"one": PLAIN, "two": PLAIN})
    fleet.says("Ready")
    assert len(fleet.family()) == 3  # Valkey and the two
    assert redis.Redis.from_url(fleet.address()).ping()

    fleet.signal(signal.SIGINT)

    assert fleet.code() == 0
    assert fleet.left() == []
    assert not (fleet.home / "redis.url").exists()
    assert "Stopped" in fleet.text


@pytest.mark.variant
def test_a_process_that_ignores_sigterm_is_killed_with_its_children(
    up: Callable[..., Up],
) -> None:
    fleet = up(programs={"stays": IGNORES_SIGTERM})
    fleet.says("Ready")
    wait_until(lambda: len(fleet.family()) == 4, 10, "the process and its two children")

    fleet.signal(signal.SIGTERM)

    assert fleet.code() == 0
    assert fleet.left() == []


@pytest.mark.variant
def test_a_second_ctrl_c_hands_back_attempts_and_a_third_kills_immediately(
    up: Callable[..., Up],
) -> None:
    fleet = up(programs={"stays": IGNORES_SIGTERM}, grace=600.0)
    fleet.says("Ready")
    wait_until(lambda: len(fleet.family()) == 4, 10, "the process and its two children")
    fleet.signal(signal.SIGINT)
    fleet.says("Stopping: running attempts have 20 s to end")
    fleet.signal(signal.SIGINT)
    fleet.says("Handing back; processes that do not end in 15 s are killed")

    fleet.signal(signal.SIGINT)

    assert fleet.code() == 0
    assert fleet.left() == []


@pytest.mark.variant
def test_a_foreground_process_killed_with_sigkill_leaves_nothing_behind(
    up: Callable[..., Up],
) -> None:
    fleet = up(
        programs={
            "plain": PLAIN,
            "ignores": "import signal; signal.signal(15, signal.SIG_IGN)\n" + PLAIN,
        }
    )
    fleet.says("Ready")
    assert len(fleet.family()) == 3, "Valkey and the two"

    fleet.process.kill()
    fleet.process.wait()

    fleet.is_gone()
    assert Home(fleet.home).address == fleet.address(), (
        "what was started here is not forgotten: see the next test"
    )


@pytest.mark.variant
def test_a_killed_process_is_restarted_and_the_terminal_reports_it(up: Callable[..., Up]) -> None:
    fleet = up(programs={"plain": PLAIN})
    fleet.says("Ready")
    first = fleet.find(PLAIN)
    assert first is not None

    first.kill()

    fleet.says(
        f"plain (pid {first.pid}) was killed by signal SIGKILL; it is started again in 0.5 s"
    )
    fleet.is_back(PLAIN, first.pid)


@pytest.mark.variant
def test_a_killed_valkey_restarts_at_its_address_with_its_data(up: Callable[..., Up]) -> None:
    fleet = up()
    fleet.says("Ready")
    server = fleet.find("valkey-server")
    assert server is not None
    with redis.Redis.from_url(fleet.address(), decode_responses=True) as client:
        client.set("kept", "yes")
        server.kill()

        def kept() -> bool:
            try:
                return bool(
                    client.get("kept") == "yes"
                    and client.info("server")["process_id"] != server.pid
                )
            except redis.RedisError:
                return False

        wait_until(kept, 15, "Valkey to come back with its data")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


@pytest.mark.variant
def test_another_user_of_the_host_cannot_reach_a_local_fleet(
    up: Callable[..., Up], open_folder: Path
) -> None:
    """It can connect to the loopback address; the password is shown to nobody, and lies in files of
    the owner alone.
    """
    # Given a fleet in a folder in which an older one has left an address that everybody may read
    home = open_folder / "home of the fleet"
    home.mkdir()
    (home / "redis.url").write_text("redis://127.0.0.1:1/0\n")
    fleet = up(home=str(home), programs={"plain": PLAIN})
    fleet.says("Ready")
    address = fleet.address()
    password = urlsplit(address).password or ""
    assert len(password) == 32
    # Then Redis refuses who has no password, and every file that holds it is the owner's
    with (
        redis.Redis.from_url(address.replace(f":{password}@", "")) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    holding = [
        path
        for path in home.rglob("*")
        if path.is_file() and password.encode() in path.read_bytes()
    ]
    assert {path.name for path in holding} == {"redis.url", "password.conf"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    assert stat.S_IMODE((home / "valkey").stat().st_mode) == 0o700
    # And neither the terminal nor a command line shows it; a line that its owner can paste is shown
    shown = [" ".join(process.cmdline()) for process in fleet.family().values()]
    assert not [text for text in (fleet.text, *shown) if password in text]
    line = (
        next(one for one in fleet.text.splitlines() if " reach " in one)
        .split(" reach ")[1]
        .partition("   (")[0]
    )
    pasted = ["sh", "-c", f'{line.strip()}; printf %s "$UNSTUCK_REDIS_URL"']
    assert subprocess.run(pasted, capture_output=True, text=True, check=True).stdout == address
    if os.getuid() == 0:  # then this test can be another account as well
        assert subprocess.run(
            ["cat", home / "up.lock"], user=65534, capture_output=True, check=True
        ).stdout
        for path in holding:
            assert subprocess.run(["cat", path], user=65534, capture_output=True).returncode != 0


@pytest.mark.variant
def test_a_restarted_fleet_keeps_its_jobs_and_its_address(up: Callable[..., Up]) -> None:
    fleet = up()
    fleet.says("Ready")
    address = fleet.address()
    with redis.Redis.from_url(address, decode_responses=True) as client:
        client.set("kept", "yes")
    fleet.signal(signal.SIGTERM)
    assert fleet.code() == 0

    again = up()
    again.says("Ready")

    assert again.address() == address
    with redis.Redis.from_url(address, decode_responses=True) as client:
        assert client.get("kept") == "yes"
    assert Home(again.home).address == address, "the commands find it"


@pytest.mark.variant
def test_a_second_fleet_in_one_home_reports_the_pid_of_the_first(up: Callable[..., Up]) -> None:
    first = up()
    first.says("Ready")
    said = wait_until(lambda: first.own_log, 5, "the first to write down what it said")

    second = up()

    assert second.code() == 2
    assert first.own_log == said
    assert f"already (pid {first.process.pid})" in second.text
    assert redis.Redis.from_url(first.address()).ping()


@pytest.mark.variant
def test_a_process_that_cannot_start_ends_the_fleet_and_its_last_output_is_shown(
    up: Callable[..., Up],
) -> None:
    fleet = up(programs={"broken": "raise SystemExit('no such module: nowhere')", "plain": PLAIN})

    assert fleet.code() == 1
    assert "broken ended 3 times while it was starting" in fleet.text
    assert "no such module: nowhere" in fleet.text


def test_an_unresponsive_redis_is_reported_immediately(up: Callable[..., Up]) -> None:
    port = free_port()
    fleet = up(redis_url=f"redis://:secret@127.0.0.1:{port}/0")

    assert fleet.code() == 2
    assert f"No Redis answers at redis://:***@127.0.0.1:{port}/0" in fleet.text
    assert "secret" not in fleet.text


@pytest.mark.variant
def test_other_commands_find_the_fleet_of_this_folder(
    up: Callable[..., Up], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSTUCK_REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    fleet = up(home=str(tmp_path / ".unstuck"))
    ready = fleet.says("Ready")
    assert "submit     unstuck submit SPEC" in ready
    app = "from unstuck import Client; print(Client().settings.redis_url)"
    assert (
        subprocess.check_output([sys.executable, "-c", app], text=True).strip() == fleet.address()
    )

    monkeypatch.setenv("UNSTUCK_REDIS_URL", "redis://elsewhere:1/0")
    assert with_local_fleet(Settings()).redis_url == "redis://elsewhere:1/0"
    monkeypatch.delenv("UNSTUCK_REDIS_URL")

    fleet.signal(signal.SIGTERM)
    assert fleet.code() == 0
    assert with_local_fleet(Settings()).redis_url == "redis://localhost:6379/0"


def test_the_printed_submit_command_includes_all_required_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the warehouse, a job submitted as it says would publish to ./warehouse."""
    monkeypatch.delenv("UNSTUCK_WAREHOUSE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "UNSTUCK_WAREHOUSE" not in LocalFleet(home=tmp_path, redis_url="redis://h:1/0").welcome()
    monkeypatch.setenv("UNSTUCK_WAREHOUSE", "a house")
    shown = LocalFleet(home=tmp_path, redis_url="redis://h:1/0").welcome()
    assert f"UNSTUCK_WAREHOUSE='{tmp_path}/a house' unstuck submit SPEC" in shown


def test_the_demo_ends_with_commands_to_copy_that_name_its_warehouse() -> None:
    lines = further(Path("/w/.unstuck/demo"), "/w/.unstuck/demo/ware house", "J", ".venv/bin/u")
    assert (
        "  UNSTUCK_WAREHOUSE='/w/.unstuck/demo/ware house' .venv/bin/u up --home /w/.unstuck/demo"
        in lines
    )
    assert '  UNSTUCK_REDIS_URL="$(cat /w/.unstuck/demo/redis.url)" .venv/bin/u events J' in lines


def test_a_program_outside_the_path_is_printed_with_its_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / ".venv" / "bin" / "unstuck"
    mine.parent.mkdir(parents=True)
    mine.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(mine.parent / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert program(tmp_path) == ".venv/bin/unstuck"
    assert program(tmp_path / "elsewhere") == str(mine)
    monkeypatch.setenv("PATH", str(mine.parent))
    assert program(tmp_path) == "unstuck"


@pytest.mark.variant
@pytest.mark.parametrize("command", ["list", "doctor", "cancel"])
def test_a_command_in_the_folder_of_a_silent_fleet_uses_no_other_fleet(
    tmp_path: Path, command: str
) -> None:
    """It went to the default address before, where another fleet may answer."""
    cli = Cli(None, tmp_path)
    home = Home(cli.folder / ".unstuck")
    home.path.mkdir()
    home.announce(silent := f"redis://127.0.0.1:{free_port()}/0")

    done = cli(command, *(["last"] if command == "cancel" else []))

    assert done.returncode == 5, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert f"No Redis answers at {silent}" in said
    assert "start it again with `unstuck up`, or set UNSTUCK_REDIS_URL" in said
    assert "6379" not in said


def test_workers_on_one_machine_share_its_cores() -> None:
    def masters(workers: int, master: str) -> set[str | None]:
        programs = program_list(
            Size(workers=workers), "redis://x", Settings(spark_master=master), cores=8
        )
        return {c.env.get("UNSTUCK_SPARK_MASTER") for c in programs if c.name.startswith("spark")}

    assert masters(1, "local[*]") == {None}
    assert masters(3, "local[*]") == {"local[2]"}
    assert masters(16, "local[*]") == {"local[1]"}
    assert masters(3, "spark://host:7077") == {None}


def test_the_restart_delay_grows_up_to_a_limit() -> None:
    delays = [restart_delay(deaths) for deaths in (1, 2, 3, 50)]
    assert delays == [FIRST_DELAY, FIRST_DELAY * 2, FIRST_DELAY * 4, LONGEST_DELAY]


def test_a_real_fleet_becomes_ready_and_restarts_processes_killed_with_sigkill(
    up: Callable[..., Up],
) -> None:
    """Given the real programs; when each is killed with SIGKILL; then each comes back, and Ctrl-C
    leaves nothing.
    """
    fleet = up(programs=None, grace=10.0)
    fleet.says("Ready: 1 Spark worker, 1 light worker, 1 coordinator", 90)
    mains = {
        "coordinator-1": "coordinator-1@",
        "beat": " beat",
        "spark-1": "spark-1@",
        "light-1": "light-1@",
        "valkey": "valkey-server",
    }
    for name, text in mains.items():
        main = fleet.find(text)
        assert main is not None, f"{name} does not run: {fleet!r}"
        main.kill()
        fleet.says(f"{name} (pid {main.pid}) was killed by signal SIGKILL")
        fleet.is_back(text, main.pid)
    for name in ("coordinator-1", "spark-1", "light-1"):
        fleet.is_ready_again(name)
    fleet.family()

    fleet.signal(signal.SIGINT)

    assert fleet.code() == 0
    fleet.is_gone()


@pytest.mark.variant
@pytest.mark.timeout(240)
def test_a_real_fleet_killed_during_work_leaves_nothing_behind(
    up: Callable[..., Up], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a Spark stage; when the foreground is killed; then all ends but a watchdog, which
    reports to the next.
    """
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    fleet = up(programs=None)
    fleet.says("Ready", 90)
    stage = tmp_path / "stage"
    step = {"python": "fleet_steps:slow_stage", "params": {"started": str(stage)}}
    with Client(
        Settings(redis_url=fleet.address(), prefix="up", warehouse=str(tmp_path / "warehouse"))
    ) as client:
        client.submit({"name": "at-work", "groups": [{"name": "stage", "steps": [step]}]})
        wait_until(stage.exists, 90, "the stage to run")
    family = [process.name() for process in fleet.family().values()]
    assert "java" in family, family

    fleet.process.kill()
    fleet.process.wait()

    wait_until(
        lambda: all("unstuck.tasks.watchdog" in line for line in fleet.left()),
        15,
        "all but watchdogs to end",
    )
    # The watchdog of the attempt goes on trying to report its loss to the Valkey that was killed as
    # well.
    again = up(programs={})
    again.says("Ready")
    fleet.is_gone(30)


@pytest.mark.variant
@pytest.mark.timeout(240)
def test_with_reload_the_next_job_runs_the_changed_code(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    """Given `up --reload` and a job that ran; when its step is changed on disk; then the worker
    that ran it is restarted, and the next job runs the new code. Other files restart nothing.
    """
    module = tmp_path / "mine.py"
    module.write_text("def say(spark, ctx):\n    ctx.result('word', 'old')\n")
    fleet = up(programs=None, grace=10.0, reload=True)
    fleet.says("Ready", 90)
    first = fleet.find("light-1@")
    assert first is not None
    group = {"name": "say", "spark": False, "steps": [{"python": "mine:say"}]}
    with Client(
        Settings(redis_url=fleet.address(), prefix="up", warehouse=str(tmp_path / "warehouse"))
    ) as client:

        def word() -> object:
            job = client.submit({"name": "say", "groups": [group]}).id
            wait_until(lambda: client.show(job).terminal, 60, "the job to end")
            return client.show(job).groups[0].members[0].results["word"]

        def code() -> set[str]:
            return {one.code["mine"] for one in client.fleet().runners if "mine" in one.code}

        assert word() == "old"
        before = wait_until(code, 10, "the runner to say which code it runs")
        (tmp_path / "notes.py").write_text("1\n")
        # Whole at once: on a busy machine, two looks may fall between the emptying of a file and
        # its new content.
        tmp_path.joinpath("mine.new").write_text(
            "def say(spark, ctx):\n    ctx.result('word', 'another')\n"
        )
        tmp_path.joinpath("mine.new").replace(module)
        fleet.says("mine.py changed: restarting light-1. Running attempts have 20 s to end")
        fleet.is_back("light-1@", first.pid)
        assert word() == "another"
        wait_until(
            lambda: (now := code()) and not now & before,
            10,
            "the new runners to say which code they run",
        )
    assert "started again" not in fleet.text, "a restart that was asked for is no death"
    assert fleet.text.count("changed: restarting") == 1
