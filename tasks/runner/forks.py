"""The values of dynamic forks that an attempt collects: from its outputs, or from a published dataset."""

from __future__ import annotations

from typing import Any

from unstuck.tasks.errors import ForkValuesInvalid
from unstuck.tasks.spec.group import MAX_JOB_BYTES, WorkOrder, fork_bytes
from unstuck.tasks.steps.context import Work
from unstuck.tasks.steps.output import collect


def fork_values(order: WorkOrder, work: Work) -> dict[str, list[Any]]:
    """The values that forks wait for, by ``output.column``.

    Raises:
        ForkValuesInvalid: they cannot be those of a fork, or one holds a secret.
    """
    forks: dict[str, list[Any]] = {}
    room = MAX_JOB_BYTES
    for wanted in order.plan.collect:
        found = work.outputs.get(wanted.output)
        own = [output for output in work.outputs.values() if not output.rejected_of]
        if found is None and wanted.output == order.group.name and len(own) == 1:
            (found,) = own
        if found is None and wanted.output in order.group.inputs:
            (found,) = work.inputs[wanted.output].parts  # a published dataset has one
        if found is not None:
            values = forks[wanted.key] = collect(work.files, found, wanted, room)
            if secret := next(filter(None, map(work.secrets.named_in, values)), None):
                raise ForkValuesInvalid(
                    f"a value of {wanted.key} holds the value of {secret}, and the values of a fork are stored and "
                    "shown. Fork over another column, which names what is meant"
                )
            room -= fork_bytes(values)
    return forks
