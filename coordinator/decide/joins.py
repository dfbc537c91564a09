"""Join rules: may a group go, given the states of everything it needs? Derived from the set, never from a counter.

A count that reaches a number is an edge, and an edge can be missed (Conductor lost a join that way). A verdict here
depends on nothing but the states as they stand, so asking again gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import UNEXPANDED, Census
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.group import JoinRule


class Verdict(StrEnum):
    GO = "GO"
    WAIT = "WAIT"
    SKIP = "SKIP"  # it will never be able to go, because of what happened before it
    FAIL = "FAIL"  # a quorum that can no longer be reached


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    reason: Reason


def judge(rule: JoinRule, needs: Census) -> Judgement:
    """May a group with this rule go?

    Args:
        rule: the group's join rule.
        needs: how many of the groups (and members of forks) it needs stand in which state.
    """
    succeeded = needs[GroupState.SUCCEEDED]
    bad = needs[GroupState.FAILED] + needs[GroupState.CANCELED]
    skipped = needs[GroupState.SKIPPED]
    total = needs.total()
    unknown = needs[UNEXPANDED]
    left = total - succeeded - bad - skipped  # not done, unexpanded forks among them

    if rule.rule == "all_done":
        return _go(rule) if not left else _wait(rule, left, total, unknown)
    if rule.rule in ("any_succeeded", "at_least"):
        wanted = 1 if rule.rule == "any_succeeded" else rule.count
        if succeeded >= wanted:
            return _go(rule)
        if not unknown and succeeded + left < wanted:
            text = f"{rule}: {succeeded} of {total} succeeded and {left} are left, so {wanted} cannot be reached"
            return Judgement(Verdict.FAIL, Reason("JOIN_IMPOSSIBLE", text))
        return _wait(rule, left, total, unknown)
    if bad:
        text = f"{rule}: {bad} of the {total} groups it needs failed or were canceled"
        return Judgement(Verdict.SKIP, Reason("UPSTREAM_FAILED", text))
    if rule.rule == "all_succeeded" and skipped:
        text = f"{rule}: {skipped} of the {total} groups it needs were skipped"
        return Judgement(Verdict.SKIP, Reason("UPSTREAM_SKIPPED", text))
    return _go(rule) if not left else _wait(rule, left, total, unknown)


def _go(rule: JoinRule) -> Judgement:
    return Judgement(Verdict.GO, Reason("READY", f"{rule} holds"))


def _wait(rule: JoinRule, left: int, total: int, unknown: int) -> Judgement:
    text = f"{rule}: {left} of {total} not done"
    if unknown:
        text += f", of which {unknown} forks not yet expanded"
    return Judgement(Verdict.WAIT, Reason("NEEDS", text))
