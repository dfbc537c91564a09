"""Case a: a fork of N groups that do nothing, and a join, against a Celery group, a Celery chord
and docket.
"""

from __future__ import annotations

from bench.case import Case, Stage
from bench.fleet import wide

WIDTHS = {"tiny": (4,), "quick": (1_000,), "full": (100, 1_000, 5_000, 10_000)}
PEERS = (("celery", "chord"), ("celery", "group"), ("docket", "group"))
ROUNDS = {5_000: 2, 10_000: 1}  # of the widths whose rounds take long
# Ours is compared with itself at 1,000; without the chord, which takes as long as the group.
WIDEST = 10_000


def run(stage: Stage) -> Case:
    """One pair per width and peer, in turn within each round."""
    case = Case("a", "wide fork and join", "groups/s")
    for width in WIDTHS[stage.size]:
        most = ROUNDS.get(width)
        peers = dict.fromkeys(PEERS if width < WIDEST else PEERS[1:], width)
        stage.compare(
            case,
            f"{width:,} groups",
            lambda width=width: stage.ours(wide(width), width),
            peers,
            most,
        )
    return case
