"""Groups that have failed for good and whose hook is still to be called: how they may go on."""

from __future__ import annotations

from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.rules.budgets import Budgets
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.spec.plan import PlannedGroup, plan_of
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import split_member

S = GroupState


class Hooks:
    """Each method says what is wrong, in words; empty if nothing is."""

    def __init__(self, core: ModelStore, budgets: Budgets) -> None:
        self._core, self._budgets = core, budgets

    def begun(self, record: GroupRecord, planned: PlannedGroup, target: GroupState) -> str:
        """A group has failed for good, and is to have its hook called."""
        if planned.spec.hooks is None or target is not S.BACKOFF:
            return f"{planned.name} is {target} with {record.final_failure}, and its hooks are {planned.spec.hooks}"
        return ""

    def ended(self, before: StoredJob, after: StoredJob, group: str, target: GroupState) -> str:
        """A group that had failed goes on to the next attempt for its hook, or is FAILED as it had failed."""
        old, new = before.groups[group], after.groups.get(group, GroupRecord())
        attempt = before.attempts.get(group)
        outcome = None if attempt is None else attempt.outcome
        where = f"{before.record.id}/{group}"
        planned = plan_of(before.record.spec).groups[split_member(group)[0]]
        handed_back = outcome is not None and outcome.kind in (OutcomeKind.RELEASED, OutcomeKind.CANCELED)
        if target is S.BACKOFF:
            if outcome is not None and outcome.kind in (OutcomeKind.SUCCEEDED, OutcomeKind.FAILED):
                return f"{where}: its hook was called, and is to be called again: {outcome}"
            if not handed_back:
                self._budgets.lost((before.record.id, group))
            return ""
        if old.final_failure is None or new.reason is None or new.reason.code != old.final_failure.code:
            return f"{where} had failed with {old.final_failure}, and is FAILED with {new.reason}"
        told = outcome is not None and not handed_back
        ends = after.record.intent is not Intent.RUN or after.record.timed_out is not None
        ends |= any(one.state is S.FAILED for name, one in after.groups.items() if name != group)
        waited = after.decided_at - old.final_failure.at
        late = planned.spec.hooks is None or waited >= planned.spec.hooks.timeout - 0.01
        # The runner that was to call it is lost, and was the last that the group may lose.
        lapsed = attempt is not None and attempt.claimant and outcome is None
        told = told or (lapsed and old.losses + 1 >= planned.spec.worker_losses)
        if not (told or ends or late or self._core.set_back or new.losses or old.losses):
            return f"{where} is FAILED {waited:.1f}s after its final failure, and nobody called its hook"
        return ""
