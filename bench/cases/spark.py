"""Case f: small Spark groups on a warm worker, against the same queries in a plain script, and by
spark-submit.
"""

from __future__ import annotations

from typing import Any

from bench.case import Case, Stage
from bench.measure import Sample

GROUPS = {"tiny": 2, "quick": 24, "full": 24}
SUBMITS = {
    "tiny": 0,
    "quick": 1,
    "full": 2,
}  # each takes seconds; `submits` makes as many as groups


def run(stage: Stage) -> Case:
    return _run(
        stage, Case("f", "small Spark groups on a warm worker", "ms each"), SUBMITS[stage.size]
    )


def submits(stage: Stage) -> Case:
    """Case k: as many submits as groups, which takes minutes."""
    return _run(
        stage, Case("k", "as many spark-submits as Spark groups", "ms each"), GROUPS[stage.size]
    )


def _run(stage: Stage, case: Case, submits: int) -> Case:
    groups = GROUPS[stage.size]
    stage.say("starting a Spark worker")
    worker = "worker spark"
    stage.fleet.start(worker, slots=1, queue="spark")
    stage.ours(_spec(24), 24)
    scripts = {("pyspark", "script"): groups}

    def ours() -> Sample:
        return stage.ours(_spec(groups), groups)

    stage.compare(case, f"{groups} groups", ours, scripts)
    if submits:
        what = f"{groups} groups; {submits} submits"
        stage.compare(case, what, ours, {("pyspark", "submit"): submits}, most=1)
    stage.fleet.stop(worker)
    for pair in case.pairs:
        if pair.peer == "pyspark script":
            for sample, plain in zip(pair.ours, pair.theirs, strict=True):
                more = sample.seconds / sample.units - plain.seconds / plain.units
                case.add(f"{pair.what}: each takes longer than in the script by", "ms", 1000 * more)
    return case


def _spec(groups: int) -> dict[str, Any]:
    step = {"python": "query_steps:group"}
    return {
        "name": "spark",
        "groups": [{"name": "q", "for_each": {"n": list(range(groups))}, "steps": [step]}],
    }
