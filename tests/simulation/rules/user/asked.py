"""What was asked of single groups: alter, skip and rerun, and what must hold from the moment they
were answered DONE.

Each function answers what is wrong, in words; empty if nothing is. The rules are written down a
second time, as plainly
as can be, over what really happened: who claimed what when, and what was asked before that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.rules.user.adopted import kin
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.records import GroupRecord, JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GROUP_MOVES, GROUP_MOVES_REQUESTED, GroupState, Status
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan, plan_of
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import FrozenInputs

S = GroupState
# Seconds without trouble within which what was asked must have been brought about.
DONE_WITHIN = 15.0
SKIPPED, RERUN, ALTERED = "USER_SKIPPED", "USER_RERUN", "ALTERED"
_MOVES = {(str(S.SKIPPED), SKIPPED), (str(S.WAITING), RERUN), (str(S.BACKOFF), ALTERED)}

Key = tuple[str, str]  # a job, and a planned group or one member of a fork


class GroupRequestRules:
    """Watches what is asked of groups, and what becomes of it."""

    def __init__(self, core: ModelStore, depot: Depot) -> None:
        self._core, self._depot = core, depot
        self._asked_at: dict[str, float] = {}
        self._claimed_at: dict[Token, float] = {}
        self._skips: set[Key] = (
            set()
        )  # what was asked to be skipped, by the name that was asked for
        self._to_skip: set[Key] = (
            set()
        )  # each group and member that is to be SKIPPED by it, and is not yet
        self._rerun_at: dict[Key, float] = {}
        self._reruns: Counter[Key] = Counter()
        self._told: Counter[Key] = Counter()
        self._recovering: set[Key] = set()  # when their job was last altered
        self._stale: dict[
            Key, tuple[int, str]
        ] = {}  # attempts that run with what was altered since

    # ---- the user's writes
    # ---------------------------------------------------------------------------

    def commanded(self, before: JobRecord, event: Mapping[str, Any]) -> str:
        kind, job = event["kind"], self._core.jobs[before.id]
        if kind not in ("USER_ALTER", "USER_SKIP", "USER_RERUN"):
            return ""
        self._asked_at[before.id] = self._core.steady
        if kind == "USER_ALTER":
            return self._altered(before, job, json.loads(event["text"]))
        if before.status not in (Status.PAUSED, Status.HALTED, Status.RETRYING):
            return f"{kind} of {before.id}, which is {before.status}"
        group = event["group"]
        if kind == "USER_SKIP":
            self._skips.add((before.id, group))
            self._to_skip |= {(before.id, each) for each in _open(self._state(job), group)}
        else:
            for each in _after(plan_of(before.spec), group):
                self._rerun_at[before.id, each] = self._core.steady
                self._reruns[before.id, each] += 1
        return self._handed_out(job)

    def _altered(self, before: JobRecord, job: StoredJob, values: dict[str, Any]) -> str:
        """All of what was asked for, in one revision more; never the shape; code only where it is
        legal.
        """
        after, where = job.record, f"{before.id} was altered by {values}"
        if after.revision != before.revision + 1 or len(after.alterations) != after.revision:
            return f"{where}: revision {before.revision} became {after.revision}"
        spec = JobSpec.model_validate_json(after.spec).model_dump(by_alias=True)
        wrong = {
            path: found for path, value in values.items() if (found := _at(spec, path)) != value
        }
        if wrong:
            return f"{where}, and it says {wrong}"
        if _shape(before) != _shape(after):
            return f"{where}, and its shape became {_shape(after)}"
        old, new = plan_of(before.spec), plan_of(after.spec)
        changed = {name for name in new.groups if _work(old, name) != _work(new, name)}
        if changed and before.status not in (Status.PAUSED, Status.HALTED, Status.RETRYING):
            return f"{where}, which is code, while it was {before.status}"
        recovering = {group for group, record in job.groups.items() if record.recovering}
        self._recovering = {key for key in self._recovering if key[0] != before.id}
        self._recovering |= {(before.id, group) for group in recovering}
        for group in recovering:
            attempt = job.attempts.get(group)
            if (
                split_member(group)[0] in changed
                and attempt
                and attempt.claimant
                and not attempt.outcome
            ):
                self._stale[before.id, group] = (attempt.epoch, attempt.nonce)
        return self._handed_out(job)

    def _handed_out(self, job: StoredJob) -> str:
        """What a claim hands out is what the record of the job says."""
        record, plan = job.record, plan_of(job.record.spec)
        plans = record.group_plans(plan)
        if job.plans != plans or job.params != plan.params:
            wrong = [name for name in plans if plans[name] != job.plans.get(name)]
            return (
                f"{record.id}: runners get plans of {wrong} and parameters {job.params}, which "
                "are not those on record"
            )
        return ""

    # ---- the worker's writes
    # -------------------------------------------------------------------------

    def claimed(self, token: Token) -> None:
        self._claimed_at[token] = self._core.steady

    # ---- commits
    # -------------------------------------------------------------------------------------

    def committed(self, before: StoredJob, after: StoredJob, decision: Decision) -> str:
        job = before.record.id
        if lie := self._in_order(before, after, decision) or self._forgotten(before, decision):
            return lie
        if decision.forgotten:
            for keys in (self._to_skip, self._recovering):
                keys.difference_update({(job, group) for group in decision.forgotten})
            # Members that had no record yet are forgotten with the others.
            gone = {split_member(group)[0] for group in decision.forgotten}
            self._to_skip = {
                (one, group)
                for one, group in self._to_skip
                if one != job or group in after.groups or split_member(group)[0] not in gone
            }
            for ask in after.record.requests:
                if ask.do == "skip":
                    self._to_skip |= {(job, each) for each in _open(self._state(after), ask.group)}
        if after.record.requests:
            return ""
        left = sorted(group for one, group in self._to_skip if one == job)
        if left and not after.record.terminal:
            return (
                f"{job}: {left} were to be skipped, and are "
                f"{[str(_record(after, group).state) for group in left]}"
            )
        self._to_skip = {key for key in self._to_skip if key[0] != job}
        for key in [key for key in self._stale if key[0] == job]:
            attempt = after.attempts.get(key[1])
            if (
                attempt
                and (attempt.epoch, attempt.nonce) == self._stale.pop(key)
                and not attempt.outcome
            ):
                return (
                    f"{job}/{key[1]} recovers, and its attempt {attempt.epoch} goes on without "
                    "what was altered"
                )
        return ""

    def _in_order(self, before: StoredJob, after: StoredJob, decision: Decision) -> str:
        """While there is more of what was asked, nothing else is decided."""
        if not after.record.requests:
            return ""
        other = [
            e
            for e in decision.events
            if "group" in e and not asked_for(e) and e["kind"] != S.RUNNING
        ]
        return (
            f"{before.record.id}: {after.record.requests} are asked, and first came {other}"
            if other
            else ""
        )

    def _forgotten(self, before: StoredJob, decision: Decision) -> str:
        for group in decision.forgotten:
            key, old = (before.record.id, group), _record(before, group).state
            if not self._was_rerun(*key):
                return f"{key} is forgotten, and nobody asked for a rerun"
            if old is not S.WAITING and (old, S.WAITING) not in GROUP_MOVES_REQUESTED:
                return f"{key} was {old} when it was made to run again"
        return ""

    def moved(self, job: str, group: str, old: GroupState, event: Mapping[str, Any]) -> str:
        """Whether a move is legal: by a decision, or because it was asked for."""
        target, code = S(event["kind"]), asked_for(event)
        asked = code in (SKIPPED, RERUN)
        if (old, target) not in (GROUP_MOVES_REQUESTED if asked else GROUP_MOVES):
            return f"{job}/{group} moved from {old} to {target}"
        name = split_member(group)[0]
        if code == SKIPPED and not {(job, group), (job, name)} & self._skips:
            return f"{job}/{group} was skipped, and nobody asked for it"
        if code == RERUN and not self._was_rerun(job, group):
            return f"{job}/{group} is to run again, and nobody asked for it"
        if code == ALTERED and (job, group) not in self._recovering:
            return f"{job}/{group} ran well, and was ended because its job was altered"
        if (job, group) in self._to_skip and target is not S.RUNNING and code != ALTERED:
            if not asked:
                return f"{job}/{group} was to be skipped, and became {target}"
            self._to_skip.discard((job, group))
        return ""

    def made_to_wait(self, after: StoredJob, name: str) -> str:
        """A whole group runs again: nothing of before is left, and it is told once for every time
        it was asked.
        """
        key = (after.record.id, name)
        self._told[key] += 1
        if self._told[key] > self._reruns[key]:
            return (
                f"{key} was made to run again {self._told[key]} times, and asked "
                f"{self._reruns[key]} times"
            )
        left = [
            g
            for kept in (after.groups, after.attempts, after.frozen)
            for g in kept
            if split_member(g)[0] == name
        ]
        return f"{key} is to run again, and there is still something of {left}" if left else ""

    def counts(self, job: str, staging: str) -> str:
        """What an attempt made may count: nobody has asked for its group to run again since it was
        claimed.

        Neither of ``job``, nor of a job that it retries.
        """
        token = self._depot.markers[staging].token
        names = (token.group, split_member(token.group)[0])
        asked = max(
            self._rerun_at.get((one, name), 0.0) for one in kin(self._core, job) for name in names
        )
        if self._claimed_at.get(token, 0.0) >= asked:
            return ""
        return (
            f"{job}: the output of {token} counts, and its group was asked to run again after that"
        )

    def reads(self, job: StoredJob, group: str) -> str:
        """What a group read may count: nothing of what was to run again."""
        frozen = FrozenInputs.model_validate_json(job.frozen.get(split_member(group)[0], "{}"))
        read = [folder for folders in frozen.inputs.values() for folder in folders if folder]
        lies = (self.counts(job.record.id, folder) for folder in read)
        lie = next(filter(None, lies), "")
        return f"{group} has read what was to be made again: {lie}" if lie else ""

    def overdue(self, job: StoredJob, now: float, fault_free_since: float) -> str:
        """Without trouble, what was asked has been brought about soon."""
        late = now - max(self._asked_at.get(job.record.id, 0.0), fault_free_since)
        if not job.record.requests or job.record.terminal or late <= DONE_WITHIN:
            return ""
        return (
            f"{job.record.id} was asked for {job.record.requests} {late:.1f}s ago, and nobody "
            "has brought it about"
        )

    def _was_rerun(self, job: str, group: str) -> bool:
        return bool(self._reruns[job, group] or self._reruns[job, split_member(group)[0]])

    def _state(self, job: StoredJob) -> JobState:
        state = self._core.load(job.record.id)
        assert state is not None
        return state


def asked_for(event: Mapping[str, Any]) -> str:
    """The code of a move that was asked for; empty for any other, also one that merely comes after
    it.
    """
    code = str(event.get("code"))
    return code if (event["kind"], code) in _MOVES else ""


def _record(job: StoredJob, group: str) -> GroupRecord:
    return job.groups.get(group, GroupRecord())


def _open(state: JobState, group: str) -> Iterator[str]:
    """What a skip of ``group`` is about: all of it that has not ended."""
    name, ordinal = split_member(group)
    begun = any(split_member(each)[0] == name for each in state.groups)
    members: Iterable[str] = (
        [group] if ordinal is not None else state.members(name) if begun else [name]
    )
    return (each for each in members if not state.record(each).state.terminal)


def _after(plan: Plan, group: str) -> list[str]:
    """What a rerun of ``group`` is about: itself, and every group that needs it, or that needs one
    of those.
    """
    found = {split_member(group)[0]}
    while (
        more := {n for n, planned in plan.groups.items() if found & set(planned.spec.needs)} - found
    ):
        found |= more
    return [group, *(found - {split_member(group)[0]})]


def _at(spec: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(spec, (list, tuple)):
            names = {str(number): item for number, item in enumerate(spec)}
            names.update({item["name"]: item for item in spec if "name" in item})
            spec = names.get(part)
        else:
            spec = (spec or {}).get(part)
    return spec


def _shape(job: JobRecord) -> list[tuple[Any, ...]]:
    groups: list[GroupSpec] = [planned.spec for planned in plan_of(job.spec).groups.values()]
    return sorted(
        (g.name, g.needs, str(g.join), str(g.for_each), g.optional, len(g.steps)) for g in groups
    )


def _work(plan: Plan, name: str) -> Any:
    spec = plan.groups[name].spec
    return (
        [step.model_dump(exclude={"timeout"}) for step in spec.steps],
        spec.conf,
        spec.params,
        spec.when,
        plan.params,
    )
