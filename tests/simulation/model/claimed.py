"""What a runner hears to a claim: the answer of the script, put together as in ``tasks.transport.lease``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder


@dataclass(frozen=True, slots=True)
class Claimed:
    token: Token
    plan: str
    inputs: str = "{}"
    member: str = "{}"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def work_order(self) -> WorkOrder:
        """What the runner is to do."""
        plan = GroupPlan.model_validate_json(self.plan).model_copy(update={"params": dict(self.params)})
        member = FrozenInputs.model_validate_json(self.member)
        frozen = FrozenInputs.model_validate_json(self.inputs).model_copy(update={"value": member.value})
        return WorkOrder(plan=plan, frozen=frozen)
