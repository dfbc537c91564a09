"""Case h: a fork of N groups with one small output each, published together, against dlt with N
load jobs.
"""

from __future__ import annotations

from typing import Any

from bench.case import Case, Stage

WIDTHS = {"tiny": (3,), "quick": (200,), "full": (200, 800, 3_200)}
LONG = 800  # groups


def run(stage: Stage) -> Case:
    case = Case("h", "groups with one small output each", "s")
    stage.ours(_spec(16), 16)  # both runners have loaded what writes files
    for width in WIDTHS[stage.size]:
        peers = {("dlt", "load jobs"): width}
        most = 1 if width >= LONG else 2
        what = f"{width:,} groups"
        stage.compare(case, what, lambda width=width: stage.ours(_spec(width), width), peers, most)
    return case


def _spec(width: int) -> dict[str, Any]:
    step = {"python": "output_steps:row", "output": "rows"}
    fork = {
        "name": "rows",
        "queue": "light",
        "spark": False,
        "for_each": {"n": list(range(width))},
        "steps": [step],
    }
    return {"name": "outputs", "groups": [fork]}
