"""A small fleet for tests: real workers, and a coordinator played by hand.

``make_offer`` writes what a coordinator would have committed, and sends a wake-up; ``outcome``
waits for what the runner puts on the record. Nothing here knows how a runner works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import redis

from tests.support.paths import PYTHONPATH
from tests.support.programs import forked
from tests.support.programs.forked import Forked
from tests.support.programs.processes import command_line, lives
from tests.support.servers import wait_until
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Offer, split_member
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import Collect, FrozenInputs, GroupPlan
from unstuck.tasks.warehouse.log import Warehouse

KEYS = Keys("unstuck")
RUNNING: list[
    FleetWorker
] = []  # those of this test process, for whoever has to tell why a test failed


def listed(client: redis.Redis) -> list[RunnerInfo]:
    """The runners as their watchdogs described them last."""
    return ProcessRegistry(client, KEYS).runners()


def make_offer(
    client: redis.Redis,
    warehouse: Path | str,
    job: str,
    group: dict[str, Any],
    *,
    member: str | None = None,
    epoch: int = 1,
    nonce: str = "n1",
    params: dict[str, Any] | None = None,
    inputs: dict[str, Sequence[str]] | None = None,
    value: Any = None,
    collect: Sequence[Collect] = (),
    warehouse_id: str | None = None,
    base: int = 0,
    zone: str = "",
    send: bool = True,
) -> Offer:
    """Make one attempt claimable, as a commit would, and send its offer to the group's queue."""
    spec = GroupSpec.model_validate(group)
    group_id = member or spec.name
    plan = GroupPlan(
        group=spec,
        params=params or {},
        collect=tuple(collect),
        warehouse=str(warehouse),
        warehouse_id=warehouse_id or Warehouse(str(warehouse)).ensure_id(),
        base=base,
        zone=zone,
    )
    frozen = FrozenInputs(
        value=value, inputs={need: tuple(found) for need, found in (inputs or {}).items()}
    )
    keys = KEYS.of(job)
    record = {"status": "RUNNING", "intent": "run", "params": "{}"}
    client.hset(keys.job, mapping={**record, "fields": f"{len(record)} {' '.join(record)} "})
    client.hset(keys.plans, split_member(group_id)[0], plan.model_dump_json(by_alias=True))
    client.hset(
        keys.inputs, mapping={split_member(group_id)[0]: "{}", group_id: frozen.model_dump_json()}
    )
    client.hset(
        keys.attempts, group_id, json.dumps({"epoch": epoch, "nonce": nonce, "spark": spec.spark})
    )
    client.zadd(KEYS.due, {job: 0})
    offer = Offer(job, group_id, epoch, nonce)
    if send:
        send_wake_up(client, offer, spec.queue_name)
    return offer


def stand(client: redis.Redis, offer: Offer, queue: str) -> None:
    """Put the offer into the ready set of its queue, as a commit does."""
    client.zadd(KEYS.ready(queue), {str(offer): float(client.hincrby(KEYS.turn, queue, 1))})
    client.zadd(KEYS.lanes, {queue: 0})


def send_wake_up(client: redis.Redis, offer: Offer, queue: str) -> None:
    """Put the offer into the ready set of its queue, and send a wake-up through the server of
    ``client``.
    """
    stand(client, offer, queue)
    wake(client, queue)


def wake(client: redis.Redis, queue: str) -> None:
    """Send a wake-up through the server of ``client``."""
    from unstuck.tasks.transport.celery_app import app

    where = client.connection_pool.connection_kwargs
    with app.connection_for_write(
        f"redis://{where['host']}:{where['port']}/{where.get('db', 0)}"
    ) as connection:
        app.send_task("unstuck.run", args=[queue], queue=queue, connection=connection)


def attempt(client: redis.Redis, offer: Offer) -> dict[str, Any]:
    """The attempt record as it stands."""
    raw = client.hget(KEYS.of(offer.job).attempts, offer.group)
    return json.loads(raw) if raw else {}


