"""The attempts of a group, from the events of its job (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unstuck.coordinator.model.status import GroupState

S = GroupState
Event = Mapping[str, Any]
_END_AN_ATTEMPT = (S.BACKOFF, S.SUCCEEDED, S.FAILED, S.CANCELED, S.SKIPPED, S.WAITING)
_NO_ERROR = ("RELEASED", "ALTERED")  # reasons of BACKOFF


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt. Times are seconds since the epoch, by the clock of Redis.

    Attributes:
        queue: name of the queue; empty if the event log no longer has the queued event.
        claimed_at, ended_at: None before that.
        ended_as: state of the group after the attempt; empty while the attempt is active.
        code: code of the reason, for programs to compare.
        text: the reason, as a sentence.
        lost: whether its worker was lost.
    """

    number: int
    queued_at: float
    queue: str = ""
    claimed_at: float | None = None
    worker: str = ""
    ended_at: float | None = None
    ended_as: str = ""
    code: str = ""
    text: str = ""
    lost: bool = False

    @property
    def failed(self) -> bool:
        return self.ended_as == S.FAILED or (
            self.ended_as == S.BACKOFF and self.code not in _NO_ERROR
        )

    @property
    def outcome(self) -> str:
        """The outcome, or the present state: LOST, RELEASED, or a state of groups."""
        if not self.ended_as:
            return S.QUEUED if self.claimed_at is None else S.RUNNING
        if self.lost:
            return "LOST"
        if self.ended_as == S.BACKOFF:
            return S.FAILED if self.failed else "RELEASED"
        return self.ended_as


def attempts_of(events: Iterable[Event]) -> Iterator[AttemptInfo]:
    """Yield the attempts of one group from its events, in order.

    After a rerun their numbers begin again.
    """
    attempt: AttemptInfo | None = None
    for event in events:
        at, kind = float(event["at"]), event["kind"]
        if kind == S.QUEUED:
            attempt = AttemptInfo(int(event.get("epoch", 0)), at, str(event.get("queue", "")))
        elif kind == S.RUNNING:
            # The log may have lost when it was queued.
            attempt = attempt or AttemptInfo(int(event.get("epoch", 0)), at)
            attempt = replace(
                attempt, claimed_at=max(at, attempt.queued_at), worker=str(event.get("worker", ""))
            )
        elif attempt is not None and kind in _END_AN_ATTEMPT:
            yield replace(
                attempt,
                ended_at=max(at, attempt.claimed_at or attempt.queued_at),
                ended_as=str(kind),
                code=str(event.get("code", "")),
                text=str(event.get("text", "")),
                lost=bool(event.get("lost")),
            )
            attempt = None
    if attempt is not None:
        yield attempt
