"""Builds the outcome of a successful attempt, which its report contains."""

from __future__ import annotations

from unstuck.tasks.identity import bound_of
from unstuck.tasks.protocol.report import Done, Outcome, OutcomeKind
from unstuck.tasks.warehouse.marker import Marker


def success(staging: str, marker: Marker, *, adopted: bool = False, ran_again: str = "") -> Outcome:
    """Return the outcome for ``marker``. ``ran_again``: why finished work was done again."""
    done = Done(marker.fingerprint, marker.code, bound_of(marker.made_on), marker.params)
    return Outcome(
        OutcomeKind.SUCCEEDED,
        staging=staging,
        adopted=adopted,
        ran_again=ran_again,
        arrived=marker.arrived,
        rows={name: output.rows for name, output in marker.outputs.items()},
        rejected={
            name: output.rejected_by
            for name, output in marker.outputs.items()
            if output.rejected_by
        },
        forks=marker.forks,
        results=marker.results,
        done=done if marker.made_nothing else None,
    )
