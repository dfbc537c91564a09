"""Case j: what a group cannot do without, done by bare system calls and bare calls of Redis in one
process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from bench.case import Case, Stage

COUNT = {"tiny": 3, "quick": 100, "full": 400}
_MARKER = json.dumps(
    {"token": "job/group/1/nonce/claimant", "outputs": {}, "results": {}, "at": 1.0}
).encode()
# As many writes as a finish with a take, or a commit of a coordinator, makes.
_BATCH = 500  # entries that a coordinator reads at a time
# For each report: a record, an event, and at the end the place of the job in an index.
_COMMIT = """
for i = 2, #ARGV do
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[1])
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'event', ARGV[1])
end
redis.call('ZADD', KEYS[3], 1, 'job')
return #ARGV
"""
_WRITES = "for i = 1, 13 do redis.call('HSET', KEYS[1], ARGV[1] .. i, ARGV[2]) end return 1"


def run(stage: Stage) -> Case:
    case = Case("j", "the floor of a group, by bare calls")
    client = stage.server.client
    script = client.register_script(_WRITES)
    home = stage.folder / "floor"
    parts: dict[str, Callable[[Path], object]] = {
        "marker: two folders and a file, four fsyncs": lambda folder: _marker(folder, durable=True),
        "the same without fsync": lambda folder: _marker(folder, durable=False),
        "log file with two lines": _log,
        "a script with 13 writes": lambda folder: script(
            keys=["floor"], args=[folder.name, "x" * 100]
        ),
        "PING": lambda _: client.ping(),
    }
    for number in stage.rounds():
        for place, (what, act) in enumerate(parts.items()):
            folder = home / f"{number}-{place}"
            folder.mkdir(parents=True)
            count = COUNT[stage.size]
            at, cpu = time.perf_counter(), time.process_time()
            for i in range(count):
                act(folder / str(i))
            case.add(what, "ms", 1000 * (time.perf_counter() - at) / count)
            case.add(f"{what}: CPU", "ms", 1000 * (time.process_time() - cpu) / count)
    for _ in stage.rounds():
        _reports(case, stage)
    return case


def _reports(case: Case, stage: Stage) -> None:
    """Reports are read, written and acked as a coordinator does, without decisions and encoding."""
    client, what, count = (
        stage.server.client,
        "a report, of 500 read, written and acked",
        20 * COUNT[stage.size],
    )
    client.delete("floor:reports", "floor:records", "floor:events", "floor:due")
    client.xgroup_create("floor:reports", "all", id="0", mkstream=True)
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            token = f"job/group[{number}]/1/0123456789abcdef/0123456789abcdef"
            pipe.xadd(
                "floor:reports",
                {"v": "1", "kind": "succeeded", "token": token, "at": "1764000000.123456"},
            )
        pipe.execute()
    commit, own, redis = (
        client.register_script(_COMMIT),
        time.process_time(),
        stage.server.process.cpu_times(),
    )
    at = time.perf_counter()
    while entries := client.xreadgroup("all", "me", {"floor:reports": ">"}, count=_BATCH):
        read = entries[0][1]
        groups = [fields[b"token"].split(b"/")[1] for _, fields in read]
        commit(keys=["floor:records", "floor:events", "floor:due"], args=["x" * 150, *groups])
        client.xack("floor:reports", "all", *(entry for entry, _ in read))
    case.add(what, "ms", 1000 * (time.perf_counter() - at) / count)
    case.add(f"{what}: CPU", "ms", 1000 * (time.process_time() - own) / count)
    used = stage.server.process.cpu_times()
    case.add(
        f"{what}: CPU of Redis",
        "ms",
        1000 * (used.user + used.system - redis.user - redis.system) / count,
    )


def _marker(folder: Path, *, durable: bool) -> None:
    """The folder of a group, that of its attempt, and the marker; all durable before the outcome is
    told.
    """
    attempt = folder / "attempt"
    attempt.mkdir(parents=True)
    with (attempt / "half").open("wb") as file:
        file.write(_MARKER)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    (attempt / "half").rename(attempt / "marker")
    if durable:
        for one in (attempt, folder, folder.parent):
            descriptor = os.open(one, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def _log(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(b"2026-11-25T00:00:00.000000Z INFO unstuck: the first line\n")
        file.write(b"2026-11-25T00:00:00.000000Z INFO unstuck: the second line\n")
