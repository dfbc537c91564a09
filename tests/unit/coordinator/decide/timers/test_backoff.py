"""When the next attempt may start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unstuck.coordinator.decide.timers.backoff import backoff, loss_backoff
from unstuck.tasks.spec.retry import RetryPolicy


def test_the_backoff_doubles_up_to_its_limit() -> None:
    policy = RetryPolicy(backoff=10.0, max_backoff=300.0, jitter=0.0)
    assert [backoff(policy, n, "s") for n in range(1, 8)] == [10, 20, 40, 80, 160, 300, 300]


def test_a_thousand_failures_do_not_overflow() -> None:
    policy = RetryPolicy(max=1000, backoff=10.0, max_backoff=300.0, jitter=0.0)
    assert backoff(policy, 1000, "s") == 300.0
    assert backoff(policy, 100_000, "s") == 300.0


@given(
    base=st.floats(0.001, 1e6),
    cap=st.just(0.0) | st.floats(0.001, 1e9),
    jitter=st.floats(0, 1),
    failures=st.integers(1, 2000),
    seed=st.text(max_size=20),
)
def test_jitter_is_limited_to_its_share_and_the_maximum_applies(
    base: float, cap: float, jitter: float, failures: int, seed: str
) -> None:
    plain = min(cap, base * 2.0 ** min(failures - 1, 60))
    wait = backoff(RetryPolicy(backoff=base, max_backoff=cap, jitter=jitter), failures, seed)
    assert plain * (1 - jitter) - 1e-6 <= wait <= plain + 1e-6


def test_equal_decisions_give_equal_times_and_fork_members_are_spread() -> None:
    policy = RetryPolicy(backoff=10.0, jitter=0.5)
    assert backoff(policy, 3, "n/g[0]/3") == backoff(policy, 3, "n/g[0]/3")
    assert len({backoff(policy, 3, f"n/g[{i}]/3") for i in range(20)}) == 20


def test_a_zero_backoff_does_not_wait() -> None:
    assert backoff(RetryPolicy(backoff=0), 5, "s") == 0.0


def test_the_first_lost_worker_is_replaced_immediately() -> None:
    assert [loss_backoff(n) for n in range(1, 6)] == [0.0, 2.0, 10.0, 10.0, 10.0]
