"""Case b: a chain of 40 groups that do nothing, milliseconds per hop, against a Celery chain and docket."""

from __future__ import annotations

from bench.case import Case, Stage
from bench.fleet import chain

LENGTH = 40


def run(stage: Stage) -> Case:
    case = Case("b", f"chain of {LENGTH}", "ms/hop")
    pairs = {name: case.pair(f"{LENGTH} hops", f"{name} chain") for name in ("celery", "docket")}
    for _ in stage.rounds():
        ours = stage.ours(chain(LENGTH), LENGTH)
        for name, pair in pairs.items():
            pair.add(ours, stage.peer(name, "chain", LENGTH))
    return case
