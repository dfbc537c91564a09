"""Waiting for a job: live on a terminal, line by line elsewhere, and left with Ctrl-C without harm
to the job.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from pathlib import Path

import pytest
import redis
from rich.console import Console
from rich.text import Text

from tests.cli.conftest import ByHand, Cli
from tests.support.machine import Limit
from tests.support.servers import RedisServer, wait_until
from unstuck.cli.jobs import watch
from unstuck.coordinator.explain import job as explain_job
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.warehouse.log import Warehouse

SPEC = """\
name: waited
groups:
  - name: first
    spark: false
    steps: [{python: "some.where:step"}]
  - name: second
    needs: [first]
    spark: false
    steps: [{python: "some.where:step"}]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "waited.yaml"
    path.write_text(SPEC)
    return path


def the_job(hand: ByHand) -> str:
    """The id of the job that the command has submitted."""
    return wait_until(lambda: hand.client.jobs(), 20, "the job to be submitted")[0].id


# -- without a terminal ----------------------------------------------------------------------------


def test_submit_prints_the_job_and_the_next_commands(cli: Cli, hand: ByHand, spec: Path) -> None:
    done = cli("submit", spec)
    job = the_job(hand)
    assert done.returncode == 0
    assert f"Submitted waited: job {job}" in done.stdout
    assert f"unstuck watch {job}" in done.stdout


@pytest.mark.variant
def test_submit_reports_that_it_created_a_warehouse(
    cli: Cli, hand: ByHand, spec: Path, tmp_path: Path
) -> None:
    """As it does while the mount is missing: nobody else would say so before the jobs that were
    there are missed.
    """
    first, again = cli("submit", spec, "--json"), cli("submit", spec)
    made = f"  warehouse  {tmp_path / 'warehouse'}, which was not there, and was made"
    assert made in first.stderr.splitlines()
    assert "arning" not in first.stderr
    assert made not in again.stderr + again.stdout

    (tmp_path / "warehouse").rename(tmp_path / "away")
    third = cli("submit", spec)
    assert (third.stdout.splitlines()[1], third.stderr) == (made, "")


def test_submitting_the_same_key_returns_the_same_job_and_says_so(cli: Cli, spec: Path) -> None:
    first = cli.json("submit", spec, "--key", "today")
    assert first["new"] is True
    again = cli("submit", spec, "--key", "today")
    assert again.returncode == 0
    assert f"submitted under this key before: job {first['id']}" in again.stdout
    assert "PENDING" in again.stdout
    assert cli.json("submit", spec, "--key", "today") == {**first, "new": False}


