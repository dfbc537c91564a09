"""Checks of the SQL of steps: one complete statement, its tables, and its results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from unstuck.coordinator.spec.checks.condition_checks import no_results
from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.job_params import unresolved
from unstuck.coordinator.spec.problems import SpecProblem, shorten, suggestion
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.sql_tokens import (
    ResultMarker,
    created_in,
    first_word,
    not_closed,
    result_markers,
    several_statements,
    tables_in,
)


def sql_problems(
    every: Sequence[GroupSpec], groups: Mapping[str, GroupSpec], params: Mapping[str, Any]
) -> Iterator[SpecProblem]:
    """Find mistakes in the SQL of ``every`` group; ``params`` are those of the job."""
    wrong_text = cache(wrong_statement)  # thousands of steps may have the same text
    markers = cache(lambda sql: tuple(result_markers(sql)))
    made_by = _made_by(every)
    for i, group in enumerate(every):
        for j, step in enumerate(group.steps):
            if step.sql is None:
                continue
            loc = ("groups", i, "steps", j, "sql")
            missing = partial(_missing_need, group=group, step=j, groups=groups, made_by=made_by)
            if wrong := _wrong_step(step.sql, step.output, wrong_text, missing):
                yield SpecProblem(wrong, loc)
            # A parameter named ``results`` may be a struct, whose fields look the same.
            if "results" in {*params, *group.params, *step.params, *group.fork_params}:
                continue
            for marker in dict.fromkeys(markers(step.sql)):
                if wrong := _wrong_result(marker, group, groups):
                    yield SpecProblem(f"{shorten(marker.text, quote='')}: {wrong}", loc)


def _wrong_step(
    sql: str,
    output: str | None,
    wrong_text: Callable[[str], str],
    missing_need: Callable[[Collection[str]], str],
) -> str:
    """Return the first mistake in a statement; empty if it has none."""
    if wrong := unresolved(sql):
        return f"{wrong}; put it under params:, and write :name for the parameter"
    if wrong := wrong_text(sql):
        return wrong
    if output is not None and first_word(sql) == "create":
        return (
            f"CREATE returns no rows, so output: {output} would be empty; write only the query "
            "(SELECT …), or remove output:"
        )
    return missing_need(tables_in(sql))


def _made_by(every: Sequence[GroupSpec]) -> dict[str, str]:
    """Return the group that makes each output; names of outputs in lower case."""
    return {output.lower(): group.name for group in every for output in outputs_of(group)}


def _missing_need(
    tables: Collection[str],
    group: GroupSpec,
    step: int,
    groups: Mapping[str, GroupSpec],
    made_by: Mapping[str, str],
) -> str:
    """Return a message about an output that a statement reads without the need; else empty.

    Without the need, the statement would read the rows of an earlier job.
    """
    before = group.steps[:step]
    if any(earlier.python is not None for earlier in before):
        return ""  # it may have created a view with this name
    available = {name.lower() for name in (*group.inputs, group.name)}
    for read in groups_read(group, groups):
        available.update(name.lower() for name in (read.name, *outputs_of(read)))
    for earlier in before:
        available |= created_in(earlier.sql or "")
    for table in sorted(tables):
        maker = made_by.get(table, group.name)
        if maker != group.name and table not in available:
            return (
                f"{table} is an output of group {maker}, which group {group.name} does not need; "
                f"add needs: [{maker}], or name {table} in inputs: to read rows of an earlier job"
            )
    return ""


def wrong_statement(sql: str) -> str:
    """Return why ``sql`` is not one statement; empty if it may be one."""
    token = not_closed(sql)
    if token is not None:  # Spark would refuse it, too, after minutes for some comments
        line = sql.count("\n", 0, token.start) + 1
        column = token.start - sql.rfind("\n", 0, token.start)
        begin = shorten(token.text, 30, quote="")
        place = f"line {line}, column {column} of the statement"
        return f"the text that begins at {place} is not closed: {begin}"
    if several_statements(sql):
        return "several statements in one step; give each statement its own step"
    return ""


def _wrong_result(marker: ResultMarker, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> str:
    if not marker.group:
        return "expected :results.GROUP.KEY with names of letters, digits and _"
    read = {each.name: each for each in groups_read(group, groups)}
    named = read.get(marker.group)
    if named is None and marker.group in groups:
        return f"this group does not need group {marker.group!r}; add it to needs:"
    if named is None:
        return f"unknown group {marker.group!r}{suggestion(marker.group, read)}"
    return no_results(named)


def groups_read(group: GroupSpec, groups: Mapping[str, GroupSpec]) -> Iterator[GroupSpec]:
    """Yield the groups that ``group`` reads: its needs, and in place of a join the join's needs."""
    visited: set[str] = set()
    left = list(group.needs)
    while left:
        name = left.pop()
        if name in groups and name not in visited:
            visited.add(name)
            if groups[name].is_join:
                left.extend(groups[name].needs)
            else:
                yield groups[name]
