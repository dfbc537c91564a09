"""Case a: a fork of N groups that do nothing, and a join, against a Celery group, a Celery chord and docket."""

from __future__ import annotations

from bench.case import Case, Stage
from bench.fleet import wide

WIDTHS = {"quick": (100, 1_000), "full": (100, 1_000, 5_000, 10_000)}


def run(stage: Stage) -> Case:
    """One pair per width and peer, in turn within each round."""
    case = Case("a", "wide fork and join", "groups/s")
    peers = {("celery", "group"), ("celery", "chord"), ("docket", "group")}
    for width in WIDTHS[stage.size]:
        pairs = {(name, what): case.pair(f"{width:,} groups", f"{name} {what}") for name, what in sorted(peers)}
        for _ in stage.rounds():
            ours = stage.ours(wide(width), width)
            for (name, what), pair in pairs.items():
                pair.add(ours, stage.peer(name, what, width))
    return case
