"""The work order: everything a runner receives for one attempt of a group.

A work order has the defaults merged, the parameters joined and the inputs frozen.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Any

from pydantic import Field

from unstuck.tasks.spec.fields import ForkValue, Strict
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.outputs import Checks, Publishing

# In JSON, the letter of an escape does not begin a name.
_NAMES = re.compile(r"\\.|[A-Za-z_][A-Za-z0-9_]*")


class Collect(Strict):
    """A column of an output that the runner collects for a fork."""

    output: str
    column: str
    distinct: bool = False

    @property
    def key(self) -> str:
        return f"{self.output}.{self.column}"


class GroupPlan(Strict):
    """The plan of a group for its runners, stored at submit with the job's defaults merged in.

    ``params`` are the job's; they are stored once, beside the plans, and joined when the group is
    claimed. Runners read it in the context ``STORED``: the coordinator that wrote it may be of
    another release.

    Attributes:
        rerun: a random word if a user requested that this group or an earlier one runs again, which
            makes earlier results not count.
        adopts: jobs that this one retries, whose results count if their fingerprints match.
        any_code: whether those results count even if other code made them.
        mixed: whether results count even if other versions of Spark or Python made them.
        partition_by: partition columns by output.
        forks: needed groups that are forks, with their declared outputs.
        branches: other needed groups that may have been skipped, with their declared outputs.
        base: version of the warehouse at the submit, at which published datasets are read.
        checks: checks of rows by output.
        appended: for a group that reads a stream, the appending outputs, which may be written from
            it.
        for_python: parameters that have no effect unless the Python of this group takes them.
        schedule: name of the schedule of the job, for log lines.
        judged_at: the reference time for checks of rows: the tick of its job; None for now.
        zone: the time zone of its steps; empty: that of the fleet.
        publishes: the names of the outputs that are published, of any group; None: all of this
            group.
        publishing: how outputs are published, by name, where that is not the default.
    """

    group: GroupSpec
    params: dict[str, Any] = Field(default_factory=dict)
    collect: tuple[Collect, ...] = ()
    warehouse: str
    warehouse_id: str | None = None
    rerun: str = ""
    adopts: tuple[str, ...] = ()
    any_code: bool = False
    mixed: bool = False
    partition_by: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    forks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    branches: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    base: int = 0
    checks: dict[str, Checks] = Field(default_factory=dict)
    appended: tuple[str, ...] = ()
    for_python: tuple[str, ...] = ()
    schedule: str = ""
    judged_at: float | None = None
    zone: str = ""
    publishes: tuple[str, ...] | None = ()
    publishing: dict[str, Publishing] = Field(default_factory=dict)

    def publishing_of(self, name: str) -> Publishing | None:
        """Return how the output ``name`` is published; None if it is not."""
        is_published = self.publishes is None or name in self.publishes
        return self.publishing.get(name, Publishing()) if is_published else None


class FrozenInputs(Strict):
    """The inputs of a group, fixed when it is first queued. Every later attempt reads these.

    Stored under the group's name; a fork's members share that entry and have one each for their
    value. ``inputs``: needed group → staging folders of its attempts, in member order; empty for an
    attempt without outputs, which ``after`` names instead. ``empty``: needed groups that are forks
    without members, or were skipped by a condition. ``cleans``: the job, for a group that runs
    after a failure, so that a retry cleans up again. ``members``: number of members of a fork that
    share a stream.
    """

    value: ForkValue | None = None
    inputs: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    after: str = ""
    empty: tuple[str, ...] = ()
    cleans: str = ""
    members: int = 0


class WorkOrder(Strict):
    """Everything a runner needs to run one attempt."""

    plan: GroupPlan
    frozen: FrozenInputs

    @property
    def group(self) -> GroupSpec:
        return self.plan.group

    @property
    def written_params(self) -> dict[str, Any]:
        """The job parameters, overlaid by the group's, as the spec wrote them.

        References in them are resolved.
        """
        return {**self.plan.params, **self.group.params}

    @property
    def fork_params(self) -> dict[str, Any]:
        """The fork's values, which may come from data, where no reference is resolved."""
        names, value = self.group.fork_params, self.frozen.value
        return (
            dict(zip(names, value, strict=True))
            if isinstance(value, tuple)
            else dict.fromkeys(names, value)
        )

    @property
    def params(self) -> dict[str, Any]:
        """All parameters without resolved references; fork values override those of the spec."""
        return {**self.written_params, **self.fork_params}

    def used_params(self, read: Collection[str] | None) -> dict[str, Any]:
        """Return the parameters on which the work may depend: ``read`` ones, and named ones.

        All, if ``read`` is None. A name in a string or a comment counts, too: work is rather done
        again.
        """
        if read is None or not self.params:
            return self.params
        texts = (
            self.group.model_dump_json(exclude={"params", "description"}),
            *(checks.model_dump_json() for checks in self.plan.checks.values()),
        )
        used = {"results", *read, *self.group.fork_params, *_NAMES.findall(" ".join(texts))}
        return {name: value for name, value in self.params.items() if name in used}

    @property
    def fingerprint(self) -> str:
        """The fingerprint with all parameters."""
        return self.fingerprint_of(None)

    def fingerprint_of(self, read: Collection[str] | None) -> str:
        """Return the fingerprint.

        Work with equal fingerprints has the same code, inputs and parameters.

        Covers what the spec says of steps, conf, fork value, published inputs and the attempts it
        reads, and the parameters of the names ``read``; None: all. Not timeouts, retries or queues.
        Which version of a published input was read, the marker says.
        """
        what = {
            "steps": [
                step.model_dump(mode="json", exclude={"timeout"}, exclude_defaults=True)
                for step in self.group.steps
            ],
            "spark": self.group.spark,
            "conf": self.group.conf,
            "params": self.used_params(read),
            "collect": [source.model_dump(mode="json") for source in self.plan.collect],
            "inputs": self.frozen.inputs,
            "published": {
                name: group_input.model_dump(exclude_defaults=True)
                for name, group_input in self.group.inputs.items()
            },
            "after": self.frozen.after,
            "empty": self.frozen.empty,
            "cleans": self.frozen.cleans,
            "members": self.frozen.members,
            "rerun": self.plan.rerun,
            "partition_by": self.plan.partition_by,
            "checks": {
                n: checks.model_dump(mode="json", exclude_defaults=True)
                for n, checks in self.plan.checks.items()
            },
        }
        # Without what is empty or as by default: a field to come leaves the work of before as it
        # was.
        used = {name: part for name, part in what.items() if part}
        return hashlib.sha256(json.dumps(used, sort_keys=True, default=str).encode()).hexdigest()[
            :32
        ]
