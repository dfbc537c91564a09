"""Problems in the SQL of steps: no single statement, a text without its end, results that it cannot
name (pure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.job_params import unresolved
from unstuck.coordinator.spec.problems import Problem, shorten, suggestion
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
) -> Iterator[Problem]:
    """Find mistakes in the statements of ``every`` group. ``params``: those of the job."""
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
                yield Problem(wrong, loc)
            # A parameter of the name ``results`` may hold a struct, whose fields are written in the
            # same way.
            if "results" not in {*params, *group.params, *step.params, *(group.for_each or ())}:
                for marker in dict.fromkeys(markers(step.sql)):
                    if wrong := _wrong_result(marker, group, groups):
                        yield Problem(f"{shorten(marker.text, quote='')}: {wrong}", loc)


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
            f"CREATE answers with no rows, so output: {output} would get none; write its query "
            "alone (SELECT …), or leave out output:"
        )
    return missing_need(tables_in(sql))


def _made_by(every: Sequence[GroupSpec]) -> dict[str, str]:
    """Output → the group that makes it; the names of outputs in lower case."""
    return {output.lower(): group.name for group in every for output in outputs_of(group)}


def _missing_need(
    tables: Collection[str],
    group: GroupSpec,
    step: int,
    groups: Mapping[str, GroupSpec],
    made_by: Mapping[str, str],
) -> str:
    """Say which output of another group a statement reads that its group does not need; empty if it
    reads none.

    Without the need it would read the rows of an earlier job, if there are any.
    """
    if any(earlier.python is not None for earlier in group.steps[:step]):
        return ""  # it may have made a view of this name
    available = {name.lower() for name in group.inputs} | {group.name.lower()}
    available |= {
        name.lower()
        for each in groups_read(group, groups)
        for name in (each.name, *outputs_of(each))
    }
    available |= {
        table for earlier in group.steps[:step] if earlier.sql for table in created_in(earlier.sql)
    }
    for table in sorted(tables):
        maker = made_by.get(table)
        if maker is not None and maker != group.name and table not in available:
            return (
                f"{table} is an output of group {maker}, which group {group.name} does not need; "
                f"add needs: [{maker}], or name it in inputs: for the rows that an earlier job has "
                "published"
            )
    return ""


def wrong_statement(sql: str) -> str:
    """Why ``sql`` cannot be one statement; empty if it may be one."""
    if (
        token := not_closed(sql)
    ) is not None:  # Spark would refuse it too, after minutes for some comments
        line, column = (
            sql.count("\n", 0, token.start) + 1,
            token.start - sql.rfind("\n", 0, token.start),
        )
        begin = shorten(token.text, 30, quote="")
        return (
            f"what begins in line {line}, column {column} of the statement is not closed: {begin}"
        )
    if several_statements(sql):
        return "several statements in one step; a step is one statement, give each its own step"
    return ""


def _wrong_result(marker: ResultMarker, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> str:
    if not marker.group:
        return "expected :results.GROUP.KEY, two names of letters, digits and _"
    read = {each.name: each for each in groups_read(group, groups)}
    named = read.get(marker.group)
    if named is None and marker.group in groups:
        return f"group {marker.group!r} is not among the needs of this one; add it to needs:"
    if named is None:
        return f"unknown group {marker.group!r}{suggestion(marker.group, read)}"
    if named.for_each is not None:
        return (
            f"group {marker.group!r} is a fork; its members have results of their own, and "
            "none "
            "speaks for all"
        )
    if not named.records_results:
        return f"group {marker.group!r} has no Python step and no stream, so it has no results"
    return ""


def groups_read(group: GroupSpec, groups: Mapping[str, GroupSpec]) -> Iterator[GroupSpec]:
    """The groups that ``group`` reads: what it needs, and what a join among them needs in turn."""
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
