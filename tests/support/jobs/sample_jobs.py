"""Small jobs: ways in which groups may hang together, and ways in which an attempt may end; for
tests that explore.
"""

from __future__ import annotations

from typing import Any

from tests.support.jobs.job_in_memory import group
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

BUDGET = {"max": 1, "backoff": 10.0, "jitter": 0.0}
SOURCE = {"from": "data.n"}

SPECS: dict[str, dict[str, Any]] = {
    "chain": {
        "groups": [group("a", retry=BUDGET, worker_losses=2), group("b", "a", retry={"max": 0})]
    },
    "fork": {
        "groups": [
            group("w", for_each={"n": [1, 2, 3]}, retry=BUDGET),
            group("end", "w", steps=[]),
        ],
        "max_parallel": 2,
    },
    "dynamic": {
        "groups": [
            group("a"),
            group("b", retry={"max": 0}),
            group("d", "a", "b", for_each={"n": SOURCE}),
        ]
    },
    "others": {
        "groups": [group("a", retry={"max": 0}), group("b", retry=BUDGET), group("c", "a")],
        "on_failure": "finish_others",
    },
    "optional": {
        "groups": [
            group("w", for_each={"n": [1, 2]}, optional=True, retry=BUDGET),
            group("end", "w", join="all_done"),
        ]
    },
    "quorum": {
        "groups": [
            group("a", retry={"max": 0}),
            group("b", retry=BUDGET),
            group("end", "a", "b", join={"at_least": 2}),
        ],
    },
    "empty": {
        "groups": [
            group("none", for_each={"n": []}),
            group("end", "none", steps=[], join="none_failed"),
        ]
    },
    "impatient": {
        "groups": [group("a", queue_timeout="5s", retry=BUDGET), group("b", "a")],
        "timeout": "8s",
    },
    "condition": {
        "groups": [
            group("a"),
            group("b", "a", when="results.a.n > 1"),
            group("c", "a", when="results.a.x > 1"),
        ]
    },
}

# In which single histories are played, and not every step from everywhere.
FOR_HISTORIES: dict[str, dict[str, Any]] = {
    "alone": {"groups": [group("a", retry=BUDGET)]},
}

OUTCOMES: dict[str, Outcome] = {
    "succeeded": Outcome(OutcomeKind.SUCCEEDED, rows={"data": 1}, results={"n": 1}),
    "failed": Outcome(OutcomeKind.FAILED, failure=Failure("BOOM", "it went wrong")),
    "failed for good": Outcome(
        OutcomeKind.FAILED, failure=Failure("BOOM", "it went wrong", recoverable=False)
    ),
    "timed out": Outcome(OutcomeKind.FAILED, failure=Failure("TIMEOUT", "it took too long")),
    "lost": Outcome(OutcomeKind.LOST, failure=Failure("RUNNER_DIED", "its runner died")),
    "released": Outcome(OutcomeKind.RELEASED),
    "canceled": Outcome(OutcomeKind.CANCELED),
}
WITHOUT_OUTPUT = "without output"
RARE: dict[str, Outcome] = {
    WITHOUT_OUTPUT: Outcome(OutcomeKind.SUCCEEDED)
}  # in single histories, likewise
# What a group that makes the values of a fork may come back with; "succeeded" brings none.
VALUES = {"made values": [1, 2], "made others": [3], "made none": []}
