"""Hooks: ``on_failure`` is called once the last attempt has failed, whatever ended it, and holds no job for ever."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.coordinator import Coordinator, failed, group
from tests.support.servers import RedisServer, wait_until
from unstuck import JobSpec, SpecError, Status
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.report import HOOK_RAN, Outcome, OutcomeKind

S = GroupState
ONCE_MORE = {"max": 1, "backoff": 0, "jitter": 0.0}
RAN = failed(HOOK_RAN, recoverable=False)
QUEUE = "hooked"  # that of the worker; tests without one use another


class Fleet:
    """A coordinator in this process, and one real worker."""

    def __init__(self, coordinator: Coordinator, client: redis.Redis, folder: Path) -> None:
        self.coordinator, self.client, self.told_in = coordinator, client, folder / "told.jsonl"

    def run(
        self,
        hook: str,
        step: str,
        *,
        on: str = "on_failure",
        hooks: dict[str, Any] | None = None,
        also: Sequence[dict[str, Any]] = (),
        **more: Any,
    ) -> str:
        """The id of a job of a group with this hook, and the groups ``also``, once it has ended."""
        spec = group(
            "a",
            queue=QUEUE,
            steps=[{"python": f"hook_steps:{step}"}],
            params={"told": str(self.told_in)},
            hooks={on: f"hook_steps:{hook}", **(hooks or {})},
            **more,
        )
        job = self.coordinator.submit(spec, *({**one, "queue": QUEUE} for one in also))

        def ended() -> bool:
            self.coordinator.read()
            self.coordinator.sweep.run()
            fleet.wake(self.client, QUEUE)
            return self.coordinator.status(job).terminal

        wait_until(ended, 60, "the job to end", every=0.1)
        return job

    def record(self, job: str) -> GroupRecord:
        return record_of(self.coordinator, job)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told_in.read_text().splitlines()] if self.told_in.exists() else []


def record_of(coordinator: Coordinator, job: str) -> GroupRecord:
    return coordinator.show(job).groups[0].members[0].record


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with fleet.worker(redis_server.url, tmp_path_factory.mktemp("worker"), queues=QUEUE):
        yield


@pytest.fixture
def hooked(worker: None, make_coordinator: Callable[..., Coordinator], client: redis.Redis, tmp_path: Path) -> Fleet:
    return Fleet(make_coordinator(lease_ttl=3.0, sweep_every=0.1), client, tmp_path)


def test_on_failure_is_called_once_after_the_last_failure_and_before_the_group_is_failed(hooked: Fleet) -> None:
    job = hooked.run("tell", "breaks_off", retry=ONCE_MORE)
    (told,) = hooked.told
    assert (told["job"], told["group"], told["state"], told["attempt"]) == (job, "a", "FAILED", 2)
    assert told["code"] == "STEP_FAILED"
    assert told["text"] == "RuntimeError: boom (all 1 retries are used up)"
    assert told["first_error"] == "STEP_FAILED: RuntimeError: boom"
    assert told["here"] is True
    again = ["QUEUED", "RUNNING", "BACKOFF"]
    assert hooked.coordinator.events(job, "a") == [*again, *again, "QUEUED", "RUNNING", "FAILED"]
    record = hooked.record(job)
    assert record.reason is not None
    assert (record.state, record.reason.code, record.reason.text) == (S.FAILED, told["code"], told["text"])
    assert record.failures == 2
    shown = hooked.coordinator.show(job).job
    assert shown.status is Status.FAILED
    assert shown.reason is not None
    assert shown.reason.text == "group a failed: STEP_FAILED: RuntimeError: boom"


@pytest.mark.parametrize(
    ("hook", "hooks", "trouble"),
    [
        ("breaks", {}, "HOOK_FAILED: the hook hook_steps:breaks failed: ConnectionError: the pager does not answer"),
        ("hangs", {"timeout": "1s"}, "HOOK_TIMEOUT: the hook hook_steps:hangs ran longer than its timeout of 1s"),
        ("none_such", {}, "STEP_NOT_FOUND: hook_steps:none_such cannot be imported"),
    ],
)
def test_a_hook_that_fails_or_hangs_leaves_the_group_failed_with_its_own_error(
    hooked: Fleet, hook: str, hooks: dict[str, Any], trouble: str
) -> None:
    job = hooked.run(hook, "breaks_off", hooks=hooks, retry={"max": 0})
    assert len(hooked.told) == (hook != "none_such"), "a hook that failed is not called again"
    record = hooked.record(job)
    assert record.reason is not None
    assert (record.state, record.reason.code) == (S.FAILED, "STEP_FAILED")
    assert record.reason.text.startswith("RuntimeError: boom (it was not to be retried); HOOK_FAILED: ")
    assert trouble in record.reason.text
    assert record.first_error is not None
    assert record.first_error.text == "RuntimeError: boom"
    assert hooked.coordinator.events(job, "a")[-2:] == ["HOOK_FAILED", "FAILED"]


@pytest.mark.parametrize(
    ("step", "group_fields", "code"),
    [("dies", {"worker_losses": 1}, "POISON"), ("sleeps", {"timeout": "1s", "retry": {"max": 0}}, "TIMEOUT")],
)
def test_the_hook_is_called_by_another_runner_when_that_of_the_last_attempt_is_dead(
    hooked: Fleet, step: str, group_fields: dict[str, Any], code: str
) -> None:
    job = hooked.run("tell", step, **group_fields)
    (told,) = hooked.told
    assert (told["code"], told["attempt"]) == (code, 1)
    record = hooked.record(job)
    assert record.reason is not None
    assert (record.state, record.reason.code) == (S.FAILED, code)


def test_a_hook_whose_runner_dies_is_called_again(hooked: Fleet) -> None:
    job = hooked.run("dies_once", "breaks_off", retry={"max": 0})
    assert [one["attempt"] for one in hooked.told] == [1, 1]
    record = hooked.record(job)
    assert record.reason is not None
    assert record.reason.text == "RuntimeError: boom (it was not to be retried)"


def test_on_success_is_told_rows_and_results_before_the_group_counts_as_done(hooked: Fleet) -> None:
    job = hooked.run("breaks_once", "counts", on="on_success", retry=ONCE_MORE)
    first, second = hooked.told
    assert (first["state"], first["attempt"], second["attempt"]) == ("SUCCEEDED", 1, 2)
    assert (second["rows"], second["results"]) == ({"numbers": 3}, {"seen": 3})
    record = hooked.record(job)
    assert record.state is S.SUCCEEDED
    assert record.first_error is not None
    assert record.first_error.code == "HOOK_FAILED"
    assert record.first_error.text.endswith("failed: ConnectionError: the pager does not answer")
    assert hooked.coordinator.events(job, "a") == ["QUEUED", "RUNNING", "BACKOFF", "QUEUED", "RUNNING", "SUCCEEDED"]


def test_on_success_is_not_called_for_an_attempt_that_fails_once_its_steps_are_done(hooked: Fleet) -> None:
    fork = group("each", "a", for_each={"n": {"from": "numbers.n"}})
    job = hooked.run("tell", "null_for_a_fork", on="on_success", also=[fork])
    record = hooked.record(job)
    assert record.reason is not None
    assert (record.state, record.reason.code) == (S.FAILED, "FORK_VALUES_INVALID")
    assert hooked.told == []


# ---- without a worker ------------------------------------------------------------------------------------------


def failing(coordinator: Coordinator, **hooks: Any) -> str:
    """A job whose group has failed and is to have its hook called; that offer stands."""
    named = {"on_failure": "some.where:tell", **hooks}
    job = coordinator.submit(group("a", retry={"max": 0}, hooks=named, queue_timeout="1h"), group("b"))
    coordinator.read()
    offer = next(one for one in coordinator.offers(job) if one.group == "a")
    coordinator.work(offer, failed())
    coordinator.read()
    assert record_of(coordinator, job).state is S.QUEUED
    return job


def test_the_offer_says_why_the_group_failed_and_only_its_attempt_calls_the_hook(coordinator: Coordinator) -> None:
    job = failing(coordinator)
    (offer,) = [one for one in coordinator.offers(job) if one.group == "a"]
    why = coordinator.claim(offer).work_order.frozen.failed
    assert why is not None
    assert (why.epoch, why.attempt, why.code) == (offer.epoch, 1, "STEP_FAILED")
    assert coordinator.status(job) is Status.RETRYING
    coordinator.finish(offer.held_by("runner1"), RAN)
    coordinator.read()
    assert record_of(coordinator, job).state is S.FAILED
    assert coordinator.status(job) is Status.FAILED


def test_a_hook_that_no_runner_takes_holds_the_job_no_longer_than_its_timeout(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=0.1, lease_ttl=0.2, dispatch_timeout=0.2)
    job = failing(coordinator, timeout="1s")

    def ended() -> bool:
        coordinator.sweep.run()
        return coordinator.status(job).terminal

    wait_until(ended, 10, "the job to end", every=0.05)
    reason = record_of(coordinator, job).reason
    assert reason is not None
    assert reason.text.endswith("HOOK_FAILED: no runner of queue light took it within 1.0s")


def test_an_attempt_that_is_handed_back_leaves_the_hook_to_the_next(coordinator: Coordinator) -> None:
    job = failing(coordinator)
    for _ in range(2):
        (offer,) = [one for one in coordinator.offers(job) if one.group == "a"]
        coordinator.work(offer, Outcome(OutcomeKind.RELEASED))
        coordinator.read()
        coordinator.sweep.run()
    (offer,) = [one for one in coordinator.offers(job) if one.group == "a"]
    coordinator.work(offer, RAN)
    coordinator.read()
    assert record_of(coordinator, job).state is S.FAILED


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("word", ["cancel", "stop", "force_stop"])
def test_a_job_that_the_user_ends_shows_the_group_as_failed_all_the_same(
    coordinator: Coordinator, word: str, taken: bool
) -> None:
    job = failing(coordinator)
    (offer,) = [one for one in coordinator.offers(job) if one.group == "a"]
    if taken:
        coordinator.claim(offer)
    getattr(coordinator.client, word)(job)
    coordinator.read()
    if taken and word != "force_stop":
        coordinator.finish(offer.held_by("runner1"), Outcome(OutcomeKind.CANCELED) if word == "cancel" else RAN)
        coordinator.read()
    record = record_of(coordinator, job)
    assert record.reason is not None
    assert (record.state, record.reason.code) == (S.FAILED, "STEP_FAILED")
    assert ("HOOK_FAILED" in record.reason.text) is not (taken and word == "stop")
    assert coordinator.status(job) in (Status.CANCELED, Status.STOPPED)


def test_a_pause_holds_the_hook_and_a_resume_gives_it_its_full_time(coordinator: Coordinator) -> None:
    job = failing(coordinator)
    coordinator.client.pause(job)
    coordinator.read()
    held = record_of(coordinator, job)
    assert held.state is S.WAITING
    assert held.final_failure is not None
    coordinator.client.resume(job)
    coordinator.read()
    resumed = record_of(coordinator, job)
    assert resumed.state is S.QUEUED
    assert resumed.final_failure is not None
    assert resumed.final_failure.at > held.final_failure.at
    (offer,) = [one for one in coordinator.offers(job) if one.group == "a"]
    coordinator.work(offer, RAN)
    coordinator.read()
    assert record_of(coordinator, job).state is S.FAILED


def test_a_member_of_a_fork_has_a_hook_of_its_own_with_its_value(coordinator: Coordinator) -> None:
    hooks = {"on_failure": "some.where:tell"}
    fork = group("each", for_each={"n": [10, 20]}, retry={"max": 0}, hooks=hooks)
    job = coordinator.submit(fork, on_failure="finish_others")
    coordinator.read()
    first, second = sorted(coordinator.offers(job), key=lambda one: one.group)
    coordinator.work(second, failed())
    coordinator.work(first)
    coordinator.read()
    (offer,) = coordinator.offers(job)
    order = coordinator.claim(offer).work_order
    assert offer.group == "each[1]"
    assert order.frozen.failed is not None
    assert order.params["n"] == 20


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ("{}", "groups[0].hooks: hooks wants on_success: or on_failure:, with the function to call"),
        ("{on_failure: tell}", "groups[0].hooks.on_failure: expected module:function, such as examples.flights:clean"),
        ("{on_failur: a:b}", "groups[0].hooks.on_failur: unknown field 'on_failur'; did you mean 'on_failure'?"),
        ("{on_failure: a:b, timeout: soon}", "groups[0].hooks.timeout: expected a duration"),
    ],
)
def test_wrong_hooks_are_told_by_place_and_expectation(hooks: str, said: str) -> None:
    text = f'name: n\ngroups:\n  - {{name: a, hooks: {hooks}, steps: [{{python: "a:b"}}]}}\n'
    with pytest.raises(SpecError) as caught:
        JobSpec.from_text(text)
    assert said in str(caught.value)


def test_a_group_without_steps_has_no_hooks() -> None:
    groups = [group("a"), {"name": "j", "needs": ["a"], "hooks": {"on_failure": "a:b"}}]
    with pytest.raises(SpecError, match="group 'j' has no steps, so no runner could call its hooks"):
        JobSpec.model_validate({"name": "n", "groups": groups})


def test_hooks_of_the_defaults_are_those_of_every_group_without_its_own(coordinator: Coordinator) -> None:
    job = coordinator.submit(
        group("a", retry={"max": 0}), group("j", "a"), defaults={"hooks": {"on_failure": "some.where:tell"}}
    )
    coordinator.read()
    coordinator.work(coordinator.offers(job)[0], failed())
    coordinator.read()
    assert record_of(coordinator, job).state is S.QUEUED
