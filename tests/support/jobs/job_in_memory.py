"""A job in memory, for tests of ``decide``: no store, every commit applied at once, the clock moved
by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from unstuck import JobSpec, Status
from unstuck.coordinator.commands.job_commands import command
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import Decision, Environment
from unstuck.coordinator.model.records import GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

LEASE = 15.0
NO_JITTER = {"max": 3, "backoff": 10.0, "jitter": 0.0}


def group(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    """A group with one step; ``steps=[]`` makes it a join."""
    written = {"name": name, "needs": needs, "steps": [{"python": "model:run"}], **more}
    return {key: value for key, value in written.items() if value not in ((), [])}


def failure(code: str = "BOOM", *, recoverable: bool = True) -> Outcome:
    return Outcome(OutcomeKind.FAILED, failure=Failure(code, "it went wrong", recoverable))


LOST = Outcome(OutcomeKind.LOST, failure=Failure("RUNNER_DIED", "its runner died"))


class Job:
    """One job, decided by hand.

    Attempts are claimed and ended as the worker scripts would do it.
    """

    def __init__(self, *groups: Mapping[str, Any], **spec: Any) -> None:
        self.plan = compile_plan(JobSpec.model_validate({"name": "job", "groups": groups, **spec}))
        self.state = JobState(self.plan, JobRecord("j", "job", "", "new"), {}, {}, {})
        self.now = 1000.0
        self._nonces = 0

    def decide(self, changed: Iterable[str] | None = None, **env: Any) -> Decision:
        self._nonces += 1
        return decide(
            self.state, changed, Environment(now=self.now, nonce=f"n{self._nonces}", **env)
        )

    def claim(self, *groups: str) -> None:
        for name in groups:
            attempt = self.state.attempts[name]
            self.state.attempts[name] = replace(
                attempt, claimant="c", worker="w", claimed_at=self.now, lease=self.now + LEASE
            )

    def finish(self, name: str, outcome: Outcome) -> None:
        self.state.attempts[name] = replace(
            self.state.attempts[name], outcome=outcome, outcome_at=self.now
        )

    def renew(self, *groups: str) -> None:
        """As their watchdogs do."""
        for name in groups:
            self.state.attempts[name] = replace(self.state.attempts[name], lease=self.now + LEASE)

    def tell(self, given: str) -> None:
        """What a user asks for, on record until the next decision."""
        self.state.job = replace(
            command(self.state.job, given).job, intent_at=self.now, intent_by="ada"
        )

    def why(self) -> dict[str, Explanation]:
        return {
            one.subject: one
            for one in explain(self.state, Environment(now=self.now, nonce=""), None)
        }

    def run(self, name: str, outcome: Outcome | None = None, **more: Any) -> Decision:
        """Claim and end an attempt, and decide.

        Without an outcome it succeeds, and has made an output.
        """
        attempt = self.state.attempts[name]
        if not attempt.claimant:
            self.claim(name)
        made = {"rows": {"data": 1}, **more}
        succeeded = Outcome(
            OutcomeKind.SUCCEEDED, staging=f"_staging/j/{name}/{attempt.epoch}", **made
        )
        self.finish(name, outcome or succeeded)
        return self.decide()

    def record(self, name: str) -> GroupRecord:
        return self.state.record(name)

    def states(self) -> dict[str, str]:
        """Group id → state, of all that have a record."""
        return {name: str(record.state) for name, record in sorted(self.state.groups.items())}

    def count(self, state: GroupState) -> int:
        return len(self.state.by_state[state])

    def status(self) -> Status:
        return self.state.job.status

    def reason(self, name: str) -> Reason:
        reason = self.record(name).reason
        assert reason is not None
        return reason
