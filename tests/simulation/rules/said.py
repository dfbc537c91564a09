"""Who claimed which attempt, and what it said, as it truly was: also where the store has forgotten
it since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.model.store import ModelStore
from tests.simulation.rules.pools import running
from unstuck.coordinator.model.records import AttemptRecord
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token

Offered = tuple[str, str, int, str]  # job, group, epoch, nonce


def offered(token: Token) -> Offered:
    return token.job, token.group, token.epoch, token.nonce


def unheard(core: ModelStore, claimant: str, token: Token | None) -> str:
    """What ``claimant`` holds besides ``token``, which is all that its runner was told of."""
    for job, group, attempt in running(core):
        held = Token(job, group, attempt.epoch, attempt.nonce, attempt.claimant)
        if held.claimant == claimant and held != token:
            return (
                f"{held} is held, and its runner was told of {token or 'nothing'}: nobody runs it"
            )
    return ""


class Said:
    """What attempts said.

    What begins without ``_`` goes back with the store, which may hand an attempt out again.
    """

    def __init__(self) -> None:
        self.holders: dict[Offered, Token] = {}
        self.leased_from: dict[Offered, float] = {}
        self._ever_claimed: set[Offered] = set()
        self._outcomes: dict[
            Offered, tuple[str, Outcome]
        ] = {}  # as first applied, with the claimant

    def claimed(self, token: Token, core: ModelStore) -> str:
        """What is wrong with this claim, in words; empty if nothing is."""
        record = core.jobs[token.job].groups[token.group]
        if (record.epoch, record.nonce) != (token.epoch, token.nonce):
            return f"{token} was claimed, and the group's attempt is {record.epoch} {record.nonce}"
        holder = self.holders.setdefault(offered(token), token)
        self.leased_from[offered(token)] = core.now
        self._ever_claimed.add(offered(token))
        return "" if holder == token else f"{token} was claimed, and {holder} holds it"

    def taken_early(
        self, job: str, group: str, attempt: AttemptRecord | None, core: ModelStore
    ) -> str:
        """What is wrong with giving up on this attempt, which said nothing, by when it was
        claimed.
        """
        if attempt is None or attempt.outcome is not None:
            return ""
        at = self.leased_from.get(
            (job, group, attempt.epoch, attempt.nonce), core.now - core.lease_ttl
        )
        if core.now >= at + core.lease_ttl:
            return ""
        return f"{job}/{group} was taken from its worker {core.now - at:.1f}s after its claim"

    def finished(self, token: Token, outcome: Outcome) -> None:
        self._outcomes[offered(token)] = token.claimant, outcome

    def was_claimed(self, job: str, group: str, attempt: AttemptRecord) -> bool:
        """Also where the store went back since: true, and believed by who had read it."""
        return (job, group, attempt.epoch, attempt.nonce) in self._ever_claimed

    def truly(
        self, job: str, group: str, attempt: AttemptRecord | None, event: Mapping[str, Any]
    ) -> AttemptRecord | None:
        """``attempt`` with what it had said before the store went back: true, and believed by who
        had read it.
        """
        if attempt is None or attempt.outcome is not None:
            return attempt
        claimant, outcome = self._outcomes.get(
            (job, group, attempt.epoch, attempt.nonce), ("", None)
        )
        given_up = event.get("code") in ("LEASE_LAPSED", "POISON")
        if outcome is None or (given_up and outcome.kind is not OutcomeKind.LOST):
            return attempt
        return replace(attempt, claimant=claimant, outcome=outcome)
