"""Lanes: the ready sets of one queue. Attempts that take a slot of a pool stand in a lane of their own.

So an offer whose pool is full does not stand before offers that may go.
"""

from __future__ import annotations


def lane_of(queue: str, pool: str | None) -> str:
    """The lane in which offers of ``pool`` stand on ``queue``; the queue itself without a pool."""
    return f"{queue}@{pool}" if pool else queue


def queue_of(lane: str) -> str:
    return lane.partition("@")[0]


def pool_of(lane: str) -> str:
    """The pool of a lane; empty for offers without one."""
    return lane.partition("@")[2]


def members_of(pool: str) -> tuple[str, str]:
    """The range of ``Keys.held`` in which the attempts stand that hold a slot of ``pool``."""
    return f"[{pool}/", f"({pool}0"  # 0 comes after /
