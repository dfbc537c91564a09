"""Queueing: attempts are minted for groups that may go, and hints that nobody claimed are sent again."""

from __future__ import annotations

from dataclasses import replace

from coordinator.draft import Draft
from coordinator.job import Attempt
from coordinator.status import GroupState
from tasks.group import FrozenInputs
from tasks.token import fork_member, split_member

S = GroupState


def queue_ready(draft: Draft) -> None:
    """Mint attempts for what may go: retries whose time has come, then waiting members, within the limits."""
    state, now = draft.state, draft.world.now
    room = parallel_room(draft)
    windows: dict[str, int] = {}
    for group_id in state.by_state[S.QUEUED]:
        queue = draft.planned(group_id).spec.queue_name
        windows[queue] = windows.get(queue, draft.world.window(queue)) - 1

    def fits(name: str) -> bool:
        queue = draft.plan.groups[name].spec.queue_name
        return room > 0 and windows.setdefault(queue, draft.world.window(queue)) > 0

    retries = [g for g in state.by_state[S.BACKOFF] if state.groups[g].next_at <= now]
    returned = [g for g in state.by_state[S.WAITING] if split_member(g)[0] in draft.ready]
    for group_id in sorted(retries, key=lambda g: state.groups[g].next_at) + returned:
        name = split_member(group_id)[0]
        if draft.decision.full:
            draft.decision.more = True
            return
        if fits(name):
            mint(draft, group_id)
            room -= 1
            windows[draft.plan.groups[name].spec.queue_name] -= 1
    for name in list(draft.ready):
        planned = draft.plan.groups[name]
        count = draft.plan.member_count(name, state.collected) or 0
        while (ordinal := state.census[name].total()) < count and fits(name):
            if draft.decision.full:
                draft.decision.more = True
                return
            mint(draft, fork_member(name, ordinal) if planned.spec.for_each else name)
            room -= 1
            windows[planned.spec.queue_name] -= 1
        if not draft.waiting_members(name):
            del draft.ready[name]
        if room <= 0:
            return


def parallel_room(draft: Draft) -> int:
    """How many more groups ``max_parallel`` lets run."""
    limit = draft.plan.max_parallel
    return 1_000_000 if limit is None else limit - len(draft.state.active)


def mint(draft: Draft, group_id: str) -> None:
    """WAITING or BACKOFF → QUEUED: a new epoch, and inputs frozen the first time."""
    record = draft.state.record(group_id)
    name, ordinal = split_member(group_id)
    planned = draft.plan.groups[name]
    freeze(draft, name, group_id, ordinal)
    epoch = record.epoch + 1
    queued = replace(
        record,
        state=S.QUEUED,
        epoch=epoch,
        nonce=draft.world.nonce,
        hinted_at=draft.world.now,
        hints=1,
        next_at=0.0,
        worker="",
        started_at=0.0,
    )
    draft.move(group_id, queued, queue=planned.spec.queue_name)
    offered = Attempt(epoch=epoch, nonce=draft.world.nonce)
    draft.offer(group_id, offered)
    draft.decision.hints.append((planned.spec.queue_name, queued.hint(draft.job.id, group_id)))


def freeze(draft: Draft, name: str, group_id: str, ordinal: int | None) -> None:
    """Fix what every attempt of this group reads: the outputs of its needs as they stand now (rule 12).

    A fork's members share one entry under the fork's name, or a fork after a fork would store N x N folders.
    """
    if name not in draft.state.frozen:
        inputs = {
            need: tuple(
                record.staging
                for member in draft.state.members(need)
                if (record := draft.state.record(member)).state is S.SUCCEEDED and record.staging
            )
            for need in draft.plan.groups[name].reads
        }
        draft.decision.frozen[name] = FrozenInputs(inputs=inputs).model_dump_json()
        draft.state.frozen.add(name)
    if ordinal is not None and group_id not in draft.state.frozen:
        value = draft.plan.member_value(name, ordinal, draft.state.collected)
        draft.decision.frozen[group_id] = FrozenInputs(value=value).model_dump_json()
        draft.state.frozen.add(group_id)


def resend_hints(draft: Draft) -> None:
    """A hint that nobody claimed in time is sent again, the oldest first, within the queue's allowance (rule 6)."""
    now, limit = draft.world.now, draft.world.dispatch_timeout
    overdue = [
        (record.hinted_at, group_id, record)
        for group_id in draft.state.by_state[S.QUEUED]
        if (record := draft.state.groups[group_id]).hinted_at + limit <= now and group_id in draft.state.attempts
    ]
    for _, group_id, record in sorted(overdue, key=lambda item: item[:2]):
        queue = draft.planned(group_id).spec.queue_name
        used = draft.decision.resent.get(queue, 0)
        if used >= draft.world.resend.get(queue, 0) or draft.decision.full:
            continue
        again = replace(record, hinted_at=now, hints=record.hints + 1)
        draft.state.put(group_id, again)
        draft.decision.groups[group_id] = again
        draft.decision.resent[queue] = used + 1
        draft.decision.hints.append((queue, again.hint(draft.job.id, group_id)))