def claimed(
    client: redis.Redis, offer: Offer, timeout: float = 60, *, wakes: str = ""
) -> dict[str, Any]:
    """The attempt record, once a runner holds it.

    Args:
        wakes: a queue to which wake-ups are sent meanwhile, as every sweep does: a runner that is
            being replaced may get one and take nothing.
    """

    def held() -> dict[str, Any] | None:
        record = attempt(client, offer)
        if not record.get("claimant") and wakes:
            wake(client, wakes)
        return record if record.get("claimant") else None

    return wait_until(held, timeout, f"a runner to claim {offer}", 1.0 if wakes else None)


def renewed(client: redis.Redis, offer: Offer) -> None:
    """Wait until the watchdog knows of the attempt, whose claim the runner told it after the
    record: it has renewed.
    """
    lease = claimed(client, offer)["lease"]
    wait_until(lambda: attempt(client, offer)["lease"] > lease, 20, f"a renewal for {offer}")


def runner_of(client: redis.Redis, offer: Offer, timeout: float = 60) -> psutil.Process:
    """The process that holds the attempt, once one does."""
    return psutil.Process(int(claimed(client, offer, timeout)["worker"].rpartition(":")[2]))


def asleep(client: redis.Redis, runner: psutil.Process) -> bool:
    """The runner takes no offers by itself; for a moment after each attempt it would."""
    ids = [one.id for one in listed(client) if one.pid == runner.pid]
    return bool(ids) and all(float(client.hget(KEYS.polled, one) or 0) < 0 for one in ids)


def gone(pid: int) -> bool:
    """True if there is no such process any more.

    A zombie is gone once all its threads are, and its sockets closed.
    """
    try:
        process = psutil.Process(pid)
        return not lives(process) and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def outcome(client: redis.Redis, offer: Offer, timeout: float = 20) -> Outcome:
    """What is on the record when the attempt has ended."""
    wait_until(lambda: attempt(client, offer).get("outcome"), timeout, f"the outcome of {offer}")
    return Outcome.from_json(attempt(client, offer)["outcome"])


def begun(client: redis.Redis, offer: Offer, started: Path, timeout: float = 120) -> None:
    """Wait until the step of the attempt has made ``started``; one that ended before it came there
    says so.
    """

    def made() -> bool:
        assert started.exists() or "outcome" not in (record := attempt(client, offer)), record[
            "outcome"
        ]
        return started.exists()

    wait_until(made, timeout, f"the step of {offer} to make {started.name}")


def instruct(client: redis.Redis, offer: Offer, what: str) -> None:
    """CANCEL or DRAIN, as a coordinator puts it on the attempt record."""
    keys = KEYS.of(offer.job)
    while True:
        with client.pipeline() as pipe:
            try:
                pipe.watch(keys.attempts)
                record = json.loads(pipe.hget(keys.attempts, offer.group))
                pipe.multi()
                pipe.hset(keys.attempts, offer.group, json.dumps({**record, "instruction": what}))
                pipe.publish(KEYS.cancel(offer.job), "")
                pipe.execute()
                return
            except redis.WatchError:
                continue


def reports(client: redis.Redis) -> list[dict[str, str]]:
    """All reports of workers so far, oldest first; neither wake-ups nor what cannot be read."""
    return [
        fields for _, fields in client.xrange(KEYS.reports) if fields.get("kind", "due") != "due"
    ]


