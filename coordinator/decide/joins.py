"""Decides which groups may run: the join rules, and the conditions (``when:``) after them.

A join is derived from the states of all needs, never from a counter: the event at which a counter
reaches its target could be missed. Evaluating a join again gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from unstuck.coordinator.decide.dispatch import EMPTY_FORK, freeze_group
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.records import GroupRecord, Reason
from unstuck.coordinator.model.state import UNEXPANDED, Census
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.condition import evaluate
from unstuck.tasks.spec.join import JoinRule

S = GroupState
NOT_FAILED = "NOT_FAILED"


class JoinResult(StrEnum):
    GO = "GO"
    WAIT = "WAIT"
    SKIP = "SKIP"  # it will never be able to go, because of what happened before it
    FAIL = "FAIL"  # a quorum that can no longer be reached


def judge(rule: JoinRule, needs: Census) -> tuple[JoinResult, Reason]:
    """Return whether a group with this rule may run, and the reason.

    Args:
        rule: the group's join rule.
        needs: the states of the groups, and members of forks, that it needs.
    """
    succeeded, skipped = needs[GroupState.SUCCEEDED], needs[GroupState.SKIPPED]
    bad = needs[GroupState.FAILED] + needs[GroupState.CANCELED]
    total, unknown = needs.total(), needs[UNEXPANDED]
    left = total - succeeded - bad - skipped  # not done, unexpanded forks among them
    if rule.rule in ("any_succeeded", "at_least"):
        required = rule.count if rule.rule == "at_least" else 1
        if not unknown and succeeded + left < required:
            text = (
                f"{rule}: {succeeded} of {total} succeeded and {left} are left, so {required} "
                "cannot be reached"
            )
            return JoinResult.FAIL, Reason("JOIN_IMPOSSIBLE", text)
        holds = succeeded >= required
    else:
        skip = _skip_reason(rule.rule, bad, skipped, left, total)
        if skip is not None:
            code, text = skip
            return JoinResult.SKIP, Reason(code, f"{rule}: {text}")
        holds = not left
    if holds:
        return JoinResult.GO, Reason("READY", f"{rule} holds")
    text = f"{rule}: {left} of {total} not done"
    if unknown:
        text += f", of which {unknown} forks not yet expanded"
    return JoinResult.WAIT, Reason("NEEDS", text)


def _skip_reason(
    rule: str, bad: int, skipped: int, left: int, total: int
) -> tuple[str, str] | None:
    """Return why a rule without a quorum can no longer hold; None if it may."""
    match rule:
        case "all_failed" if fine := total - bad - left:
            return NOT_FAILED, f"{fine} of the {total} groups it needs did not fail"
        case "any_failed" if not left and not bad:
            return NOT_FAILED, f"none of the {total} groups it needs failed"
        case "all_succeeded" | "none_failed" if bad:
            text = f"{bad} of the {total} groups it needs failed or were canceled"
            return "UPSTREAM_FAILED", text
        case "all_succeeded" if skipped:
            return "UPSTREAM_SKIPPED", f"{skipped} of the {total} groups it needs were skipped"
    return None


def judge_joins(draft: Draft) -> None:
    """Evaluate the joins of groups whose needs changed, and of later groups, until none changes."""
    while draft.touched and not draft.decision.full:
        name = draft.touched.popleft()
        runnable = draft.runnable.get(draft.plan.groups[name].spec.lane, ())
        if name not in runnable and draft.waiting_members(name) > 0 and not draft.is_over(name):
            judge_one(draft, name)
    draft.decision.more |= bool(draft.touched)


def judge_one(draft: Draft, name: str) -> None:
    """Evaluate the join of a group: skip it, fail it, or let it run."""
    spec = draft.plan.groups[name].spec
    result, reason = judge(spec.join, draft.state.needs[name])
    if result is JoinResult.WAIT:
        return
    if result is not JoinResult.GO:
        state = S.SKIPPED if result is JoinResult.SKIP else S.FAILED
        draft.move(name, GroupRecord(state=state, reason=reason))
        return
    count = draft.plan.member_count(name, draft.state.collected)
    if count is None and not all(map(draft.state.done, spec.needs)):
        return  # the rule holds, but the group that makes the values still runs
    if condition_holds(draft, name):
        _admit(draft, name, count, reason)


def _admit(draft: Draft, name: str, count: int | None, reason: Reason) -> None:
    """Run a group whose join and condition hold.

    ``count`` is the number of its members, if known.
    """
    spec = draft.plan.groups[name].spec
    if spec.is_join:
        draft.move(name, GroupRecord(state=S.SUCCEEDED, reason=reason))
    elif count is None:
        output = spec.fork_from.output if spec.fork_from else "?"
        text = f"no group that was needed made the output {output!r} with that column"
        draft.move(name, GroupRecord(state=S.FAILED, reason=Reason("FORK_SOURCE_MISSING", text)))
    elif count == 0:
        reason = Reason(EMPTY_FORK, "the fork has no values, so there is nothing to run")
        draft.move(name, GroupRecord(state=S.SKIPPED, reason=reason))
    else:
        draft.runnable.setdefault(spec.lane, {})[name] = None


def condition_holds(draft: Draft, name: str) -> bool:
    """Evaluate the condition of a group. If it is false, the group is SKIPPED; on an error, FAILED.

    A condition that was true is not evaluated again; the frozen inputs of the group record this.
    After ``any_succeeded`` later results could make the condition false. Then a group that waits
    for a free place, or a half-queued fork, would be skipped after it had started.
    """
    spec = draft.plan.groups[name].spec
    if spec.when is None or name in draft.state.frozen:
        return True

    def results(group: str) -> Mapping[str, Any] | None:
        record = draft.state.record(group)
        return record.results if record.state is S.SUCCEEDED else None

    result = evaluate(spec.when, {**draft.plan.params, **spec.params}, results)
    if result.holds is None:
        draft.move(name, GroupRecord(state=S.FAILED, reason=Reason("WHEN_FAILED", result.text)))
    elif not result.holds:
        draft.move(
            name, GroupRecord(state=S.SKIPPED, reason=Reason("CONDITION_FALSE", result.text))
        )
    elif not spec.is_join:
        freeze_group(draft, name)
        draft.decision.moves += 1  # it makes the commit larger, as a move does
    return result.holds is True
