"""Promise 5, of terminals: no text that anybody could write moves the cursor, names a window or
turns the direction.
"""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.conftest import Cli
from tests.support.coordinator import Coordinator, group
from tests.support.servers import RedisServer
from unstuck.coordinator.publishing.dataset_change import change_of
from unstuck.tasks.frames.output import stage
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry

EVIL = "a\x1b]0;owned\x07b\x1b[2Jc\N{RIGHT-TO-LEFT OVERRIDE}d\x9be\N{LINE SEPARATOR}f\U000e0041"
SHOWN = "abc\N{REPLACEMENT CHARACTER}d\N{REPLACEMENT CHARACTER}e\N{REPLACEMENT CHARACTER}f\N{REPLACEMENT CHARACTER}"


def obeyed(text: str) -> set[str]:
    """The characters of ``text`` that a terminal might obey."""
    return {
        c
        for c in text
        if c not in "\n\t" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }


@pytest.fixture
def cli(coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path) -> Cli:
    """Everything that anybody may write holds the text: a column, a job, a host, a reason, a label,
    a dead letter.
    """
    warehouse = tmp_path / "warehouse"
    log = Warehouse(str(warehouse))
    log.ensure_id()
    staged = stage(Files(str(warehouse)), "_staging/j/g/1-n-c/rows", pa.table({EVIL: [1]}))
    change = change_of("rows", staged, OutputSpec(), None)
    log.append(
        "j",
        0,
        lambda n, state: Entry(n, n - 1, "j", "package", "j", EVIL, 1.0, {}, {"rows": change}),
    )
    job = coordinator.submit(group("g", for_each={"n": [EVIL]}), name="forged")
    coordinator.read()
    coordinator.client.pause(job, reason=EVIL, by=EVIL)
    coordinator.read()
    record = json.loads(str(coordinator.redis.hget(coordinator.keys.summary, job)))
    coordinator.redis.hset(coordinator.keys.summary, job, json.dumps({**record, "name": EVIL}))
    coordinator.note_runner("r", heard=-3600, host=EVIL)
    coordinator.redis.xadd(
        coordinator.keys.reports, {"v": "1", "id": EVIL, "token": EVIL, "kind": "claimed"}
    )
    coordinator.read()
    return Cli(redis_server.url, tmp_path)


COMMANDS = [
    "list",
    "show last",
    "why last",
    "events last",
    "fleet",
    "datasets",
    "datasets rows",
    "dead list",
]


@pytest.mark.parametrize("command", [*COMMANDS, "datasets rows --history"])
def test_no_command_prints_terminal_control_sequences(cli: Cli, command: str) -> None:
    done = cli(*command.split())
    assert obeyed(done.stdout + done.stderr) == set(), repr(done.stdout)
    assert "\N{REPLACEMENT CHARACTER}" in done.stdout, "the text was shown"
    as_json = cli(*command.split(), "--json").stdout
    assert obeyed(as_json) == set()
    assert "\\u202e" in as_json
    for line in as_json.splitlines() if command.startswith("events") else [as_json]:
        json.loads(line)


def test_workers_and_coordinators_log_printable_text() -> None:
    code = f"""
import logging
from unstuck.tasks.celery import app
app.log.setup("INFO")
log = logging.getLogger("unstuck.some")
log.info("job %s", {EVIL!r})
try:
    raise ValueError({EVIL!r})
except ValueError:
    log.exception("no")
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr
    assert obeyed(said) == set(), repr(said)
    assert f"job {SHOWN}" in said
    assert f"ValueError: {SHOWN}" in said
