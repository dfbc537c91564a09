"""What users do to a real fleet: cancel many at once, retry what failed, kill its workers with
their own steps.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.test_fleet import EXAMPLES, client, fleet, until_step  # noqa: F401 - fixtures of a fleet of our own
from tests.support.servers import wait_until
from unstuck import Client, Status


@pytest.mark.variant
def test_300_jobs_are_canceled_in_one_loop_and_the_list_stays_correct(
    client: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    hold, gate = until_step(tmp_path)
    jobs = [
        client.submit({"name": "many", "params": {"n": n}, "groups": [hold]}).id for n in range(300)
    ]
    wait_until(
        lambda: any(job.status is Status.RUNNING for job in client.jobs(name="many", limit=None)),
        60,
        "work",
    )
    wrong: list[str] = []
    done = threading.Event()

    def looks() -> None:
        ended: set[str] = set()
        while not done.is_set():
            listed = client.jobs(name="many", limit=None)
            if len({job.id for job in listed}) != 300 or len(listed) != 300:
                wrong.append(
                    f"{len(listed)} jobs, {len({job.id for job in listed})} of them different"
                )
            now_ended = {job.id for job in listed if job.status.terminal}
            if not ended <= now_ended:
                wrong.append(f"{len(ended - now_ended)} jobs are no longer terminal")
            ended = now_ended
            done.wait(0.05)

    looker = threading.Thread(target=looks)
    looker.start()
    try:
        for job in jobs:
            assert client.cancel(job).answer in ("DONE", "ALREADY")
        wait_until(
            lambda: (
                {job.status for job in client.jobs(name="many", limit=None)} == {Status.CANCELED}
            ),
            60,
            "all 300 to be CANCELED",
            every=0.2,
        )
    finally:
        gate.touch()
        done.set()
        looker.join()
    assert not wrong, wrong[:3]
    late = [
        (job, view.ended_at - view.intent_at)
        for job in jobs
        if (view := client.show(job)).ended_at - view.intent_at > 8.0 + 8.0
    ]
    assert not late, "none ends later than the deadline (8s), with a moment for the sweeps"


@pytest.mark.variant
def test_a_retry_of_a_failed_job_runs_only_unfinished_groups(
    client: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    ran = tmp_path / "ran"

    def step(name: str, *needs: str, **more: object) -> dict[str, object]:
        params = {"log": str(ran), "name": name, "gate": str(tmp_path / "mended")}
        python = "fleet_steps:fails_until" if more.pop("fails", False) else "fleet_steps:notes"
        made = {"name": name, "needs": list(needs), "spark": False, "retry": {"max": 0}}
        return {**made, "steps": [{"python": python, "params": params, "output": f"out_{name}"}]}

    groups = [step("a"), step("b"), step("bad", "a", "b", fails=True), step("end", "bad")]
    job = client.submit({"name": "mend", "groups": groups, "publish": ["out_a", "out_end"]}).id
    assert client.wait(job).status is Status.FAILED
    (tmp_path / "mended").touch()
    again = client.retry(job, reason="mended")
    view = client.wait(again.id)
    assert view.status is Status.FINISHED, view.reason
    assert Counter(ran.read_text().split()) == {"a": 1, "b": 1, "bad": 2, "end": 1}
    assert {g.name: g.members[0].adopted for g in view.groups} == {
        "a": True,
        "b": True,
        "bad": False,
        "end": False,
    }
    assert view.published == {"out_a": 1, "out_end": 1}
    assert client.show(job).status is Status.FAILED, "and the old one stays as it ended"


def test_a_group_that_always_kills_its_worker_fails_as_poison_and_other_jobs_run(
    client: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    suicide = {
        "name": "dies",
        "spark": False,
        "worker_losses": 3,
        "steps": [{"python": "fleet_steps:die"}],
    }
    poison = client.submit({"name": "poison", "groups": [suicide]}).id
    good = [client.submit(EXAMPLES / "wide.yaml", params={}).id]
    good += [
        client.submit({"name": f"g{n}", "groups": [until_step(tmp_path)[0]]}).id for n in range(3)
    ]
    (tmp_path / "gate").touch()
    for job in good:
        assert client.wait(job).status is Status.FINISHED
    view = client.wait(poison)
    record = view.groups[0].members[0]
    assert (view.status, record.reason.code if record.reason else "") == (
        Status.FAILED,
        "POISON",
    )
    assert record.attempt == 3, "three workers, not more"
    assert record.failures == 0, "which the user's retries did not pay for"


@pytest.mark.variant
def test_workers_stay_usable_after_a_step_runs_out_of_memory_in_every_runner(
    client: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    def broke(n: int) -> dict[str, object]:
        step = {"python": "fleet_steps:no_memory"}
        return {"name": f"m{n}", "spark": False, "retry": {"max": 0}, "steps": [step]}

    runners = len([runner for runner in client.fleet().runners if "light" in runner.queues])
    groups = [broke(n) for n in range(2 * max(1, runners))]
    job = client.submit({"name": "memory", "on_failure": "finish_others", "groups": groups}).id
    view = client.wait(job)
    assert view.status is Status.FAILED
    assert all(g.members[0].first_error is not None for g in view.groups)
    after, gate = until_step(tmp_path)
    gate.touch()
    assert (
        client.wait(client.submit({"name": "after", "groups": [after]}).id).status
        is Status.FINISHED
    )
