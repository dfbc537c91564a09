"""The account of reports finds each way to lose or double one, also where sums would agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.driver.judging.reports import EVENT, Sent, Transaction, judge, transactions
from tests.support.coordinator import Coordinator, group
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import ReportKind

KEYS = Keys("unstuck")
SENT = [Sent("job", f"w[{n}]", kind) for n in range(3) for kind in EVENT]
Written = list[Transaction]


def words(*said: object) -> list[bytes]:
    return [str(word).encode() for word in said]


def came(entry: int, one: Sent) -> Transaction:
    return [
        words(
            "XADD", KEYS.reports, entry, "kind", one.kind, "token", f"{one.job}/{one.group}/1/n/c"
        )
    ]


def ack(entry: int) -> list[bytes]:
    return words("XACK", KEYS.reports, "coordinators", entry)


def count(word: str, times: int = 1) -> list[bytes]:
    return words("HINCRBY", KEYS.counters, word, times)


def event(one: Sent) -> list[bytes]:
    said = {"kind": EVENT[one.kind], "group": one.group}
    return words("XADD", KEYS.of(one.job).events, "1-1", "event", json.dumps(said))


def in_order() -> Written:
    """Every report came, and then each was applied; entry 0 is a wake-up."""
    wake: Written = [[words("XADD", KEYS.reports, 0, "kind", "due", "job", "job")], [ack(0)]]
    arrivals = [came(entry, one) for entry, one in enumerate(SENT, 1)]
    return (
        wake
        + arrivals
        + [[event(one), ack(entry), count("APPLIED")] for entry, one in enumerate(SENT, 1)]
    )


def test_a_correct_ledger_has_no_findings() -> None:
    account = judge(set(SENT), in_order(), KEYS)
    assert account.kept, account
    assert account.to_dict() == {"sent": 6, "lost": 0, "doubled": 0, "aside": 0}


def last(*changed: list[bytes]) -> Callable[[Written], Written]:
    return lambda written: [*written[:-1], list(changed)]


LAST = SENT[-1]


@pytest.mark.parametrize(
    ("found", "plant"),
    [
        ({"lost": 1}, lambda written: written[:-1]),
        ({"lost": 1}, last(event(LAST), ack(6))),  # acked, not applied
        ({"lost": 1}, last(ack(6), count("APPLIED"))),  # applied, and nothing came of it
        ({"lost": 1, "aside": 1}, last(ack(6), count("POISON"))),
        ({"lost": 1, "doubled": 1}, last(count("APPLIED"))),  # of the one before, whose ack stands
        ({"doubled": 1}, lambda written: [*written, [count("DUPLICATE")]]),
        ({"doubled": 1}, lambda written: [*written, [event(LAST)]]),
        ({"doubled": 1}, lambda written: [*written, came(7, LAST), [ack(7), count("DUPLICATE")]]),
        (
            {"doubled": 1},
            lambda written: [*written, came(7, Sent("job", "w[9]", ReportKind.CLAIMED))],
        ),
    ],
)
def test_injected_errors_are_reported(
    found: dict[str, int], plant: Callable[[Written], Written]
) -> None:
    account = judge(set(SENT), plant(in_order()), KEYS)
    assert account.to_dict() == {"sent": 6, "lost": 0, "doubled": 0, "aside": 0, **found}, account
    assert not account.kept


def test_the_file_of_a_real_server_records_the_result_of_each_report(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, aof=True)
    server.start()
    try:
        coordinator = Coordinator(server.url, tmp_path / "warehouse")
        job = coordinator.submit(group("a"), group("b"))
        coordinator.read()
        for offer in coordinator.offers(job):
            coordinator.work(offer)
        sent = {Sent(job, name, kind) for name in "ab" for kind in EVENT}

        def account() -> dict[str, int]:
            return judge(sent, transactions(tmp_path), coordinator.keys).to_dict()

        assert account() == {"sent": 4, "lost": 4, "doubled": 0, "aside": 0}, "nobody has read them"
        coordinator.read()
        assert account() == {"sent": 4, "lost": 0, "doubled": 0, "aside": 0}
        (again, *_) = [
            fields
            for _, fields in coordinator.redis.xrange(coordinator.keys.reports)
            if "token" in fields
        ]
        coordinator.redis.xadd(coordinator.keys.reports, again)
        coordinator.read()
        assert account() == {"sent": 4, "lost": 0, "doubled": 1, "aside": 0}
        coordinator.redis.xadd(coordinator.keys.reports, {**again, "token": "gone/a/1/n/c"})
        coordinator.read()
        assert coordinator.client.counters()["UNKNOWN_JOB"] == 1
        assert account() == {"sent": 4, "lost": 0, "doubled": 2, "aside": 1}, (
            "a dead letter, and nobody sent it"
        )
        coordinator.redis.close()
    finally:
        server.stop()
