"""Joining: which groups may go now. Every verdict is derived anew from the states as they stand (``join``).

Where a join says GO, the group's condition (``when:``) has the last word, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unstuck.coordinator.decide.dispatch import freeze_group
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.joins import Verdict, judge
from unstuck.coordinator.model.records import GroupRecord, Reason
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.condition import evaluate

S = GroupState


def judge_joins(draft: Draft) -> None:
    """Judge every group whose needs have changed, and those after it, until nothing moves."""
    while draft.touched and not draft.decision.full:
        name = draft.touched.popleft()
        if unstarted(draft, name):
            judge_one(draft, name)
    draft.decision.more |= bool(draft.touched)


def unstarted(draft: Draft, name: str) -> bool:
    """No member of the group has ever been queued or ended, and it is not known to be ready."""
    return name not in draft.ready.get(draft.plan.groups[name].spec.queue_name, ()) and draft.waiting_members(name) > 0


def judge_one(draft: Draft, name: str) -> None:
    planned = draft.plan.groups[name]
    found = judge(planned.spec.join, draft.state.needs[name])
    if found.verdict is Verdict.WAIT:
        return
    if found.verdict is Verdict.GO:
        count = draft.plan.member_count(name, draft.state.collected)
        if count is None and not all(draft.state.done(need) for need in planned.spec.needs):
            return  # a rule that needs not all of them holds already, and the maker of the values is still at work
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

    Once it held it is not asked again: the inputs of the group are frozen with it, and are the sign of it. Otherwise a
    group that waits for room, or was returned by a pause, or a fork that is half queued, could find that it should
    never have begun, since after ``any_succeeded`` more results may be there by now.
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
