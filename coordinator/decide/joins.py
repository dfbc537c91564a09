"""Which groups may go now: the join rules, and the conditions (``when:``) of groups whose join holds.

A join is derived from the states of all that a group needs, never from a counter: a count that reaches a number is an
edge, and an edge can be missed (Conductor lost a join that way). So judging again gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from unstuck.coordinator.decide.dispatch import freeze_group
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.records import GroupRecord, Reason
from unstuck.coordinator.model.state import UNEXPANDED, Census
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.condition import evaluate
from unstuck.tasks.protocol.group import JoinRule

S = GroupState


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


def judge_joins(draft: Draft) -> None:
    """Judge every group whose needs have changed, and those after it, until nothing moves."""
    while draft.touched and not draft.decision.full:
        name = draft.touched.popleft()
        if unstarted(draft, name):
            judge_one(draft, name)
    draft.decision.more |= bool(draft.touched)


def unstarted(draft: Draft, name: str) -> bool:
    """No member of the group was ever queued or has ended, and the group is not known to be ready."""
    return name not in draft.ready.get(draft.plan.groups[name].spec.queue_name, ()) and draft.waiting_members(name) > 0


def judge_one(draft: Draft, name: str) -> None:
    planned = draft.plan.groups[name]
    found = judge(planned.spec.join, draft.state.needs[name])
    if found.verdict is Verdict.WAIT:
        return
    if found.verdict is Verdict.GO:
        count = draft.plan.member_count(name, draft.state.collected)
        if count is None and not all(draft.state.done(need) for need in planned.spec.needs):
            return  # the rule holds already, but the group that makes the values is still running
        if not condition_holds(draft, name):
            return
        if planned.spec.is_join:
            draft.move(name, GroupRecord(state=S.SUCCEEDED, reason=found.reason))
        elif count is None:
            source = planned.spec.fork_from
            text = f"no group that was needed made the output {source.output if source else '?'!r} with that column"
            draft.move(name, GroupRecord(state=S.FAILED, reason=Reason("FORK_SOURCE_MISSING", text)))
        elif count == 0:
            reason = Reason("EMPTY_FORK", "the fork has no values, so there is nothing to run")
            draft.move(name, GroupRecord(state=S.SKIPPED, reason=reason))
        else:
            draft.ready.setdefault(planned.spec.queue_name, {})[name] = None
        return
    state = S.SKIPPED if found.verdict is Verdict.SKIP else S.FAILED
    draft.move(name, GroupRecord(state=state, reason=found.reason))


def condition_holds(draft: Draft, name: str) -> bool:
    """Evaluate the condition of a group that may go. Unless it holds, the group ends here: SKIPPED, or FAILED.

    A condition that held is not evaluated again; the frozen inputs of the group are the sign that it held. Otherwise a
    group that waits for room, a group that a pause took back, or a fork that is half queued could find that it should
    never have begun, because after ``any_succeeded`` there may be more results by now.
    """
    spec = draft.plan.groups[name].spec
    if spec.when is None or name in draft.state.frozen:
        return True

    def results(group: str) -> Mapping[str, Any] | None:
        record = draft.state.record(group)
        return record.results if record.state is S.SUCCEEDED else None

    verdict = evaluate(spec.when, {**draft.plan.params, **spec.params}, results)
    if verdict.holds is None:
        draft.move(name, GroupRecord(state=S.FAILED, reason=Reason("WHEN_FAILED", verdict.text)))
    elif not verdict.holds:
        draft.move(name, GroupRecord(state=S.SKIPPED, reason=Reason("CONDITION_FALSE", verdict.text)))
    elif not spec.is_join:
        freeze_group(draft, name)
        draft.decision.moves += 1  # it makes the commit larger, as a move does
    return verdict.holds is True