class FleetWorker:
    """One real ``celery … worker`` of workers or of coordinators, in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def runners(self) -> list[psutil.Process]:
        """Its prefork children."""
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if (line := command_line(child)) and "unstuck.tasks.watchdog" not in line
        ]

    @property
    def watchdogs(self) -> list[psutil.Process]:
        return [
            c
            for runner in self.runners
            for c in runner.children()
            if "unstuck.tasks.watchdog" in command_line(c)
        ]

    def watchdog(self) -> psutil.Process:
        """That of its only runner.

        One that was just forked still has the name of its runner for a moment.
        """
        (found,) = wait_until(lambda: self.watchdogs, 10, "the watchdog")
        return found

    def ready(self) -> bool:
        return b" ready." in self.log.read_bytes()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def story(self, lines: int = 60) -> str:
        """What it does and did last, for a test that failed: its processes, its log, what they and
        its JVMs are at.
        """
        processes, said = _below(self.process.pid), self.text()
        stacks = [_stacks(pid) for pid in (self.process.pid, *(one.pid for one in processes))]
        jvms = [one for one in processes if "java" in command_line(one)]
        for jvm in jvms:
            with suppress(psutil.NoSuchProcess):
                jvm.send_signal(signal.SIGQUIT)  # it writes down its threads
        end = time.monotonic() + 3
        while (
            self.text()[len(said) :].count("JNI global refs") < len(jvms) and time.monotonic() < end
        ):
            time.sleep(0.05)  # that is the last thing it writes
        threads = self.text()[len(said) :].split("\n\n")
        return "\n".join(
            [
                *(f"{one.pid} {command_line(one)[:120]}" for one in processes),
                *said.splitlines()[-lines:],
                *stacks,
                *(
                    "\n".join(thread.splitlines()[:16])
                    for thread in threads
                    if "api.python" in thread
                ),
            ]
        )


@contextmanager
def worker(
    redis_url: str,
    folder: Path,
    *,
    queues: str = "light",
    concurrency: int = 1,
    environ: dict[str, str] | None = None,
    arguments: Sequence[str] = (),
    program: str = "celery",
    python: Path | str | None = None,
) -> Iterator[FleetWorker]:
    """A worker that listens to ``queues``; ended, with all that it started, when the block is left.

    ``program``: the module that is run, with the arguments of ``celery``; ``python``: by which
    Python, newly started.
    """
    log = folder / f"worker-{os.urandom(2).hex()}.log"
    settings = {
        "UNSTUCK_REDIS_URL": redis_url,
        "UNSTUCK_LEASE_TTL": "3s",
        "UNSTUCK_LEASE_RENEW": "300ms",
        "UNSTUCK_CANCEL_GRACE": "3s",
        "UNSTUCK_DRAIN_GRACE": "1s",
        "PYTHONPATH": PYTHONPATH,
        "PYTHONDONTWRITEBYTECODE": "1",
        **(environ or {}),
    }
    command = [
        "-A",
        "unstuck.tasks",
        "worker",
        "-Q",
        queues,
        "-c",
        str(concurrency),
        "-l",
        "INFO",
        *arguments,
    ]
    whole = {**os.environ, **settings}
    process: subprocess.Popen[bytes] | Forked
    if program == "celery" and python is None:
        process = forked.start(
            forked.celery, command, folder=folder, environ=whole, out=log, err=log
        )
    else:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(python or sys.executable), "-m", program, *command],
                cwd=folder,
                env=whole,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    fleet = FleetWorker(process, log)
    try:
        wait_until(
            lambda: fleet.ready() or process.poll() is not None, 90, "the worker to be ready"
        )
        assert process.poll() is None, fleet.text()
        with running(fleet):
            yield fleet
    finally:
        started = _below(process.pid) if process.poll() is None else []
        for one in started:
            _kill(one)
        process.kill()
        process.wait()
        wait_until(
            lambda: not [p for p in started if lives(p)],
            10,
            "the worker's processes to be gone",
        )


@contextmanager
def running(fleet: FleetWorker) -> Iterator[None]:
    """If a test fails in this block, its report tells of ``fleet``."""
    RUNNING.append(fleet)
    try:
        yield
    except Exception as error:
        error.add_note(
            f"worker {fleet.process.pid}\n{fleet.story()}"
        )  # now: it is ended before the report is made
        raise
    finally:
        RUNNING.remove(fleet)


def stop_gently(fleet: FleetWorker) -> int:
    """SIGTERM, and wait: a warm shutdown."""
    fleet.process.send_signal(signal.SIGTERM)
    return fleet.process.wait()


def _stacks(pid: int) -> str:
    """Where all threads of a Python process are; of another one, that it is none."""
    dump = [
        str(Path(sys.executable).with_name("py-spy")),
        "dump",
        "--nonblocking",
        "--pid",
        str(pid),
    ]
    try:
        return subprocess.run(
            dump, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20
        ).stdout
    except subprocess.TimeoutExpired:
        return f"{pid}: its threads were not found within 20 s"


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
