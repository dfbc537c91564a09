"""Find work of an earlier attempt, or of a retried job, that counts for this attempt."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from unstuck.tasks.identity import RunsOn
from unstuck.tasks.protocol.report import Done
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.code import fingerprint, why_again
from unstuck.tasks.steps.step_inputs import PublishedDatasets
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Marker, find_done_marker, newest_marker

log = logging.getLogger(__name__)

Standing = tuple[str, Marker]
"""The name of a staging folder, and the marker of its attempt, from that folder or from a
record.
"""


def on_record(staging: str, done: Done) -> Standing:
    """Return the work of an attempt without outputs, and so without a folder."""
    marker = Marker(
        staging, done.fingerprint, {}, {}, {}, 0.0, done.code, done.params, made_on=done.made_on
    )
    return staging, marker


class DoneBefore:
    """Searches for finished work that ``work_order`` need not do again.

    Attributes:
        why_again: why the work of the retried job is done again, in words; empty if the job is no
            retry.
    """

    def __init__(
        self,
        token: Token,
        work_order: WorkOrder,
        code: str,
        runs_on: RunsOn,
        published: PublishedDatasets,
    ) -> None:
        """``code``: what stands for the code that this runner has."""
        self._token, self._work_order, self._code = token, work_order, code
        self._runs_on, self._published = runs_on, published
        self.why_again = ""

    def _why_not(self, files: Files, job: str, recorded: Mapping[str, Standing]) -> str:
        """Return why the work of an earlier ``job`` does not count; empty if it made none."""
        if job in recorded:
            return self._why_again(job, recorded[job][1])
        marker = newest_marker(files, self._folder(job))
        return "" if marker is None else self._why_again(job, marker)

    def find(self, files: Files, recorded: Mapping[str, Standing]) -> Standing | None:
        """Return the finished work that counts; None without any.

        Args:
            recorded: retried job → recorded work of this group, if it had no outputs.

        Raises:
            OSError: the warehouse could not be read.
        """
        adopts = self._work_order.plan.adopts
        work = self._standing(files, self._token.job, recorded)
        for job in adopts:
            if work is None and not self._work_order.group.compacts:
                work = self._standing(files, job, recorded)
            if work is not None:
                break
            if not self.why_again:
                self.why_again = self._why_not(files, job, recorded)
        if work is not None:
            return work
        if adopts:
            self.why_again = (
                f"{self.why_again or f'it had not finished in job {adopts[0]}'}, so it ran again"
            )
            log.info("%s: %s", self._token, self.why_again)
        return None

    def _standing(
        self, files: Files, job: str, recorded: Mapping[str, Standing]
    ) -> Standing | None:
        if job in recorded and self._counts(recorded[job][1]):
            return recorded[job]
        return find_done_marker(files, self._folder(job), self._counts)

    def _folder(self, job: str) -> str:
        return replace(self._token, job=job).staging.rpartition("/")[0]

    def _counts(self, marker: Marker) -> bool:
        """Whether ``marker`` is of the same work, on the same published data."""
        code = marker.code if self._work_order.plan.any_code else self._code
        same = marker.fingerprint == fingerprint(self._work_order, code, marker.params)
        same &= self._work_order.plan.mixed or not self._runs_on.differs(marker.made_on)
        return same and not self._published.changed(marker.reads)

    def _why_again(self, job: str, marker: Marker) -> str:
        newer, other = self._published.changed(marker.reads), self._runs_on.differs(marker.made_on)
        return why_again(self._work_order, job, marker, newer, other)
