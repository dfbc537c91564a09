"""What submit and alter accept can be loaded, decided, shown, explained and ended; what they refuse
changes nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.coordinator import Coordinator, group
from unstuck import BadKey, JobSpec, SpecError, Status
from unstuck.cli.jobs.look import diff_lines, errors_of
from unstuck.cli.render.job_tree import job_tree
from unstuck.coordinator.spec.job_params import MAX_KEY
from unstuck.documents.json_text import plain
from unstuck.read_model.job import json_of_list

# One store for all examples of a test: each example has a job of its own.
EXAMPLES = settings(
    deadline=None,
    max_examples=120,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)
UNITS = ["", "ms", "s", "m", "h", "d", "h1h", "D", " s"]
NUMBERS = [
    "0",
    "1",
    "90",
    "1.5",
    "99999999",
    "9" * 20,
    "9" * 400,
    "1e3",
    "1e-07",
    "-1",
    "٣",
    "1_0",
    "inf",
]
DURATIONS: st.SearchStrategy[Any] = (
    st.builds("".join, st.tuples(st.sampled_from(NUMBERS), st.sampled_from(UNITS)))
    | st.floats()
    | st.integers()
    | st.sampled_from([True, None, [], 10**400, 36500 * 86400, 1e12, 5e-324])
)
COUNTS: st.SearchStrategy[Any] = st.integers(-2, 2000) | st.sampled_from(
    [True, 2.0, 2**63, 10**400, "3", None]
)
SCALARS: st.SearchStrategy[Any] = (
    st.text(max_size=5)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.sampled_from(
        [b"a", {1}, None, "\0", "\0" + "0" * 64, "\ud800", "x" * 2000, "${env:HOME}", 2**63]
    )
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
)
TRUTHS: st.SearchStrategy[Any] = st.sampled_from([True, False, 0, 1, "yes", None])
SQL = [
    {"sql": text}
    for text in ("SELECT 1", "SELECT 1;", "SELECT 1; SELECT 2", "SELECT '" + "x" * 2000 + "'")
]
GROUP: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("timeout", "queue_timeout"), DURATIONS),
    "retry": st.fixed_dictionaries({}, optional={"backoff": DURATIONS, "max_backoff": DURATIONS})
    | st.fixed_dictionaries({}, optional={"max": COUNTS, "jitter": st.floats() | TRUTHS}),
    "worker_losses": COUNTS,
    "optional": TRUTHS,
    "spark": TRUTHS,
    "queue": st.sampled_from(["heavy", "control", "a/b", 1]),
    "params": st.dictionaries(st.sampled_from(["x", "y"]), VALUES, max_size=2),
    "conf": st.dictionaries(st.text(max_size=3), SCALARS, max_size=1),
    "for_each": st.fixed_dictionaries(
        {"v": st.lists(SCALARS, max_size=2) | st.sets(st.integers(), max_size=2)}
    ),
    "steps": st.lists(st.sampled_from(SQL), max_size=2),
}
TOP: dict[str, st.SearchStrategy[Any]] = {
    "timeout": DURATIONS,
    "max_parallel": COUNTS,
    "params": GROUP["params"],
    "defaults": st.fixed_dictionaries(
        {}, optional={name: GROUP[name] for name in ("retry", "timeout", "conf")}
    ),
}


def some_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A few of these fields, or most specs would be refused because of one and tell nothing of the
    others.
    """
    one = st.sampled_from(list(fields)).flatmap(lambda name: st.tuples(st.just(name), fields[name]))
    return st.lists(one, max_size=2).map(dict)


