"""A step whose module forks while it is imported: one child goes on with the import, the other one leaves it."""

from __future__ import annotations

import os
from typing import Any

for leaves in (False, True):
    if os.fork() == 0:
        if leaves:
            raise SystemExit(0)
        break


def done(spark: Any, ctx: Any) -> None:
    ctx.result("pid", os.getpid())
