"""Hooks for tests on real workers, and steps for them. Each hook notes what it was told in the file ``params.told``."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unstuck import HookContext, HookEvent


def tell(ctx: HookContext, event: HookEvent) -> None:
    with Path(ctx.params["told"]).open("a") as file:
        file.write(json.dumps({**asdict(event), "token": ctx.token, "here": ctx.scratch.is_dir()}) + "\n")
    ctx.log.info("the hook was told of %s", event.state)


def breaks(ctx: HookContext, event: HookEvent) -> None:
    tell(ctx, event)
    raise ConnectionError("the pager does not answer")


def breaks_once(ctx: HookContext, event: HookEvent) -> None:
    tell(ctx, event)
    if len(Path(ctx.params["told"]).read_text().splitlines()) == 1:
        raise ConnectionError("the pager does not answer")


def hangs(ctx: HookContext, event: HookEvent) -> None:
    tell(ctx, event)
    time.sleep(1000)


def dies_once(ctx: HookContext, event: HookEvent) -> None:
    tell(ctx, event)
    if len(Path(ctx.params["told"]).read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def counts(spark: Any, ctx: Any) -> None:
    import pyarrow as pa

    ctx.output("numbers").write(pa.table({"n": [1, 2, 3]}))
    ctx.result("seen", 3)


def null_for_a_fork(spark: Any, ctx: Any) -> None:
    import pyarrow as pa

    ctx.output("numbers").write(pa.table({"n": [1, None]}))


def sleeps(spark: Any, ctx: Any) -> None:
    time.sleep(1000)


def breaks_off(spark: Any, ctx: Any) -> None:
    raise RuntimeError("boom")


def dies(spark: Any, ctx: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
