"""Find the parameters that the Python of a group takes.

The log of an attempt and ``unstuck validate --imports`` use it.

As a program it imports the code of the groups that it reads from standard input, and answers in
JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.execute import find, fit
from unstuck.tasks.steps.uses import uses_of

_READS_ANY = re.compile(r"\.params\b")


def taken_by(group: GroupSpec, allowed: Sequence[str]) -> set[str] | None:
    """Return the parameters that the Python steps of ``group`` take; None if it may read others.

    Others are read by a ``**`` parameter, or from ``ctx.params`` by the module of a step.

    Raises:
        StepNotFound, WorkerFolderGone: one cannot be imported.
    """
    taken: set[str] = set()
    for name in (step.python for step in group.steps if step.python):
        function = find(name, allowed)
        if _reads_any(function):
            return None
        taken |= inspect.signature(function).parameters.keys()
    return taken


def untaken(work_order: WorkOrder, allowed: Sequence[str]) -> str:
    """Return a warning about parameters without effect in the group; empty if there are none.

    Also empty if the code cannot tell.
    """
    taken = None
    with suppress(Exception):  # a function may have no signature
        taken = taken_by(work_order.group, allowed) if work_order.plan.for_python else None
    names = (
        [] if taken is None else [name for name in work_order.plan.for_python if name not in taken]
    )
    return (
        f"no step takes {', '.join(names)}, so it has no effect; is the code older than the spec?"
        if names
        else ""
    )


def _reads_any(function: Any) -> bool:
    function = inspect.unwrap(function)
    with suppress(TypeError, ValueError):
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
            return True
    try:
        return _READS_ANY.search(inspect.getsource(sys.modules[function.__module__])) is not None
    except (AttributeError, KeyError, OSError, TypeError):
        return True  # there is no source to look at


def _checked(group: GroupSpec, params: Collection[str], allowed: Sequence[str]) -> dict[str, Any]:
    """``{"problems": [[step, text]], "takes": […] | null, "uses": {step: Uses}}``."""
    problems, uses = [], {}
    for index, step in enumerate(group.steps):
        if step.python:
            try:
                function = find(step.python, allowed)
                uses[index] = asdict(uses_of(function))
                passed = dict.fromkeys([*params, *group.params, *group.fork_params, *step.params])
                fit(step.python, function, passed, own=set(step.params))
            except UnstuckError as error:
                problems.append([index, f"{error.code}: {error}"])
    taken = None if problems else taken_by(group, allowed)
    return {"problems": problems, "takes": None if taken is None else sorted(taken), "uses": uses}


def main() -> None:
    """Read ``{groups, params, allowed}``, and answer with `_checked` of each group."""
    out = os.dup(1)
    os.dup2(2, 1)  # what is imported may print
    request = json.load(sys.stdin)
    groups = [GroupSpec.model_validate(group) for group in request["groups"]]
    answer = [_checked(group, request["params"], request["allowed"]) for group in groups]
    with os.fdopen(out, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
