"""Replaces the name of an SQL file in a spec by the text of the file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from unstuck.coordinator.spec.checks.sql import sql_problems, wrong_statement
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, shorten
from unstuck.tasks.plain_text import plain_text
from unstuck.tasks.spec.group import GroupSpec, Step
from unstuck.tasks.spec.sql_tokens import MAX_SQL


def groups_with_sql(
    every: Sequence[GroupSpec], params: Mapping[str, Any], folder: Path | None
) -> tuple[GroupSpec, ...]:
    """Return the groups with the text of every ``sql_file:`` in place of its name.

    Args:
        params: those of the job.

    Raises:
        SpecError: a file is missing, empty, above 1 MB, outside ``folder``, or ``folder`` is None.
    """
    read = cache(lambda name: read_sql_file(name, folder))  # many steps may name one file
    problems: list[SpecProblem] = []
    groups: list[GroupSpec] = []
    for i, group in enumerate(every):
        steps = list(group.steps)
        for j, step in enumerate(steps):
            if step.sql_file is not None:
                try:
                    steps[j] = _with_sql(step, read(step.sql_file))
                except ValueError as error:
                    problems.append(SpecProblem(str(error), ("groups", i, "steps", j, "sql_file")))
        groups.append(_with_steps(group, tuple(steps)))
    if groups != list(every) and not problems:
        by_name = {group.name: group for group in groups}
        for problem in sql_problems(groups, by_name, params):
            problems.append(dataclasses.replace(problem, loc=(*problem.loc[:-1], "sql_file")))
    if problems:
        raise SpecError(problems)
    return tuple(groups)


def _with_sql(step: Step, sql: str) -> Step:
    written = {name: getattr(step, name) for name in step.model_fields_set - {"sql_file"}}
    return Step.model_validate({**written, "sql": sql})


def _with_steps(group: GroupSpec, steps: tuple[Step, ...]) -> GroupSpec:
    return group if steps == group.steps else group.model_copy(update={"steps": steps})


def read_sql_file(name: str, folder: Path | None) -> str:
    """Return the text of an SQL file. Raises: ValueError."""
    if folder is None:
        raise ValueError(
            f"{shorten(name)} cannot be found, since this spec was not read from a file; write "
            "sql: instead"
        )
    # The name itself is checked, and links are followed: the author of a spec may not be allowed to
    # read other files, while the owner of the folder made its links.
    inside = os.path.normpath(name)
    if os.path.isabs(inside) or inside.split(os.sep)[0] == os.pardir or "\0" in name:
        raise ValueError(
            f"{shorten(name)} is outside the folder of the spec; put the file beside the spec"
        )
    shown = shorten(str(folder / inside), 200)
    try:
        data = _start_of(folder / inside)
    except OSError as error:
        raise ValueError(f"{shown} cannot be read: {error.strerror or error}") from None
    if data is None:
        raise ValueError(f"no such file: {shown}")
    if wrong := _wrong_sql(data):
        raise ValueError(f"{shown}{wrong}")
    return plain_text(data.decode())


def _start_of(path: Path) -> bytes | None:
    """Return the first MB of a file, and a byte more; None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(MAX_SQL + 1)


def _wrong_sql(data: bytes) -> str:
    """Return why ``data`` is not one statement, to be appended to the name of the file."""
    if len(data) > MAX_SQL:
        return " is larger than 1 MB"
    try:
        text = plain_text(data.decode())
    except UnicodeDecodeError:
        return " is not UTF-8 text"
    if not text.strip():
        return " is empty"
    wrong = wrong_statement(text)
    return wrong and f": {wrong}"
