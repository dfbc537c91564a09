"""A key follows its retries: a night that is submitted again says how the last of them stands, and
can retry it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import ByHand, Cli
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.protocol.keys import Keys

SPEC = """\
name: nightly
params: {day: 2014-01-01}
groups:
  - {name: load, spark: false, steps: [{python: "some.where:step"}]}
  - {name: report, needs: [load], spark: false, steps: [{python: "some.where:step"}]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "nightly.yaml"
    path.write_text(SPEC)
    return path


def failed(cli: Cli, hand: ByHand, spec: Path) -> str:
    """The night of key k, which has failed."""
    job: str = cli.json("submit", spec, "--key", "k")["id"]
    hand.decide(job)
    hand.fail(job, "load", "no such file")
    return job


@pytest.mark.parametrize("ended", ["FAILED", "CANCELED"])
def test_submitting_a_key_again_reports_that_its_last_job_did_not_succeed(
    cli: Cli, hand: ByHand, spec: Path, ended: str
) -> None:
    if ended == "FAILED":
        job = failed(cli, hand, spec)
    else:
        job = cli.json("submit", spec, "--key", "k")["id"]
        hand.client.command(job, "cancel")
        hand.decide(job)

    again = cli("submit", spec, "--key", "k")

    assert again.returncode == 1, "it was 0, and cron said nothing"
    said = " ".join(again.stdout.split())
    assert f"submitted under this key before: job {job}, which is {ended}" in said
    assert f"`unstuck retry {job}`" in said
    assert "--retry" in said


def test_a_key_refers_to_the_latest_retry(cli: Cli, hand: ByHand, spec: Path) -> None:
    first = failed(cli, hand, spec)
    (second,) = cli.json("retry", first)
    open_one = cli("submit", spec, "--key", "k")
    assert open_one.returncode == 0
    assert f"job {second['target']}, which is PENDING" in open_one.stdout
    hand.decide(second["target"])
    hand.fail(second["target"], "load", "again")
    (third,) = cli.json("retry", second["target"])
    hand.decide(third["target"])
    for group in ("load", "report"):
        hand.succeed(third["target"], group)

    well = cli("submit", spec, "--key", "k", "--wait")

    assert well.returncode == 0, well.stdout
    assert f"job {third['target']}, which is FINISHED" in well.stdout
    assert cli.json("show", third["target"])["key"] == "k"


@pytest.mark.variant
def test_submit_with_retry_retries_the_last_job_of_the_key_once(
    cli: Cli, hand: ByHand, spec: Path
) -> None:
    assert cli("submit", spec, "--retry").returncode == 2, "of no key"
    first = failed(cli, hand, spec)
    new = cli.json("submit", spec, "--key", "k", "--retry")
    assert (new["new"], new["retried"], new["status"]) == (True, first, "PENDING")
    again = cli.json("submit", spec, "--key", "k", "--retry")
    assert (again["id"], again["new"], again["retried"]) == (new["id"], False, None), "it runs"
    assert len(hand.client.jobs()) == 2
    hand.decide(new["id"])
    hand.fail(new["id"], "load", "once more")
    last = cli.json("submit", spec, "--key", "k", "--retry")
    assert (last["new"], last["retried"]) == (True, new["id"]), "the retry of a retry"


@pytest.mark.variant
def test_submit_with_retry_and_a_changed_spec_retries_with_that_spec(
    cli: Cli, hand: ByHand, spec: Path
) -> None:
    first = failed(cli, hand, spec)
    mended = spec.with_name("mended.yaml")
    mended.write_text(SPEC.replace("some.where:step", "some.where:other", 1))
    refused = cli("submit", mended, "--key", "k")
    assert refused.returncode == 2
    assert f"job {first}, which is FAILED, with another spec" in " ".join(refused.stderr.split())
    new = cli.json("submit", mended, "--key", "k", "--retry")
    assert (new["new"], new["retried"]) == (True, first)
    assert cli.json("submit", mended, "--key", "k")["id"] == new["id"], (
        "the mended spec is the key's from now on"
    )
    assert cli.json("submit", spec, "--key", "k")["id"] == new["id"], "and so is the first"
    other = mended.with_name("other.yaml")
    other.write_text(SPEC.replace("2014-01-01", "2014-01-02"))
    assert cli("submit", other, "--key", "k", "--retry").returncode == 2, (
        "what runs is no night to be retried"
    )


@pytest.mark.variant
def test_submit_with_retry_and_the_original_spec_runs_the_original_spec(
    cli: Cli, hand: ByHand, spec: Path
) -> None:
    failed(cli, hand, spec)
    mended = spec.with_name("mended.yaml")
    mended.write_text(SPEC.replace("some.where:step", "some.where:other", 1))
    second = cli.json("submit", mended, "--key", "k", "--retry")["id"]
    hand.decide(second)
    hand.fail(second, "load", "that was no good")

    third = cli.json("submit", spec, "--key", "k", "--retry")

    assert (third["new"], third["retried"]) == (True, second)
    steps = [
        step["python"]
        for group in hand.client.written(third["id"])["groups"]
        for step in group["steps"]
    ]
    assert steps == ["some.where:step"] * 2, "what is given runs"


def test_a_halted_job_with_a_key_is_reported_and_not_retried(
    cli: Cli, hand: ByHand, spec: Path, client: redis.Redis
) -> None:
    job = cli.json("submit", spec, "--key", "k")["id"]
    hand.decide(job)
    Store(hand.settings, client).halt(
        job, Reason("UNDECIDABLE", "as a test wants it"), "halted", time.time()
    )
    for more in ([], ["--retry"]):
        again = cli("submit", spec, "--key", "k", *more)
        assert again.returncode == 1
        assert f"and cannot go on by itself, and `unstuck why {job}`" in " ".join(
            again.stdout.split()
        )
    assert len(hand.client.jobs()) == 1


def test_a_key_is_kept_until_its_last_retry_is_removed(
    cli: Cli, hand: ByHand, spec: Path, client: redis.Redis
) -> None:
    keys = Keys(hand.settings.prefix)

    def expires() -> bool:
        return bool(client.ttl(keys.submit_key("k")) != -1)

    first = failed(cli, hand, spec)
    assert expires()
    new = cli.json("retry", first)[0]["target"]
    assert not expires(), "its retry is open"
    client.delete(keys.of(first).job)  # as when its time is over
    assert cli.json("submit", spec, "--key", "k")["id"] == new
    hand.decide(new)
    hand.fail(new, "load", "again")
    assert expires()
