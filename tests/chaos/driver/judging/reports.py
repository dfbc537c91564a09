"""Reports: what became of each one that was sent, by its identity. Judging is pure;
``transactions`` reads.
"""

# It is read from the server's append-only file, which holds every effect of every script in its
# order: the report as it came, its ack, and the word it was counted under, together with whatever
# else was committed with it. Sums would not do: a report that was lost and one that was applied
# twice cancel each other out.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from unstuck.coordinator.decide.receipts import Applied
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import ReportKind
from unstuck.tasks.protocol.token import Token

Command = list[bytes]
Transaction = list[Command]

WORKED = frozenset(str(word) for word in Applied)  # any other word means that it was set aside
_OTHERS = (b"ATTEMPT_", b"NOTICE_")  # counters that count something else than reports
EVENT = {
    ReportKind.CLAIMED: GroupState.RUNNING,
    ReportKind.SUCCEEDED: GroupState.SUCCEEDED,
}  # what it leads to


@dataclass(frozen=True, slots=True, order=True)
class Sent:
    """One report, which a worker sends once."""

    job: str
    group: str
    kind: ReportKind

    def __str__(self) -> str:
        return f"{self.kind} of {self.job}/{self.group}"


@dataclass(slots=True)
class Account:
    """What became of the messages of one route.

    A sentence for each that was lost, worked on twice or set aside.
    """

    sent: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not (self.lost or self.doubled or self.aside)

    def to_dict(self) -> dict[str, int]:
        """The numbers."""
        return {
            "sent": self.sent,
            **{name: len(getattr(self, name)) for name in ("lost", "doubled", "aside")},
        }


def judge(sent: Set[Sent], written: Iterable[Transaction], keys: Keys) -> Account:
    """The account of these reports. Pure.

    A report is worked on by a transaction that acks it and counts it under a word of ``Applied``.
    What it says stands as one event in the log of its job.
    """
    account = Account(len(sent))
    stream, counters = keys.reports.encode(), keys.counters.encode()
    logs = {keys.of(job).events.encode(): job for job in {one.job for one in sent}}
    arrived: dict[bytes, Sent] = {}
    worked: Counter[Sent] = Counter()
    events: Counter[tuple[str, str, str]] = Counter()
    for transaction in written:
        acked: list[Sent] = []
        counted = 0
        for name, key, *rest in transaction:
            match name.upper():
                case b"XADD" if key == stream:
                    arrived |= _arrived(rest)
                case b"XADD" if key in logs:
                    event = json.loads(rest[-1])
                    events[logs[key], event.get("group", ""), event["kind"]] += 1
                case b"XACK" if key == stream:
                    acked += [arrived[entry] for entry in rest[1:] if entry in arrived]
                case b"HINCRBY" if key == counters and rest[0].decode() in WORKED:
                    counted += int(rest[1])
                case b"HINCRBY" if key == counters and not rest[0].startswith(_OTHERS):
                    account.aside.append(f"{int(rest[1])} counted as {rest[0].decode()}")
        if counted:
            worked.update(acked)
        named = ", ".join(map(str, acked[:3]))
        # An ack that has no effect is not written down.
        if counted > len(acked):
            account.doubled.append(
                f"{counted - len(acked)} more were counted than acked, beside: {named or 'nothing'}"
            )
        elif 0 < counted < len(acked):
            account.lost.append(
                f"{len(acked) - counted} more were acked than counted, of: {named} …"
            )
    strangers = (set(arrived.values()) | set(worked)) - sent
    account.doubled += [f"{one} came, and nobody sent it" for one in sorted(strangers)]
    for one in sorted(sent):
        said = events[one.job, one.group, EVENT[one.kind]]
        if not worked[one] or not said:
            account.lost.append(f"{one}: worked on {worked[one]} times, {said} events")
        elif worked[one] > 1 or said > 1:
            account.doubled.append(f"{one}: worked on {worked[one]} times, {said} events")
    return account


def _arrived(rest: Command) -> dict[bytes, Sent]:
    """An entry of the report stream by its id; nothing for a wake-up, which is no report."""
    entry, *pairs = rest
    fields = {
        name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)
    }
    if "token" not in fields:
        return {}
    token = Token.parse(fields["token"])
    return {entry: Sent(token.job, token.group, ReportKind(fields["kind"]))}


def transactions(folder: Path) -> Iterator[Transaction]:
    """What a server wrote into its append-only file below ``folder``; a command outside a
    transaction is one.

    It must not have been rewritten since, which ``auto-aof-rewrite-percentage 0`` makes sure of.
    """
    (path,) = (folder / "appendonlydir").glob("*.incr.aof")
    together: Transaction | None = None
    for command in _commands(path):
        word = command[0].upper()
        if word == b"MULTI":
            together = []
        elif word == b"EXEC":
            assert together is not None
            yield together
            together = None
        elif len(command) > 1 and together is None:
            yield [command]
        elif len(command) > 1:
            assert together is not None
            together.append(command)


def _commands(path: Path) -> Iterator[Command]:
    """Commands as the Redis protocol writes them."""
    with path.open("rb") as file:
        while head := file.readline():
            if head.startswith(b"*"):
                yield [_word(file.read(int(file.readline()[1:]) + 2)) for _ in range(int(head[1:]))]


def _word(read: bytes) -> bytes:
    assert read.endswith(b"\r\n"), "the append-only file ends in the middle of a command"
    return read[:-2]
