"""Retries a job: which results are reused, and which groups run again. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.decide.requests import closure
from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.spec.problems import suggestion


@dataclass(frozen=True, slots=True)
class Retried:
    """The retry of a job.

    Attributes:
        adopts: jobs whose results the new job may reuse.
        reruns: `JobRecord.reruns` of the new job.
        any_code: whether results of other versions of the code are reused.
        request: options beyond a plain retry, as text; two retries with equal options are one.
        changed: whether the new job has another spec or other parameters.
        take_over: as `JobRecord.take_over` of the new job.
    """

    job: JobRecord
    adopts: tuple[str, ...]
    reruns: dict[str, str]
    any_code: bool
    request: str
    changed: bool = False
    take_over: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the new job's record that describe the retry."""
        return {
            "retry_of": self.job.id,
            "chain_key": self.job.user_key,
            "adopts": self.adopts,
            "reruns": self.reruns,
            "any_code": self.any_code,
            "take_over": self.take_over,
            # Other work, and groups that run again on purpose, make a package of their own.
            "package_id": ""
            if self.request or self.changed
            else self.job.package_id or self.job.id,
            # Who was told that it failed is told when a retry has ended well.
            "alerts": {key: alert for key, alert in self.job.alerts.items() if key == "failed"},
        }

    def key(self, fingerprint: str) -> str:
        """Return the key of the new job, whose spec has this fingerprint."""
        also = hashlib.sha256(self.request.encode()).hexdigest()[:8] if self.request else ""
        return f"retry/{self.job.id}/{fingerprint[:16]}{also}"


def retried(
    state: JobState,
    rerun: Collection[str],
    adopt_all: bool,
    word: str,
    *,
    changed: bool = False,
    take_over: bool = False,
) -> Retried:
    """Return the retry of the job of ``state``.

    Args:
        rerun: groups that run again, with all groups after them.
        word: a fresh random word, as for `rerun`.
        changed: as in `Retried`.
        take_over: whether the new job takes datasets over; implied if the retried job does.

    Raises: NoSuchGroup.
    """
    for name in rerun:
        if name not in state.plan.groups:
            raise NoSuchGroup(
                f"job {state.job.id} has no group {name}{suggestion(name, state.plan.groups)}"
            )
    again = {later for name in rerun for later in closure(state, name)}
    request = json.dumps([sorted(again), adopt_all]) if again or adopt_all else ""
    reruns = {**state.job.reruns, **dict.fromkeys(sorted(again), word)}
    adopts = (state.job.id, *state.job.adopts)
    takes = take_over or state.job.take_over
    return Retried(state.job, adopts, reruns, adopt_all, request, changed, takes)
