"""Whatever a step raises ends its attempt as what it is, and soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Failure, OutcomeKind
from unstuck.tasks.protocol.token import Offer

pytestmark = pytest.mark.variant

SOON = (
    "from unstuck.tasks.protocol import failure; from unstuck.tasks.runner import attempt; "
    "failure.TEXT_WITHIN, attempt.TEXT_CLOCK = 0.5, 1.5\n"
)
REPLACED = SOON + "runner.replace = lambda: print('replaced')\n"


def make_offer(
    store: redis.Redis, folder: Path, step: str, job: str = "job", **params: Any
) -> Offer:
    step_of = {"python": f"odd_errors:{step}", "params": params}
    spec = {"name": "g", "spark": False, "timeout": "60s", "steps": [step_of]}
    return fleet.make_offer(store, folder / "warehouse", job, spec, send=False)


def failure_of(store: redis.Redis, offer: Offer) -> Failure:
    outcome = fleet.outcome(store, offer, 30)
    assert outcome.kind is OutcomeKind.FAILED, outcome
    assert outcome.failure is not None
    assert outcome.failure.code == "STEP_FAILED"
    return outcome.failure


def test_an_exception_whose_str_blocks_still_fails_the_attempt_under_its_class_name(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path, "text_blocks")
    with single_runner(redis_server.url, tmp_path, offer, prepared=REPLACED) as runner:
        failure = failure_of(client, offer)
        assert runner.said() == ["replaced", "failed APPLIED"]
    assert failure.text == "Silent: its text could not be made within 0.5s"
    assert "in text_blocks" in failure.traceback


def test_an_exception_whose_str_holds_the_gil_still_fails_the_attempt_under_its_class_name(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path, "text_holds_the_gil")
    with single_runner(redis_server.url, tmp_path, offer, prepared=SOON) as runner:
        failure = failure_of(client, offer)
        assert runner.process.wait() < 0, "it was killed"
    assert failure.text.startswith("Hog: its text could not be made within ")


ASKED = (
    *(
        "__str__",
        "__name__",
        "__module__",
        "__traceback__",
        "__cause__",
        "__context__",
        "__notes__",
        "__class__",
    ),
    *("__getattribute__", "__setattr__", "__eq__", "__hash__"),
)


@pytest.mark.parametrize("kind", ["RuntimeError", "SystemExit"])
def test_an_exception_that_raises_when_inspected_still_fails_the_attempt_under_its_class_name(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, kind: str
) -> None:
    offers = [
        make_offer(client, tmp_path, "raises_where", job=name.strip("_"), name=name, kind=kind)
        for name in ASKED
    ]
    with single_runner(redis_server.url, tmp_path, *offers) as runner:
        assert runner.said() == ["failed APPLIED"] * len(ASKED)
    for offer in offers:
        failure = failure_of(client, offer)
        text = (
            f"(it has no text: asking for it raised {kind})"
            if offer.job == "str"
            else "the true error"
        )
        assert failure.text == f"Odd: {text}"
        assert "in raises_where" in failure.traceback
        (log,) = (tmp_path / "warehouse").glob(f"_staging/{offer.job}/job.logs/g.*.log")
        assert "in raises_where" in log.read_text()
