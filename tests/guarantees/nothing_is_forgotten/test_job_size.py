"""A job takes a bounded number of bytes in the store: a long text once, whoever shares it, and 16
MB in all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.guarantees.users_word_is_final.test_force_stop import act
from tests.support.coordinator import SUCCEEDED, Coordinator, group
from unstuck import JobSpec, SpecError, Status
from unstuck.coordinator.model.size import compile_to_store
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.texts import LONG, Packer, unpack
from unstuck.tasks.spec.group import MAX_JOB_BYTES

SQL = "SELECT '" + "x" * 300_000 + "' AS a"
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["\0", "\0a", "x" * (LONG + 1)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


def bytes_of(coordinator: Coordinator, job: str) -> int:
    """What the job takes in the store, by its own account."""
    keys = coordinator.keys.of(job)
    return sum(
        int(coordinator.redis.memory_usage(key, samples=0) or 0) for key in (keys.job, keys.plans)
    )


@pytest.mark.variant
@given(VALUES)
def test_packing_and_unpacking_returns_the_same_value(value: Any) -> None:
    packer = Packer()
    packed = packer.pack(value)
    stored, texts = json.loads(json.dumps(packed)), json.loads(json.dumps(packer.texts))
    assert unpack(stored, texts) == value
    assert len(json.dumps(packed)) < 2 * LONG or json.dumps(value).count("x" * LONG) != 1


@pytest.mark.variant
def test_a_text_shared_by_many_groups_is_stored_once_and_reaches_every_runner(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    groups = "".join(
        f"- {{name: g{n}, steps: [{{sql: *text, output: o{n}}}]}}\n" for n in range(100)
    )
    first = f'- {{name: first, steps: [{{sql: &text "{SQL}", output: first}}]}}\n'
    (tmp_path / "s.yaml").write_text(f"name: x\ngroups:\n{first}{groups}")
    job = coordinator.client.submit(tmp_path / "s.yaml").id
    assert bytes_of(coordinator, job) < 2 * len(SQL)
    coordinator.reconciler.reconcile(job, due=True)
    offers = coordinator.offers(job)
    assert len(offers) > 10
    for offer in offers[:3]:
        order = coordinator.claim(offer).work_order
        assert order is not None
        assert order.group.steps[0].sql == SQL
    assert coordinator.client.written(job)["groups"][5]["steps"][0]["sql"] == SQL


@pytest.mark.variant
def test_an_sql_file_shared_by_many_steps_is_stored_once(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    (tmp_path / "q.sql").write_text(SQL)
    groups = [
        {"name": f"g{n}", "steps": [{"sql_file": "q.sql", "output": f"o{n}"}]} for n in range(100)
    ]
    (tmp_path / "s.json").write_text(json.dumps({"name": "x", "groups": groups}))
    job = coordinator.client.submit(tmp_path / "s.json").id
    assert bytes_of(coordinator, job) < 2 * len(SQL)


def test_user_text_that_looks_like_a_reference_is_kept(coordinator: Coordinator) -> None:
    secret = "s" * 2000
    packer = Packer()
    reference = packer.pack(secret)
    params = {
        "a": secret,
        "b": reference,
        "c": f'x"{reference}',
        "d": "\0",
        "e": {"\0k": [reference]},
    }
    job = coordinator.submit(group("a", params=params))
    coordinator.reconciler.reconcile(job, due=True)
    (offer,) = coordinator.offers(job)
    order = coordinator.claim(offer).work_order
    assert order is not None
    assert order.params == params
    assert coordinator.client.written(job)["groups"][0]["params"] == params


def test_a_record_with_missing_text_is_not_sent_as_an_order(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a", params={"a": "s" * 2000}))
    coordinator.reconciler.reconcile(job, due=True)
    record = coordinator.keys.of(job).job
    (text,) = (name for name in coordinator.redis.hkeys(record) if name.startswith("text:"))
    coordinator.redis.hdel(record, text)
    (offer,) = coordinator.offers(job)
    assert coordinator.claim(offer).answer == "REFUSED"
    assert text in coordinator.show(job).damage


def big(n: int, size: int) -> str:
    return f"{n}" + "v" * size


@pytest.mark.variant
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {
                "groups": [
                    group(f"g{n}", params={"a": "x"}, conf={"k": big(n, 1 << 20)})
                    for n in range(17)
                ]
            },
            r"^groups\[10\]\.conf\.k: the job would take 17\.\d MB in the store; at most 16\.0 MB "
            r"are allowed\. Its "
            r"largest part is a text of 1,048,578 characters, with 1\.0 MB; put data into files "
            r"that the steps read$",
        ),
        (
            {
                "groups": [
                    group("small"),
                    group("wide", for_each={"v": [big(n, 900) for n in range(10_000)]}),
                    group("z"),
                ]
                + [
                    group(f"wide{m}", for_each={"v": [big(n, 90 * m) for n in range(10_000)]})
                    for m in range(1, 7)
                ]
            },
            (
                r"^groups\[1\]: the job would take 2\d\.\d MB .* Its largest part is group wide, "
                r"with "
                r"8\.\d MB"
            ),
        ),
        (
            {
                "defaults": {"conf": {f"k{n}": "v" * 500 for n in range(100)}},
                "groups": [group(f"g{n}") for n in range(400)],
            },
            (
                r"^defaults\.conf: .* part is defaults\.conf, which is stored with each of 400 "
                r"groups, "
                r"with \d+\.\d MB"
            ),
        ),
    ],
    ids=["texts", "fork values", "defaults"],
)
def test_an_oversized_job_is_refused_with_its_largest_part_named(
    coordinator: Coordinator, spec: dict[str, Any], message: str
) -> None:
    stored = set(coordinator.redis.keys())
    with pytest.raises(SpecError, match=message):
        coordinator.client.submit({"name": "x", **spec})
    assert set(coordinator.redis.keys()) == stored
    with pytest.raises(SpecError, match=message):
        compile_to_store(JobSpec.model_validate({"name": "x", **spec}))


def test_alter_enforces_the_size_limit_and_sends_runners_the_new_text(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", params={"a": "old" * 1000}), params={"b": 1})
    coordinator.client.pause(job)
    coordinator.reconciler.reconcile(job, due=True)
    assert coordinator.client.alter(job, {"groups.a.params.a": "new" * 1000}).answer == "DONE"
    before = coordinator.show(job)
    with pytest.raises(
        SpecError, match=r"the job would take .* largest part is (a text|what was altered so far)"
    ):
        coordinator.client.alter(job, {"groups.a.conf.k": "v" * (MAX_JOB_BYTES // 2)})
    assert coordinator.show(job) == before
    coordinator.client.resume(job)
    coordinator.reconciler.reconcile(job, due=True)
    (offer,) = coordinator.offers(job)
    order = coordinator.claim(offer).work_order
    assert order is not None
    assert order.params["a"] == "new" * 1000


def test_a_retry_of_a_job_with_shared_texts_reuses_its_work(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a", params={"a": "x" * 5000}))
    coordinator.client.cancel(job)
    act(coordinator, job)
    again = coordinator.client.retry(job).id
    assert coordinator.client.written(again) == coordinator.client.written(job)
    assert coordinator.client.retry(job).id == again


# --- dynamic forks


def feeding(*names: str) -> list[dict[str, Any]]:
    forks = [
        group(f"f{n}", "a", for_each={"x": {"from": f"a.{name}"}}, join="none_failed")
        for n, name in enumerate(names)
    ]
    return [group("a"), *forks]


def fed(coordinator: Coordinator, job: str, values: dict[str, list[Any]]) -> None:
    coordinator.reconciler.reconcile(job, due=True)
    (offer,) = coordinator.offers(job)
    keys = {f"a.{name}": every for name, every in values.items()}
    outcome = Outcome(OutcomeKind.SUCCEEDED, staging=SUCCEEDED.staging, forks=keys)
    # On a slow machine the reply for 17 MB comes too late, and the client sends it again.
    assert coordinator.work(offer, outcome) in ("APPLIED", "DUPLICATE")
    for _ in range(3):
        coordinator.reconciler.reconcile(job, due=True)


def test_a_dynamic_fork_with_oversized_values_fails_with_a_reason(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(*feeding("v", "w"))
    fed(coordinator, job, {name: [big(n, 9000) for n in range(1000)] for name in "vw"})
    view = coordinator.show(job)
    assert (view.status, view.groups[2].states) == (Status.FAILED, {"FAILED": 1})
    assert view.reason is not None
    assert (
        "with the values of f1 (8.6 MB) those of all dynamic forks of the job would take 17.2 MB; "
        "at most 16.0 MB"
    ) in (view.reason.text)
    assert coordinator.redis.hkeys(coordinator.keys.of(job).forks) == ["f0"]


def test_dynamic_forks_with_too_many_members_in_total_fail_with_a_reason(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(*feeding(*["v"] * 12), on_failure="finish_others", max_parallel=1)
    fed(coordinator, job, {"v": list(range(10_000))})
    view = coordinator.show(job)
    failed = [fork for fork in view.groups if fork.states == {"FAILED": 1}]
    assert view.total < 111_000
    assert [fork.name for fork in failed] == ["f10", "f11"]
    (member,) = failed[0].members
    assert member.reason is not None
    assert member.reason.code == "FORK_TOO_LARGE"
    assert "at most 110,000 are allowed" in member.reason.text
