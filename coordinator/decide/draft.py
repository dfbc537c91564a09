"""The draft of a decision. Only this file changes the state of a group.

Each move is checked against the table of moves, and adds an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from unstuck.coordinator.model.decision import CommitGuard, Decision, Environment
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, check_move
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.protocol.token import Offer, split_member


class Draft:
    """A decision that is being made; ``job`` and ``state`` include its changes so far."""

    def __init__(self, state: JobState, env: Environment) -> None:
        self.state = state
        self.plan = state.plan
        self.env = env
        self.job = state.job
        self.runnable = state.runnable
        self.decision = Decision(job=state.job, old=state.job)
        self.touched: deque[str] = deque()  # planned groups whose join must be judged

    @property
    def failing_fast(self) -> bool:
        """Whether the job fails fast: a group failed for good, and no later group tolerates that.

        Then all groups are canceled, except those that run after a failure.
        """
        return bool(self.state.fatal) and self.plan.cancel_others

    def is_over(self, group_id: str) -> bool:
        """Return whether an unfinished group must end for a timeout or another group's failure."""
        outlives = self.planned(group_id).spec.join.outlives_failure
        return self.job.timed_out is not None or (self.failing_fast and not outlives)

    def planned(self, group_id: str) -> PlannedGroup:
        return self.state.planned(group_id)

    def waiting_members(self, name: str) -> int:
        """Return the number of WAITING members; 1 for a fork that is not expanded."""
        if self.state.ended_whole(name):
            return 0
        count = self.plan.member_count(name, self.state.collected)
        census = self.state.census[name]
        return max(1, count or 1) - census.total() + census[GroupState.WAITING]

    def move(
        self, group_id: str, record: GroupRecord, *, requested: bool = False, **event: Any
    ) -> None:
        """Change one group, with its event; ``requested``: by the user. Raises: IllegalMove."""
        old = self.state.record(group_id)
        check_move(group_id, old.state, record.state, requested=requested)
        record = replace(record, since=self.env.now)
        self.put(group_id, record)
        self.decision.moves += 1
        entry: dict[str, Any] = {"kind": str(record.state), "group": group_id, **event}
        if record.epoch:
            entry["epoch"] = record.epoch
        if record.reason is not None and record.state is not GroupState.RUNNING:
            entry["code"], entry["text"] = record.reason.code, record.reason.text
        self.decision.events.append(entry)
        if record.state.terminal:
            self.touched.extend(self.planned(group_id).successors)

    def put(self, group_id: str, record: GroupRecord) -> None:
        """Change the record of a group without a move."""
        if record.recovering != bool(record.troubled_since):
            record = replace(record, troubled_since=self.env.now if record.recovering else 0.0)
        self.state.put(group_id, record)
        self.decision.groups[group_id] = record

    def offer(self, group_id: str, attempt: AttemptRecord) -> None:
        """Make an attempt claimable."""
        self.state.attempts[group_id] = attempt
        self.decision.offered[group_id] = attempt
        self.decision.dropped.pop(group_id, None)
        offer = Offer(self.job.id, group_id, attempt.epoch, attempt.nonce)
        self.decision.offers[offer] = self.planned(group_id).spec.lane

    def end_attempt(self, group_id: str, state: GroupState, reason: Reason, **event: Any) -> None:
        """Move the group and revoke its attempt; the runner is stale from this commit on."""
        if group_id in self.state.groups:
            self.drop_attempt(group_id)
        self.move(
            group_id, replace(self.state.record(group_id), state=state, reason=reason), **event
        )

    def check_unclaimed(self, group_id: str) -> None:
        """Add a guard: the commit checks again that nobody has claimed the attempt.

        An attempt that this decision offers is not in the store yet, so nobody can claim it, and
        the check would fail.
        """
        if group_id not in self.decision.offered:
            record = self.state.record(group_id)
            self.decision.guards.append(
                CommitGuard(group_id, record.epoch, record.nonce, "unclaimed")
            )

    def drop_attempt(self, group_id: str) -> None:
        """Revoke the attempt: its runner is stale from this commit on."""
        self.decision.dropped[group_id] = None
        self.decision.offered.pop(group_id, None)
        attempt = self.state.attempts.pop(group_id, None)
        if attempt is not None and not attempt.claimant:
            offer = Offer(self.job.id, group_id, attempt.epoch, attempt.nonce)
            self.decision.offers.pop(offer, None)
            self.decision.withdrawn[offer] = self.planned(group_id).spec.lane

    def forget(self, group_id: str) -> None:
        """Delete the record of a group, as if it had never been queued.

        The state keeps it until the next load.
        """
        self.drop_attempt(group_id)
        self.decision.forgotten[group_id] = None
        self.decision.moves += 1
        self.decision.reload = True

    def unfreeze(self, name: str, *, collected: bool) -> None:
        """Delete the frozen inputs of a planned group; with ``collected`` also its fork values."""
        self.decision.unfrozen.update(
            dict.fromkeys(g for g in self.state.frozen if split_member(g)[0] == name)
        )
        if collected and name in self.state.collected:
            self.decision.uncollected[name] = None
        self.decision.reload = True

    def instruct(self, group_id: str, instruction: str) -> None:
        """Send CANCEL or DRAIN to the runner of an attempt, at the next renewal of its watchdog."""
        attempt = self.state.attempts.get(group_id)
        if attempt is not None and attempt.instruction != instruction:
            self.decision.instructions[group_id] = (attempt.epoch, attempt.nonce, instruction)
            self.state.attempts[group_id] = replace(attempt, instruction=instruction)

    def commit_is_full(self) -> bool:
        """Return whether the commit has reached its size limit.

        If so, the job is decided again at once.

        """
        self.decision.more |= self.decision.full
        return self.decision.full

    def while_room(self, groups: Iterable[str]) -> Iterator[str]:
        """Yield ``groups`` until the commit reaches its size limit."""
        for group_id in groups:
            if self.commit_is_full():
                return
            yield group_id

    def unclaimed(self) -> list[str]:
        """Yield the offered groups that nobody had claimed when the attempts were read."""
        attempts = self.state.attempts
        return [
            g
            for g in self.state.by_state[GroupState.QUEUED]
            if g in attempts and not attempts[g].claimant
        ]

    def tell(self, kind: str, **event: Any) -> None:
        """Add an event of the job itself."""
        self.decision.events.append({"kind": kind, **event})
