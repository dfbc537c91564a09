"""Queues new attempts of groups that may run, and repeats offers that nobody took."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.deadlines import offer_again_at, retry_at
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.token import fork_member, split_member
from unstuck.tasks.spec.work_order import FrozenInputs

EMPTY_FORK = "EMPTY_FORK"

S = GroupState


def queue_runnable(draft: Draft) -> None:
    """Queue due retries, then returned members, then waiting members, within the limits."""
    room = Room(draft)
    for group_id in [*_due_retries(draft), *_returned(draft.state)]:
        if room.for_(draft.planned(group_id).spec.lane) and not draft.decision.full:
            room.take(mint(draft, group_id))
    for lane, names in draft.runnable.items():
        while names and room.for_(lane) and not draft.decision.full:
            name = next(iter(names))
            member = _next_member(draft, name)
            if member is None:
                del names[name]  # its other members, if any, were returned to WAITING
            else:
                room.take(mint(draft, member))
    draft.decision.more |= draft.decision.full


def _returned(state: JobState) -> list[str]:
    """Return the groups and members that a pause took back."""
    return [name for name in state.by_state[S.WAITING] if split_member(name)[0] in state.frozen]


def _due_retries(draft: Draft) -> list[str]:
    """Return the groups in BACKOFF whose time has come, the earliest first."""
    due = {
        group_id: retry_at(draft.state.groups[group_id], draft.planned(group_id).retry, draft.env)
        for group_id in draft.state.by_state[S.BACKOFF]
    }
    ready = [group_id for group_id, at in due.items() if at <= draft.env.now]
    return sorted(ready, key=lambda group_id: (due[group_id], group_id))


def _next_member(draft: Draft, name: str) -> str | None:
    """Return the first member of a group that was never queued; None if there is none."""
    state, ordinal = draft.state, draft.state.census[name].total()
    count = draft.plan.member_count(name, state.collected) or 0
    if state.ended_whole(name) or ordinal >= count:
        return None
    return name if draft.plan.groups[name].spec.for_each is None else fork_member(name, ordinal)


class Room:
    """How many more offers a job may have, by ``max_parallel`` and the window of each lane."""

    def __init__(self, draft: Draft) -> None:
        limit = draft.plan.max_parallel
        self._env = draft.env
        self._parallel = math.inf if limit is None else limit - len(draft.state.active)
        self._queued = Counter(
            draft.planned(group_id).spec.lane for group_id in draft.state.by_state[S.QUEUED]
        )

    @property
    def in_parallel(self) -> bool:
        """Whether ``max_parallel`` permits another attempt."""
        return self._parallel > 0

    def for_(self, lane: str) -> bool:
        return self._parallel > 0 and self._queued[lane] < self._env.window(lane)

    def take(self, lane: str) -> None:
        self._queued[lane] += 1
        self._parallel -= 1


def mint(draft: Draft, group_id: str) -> str:
    """Move a group from WAITING or BACKOFF to QUEUED, with a new epoch. Returns its lane.

    Its inputs are frozen the first time.
    """
    record = draft.state.record(group_id)
    name, ordinal = split_member(group_id)
    planned = draft.plan.groups[name]
    epoch = record.epoch + 1
    freeze(draft, name, group_id, ordinal)
    queued = replace(
        record,
        state=S.QUEUED,
        epoch=epoch,
        nonce=draft.env.nonce,
        next_at=0.0,
        worker="",
        started_at=0.0,
    )
    draft.move(group_id, queued, queue=planned.spec.queue_name)
    attempt = AttemptRecord(
        epoch=epoch, nonce=draft.env.nonce, pool=planned.spec.pool or "", spark=planned.spec.spark
    )
    draft.offer(group_id, ask_others_first(attempt, record, planned.spec.queue_name, draft.env))
    return planned.spec.lane


def ask_others_first(
    attempt: AttemptRecord, record: GroupRecord, queue: str, env: Environment
) -> AttemptRecord:
    """Return an attempt that avoids the host of the last failure for three sweeps.

    No host is avoided if no other host listens on the queue.
    """
    host = record.worker.rpartition(":")[0]
    if not host or not (record.failures or record.losses) or not env.others(queue, host):
        return attempt
    return replace(attempt, avoid=host, avoid_until=env.now + 3 * env.sweep_every)


def freeze(draft: Draft, name: str, group_id: str, ordinal: int | None) -> None:
    """Fix the inputs of every attempt of this group, or of this member of a fork (rule 12).

    The members of a fork share one entry under the fork's name. Otherwise a fork after a fork would
    store N x N folders.
    """
    if name not in draft.state.frozen:
        freeze_group(draft, name)
    if ordinal is not None and group_id not in draft.state.frozen:
        value = draft.plan.member_value(name, ordinal, draft.state.collected)
        draft.decision.frozen[group_id] = _text(FrozenInputs(value=value))
        draft.state.frozen.add(group_id)


def _text(frozen: FrozenInputs) -> str:
    return frozen.model_dump_json(exclude_none=True)


def freeze_group(draft: Draft, name: str) -> None:
    """Fix the present outputs of a group's needs.

    It happens when the group is first queued, or when its condition holds.
    """
    spec, state = draft.plan.groups[name].spec, draft.state
    done = {need: _done(state, need) for need in draft.plan.groups[name].reads}
    inputs = {need: tuple(record.marked for record in records) for need, records in done.items()}
    members = 0
    if spec.streams and spec.for_each is not None:
        members = draft.plan.member_count(name, state.collected) or 0
    frozen = FrozenInputs(
        inputs=inputs,
        after=_digest_of_unmarked(chain.from_iterable(done.values())),
        empty=_empty_inputs(draft, [need for need, marked in inputs.items() if not marked]),
        cleans=draft.job.id if _cleans_up(draft, name) else "",
        members=members,
    )
    draft.decision.frozen[name] = _text(frozen)
    state.frozen.add(name)


def _done(state: JobState, name: str) -> list[GroupRecord]:
    """Return the records of the members that SUCCEEDED with staging."""
    members = map(state.record, state.members(name))
    return [record for record in members if record.state is S.SUCCEEDED and record.staging]


def _digest_of_unmarked(records: Iterable[GroupRecord]) -> str:
    """Return a digest of the staging without an output; empty if there is none.

    Its results are outside of the warehouse, where readers may find them.
    """
    unmarked = [record.staging for record in records if not record.marked]
    return hashlib.sha256("\n".join(unmarked).encode()).hexdigest()[:16] if unmarked else ""


def _cleans_up(draft: Draft, name: str) -> bool:
    """Return whether a group runs after a failure, to clean up.

    Its needs may have been skipped for an earlier failure, also for one that the job tolerates.
    """
    needs = draft.state.needs[name]
    bad = needs[S.FAILED] + needs[S.CANCELED] + needs[S.SKIPPED]
    outlives = draft.plan.groups[name].spec.join.outlives_failure
    return bool(draft.state.by_state[S.FAILED]) and bad > 0 and outlives


def offer_again(draft: Draft, *, at_once: bool = False) -> None:
    """Repeat offers that no runner has taken for a while, because they may be lost.

    An offer that is not lost keeps its place in the queue.
    """
    state = draft.state
    unclaimed = sorted(
        draft.unclaimed(), key=lambda group_id: (state.groups[group_id].since, group_id)
    )
    at_once |= restore(draft, unclaimed)
    for group_id in unclaimed:
        record = state.groups[group_id]
        if at_once or offer_again_at(record, draft.env) <= draft.env.now:
            lane = draft.planned(group_id).spec.lane
            draft.decision.offers[record.offer(draft.job.id, group_id)] = lane


def _empty_inputs(draft: Draft, needs: Iterable[str]) -> tuple[str, ...]:
    """Return the ``needs`` without output whose output counts as empty."""
    # The output of a group skipped after a failure is undefined, so it must not be read as empty.
    well = not (draft.state.by_state[S.FAILED] or draft.state.by_state[S.CANCELED])
    codes = (EMPTY_FORK, "CONDITION_FALSE", "UPSTREAM_SKIPPED") if well else (EMPTY_FORK,)
    records = ((need, draft.state.groups.get(need)) for need in needs)
    return tuple(
        need
        for need, record in records
        if record is not None and record.reason is not None and record.reason.code in codes
    )


def restore(draft: Draft, unclaimed: list[str]) -> bool:
    """Recreate lost plans and frozen inputs of ``unclaimed`` groups. Return whether any were lost.

    Runners drop an offer without them, so no runner would ever claim it.
    """
    state, lost = draft.state, []
    expected = (
        sum(bool(planned.spec.steps) for planned in draft.plan.groups.values()) if unclaimed else 0
    )
    if state.plans is not None and state.plans < expected:
        draft.decision.plans = draft.job.group_plans(draft.plan)
        state.plans = expected
        lost.append("plans")
    unfrozen = [g for g in unclaimed if not {g, split_member(g)[0]} <= state.frozen]
    for group_id in unfrozen:
        name, ordinal = split_member(group_id)
        freeze(draft, name, group_id, ordinal)
    if unfrozen:
        lost.append("inputs")
    if lost:
        text = (
            f"the store had lost the {' and the '.join(lost)} of groups that nobody has "
            "claimed; they were restored"
        )
        draft.tell("RESTORED", text=text)
    return bool(lost)
