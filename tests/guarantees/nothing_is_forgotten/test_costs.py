"""What things cost: constant per report in the width of a job, little for jobs that wait, nothing
that piles up.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from types import FrameType
from typing import Any

import pytest
import redis

from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group, join
from tests.support.network.lost_replies import LosesReplies
from tests.support.servers import wait_until
from unstuck import Client, JobSpec, SpecError, Status
from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import Commanded
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.spec import plan
from unstuck.coordinator.store import reports
from unstuck.coordinator.store.job_store import READ_AT_ONCE


class Lines:
    """Lines of Python that ran inside ``with``: a measure of work that a busy machine does not
    change, as time is.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.count += event == "line"
        return self._trace


def test_an_abandoned_pass_releases_the_lock(coordinator: Coordinator) -> None:
    """act._pass: after MAX_ROUNDS ``end`` may answer AGAIN, which keeps the lock for a whole term,
    for nobody.
    """
    job = coordinator.submit(group("only"))
    coordinator.read()
    end = coordinator.store.end

    def met_busy_each_time(job_id: str, owner: str, **more: Any) -> Any:
        coordinator.store.begin(
            job_id, "another coordinator that keeps trying"
        )  # BUSY, leaves the dirty flag
        return end(job_id, owner, **more)

    coordinator.store.end = met_busy_each_time  # type: ignore[method-assign]
    coordinator.reconciler.reconcile(job)
    assert not coordinator.redis.exists(coordinator.keys.of(job).lock), (
        f"{coordinator.redis.pttl(coordinator.keys.of(job).lock)} ms left"
    )


def test_reports_after_the_end_of_a_job_are_counted_without_loading_its_groups(
    coordinator: Coordinator,
) -> None:
    """After an outage those of a wide job come in many batches, and the first pass has applied them
    all.
    """
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer)
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    loads: list[str] = []
    coordinator.store.load = lambda job_id, *_, **__: loads.append(job_id)  # type: ignore[method-assign, assignment]
    token = str(offer.held_by("runner1"))
    for n in range(3):
        coordinator.redis.xadd(
            coordinator.keys.reports,
            {"v": 1, "id": f"late {n}", "token": token, "kind": "succeeded", "at": 1},
        )
    coordinator.read()
    assert not loads
    assert coordinator.client.counters()["TERMINAL"] == 3
    assert coordinator.redis.zscore(coordinator.keys.due, job) is None


@pytest.mark.parametrize("amount", [1, READ_AT_ONCE, READ_AT_ONCE + 1])
def test_reports_of_any_number_of_groups_are_applied_in_one_pass(
    coordinator: Coordinator, amount: int
) -> None:
    """Lua has room for 8,000 arguments.

    Attempts that are too many for the script are read after it.
    """
    job = coordinator.submit(group("first"), group("second"))
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.work(offer)
    entries = coordinator.stream.read(500, 0.01)
    reports = [Delivered(entry.id, entry.report) for entry in entries]
    more = [
        replace(
            one, report=replace(one.report, token=replace(one.report.token, group=f"no group {n}"))
        )
        for n, one in enumerate([reports[-1]] * (amount - 1))
    ]
    coordinator.reconciler.reconcile(job, [*reports, *more])
    assert coordinator.status(job) is Status.FINISHED


