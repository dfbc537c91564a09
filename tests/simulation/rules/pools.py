"""At most so many attempts hold a slot of a pool as it has, and none keeps a slot after its end."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.model.store import ModelStore
from unstuck.coordinator.model.records import AttemptRecord
from unstuck.tasks.protocol.token import Offer, Token


def over_full(core: ModelStore, token: Token) -> str:
    """What is wrong with the pools now that ``token`` was claimed."""
    pool = core.jobs[token.job].attempts[token.group].pool
    holders = [f"{job}/{group}" for job, group, attempt in running(core) if attempt.pool == pool]
    if pool and len(holders) > core.pools.get(pool, 1):
        return (
            f"{token} was claimed, and pool {pool} with {core.pools.get(pool, 1)} slots holds "
            f"{holders}"
        )
    return ""


def kept_after_the_end(core: ModelStore) -> Iterator[tuple[str, Offer]]:
    """Slots that no attempt needs any more."""
    needed = {
        (attempt.pool, Offer(job, group, attempt.epoch, attempt.nonce))
        for job, group, attempt in running(core)
    }
    yield from sorted(core.held - needed, key=str)


def running(core: ModelStore) -> Iterator[tuple[str, str, AttemptRecord]]:
    for job_id, job in core.jobs.items():
        for group, attempt in job.attempts.items() if not job.record.terminal else ():
            if attempt.claimant and attempt.outcome is None:
                yield job_id, group, attempt
