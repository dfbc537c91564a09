"""The join rule of a group: the states that its needed groups must have before it runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from unstuck.tasks.spec.fields import MAX_COUNT, Strict


class JoinRule(Strict):
    """When a group may run, by the states of the groups that it needs."""

    rule: Literal[
        "all_succeeded",
        "all_done",
        "any_succeeded",
        "at_least",
        "none_failed",
        "any_failed",
        "all_failed",
    ] = Field(default="all_succeeded", description="The states that the needed groups must have.")
    count: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        strict=True,
        description="For at_least: how many must have succeeded.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"rule": value}
        if isinstance(value, dict) and set(value) == {"at_least"}:
            count = value["at_least"]
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
                raise ValueError(f"at_least wants a whole number from 1 to {MAX_COUNT:,}")
            return {"rule": "at_least", "count": count}
        return value

    @property
    def tolerates_failure(self) -> bool:
        """Whether a group with this rule tolerates a failed need (docs/decisions/0009)."""
        return self.rule in ("all_done", "any_succeeded", "at_least")

    @property
    def wants_failure(self) -> bool:
        """Whether the group runs only after a failure, which it reports or undoes."""
        return self.rule in ("any_failed", "all_failed")

    @property
    def outlives_failure(self) -> bool:
        """Whether the group runs although a job fails fast, once all its needs have ended."""
        return self.rule == "all_done" or self.wants_failure

    def __str__(self) -> str:
        return f"at_least: {self.count}" if self.rule == "at_least" else self.rule
