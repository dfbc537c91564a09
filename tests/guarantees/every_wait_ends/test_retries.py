"""Which errors are tried again: what no retry mends fails at once, and the spec has the last
word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Coordinator, group
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck import SpecError
from unstuck.coordinator.model.status import GroupState

S = GroupState


def raising(name: str, kind: str, **retry: Any) -> dict[str, Any]:
    steps = [{"python": "fleet_steps:raises", "params": {"kind": kind}}]
    return group(name, steps=steps, retry={"max": 3, "backoff": "1h", **retry})


@pytest.mark.claim("An error that no retry can fix fails at once, unless the spec says otherwise.")
def test_a_step_error_is_retried_according_to_its_kind_and_the_spec(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    expected = {
        "slip": (
            S.FAILED,
            (
                "NameError: name 'not_defined' is not defined (not tried again: it is a mistake in "
                "the code)"
            ),
        ),
        "slip_named": (S.BACKOFF, "NameError: name 'not_defined' is not defined (retry 1 of 3 in "),
        "call": (
            S.FAILED,
            "TypeError: slow_in_the_jvm() missing 1 required positional argument: 'started' (not "
            "tried again: it is a mistake in the code)",
        ),
        "call_named": (
            S.BACKOFF,
            (
                "TypeError: slow_in_the_jvm() missing 1 required positional argument: 'started' "
                "(retry "
                "1 "
            ),
        ),
        "plain": (S.BACKOFF, "ValueError: as asked (retry 1 of 3 in "),
        "never": (
            S.FAILED,
            "ValueError: as asked (not tried again: never_retry_on names ValueError)",
        ),
        "base": (S.BACKOFF, "Flaky: as asked (retry 1 of 3 in "),
        "qualified": (S.BACKOFF, "Flaky: as asked (retry 1 of 3 in "),
        "others": (S.FAILED, "Flaky: as asked (not tried again: retry_on does not name it)"),
    }
    job = coordinator.submit(
        raising("slip", "slip"),
        raising("slip_named", "slip", retry_on=["NameError"]),
        raising("call", "wrong call"),
        raising("call_named", "wrong call", retry_on=["TypeError"]),
        raising("plain", "value"),
        raising("never", "value", never_retry_on=["ValueError"]),
        raising("base", "flaky", retry_on=["OSError"]),
        raising("qualified", "flaky", retry_on=["fleet_steps.Flaky"]),
        raising("others", "flaky", retry_on=["ValueError", "TIMEOUT"]),
        on_failure="finish_others",
    )
    coordinator.read()
    with single_runner(redis_server.url, tmp_path, *coordinator.offers(job)) as runner:
        assert runner.said() == ["failed APPLIED"] * len(expected)
    coordinator.read()
    for shown in coordinator.show(job).groups:
        (member,) = shown.members
        state, text = expected[shown.name]
        assert member.state is state, shown.name
        assert member.reason is not None
        assert member.reason.text.startswith(text), shown.name
        assert member.failures == 1


def test_alter_sets_which_errors_are_retried_in_later_attempts(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(raising("a", "flaky"))
    said = coordinator.client.alter(job, {"groups.a.retry.never_retry_on": ["ConnectionError"]})
    assert said.answer == "DONE", said.text
    with pytest.raises(SpecError, match=r"retry_on\[0\]: expected a name such as TimeoutError"):
        coordinator.client.alter(job, {"groups.a.retry.retry_on": ["no name"]})