@pytest.mark.variant
def test_a_contended_lock_costs_its_holder_only_one_more_pass(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """AGAIN: whoever met the lock busy tries again by itself each few ms, so the flag is up again
    after every look.
    """
    one, two = make_coordinator(dispatch_window=4000), make_coordinator()
    job = one.submit(*(group(f"g{n}", queue="q") for n in range(1500)), name="wide")
    one.read()
    for offer in one.offers():
        one.claim(offer)
    one.read()
    stop = threading.Event()

    def keeps_trying() -> (
        None
    ):  # as a consumer with reports of a busy job does; a free lock it lets go at once
        while not stop.is_set():
            if two.store.begin(job, "two").answer == "LOCKED":
                two.redis.delete(two.keys.of(job).lock)
            stop.wait(0.005)

    ends: list[str] = []
    end = one.store.end

    def noted(*args: Any, **more: Any) -> Any:
        ends.append(end(*args, **more))
        return ends[-1]

    one.store.end = noted  # type: ignore[method-assign]
    thread = threading.Thread(target=keeps_trying)
    thread.start()
    one.reconciler.cache.clear()
    began = time.perf_counter()
    try:
        one.reconciler.reconcile(job)
    finally:
        stop.set()
        thread.join()
    assert len(ends) <= 3, (
        f"{len(ends)} looks at 1,500 groups, {time.perf_counter() - began:.1f}s under the lock"
    )


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that finds the state a second old loads the job afresh, which costs the width: per
    second, not per report. Where lines are counted, no second passes, however slow the machine."""
    monkeypatch.setattr("unstuck.coordinator.reconcile.reconciler.CACHE_SECONDS", 3600.0)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("shape", ["groups", "fork"])
def test_the_cost_of_a_report_does_not_depend_on_the_number_of_groups(
    make_coordinator: Callable[..., Coordinator], shape: str
) -> None:
    """Constant in the width: of a job with as many planned groups as members, and of a fork with a
    join.
    """

    def per_report(width: int) -> float:
        coordinator = make_coordinator(sweep_every=3600)
        if shape == "groups":
            coordinator.submit(*(group(f"g{n}") for n in range(width)), name=f"w{width}")
        else:
            fork = group("g", for_each={"n": list(range(width))})
            coordinator.submit(fork, join("end", "g"), name=f"w{width}")
        coordinator.read()
        each = []
        for offer in coordinator.offers()[:40]:
            coordinator.work(offer)
            entries = coordinator.stream.read(500, 0.001)
            with Lines() as lines:
                coordinator.consumer.apply(entries)
            each.append(lines.count)
        return median(each)

    narrow, wide = per_report(200), per_report(2_000)
    assert wide < 1.5 * narrow, (
        f"{narrow:.0f} lines of Python a report at 200 groups, {wide:.0f} at 2,000"
    )


@pytest.mark.long
@pytest.mark.usefixtures("unhurried")
def test_the_cost_of_a_queued_outcome_does_not_depend_on_the_width_of_its_job(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """As after an outage. A commit takes 250 of them, and before each all others were decoded once
    more: O(N^2).

    They are still gone through, which costs a line or two each: 1.2 times as much at 4,000, where
    it was 1.5.
    """

    def per_outcome(width: int) -> float:
        coordinator = make_coordinator(dispatch_window=10_000, sweep_every=3600)
        job = coordinator.submit(
            group("g", for_each={"n": list(range(width))}), join("end", "g"), name=f"w{width}"
        )
        coordinator.read()
        for offer in coordinator.offers():
            coordinator.work(offer)
        with Lines() as lines:
            coordinator.read()
        assert coordinator.status(job) is Status.FINISHED
        return lines.count / width

    narrow, wide = per_outcome(400), per_outcome(4_000)
    assert wide < 1.3 * narrow, (
        f"{narrow:.0f} lines of Python an outcome at 400 groups, {wide:.0f} at 4,000"
    )


@pytest.mark.variant
@pytest.mark.usefixtures("unhurried")
def test_many_dynamic_forks_cost_a_report_no_more_than_one(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """An outcome: each collected key judges every group again: N sources are O(N^2)."""

    def per_report(width: int) -> float:
        coordinator = make_coordinator(dispatch_window=10_000, sweep_every=3600)
        parts = []
        for n in range(width):
            parts += [group(f"s{n}"), group(f"f{n}", f"s{n}", for_each={"m": {"from": f"s{n}.c"}})]
        coordinator.submit(*parts, name=f"w{width}")
        coordinator.read()
        offers = [offer for offer in coordinator.offers() if offer.group.startswith("s")]
        for offer in offers:
            coordinator.claim(offer)
        coordinator.read()
        for offer in offers:
            coordinator.finish(
                offer.held_by("runner1"), replace(SUCCEEDED, forks={f"{offer.group}.c": [1]})
            )
        lines = Lines()
        while entries := coordinator.stream.read(500, 0.001):
            with lines:
                coordinator.consumer.apply(entries)
                while coordinator.consumer.again(time.monotonic()):
                    pass
        assert sum(offer.group.startswith("f") for offer in coordinator.offers()) == width
        return lines.count / width

    narrow, wide = per_report(100), per_report(800)
    assert wide < 2 * narrow, f"{narrow:.0f} lines of Python per source at 100, {wide:.0f} at 800"


@pytest.mark.parametrize(("busy", "most"), [(4, 0), (3, 1), (0, 4)])
def test_wake_ups_do_not_accumulate_behind_busy_workers(
    make_coordinator: Callable[..., Coordinator], busy: int, most: int
) -> None:
    """Rule 6: of 4 runners some are busy with long work, 20 offers stand ready, and nobody receives
    a wake-up.
    """
    coordinator = make_coordinator(dispatch_timeout=0.2, sweep_every=0.1)
    for number in range(4):
        state = {"job": "long work"} if number < busy else {"idle_since": 1.0}
        coordinator.note_runner(f"r{number}", heard=-3600, **state)
    queue = coordinator.keys.queue("light")

    def send_wake_ups(wake_ups: Mapping[str, int]) -> None:
        assert set(wake_ups) == {"light"}
        coordinator.redis.rpush(queue, *["a wake-up that waits"] * wake_ups["light"])

    coordinator.send_wake_ups = send_wake_ups
    job = coordinator.submit(group("w", for_each={"n": list(range(20))}))
    coordinator.read()
    assert len(coordinator.sent) == 20
    assert coordinator.redis.llen(queue) == most
    looks = set[float | None]()
    while len(looks) < 10:
        coordinator.sweep.run()
        looks.add(coordinator.show(job).due_at)
    assert coordinator.redis.llen(queue) == most
    assert len(coordinator.sent) == 20, (
        "one entry for each group, however often its offer is made again"
    )


def test_outputs_with_the_same_name_do_not_mix_their_fork_values(coordinator: Coordinator) -> None:
    """collected is keyed by ``output.column`` alone, whoever made it."""
    job = coordinator.submit(
        group("a"),
        group("x"),
        group("fa", "a", for_each={"m": {"from": "out.col"}}),
        group("fx", "x", for_each={"m": {"from": "out.col"}}),
    )
    coordinator.read()
    offers = {offer.group: offer for offer in coordinator.offers()}
    coordinator.work(offers["a"], replace(SUCCEEDED, forks={"out.col": ["of a"]}))
    coordinator.work(offers["x"], replace(SUCCEEDED, forks={"out.col": ["of x 1", "of x 2"]}))
    coordinator.read()
    values = {
        f.name: [m.value for m in f.members] for f in coordinator.show(job).groups if f.forked
    }
    assert values == {"fa": ["of a"], "fx": ["of x 1", "of x 2"]}


def test_parameters_are_not_stored_once_per_group(coordinator: Coordinator) -> None:
    """60 KB of parameters are legal, and so are 10,000 groups: 600 MB in one script call and in the
    store.
    """
    spec = JobSpec.model_validate(
        {
            "name": "big",
            "params": {"p": "x" * 60_000},
            "groups": [group(f"g{n}") for n in range(200)],
        }
    )
    size = len(spec.to_json())
    job = coordinator.client.submit(spec).id
    stored = int(coordinator.redis.memory_usage(coordinator.keys.of(job).plans, samples=0) or 0)
    assert stored < 5 * size, f"a spec of {size // 1024} KB takes {stored // 1024} KB (200 groups)"


def test_end_returns_the_same_answer_after_its_reply_was_lost(
    make_coordinator: Callable[..., Coordinator],
    lossy: redis.Redis,
) -> None:
    """Rule 11: the first run eats the dirty flag, the repeat lets go of the lock and says
    RELEASED.
    """
    coordinator = make_coordinator(client=lossy)
    job = coordinator.submit(group("only"))
    coordinator.store.begin(job, "holder")
    assert coordinator.store.begin(job, "other").answer == "BUSY"
    LosesReplies.armed = 1
    assert coordinator.store.end(job, "holder") == "AGAIN"


@pytest.mark.variant
def test_sweeps_do_not_recompile_the_specs_of_live_jobs(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep is a cyclic scan: an LRU cache that is too small for it misses every time."""
    coordinator = make_coordinator(dispatch_timeout=0.1)
    jobs = [
        coordinator.submit(*(group(f"g{n}") for n in range(50)), params={"day": d}, name=f"d{d}")
        for d in range(100)
    ]
    coordinator.read()
    coordinator.offers()
    compiled: list[str] = []
    compile_plan = plan.compile_plan

    def counted(spec: JobSpec) -> plan.Plan:
        compiled.append(spec.name)
        return compile_plan(spec)

    def decide_all() -> None:
        for job in jobs:
            coordinator.reconciler.cache.clear()
            coordinator.reconciler.reconcile(job)

    decide_all()
    monkeypatch.setattr(plan, "compile_plan", counted)
    decide_all()
    assert compiled == []


@pytest.mark.variant
def test_an_expired_lease_is_found_within_a_few_sweeps_under_load(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Jobs that wait for a worker are due again every 0.25 s, and a sweep takes 200: the others
    queue behind them.
    """
    coordinator = make_coordinator(dispatch_timeout=0.2)
    waiting = {
        coordinator.submit(group("waits", queue="nobody"), name=f"w{number}")
        for number in range(400)
    }
    coordinator.read()
    coordinator.sweep.run()
    passes = 0
    handle = coordinator.reconciler.reconcile
    counted: list[str] = []

    def count(job: str, *args: Any, **more: Any) -> Any:
        counted.append(job)
        return handle(job, *args, **more)

    coordinator.reconciler.reconcile = count  # type: ignore[method-assign]
    while waiting - set(counted):  # until all offers were overdue, and looked at
        coordinator.sweep.run()
    counted.clear()
    last = coordinator.submit(group("only"), name="last")
    coordinator.redis.xtrim(
        coordinator.keys.reports, maxlen=0, approximate=False
    )  # its wake-up is lost
    while last not in counted:
        coordinator.sweep.run()
        passes += 1
    assert passes <= 2, (
        f"{passes} sweeps, {len(counted)} passes over jobs in which nothing could go on"
    )


def test_a_fork_cannot_take_its_values_from_a_fork(coordinator: Coordinator) -> None:
    """Each member would bring values of its own, and all but the first would be lost without a
    word.
    """
    with pytest.raises(SpecError, match="is a fork, and each of its members"):
        coordinator.submit(
            group("a", for_each={"n": [1, 2]}),
            group("b", "a", for_each={"m": {"from": "out.col"}}),
            join("end", "b"),
        )


def test_dead_consumers_are_removed_from_the_group(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every start of a coordinator makes a consumer with a name of its own."""
    monkeypatch.setattr(reports, "CONSUMER_SILENCE", -1.0)
    first = make_coordinator()
    for _ in range(20):
        make_coordinator().stream.read(1, 0.001)
    assert len(first.redis.xinfo_consumers(first.keys.reports, "coordinators")) == 20
    first.stream.trim()
    assert len(first.redis.xinfo_consumers(first.keys.reports, "coordinators")) == 0


@pytest.mark.variant
def test_jobs_that_wait_for_a_user_stay_in_the_due_index_without_passes(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 paused jobs were decided a thousand times a second, since every job was due after one
    dispatch timeout.
    """
    # No gap between two sweeps counts as an outage, after which every job is looked at.
    coordinator = make_coordinator(dispatch_timeout=0.2, lease_ttl=0.2, sweep_every=60)
    again_in_an_hour = group("only", retry={"max": 3, "backoff": "1h", "jitter": 0})
    paused = [coordinator.submit(again_in_an_hour, name=f"p{n}") for n in range(20)]
    backoff = coordinator.submit(again_in_an_hour, name="backoff")
    running = coordinator.submit(group("only"), name="running")
    halted = coordinator.submit(group("only"), name="halted")
    coordinator.read()
    for job in [*paused[10:], backoff]:
        coordinator.work(*coordinator.offers(job), outcome=failed())
    coordinator.read()
    for job in paused:
        coordinator.client.pause(job)
    coordinator.store.halt(
        halted, Reason("UNDECIDABLE", "as a test wants it"), "halted", time.time()
    )
    waiting = [*paused, backoff, halted]

    def none_is_due_soon() -> bool:
        """In the grace of the first sweep everything is looked at again soon."""
        coordinator.sweep.run()
        due = [coordinator.redis.zscore(coordinator.keys.due, job) for job in waiting]
        return all(at is not None and at > time.time() + 100 for at in due)

    coordinator.read()
    wait_until(none_is_due_soon, 60, "the jobs that wait for a person to be put off for minutes")
    assert {coordinator.status(job) for job in paused} == {Status.PAUSED}
    assert coordinator.status(halted) is Status.HALTED
    assert coordinator.status(backoff) is Status.RETRYING
    decided: list[str] = []
    reconcile = coordinator.reconciler.reconcile

    def counted(job: str, *args: Any, **more: Any) -> Any:
        decided.append(job)
        return reconcile(job, *args, **more)

    monkeypatch.setattr(coordinator.reconciler, "reconcile", counted)
    end = time.monotonic() + 3 * coordinator.settings.dispatch_timeout
    while time.monotonic() < end or decided.count(running) < 3:
        coordinator.sweep.run()
    assert set(decided) == {running}
    assert all(coordinator.redis.zscore(coordinator.keys.due, job) is not None for job in waiting)


@pytest.mark.parametrize("halted", [False, True], ids=["paused", "halted"])
@pytest.mark.parametrize(
    "given",
    [
        lambda client, job: client.resume(job),
        lambda client, job: client.stop(job),
        lambda client, job: client.cancel(job),
        lambda client, job: client.force_stop(job),
        lambda client, job: client.pause(job),
        lambda client, job: client.skip(job, "a"),
        lambda client, job: client.rerun(job, "a"),
        lambda client, job: client.alter(job, {"params.level": "2"}),
    ],
    ids=["resume", "stop", "cancel", "force-stop", "pause", "skip", "rerun", "alter"],
)
def test_a_command_to_a_waiting_job_makes_it_due_although_the_wake_up_is_lost(
    coordinator: Coordinator, given: Callable[[Client, str], Commanded], halted: bool
) -> None:
    job = coordinator.submit(group("a"), params={"level": "1"})
    coordinator.read()
    if halted:
        coordinator.store.halt(job, Reason("UNDECIDABLE", "no"), "halted", coordinator.show(job).at)
    else:
        coordinator.client.pause(job)
    coordinator.read()
    coordinator.store.tick(coordinator.settings.sweep_every, lease_ttl=0.0)  # no grace runs
    coordinator.reconciler.reconcile(job)
    assert coordinator.status(job) is (Status.HALTED if halted else Status.PAUSED)
    assert coordinator.due_in(job) > 60, "nobody looks for long"
    answer, text = (commanded := given(coordinator.client, job)).answer, commanded.text
    coordinator.redis.xtrim(coordinator.keys.reports, maxlen=0, approximate=False)
    if halted and "is HALTED: nothing of it begins" in text:  # a pause, which changes nothing
        assert (answer, coordinator.due_in(job) > 60) == (Answer.REFUSED, True)
        return
    assert answer in (Answer.DONE, Answer.ALREADY)
    assert (coordinator.due_in(job) <= 0) is (answer is Answer.DONE)