def spec_of(top: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    a = {"name": "a", "steps": [{"python": "m:f"}], **first}
    return {"name": "x", **top, "groups": [a, group("b", "a"), {"name": "c", "needs": ["b"]}]}


SPECS = st.builds(spec_of, some_of(TOP), some_of(GROUP))
CHANGES = st.dictionaries(
    st.sampled_from(
        [
            *(
                "timeout",
                "max_parallel",
                "on_failure",
                "params.x",
                "params.new",
                "defaults.timeout",
                "defaults.retry.max",
            ),
            *(
                "groups.a.timeout",
                "groups.a.queue_timeout",
                "groups.a.retry.backoff",
                "groups.a.retry.jitter",
            ),
            *(
                "groups.a.worker_losses",
                "groups.a.optional",
                "groups.a.steps.0.timeout",
                "groups.0.timeout",
            ),
            *(
                "groups.²",
                "groups.a.steps.²",
                "groups.a.conf.spark.x",
                "groups.a.params.x",
                "publish.0",
                "name",
                "a..b",
            ),
        ]
    ),
    DURATIONS | COUNTS | VALUES,
    min_size=1,
    max_size=2,
)


def shown(coordinator: Coordinator, job: str) -> None:
    """Everything that anybody may ask of a job, as the command line asks it."""
    view = coordinator.client.show(job, why=True)
    assert view.damage == ""
    json.dumps(plain(view), allow_nan=False)
    list(diff_lines(view))
    list(errors_of(view))
    job_tree(view, view.at, 40)
    assert all(one.what for one in coordinator.client.explain(job))
    json.dumps(json_of_list(coordinator.client.jobs()), allow_nan=False)
    json.dumps(list(coordinator.client.events(job)))
    coordinator.client.fleet()


def decided(coordinator: Coordinator, job: str) -> None:
    """Decided, and not given up: a job that cannot be decided is halted."""
    for _ in range(2):
        coordinator.reconciler.reconcile(job, due=True)
    assert coordinator.client.show(job).halted is None


def ended(coordinator: Coordinator, job: str, how: str) -> None:
    if coordinator.status(job).terminal:
        return
    answer = (
        coordinator.client.cancel(job) if how == "cancel" else coordinator.client.force_stop(job)
    )
    assert answer.answer == "DONE", answer.text
    decided(coordinator, job)
    assert coordinator.status(job) is Status.CANCELED
    shown(coordinator, job)


@pytest.mark.claim("Every job that `submit` or `alter` accepts can be read back and ended.")
@given(spec=SPECS, how=st.sampled_from(["cancel", "force-stop"]))
@EXAMPLES
def test_accepted_submits_can_be_read_back_and_ended(
    coordinator: Coordinator, spec: dict[str, Any], how: str
) -> None:
    stored = set(coordinator.redis.scan_iter())
    try:
        job = coordinator.client.submit(spec).id
    except SpecError:
        assert stored.issuperset(coordinator.redis.scan_iter()), (
            "nothing was stored; some keys live for a moment only"
        )
        event("refused")
        return
    asked = JobSpec.model_validate(spec)
    shown(coordinator, job)
    decided(coordinator, job)
    shown(coordinator, job)
    assert JobSpec.model_validate(coordinator.client.written(job)) == asked
    for offer in coordinator.offers(job):
        claim = coordinator.claim(offer)
        assert claim.work_order is not None
        (mine,) = (one for one in asked.groups if one.name == claim.work_order.group.name)
        assert (claim.work_order.group.steps, claim.work_order.group.params) == (
            mine.steps,
            mine.params,
        )
        coordinator.finish(offer.held_by("runner1"))
    decided(coordinator, job)
    ended(coordinator, job, how)


@pytest.mark.claim("Every job that `submit` or `alter` accepts can be read back and ended.")
@pytest.mark.variant
@given(changes=CHANGES, how=st.sampled_from(["cancel", "force-stop"]))
@EXAMPLES
def test_accepted_alters_can_be_read_back_and_ended(
    coordinator: Coordinator, changes: dict[str, Any], how: str
) -> None:
    job = coordinator.submit(group("a"), group("b", "a"), params={"x": 1})
    decided(coordinator, job)
    coordinator.client.pause(job)
    decided(coordinator, job)
    before = coordinator.show(job)
    try:
        answer = coordinator.client.alter(job, changes)
    except SpecError:
        assert coordinator.show(job) == before
        event("refused")
    else:
        assert answer.answer in ("DONE", "ALREADY", "REFUSED")
    shown(coordinator, job)
    coordinator.client.resume(job)
    decided(coordinator, job)
    shown(coordinator, job)
    ended(coordinator, job, how)


@pytest.mark.parametrize(
    "key",
    ["", "k" * (MAX_KEY + 1), "k" * 100_000, "a\nb", "a\0", "\x7f", "a\u2028b", "\ud800", 5, b"k"],
    ids=lambda key: repr(key)[:20],
)
def test_an_unusable_submit_key_is_refused_and_nothing_is_stored(
    coordinator: Coordinator, key: Any
) -> None:
    stored = set(coordinator.redis.keys())
    with pytest.raises(BadKey, match=r"^the key.*: expected ") as caught:
        coordinator.client.submit({"name": "x", "groups": [group("a")]}, key=key)
    assert len(str(caught.value)) < 200
    assert set(coordinator.redis.keys()) == stored


@pytest.mark.parametrize("key", ["k" * MAX_KEY, "nightly 2013-12-31/é:{x}"], ids=["longest", "odd"])
def test_a_submit_key_of_maximum_length_returns_the_same_job_again(
    coordinator: Coordinator, key: str
) -> None:
    first = coordinator.client.submit({"name": "x", "groups": [group("a")]}, key=key)
    assert coordinator.client.submit({"name": "x", "groups": [group("a")]}, key=key).id == first.id
