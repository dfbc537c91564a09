"""Retries: what a new job that retries another one must be, and whose work counts as its own.

Each function answers what is wrong, in words; empty if nothing is.
"""

from __future__ import annotations

import json
from collections import defaultdict

from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.store import ModelStore
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.spec.model import JobSpec
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.work_order import WorkOrder

RETRIED = (Status.FAILED, Status.CANCELED, Status.STOPPED)  # how a job ended that may be retried
_Work = tuple[
    str, str, str
]  # the fingerprint of a work order, its parameters with the fork value, and what it reads


def kin(core: ModelStore, job: str) -> tuple[str, ...]:
    """The job, the job that it retries, the one which that one retries, and so on."""
    found: list[str] = []
    while job:
        found.append(job)
        job = core.jobs[job].record.retry_of
    return tuple(found)


class Adopted:
    """Watches which jobs are retried, and whose markers are taken over."""

    def __init__(self, core: ModelStore, depot: Depot) -> None:
        self._core, self._depot = core, depot
        self._retries: dict[
            tuple[str, str], str
        ] = {}  # a job, and a spec that it was retried with → the new job
        self._handed_out: defaultdict[Token, set[_Work]] = defaultdict(set)

    def submitted(self, record: JobRecord) -> str:
        """A job is stored: its package will be found, and a retry is one new job of one that has
        ended, and no more.
        """
        if record.base is None or record.base > self._depot.head():
            return (
                f"{record.id} has the base {record.base}, and the log has {self._depot.head()} "
                "entries"
            )
        if not record.retry_of:
            return ""
        old = self._core.jobs[record.retry_of].record
        where = f"{record.id} retries {old.id}"
        if old.status not in RETRIED:
            return f"{where}, which is {old.status}"
        other = self._retries.setdefault((old.id, record.spec), record.id)
        if other != record.id:
            return f"{where}, which {other} retries with the same spec"
        if record.adopts != kin(self._core, old.id):
            return f"{where}, and adopts from {record.adopts}, not {kin(self._core, old.id)}"
        if record.reruns != old.reruns:
            return f"{where}, of which was run again {old.reruns}, and it says {record.reruns}"
        specs = [
            JobSpec.model_validate_json(one.spec).model_dump(exclude={"params"})
            for one in (old, record)
        ]
        return (
            f"{where}, with another spec: {specs[1]}, not {specs[0]}"
            if specs[0] != specs[1]
            else ""
        )

    def handed_out(self, token: Token, work_order: WorkOrder) -> None:
        """A runner has heard what to do; again, and perhaps something else, if its first reply was
        lost.
        """
        params, inputs = (
            json.dumps(work_order.params, sort_keys=True),
            json.dumps(work_order.frozen.inputs, sort_keys=True),
        )
        self._handed_out[token].add((work_order.fingerprint, params, inputs))

    def finished(self, token: Token, outcome: Outcome) -> str:
        """What is taken over is the same work, done by the job itself or by one that it retries."""
        marker = self._depot.markers.get(outcome.staging)
        if not outcome.adopted or marker is None:
            return ""
        where, maker = f"{token} took over {outcome.staging}", marker.token
        if maker.group != token.group or maker.job not in kin(self._core, token.job):
            return f"{where}, which {maker} made; it is a retry of {kin(self._core, token.job)[1:]}"
        same = self._handed_out[token] & self._handed_out[maker]
        if marker.fingerprint not in {fingerprint for fingerprint, _, _ in same}:
            work_orders = [sorted(self._handed_out[one]) for one in (token, maker)]
            return (
                f"{where}, which is not the work that it was to do: {work_orders[0]}; that was "
                f"{work_orders[1]}"
            )
        return ""
