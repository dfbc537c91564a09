"""Case b: a chain of groups that do nothing, milliseconds per hop, against the chains of others.

DBOS and Prefect call the steps of a chain within one process; Celery, docket and Unstuck hand each hop to a worker.
"""

from __future__ import annotations

from bench.case import Case, Stage
from bench.fleet import chain

LENGTH = {"tiny": 3, "quick": 40, "full": 40}
PEERS = ("celery", "docket", "dbos", "prefect")


def run(stage: Stage) -> Case:
    length = LENGTH[stage.size]
    case = Case("b", "chain: latency of a hop", "ms each")
    peers = {(name, "chain"): length for name in PEERS}
    stage.compare(case, f"{length} hops", lambda: stage.ours(chain(length), length), peers)
    return case
