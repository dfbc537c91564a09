"""A step whose module forks while it is imported: one child goes on with the import, the other one
leaves it.
"""

from __future__ import annotations

import os
from typing import Any

children: list[int] = []
for leaves in (False, True):
    if child := os.fork():
        children.append(child)
        continue
    if leaves:
        raise SystemExit(0)
    break


def done(spark: Any, ctx: Any) -> None:
    for child in children:
        os.waitpid(
            child, 0
        )  # a child that still lives when its step has ended is a leak, and its runner is replaced
    ctx.result("pid", os.getpid())