def test_parameters_reach_the_job(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("params: {year: 2013}\n" + SPEC)
    job = cli.json("submit", path, "--param", "year=2014")["id"]
    assert cli.json("show", job)["params"] == {"year": 2014}


@pytest.mark.variant
def test_a_piped_wait_prints_one_line_per_change_and_ends_with_the_job(
    cli: Cli, hand: ByHand, spec: Path
) -> None:
    with cli.start("submit", spec, "--wait") as process:
        job = the_job(hand)
        hand.decide(job)
        hand.succeed(job, "first", rows={"first": 1200})
        hand.succeed(job, "second")
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    for group in ("first", "second"):
        changes = [line.split()[2] for line in lines if line.split()[3:4] == [group]]
        assert changes == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert any("1,200 rows" in line for line in lines)
    assert f"waited {job} FINISHED after" in lines[-1]


def test_waiting_for_a_failing_job_exits_with_1_and_its_reason(
    cli: Cli, hand: ByHand, spec: Path
) -> None:
    with cli.start("submit", spec, "--wait", "--json") as process:
        job = the_job(hand)
        hand.decide(job)
        hand.fail(job, "first", "no such table")
        assert process.stdout is not None
        assert process.stderr is not None
        answer = json.loads(process.stdout.read())  # what people read is elsewhere
        assert "FAILED" in process.stderr.read()
    assert process.returncode == 1
    assert (answer["id"], answer["status"], answer["new"]) == (job, "FAILED", True)
    assert "no such table" in answer["reason"]["text"]


def test_ctrl_c_while_waiting_leaves_the_job_running_and_prints_how_to_resume_watching(
    cli: Cli, hand: ByHand, spec: Path
) -> None:
    Warehouse(hand.settings.warehouse).ensure_id()  # of a new one it would say something
    with cli.start("submit", spec, "--wait") as process:
        job = the_job(hand)
        hand.decide(job)
        token = hand.claim(job, "first")
        assert process.stdout is not None
        wait_until(
            lambda: "RUNNING" in process.stdout.readline(), 20, "the command to show RUNNING"
        )
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 130
    assert f"job {job} goes on" in said
    assert f"unstuck watch {job}" in said
    # Then: the job knows nothing of it, and ends as ever.
    assert hand.view(job).intent == "run"

    hand.finish(token, Outcome(OutcomeKind.SUCCEEDED))
    hand.succeed(job, "second")
    assert cli("watch", job).returncode == 0


@pytest.mark.variant
def test_a_watching_command_survives_a_redis_restart(cli: Cli, tmp_path: Path) -> None:
    server = RedisServer(tmp_path, aof=True)
    server.start()
    try:
        cli.env["UNSTUCK_REDIS_URL"] = server.url
        with redis.Redis.from_url(server.url, decode_responses=True) as store:
            hand = ByHand(server.url, store, tmp_path)
            job = hand.submit({"name": "only"})
            assert store.waitaof(1, 0, 60_000)[0] == 1
            with cli.start("watch", job) as process:
                assert process.stdout is not None
                assert "SUBMITTED" in process.stdout.readline()
                server.stop()
                assert "Redis does not answer" in process.stdout.readline()
                server.start()
                hand.decide(job)
                hand.succeed(job, "only")
                assert "FINISHED" in process.stdout.read().splitlines()[-1]
            assert process.returncode == 0
    finally:
        server.stop()


def test_a_piped_wait_reports_once_why_the_job_waits(
    hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of a CI that ends in SUBMITTED or QUEUED helps nobody."""
    monkeypatch.setattr(watch, "QUIET", 0.3)
    monkeypatch.setattr(watch, "EVERY", 0.05)
    monkeypatch.setattr(explain_job, "LONELY_S", 0.1)
    job = hand.submit({"name": "only", "queue": "gpu"})
    answers: list[Text | None] = []
    why = watch.waiting

    def noted(view: JobInfo) -> Text | None:
        answers.append(why(view))
        return answers[-1]

    monkeypatch.setattr(watch, "waiting", noted)
    drawn = io.StringIO()
    console = Console(file=drawn, width=1000)
    waiting = threading.Thread(
        target=watch.await_end, args=(hand.client, job, console), daemon=True
    )
    waiting.start()

    def stood(word: str) -> list[str]:
        return [
            line for line in drawn.getvalue().splitlines() if "  waiting  " in line and word in line
        ]

    # Given: no coordinator. Then: it says so; and with one, that nobody listens to the queue.
    wait_until(
        lambda: stood("no coordinator has looked at this job"), 5, "a word about coordinators"
    )
    hand.decide(job)
    wait_until(lambda: stood("queue gpu: no worker listens on it"), 5, "a word about the queue")
    # When it runs, a line would be noise.
    token = hand.claim(job, "only")
    wait_until(
        lambda: not answers[-1],
        5,
        "the command to look what the job waits for, and to find nothing",
    )
    hand.finish(token, Outcome(OutcomeKind.SUCCEEDED))
    waiting.join()
    assert "FINISHED after" in drawn.getvalue()
    assert len(stood("")) == 2, drawn.getvalue()


# -- on a terminal ---------------------------------------------------------------------------------


class Terminal:
    """A command on a terminal of its own, with what it has drawn so far."""

    def __init__(self, cli: Cli, *arguments: str, columns: int = 120, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # What the environment says of the size counts for more than what the terminal says; a test
        # runner may set it.
        cli.env.update(COLUMNS=str(columns), LINES=str(rows))
        self.process = cli.start(*arguments, stdin=slave, stdout=slave, stderr=slave, text=False)
        os.close(slave)
        self.drawn = ""

    def read(self, timeout: float = 0.05) -> bool:
        """Take in what was drawn; False once the terminal is closed."""
        if not select.select([self._master], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.drawn += data.decode(errors="replace")
        return bool(data)

    def shows(self, pattern: str, timeout: float = 20.0) -> str:
        """Wait until something drawn since the last call fits ``pattern``."""
        limit = Limit(3 * timeout)
        while not (match := re.search(pattern, self.plain)):
            assert limit.kept, f"waited for {pattern!r}, {limit}; drawn: {self.plain!r}"
            if not self.read() and not re.search(pattern, self.plain):
                raise AssertionError(f"ended without {pattern!r}; drawn: {self.plain!r}")
        self.drawn = ""
        return match[0]

    @property
    def plain(self) -> str:
        """Without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.drawn)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self.read(1.0):
            pass
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def test_the_live_tree_shows_forks_progress_clocks_and_workers(cli: Cli, hand: ByHand) -> None:
    job = hand.submit(
        {"name": "month", "for_each": {"m": [7, 8]}}, {"name": "report", "needs": ["month"]}
    )
    hand.decide(job)
    terminal = Terminal(cli, "watch", job)
    try:
        terminal.shows(r"◌ month +queued +▁▁▁▁▁▁▁▁ 0/2 +2 queued")
        terminal.shows(r"○ report +waiting +waits for month")
        token = hand.claim(job, "month[0]", "host-9:77")
        hand.progress(token, step=1, steps=2, label="counting", rows=1200, done=3, total=12)
        terminal.shows(
            r"└─ ● month\[0\] m=7 +running +▇▇▁▁▁▁▁▁ 3/12 +step 1/2 counting · 1,200 rows "
            r"+\d+\.\ds host-9:77"
        )
        hand.progress(token, step=2, steps=2, label="writing", done=1, total=2)
        terminal.shows(r"▇▇▇▇▁▁▁▁ 1/2 +step 2/2 writing")

        hand.finish(token, Outcome(OutcomeKind.SUCCEEDED))
        terminal.shows(r"month +queued +▇▇▇▇▁▁▁▁ 1/2")
        hand.succeed(job, "month[1]")
        hand.succeed(job, "report")
        terminal.shows(r"FINISHED after")
        assert terminal.end() == 0
    finally:
        terminal.close()


@pytest.mark.variant
def test_the_live_tree_is_current_soon_after_an_outage(cli: Cli, tmp_path: Path) -> None:
    """The pause between two reads grows with the time that a read takes; an outage counted as
    such.
    """
    server = RedisServer(tmp_path)
    server.start()
    cli.env["UNSTUCK_REDIS_URL"] = server.url
    with redis.Redis.from_url(server.url, decode_responses=True) as store:
        hand = ByHand(server.url, store, tmp_path)
        job = hand.submit({"name": "only"})
        hand.decide(job)
        token = hand.claim(job, "only")
        terminal = Terminal(cli, "watch", job)
        try:
            terminal.shows(r"● only +running")
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            terminal.shows("Redis does not answer")
            server.process.send_signal(signal.SIGCONT)
            outage = time.monotonic() - stopped
            hand.finish(token, Outcome(OutcomeKind.SUCCEEDED))
            limit = Limit(outage)
            terminal.shows("FINISHED after", timeout=60)
            assert limit.kept, f"four times the outage before: {limit}"
            assert terminal.end() == 0
        finally:
            terminal.close()
            server.stop()


@pytest.mark.variant
def test_ctrl_c_restores_the_cursor_of_the_terminal(cli: Cli, hand: ByHand) -> None:
    job = hand.submit({"name": "only"})
    terminal = Terminal(cli, "watch", "last", columns=80)
    try:
        terminal.shows(r"○ only +waiting")
        terminal.process.send_signal(signal.SIGINT)
        code = terminal.end()
        assert f"job {job} goes on" in terminal.plain
        assert f"unstuck watch {job}" in terminal.plain  # on one line, so that it can be copied
        assert terminal.drawn.rfind("\x1b[?25h") > terminal.drawn.rfind("\x1b[?25l")
        assert code == 130
    finally:
        terminal.close()


@pytest.mark.variant
def test_a_job_larger_than_the_terminal_is_cut_but_problems_stay_visible(
    cli: Cli, hand: ByHand
) -> None:
    names = [f"g{n:02d}" for n in range(40)]
    job = hand.submit(*({"name": name} for name in names))
    hand.decide(job)
    for name in names[:30]:
        hand.succeed(job, name)
    hand.claim(job, "g35")
    terminal = Terminal(cli, "watch", job, rows=16)
    try:
        shown = terminal.shows(r"(?s)30/40.*?● g35 +running")
        assert "… 30 more" in shown
        assert len(shown.splitlines()) <= 16
        assert "✓ g00" not in shown
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    finally:
        terminal.close()


@pytest.mark.variant
def test_no_color_settings_are_respected_on_a_terminal(cli: Cli, hand: ByHand) -> None:
    job = hand.finished()
    for wanted, env in ((True, {}), (False, {"NO_COLOR": "1"})):
        cli.env.update(env)
        terminal = Terminal(cli, "list")
        try:
            assert terminal.end() == 0
            assert job in terminal.plain
            assert ("\x1b[32m" in terminal.drawn) is wanted
        finally:
            terminal.close()


@pytest.mark.variant
def test_a_dumb_terminal_gets_plain_lines(cli: Cli, hand: ByHand) -> None:
    job = hand.finished()
    cli.env["TERM"] = "dumb"
    terminal = Terminal(cli, "watch", job)
    try:
        assert terminal.end() == 0
        assert "\x1b" not in terminal.drawn
        assert re.search(r"RUNNING +only +attempt 1, on host-1:4242", terminal.drawn)
    finally:
        terminal.close()
