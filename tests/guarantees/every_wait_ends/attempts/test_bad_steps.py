"""What a step does to its process harms no other attempt, and is charged to nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer, wait_until
from tests.support.steps import bad_steps
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer

REPLACED = "runner.replace = lambda: print('replaced')\n"
PUT_BACK = {"environment", "variable", "path", "zone", "zone_alone", "folder"}
IN_A_NEW_PROCESS = {
    "decimals",
    "traps",
    "garbage",
    "importers",
}  # what is not, or not wholly, put back in the old one
INNOCENT = 12


def make_offer(
    store: redis.Redis,
    folder: Path,
    job: str,
    step: str,
    *,
    send: bool = False,
    output: str | None = None,
    **params: Any,
) -> Offer:
    spec = {
        "name": "g",
        "spark": False,
        "steps": [{"python": step, "params": params, "output": output}],
    }
    return fleet.make_offer(store, folder / "warehouse", job, spec, send=send)


@pytest.mark.claim("A step that changes its process harms no other attempt.")
@pytest.mark.variant
@pytest.mark.parametrize("then", ["", "the true error"], ids=["succeeds", "fails"])
def test_process_changes_by_a_step_are_undone_after_the_attempt(
    client: redis.Redis,
    redis_server: RedisServer,
    tmp_path: Path,
    then: str,
) -> None:
    whats = [*bad_steps.STATE, *bad_steps.CODE]
    offers = [make_offer(client, tmp_path, "first", "bad_steps:found")]
    for what in whats:
        offers.append(make_offer(client, tmp_path, what, "bad_steps:leave", what=what, then=then))
        offers.append(make_offer(client, tmp_path, f"{what}-next", "bad_steps:found"))
    with single_runner(redis_server.url, tmp_path, *offers, prepared=REPLACED) as runner:
        said = runner.said()
    end = "failed APPLIED" if then else "succeeded APPLIED"
    expected = ["succeeded APPLIED"]
    for what in whats:
        expected += [*([] if what in PUT_BACK else ["replaced"]), end, "succeeded APPLIED"]
    assert said == expected
    before, *others = (fleet.outcome(client, offer).results["found"] for offer in offers[::2])
    for key in IN_A_NEW_PROCESS:
        del before[key]
    for what, after in zip(whats, others, strict=True):
        assert {k: v for k, v in after.items() if k not in IN_A_NEW_PROCESS} == before, what
    for what, offer in zip(whats, offers[1::2], strict=True):
        failure = fleet.outcome(client, offer).failure
        assert (failure.text if failure else "") == (f"ValueError: {then}" if then else ""), what


@pytest.mark.claim("A step that changes its process harms no other attempt.")
@pytest.mark.variant
def test_bad_steps_do_not_fail_other_jobs(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    bad = [*bad_steps.STATE, *bad_steps.CODE][::3]  # the test above plays all of them
    offers: dict[str, Offer] = {}
    with fleet.worker(redis_server.url, tmp_path, concurrency=2) as worker:
        for n in range(INNOCENT):
            offers[f"good{n}"] = make_offer(
                client, tmp_path, f"good{n}", "fleet_steps:table", send=True, output="rows"
            )
            if n < len(bad):
                then = "mine" if n % 2 else ""
                offers[bad[n]] = make_offer(
                    client, tmp_path, bad[n], "bad_steps:leave", send=True, what=bad[n], then=then
                )
        wait_until(lambda: _all_ended(client, offers), 240, "the wave to end", every=2.0)
        outcomes = {job: fleet.outcome(client, offer, 0) for job, offer in offers.items()}
        story = worker.story()
    for job, outcome in outcomes.items():
        fails = job in bad and bad.index(job) % 2
        end = OutcomeKind.FAILED if fails else OutcomeKind.SUCCEEDED
        assert outcome.kind is end, (job, outcome, story)
        assert outcome.failure is None or "ValueError: mine" in outcome.failure.text


def _all_ended(client: redis.Redis, offers: dict[str, Offer]) -> bool:
    """Wake-ups for attempts that nobody has claimed are sent again, as a coordinator does."""
    records = {job: fleet.attempt(client, offer) for job, offer in offers.items()}
    for job, record in records.items():
        if not record.get("claimant"):
            fleet.send_wake_up(client, offers[job], "light")
    return all("outcome" in record for record in records.values())


def test_additions_of_a_module_import_stay_and_other_changes_replace_the_runner(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offers = [make_offer(client, tmp_path, job, f"{module}:found") for job, module in IMPORTED]
    with single_runner(redis_server.url, tmp_path, *offers, prepared=REPLACED) as runner:
        done = "succeeded APPLIED"
        assert runner.said() == [done, done, "replaced", done, done]
    assert [fleet.outcome(client, offer, 0).results["added"] for offer in offers[:2]] == [
        ["1", True]
    ] * 2


IMPORTED = [
    ("a", "at_import.adds"),
    ("b", "at_import.adds"),
    ("c", "at_import.sets"),
    ("d", "at_import.sets"),
]


@pytest.mark.claim("A step that changes its process harms no other attempt.")
def test_a_step_that_imports_and_sets_a_variable_gets_its_runner_replaced(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    offers = [
        make_offer(client, tmp_path, "plain", "bad_steps:leave", what="variable"),
        make_offer(
            client,
            tmp_path,
            "job",
            "bad_steps:import_and_leave",
            module="imported_late",
            what="variable",
        ),
        make_offer(client, tmp_path, "next", "bad_steps:found"),
    ]
    with single_runner(redis_server.url, tmp_path, *offers, prepared=REPLACED) as runner:
        done = "succeeded APPLIED"
        assert runner.said() == [done, "replaced", done, done]
    assert (
        "LEFT_BY_A_STEP" not in fleet.outcome(client, offers[-1], 0).results["found"]["environment"]
    )


def test_a_step_can_set_a_variable_for_the_next_step_of_its_group(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    steps = [
        {"python": "bad_steps:leave", "params": {"what": what}} for what in ("variable", "json")
    ]
    spec = {"name": "g", "spark": False, "steps": [*steps, {"python": "bad_steps:found"}]}
    offers = [fleet.make_offer(client, tmp_path / "warehouse", "job", spec, send=False)]
    offers.append(make_offer(client, tmp_path, "next", "bad_steps:found"))
    with single_runner(redis_server.url, tmp_path, *offers, prepared=REPLACED) as runner:
        assert runner.said() == ["replaced", "succeeded APPLIED", "succeeded APPLIED"]
    own, others = (fleet.outcome(client, offer, 0).results["found"] for offer in offers)
    assert own["environment"].pop("LEFT_BY_A_STEP") == "1"
    assert own == others


def test_a_failure_outside_the_steps_is_charged_to_the_runner_and_replaces_it(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path, "job", "bad_steps:outside_of_the_steps")
    with single_runner(redis_server.url, tmp_path, offer, prepared=REPLACED) as runner:
        assert runner.said() == ["replaced", "lost APPLIED"]
    outcome = fleet.outcome(client, offer, 0)
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.code) == (OutcomeKind.LOST, "RUNNER_FAILED")
    assert "ZeroDivisionError: division by zero" in outcome.failure.text


def test_the_watchdog_reports_an_outcome_that_the_runner_cannot_write(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path, "job", "bad_steps:rewrite_the_client")
    with single_runner(redis_server.url, tmp_path, offer, environ={"UNSTUCK_LEASE_TTL": "60s"}):
        outcome = fleet.outcome(client, offer, 20)
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.code) == (OutcomeKind.LOST, "WORKER_LOST")
    assert "could not be ended: ZeroDivisionError: division by zero" in outcome.failure.text
