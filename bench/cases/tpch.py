"""Case i: the 22 queries of TPC-H as one job over published tables, against one plain script on the
same files.

The script runs with Spark's defaults, and again with the conf of a runner that makes most of the
difference.
"""

from __future__ import annotations

from bench.case import Case, Stage
from bench.fleet import ROOT
from unstuck import JobSpec

FOLDER = ROOT / "examples" / "tpch"
SCALES = {"tiny": 0.001, "quick": 0.01, "full": 0.1}
QUERIES = 22


def run(stage: Stage) -> Case:
    scale = SCALES[stage.size]
    case = Case("i", "TPC-H, 22 queries with an output each", "s")
    stage.say("publishing the tables")
    tables, queries = (
        JobSpec.from_file(FOLDER / name, {"scale": scale})
        for name in ("tables.yaml", "queries.yaml")
    )
    stage.ours(tables, 1)
    worker = "worker spark"
    stage.fleet.start(worker, slots=1, queue="spark")
    stage.say("the first run, on a cold session")
    stage.ours(queries, QUERIES)
    peers = {("tpch", f"script {scale}"): QUERIES, ("tpch_conf", f"script {scale}"): QUERIES}
    stage.compare(case, f"scale {scale}", lambda: stage.ours(queries, QUERIES), peers)
    stage.fleet.stop(worker)
    for pair in case.pairs:
        for ours, plain in zip(pair.ours, pair.theirs, strict=bool(pair.peer)):
            case.add(
                f"{pair.what}: more time than {pair.peer}",
                "%",
                100 * (ours.seconds / plain.seconds - 1),
            )
    return case
