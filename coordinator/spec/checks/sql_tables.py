"""Checks of the tables that SQL reads: each must be an output, an input, or made before. Pure.

A name is refused only if no run can make it readable. With a metastore or a catalog of the user,
any name may be a table. Names with a dot belong to other catalogs and files and are not checked.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.checks.spec_checks import MAX_SUGGESTIONS
from unstuck.coordinator.spec.checks.sql import groups_read
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import (
    MAX_PROBLEMS,
    SpecError,
    SpecProblem,
    listed,
    suggestion,
)
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.outputs import REJECTED
from unstuck.tasks.spec.sql_tokens import created_in, makes_known_names, needs_tables, tables_in

_CATALOG_KEYS = (
    "spark.sql.catalogImplementation",
    "spark.sql.defaultCatalog",
    "spark.sql.extensions",
)
_CATALOGS = "spark.sql.catalog."  # begins the conf of each catalog that the user names
_IN_MEMORY = "in-memory"  # Spark's own catalog, which is empty when an attempt begins
_SPARK_CONNECT = "sc://"

Writes = Mapping[str, Collection[str] | None]
"""By group, the outputs that its Python writes; None or no entry if it may write others."""
Published = Callable[[], Collection[str]]
"""Returns the names of the published datasets; none if the warehouse cannot be read."""


class UnknownTable(NamedTuple):
    """A table that a statement reads and that nothing provides.

    Attributes:
        is_sure: no step in Python may provide it.
    """

    problem: SpecProblem
    is_sure: bool


class _Readable(NamedTuple):
    """The tables that the steps of a group can read, in lower case.

    Attributes:
        is_open: there may be others.
    """

    names: frozenset[str]
    is_open: bool


def check_tables(spec: JobSpec, settings: Settings, published: Published) -> list[SpecProblem]:
    """Check the tables that the SQL of ``spec`` reads.

    Args:
        settings: those of the fleet, as far as this process knows them.

    Returns: warnings of tables that only a step in Python may provide.
    Raises: SpecError: nothing provides a table.
    """
    unknown = unknown_tables(spec, settings, published)
    if problems := [table.problem for table in unknown if table.is_sure]:
        raise SpecError(problems)
    return [table.problem for table in unknown]


def unknown_tables(
    spec: JobSpec, settings: Settings, published: Published, writes: Writes | None = None
) -> list[UnknownTable]:
    """Return the tables that the SQL of ``spec`` reads and that nothing provides.

    Args:
        published: called only if there is such a table.
        writes: the outputs of steps in Python, where their code was read.
    """
    if settings.spark_master.startswith(_SPARK_CONNECT):
        return []  # the server has a catalog of its own
    shared = {**settings.spark_conf, **spec.defaults.conf}
    groups = {group.name: group for group in spec.groups}
    advice = _Advice(spec.groups, published)
    tables = (
        table
        for i, group in enumerate(spec.groups)
        if not _has_catalog({**shared, **group.conf})
        for table in _unknown_in(i, group, groups, writes or {}, advice)
    )
    return list(islice(tables, MAX_PROBLEMS))


def _has_catalog(conf: Mapping[str, str]) -> bool:
    """Return whether a session with ``conf`` may have tables that no step created."""
    named = any(conf.get(key, _IN_MEMORY) != _IN_MEMORY for key in _CATALOG_KEYS)
    return named or any(key.startswith(_CATALOGS) for key in conf)


def _unknown_in(
    index: int, group: GroupSpec, groups: Mapping[str, GroupSpec], writes: Writes, advice: _Advice
) -> Iterator[UnknownTable]:
    names, is_open = _before_the_steps(group, groups, writes)
    for j, step in enumerate(group.steps):
        if step.sql is None:
            if step.python is not None:
                return  # it may create a view of any name
            continue
        readable, loc = _Readable(names, is_open), ("groups", index, "steps", j, "sql")
        unknown = tables_in(step.sql) - names if needs_tables(step.sql) else set()
        for table in sorted(unknown):
            yield UnknownTable(SpecProblem(advice.text(table, group, readable), loc), not is_open)
        if not makes_known_names(step.sql):
            return
        names |= created_in(step.sql)
        if step.output:
            names |= _with_rejected([step.output])


def _before_the_steps(
    group: GroupSpec, groups: Mapping[str, GroupSpec], writes: Writes
) -> _Readable:
    """Return what ``group`` reads from others; a group with one output has that name, too."""
    names, is_open = [*group.inputs], False
    for maker in groups_read(group, groups):
        written = writes.get(maker.name) if any(step.python for step in maker.steps) else ()
        is_open |= written is None
        names += [maker.name, *outputs_of(maker), *(written or ())]
    return _Readable(_with_rejected(names), is_open)


def _with_rejected(names: Collection[str]) -> frozenset[str]:
    """Return ``names`` and the names of their rejected rows, in lower case."""
    return frozenset(name.lower() + end for name in names for end in ("", REJECTED.lower()))


class _Advice:
    """Writes the messages, and suggests names, which takes long for many."""

    def __init__(self, every: Sequence[GroupSpec], published: Published) -> None:
        self._made_by = {
            output.lower(): (output, group.name) for group in every for output in outputs_of(group)
        }
        self._published = cache(lambda: {name.lower(): name for name in published()})
        self._suggestions = 0

    def text(self, table: str, group: GroupSpec, readable: _Readable) -> str:
        cause = "no needed group makes it, and it is not an input"
        remedy = self._remedy(table, readable)
        return f"group {group.name} cannot read a table {table}: {cause}{remedy}"

    def _remedy(self, table: str, readable: _Readable) -> str:
        datasets = sorted(name for name in readable.names if not name.endswith(REJECTED))
        if table in self._published():
            return f"; it is a published dataset: add {self._as_input(table)}"
        self._suggestions += 1
        if self._suggestions <= MAX_SUGGESTIONS:
            if near := suggestion(table, datasets):
                return near
            if elsewhere := self._elsewhere(table):
                return elsewhere
        return (
            f"; it can read: {listed(datasets) or 'none'}. Name published datasets in inputs:, and "
            f"a table of a metastore with its database, such as default.{table}"
        )

    def _elsewhere(self, table: str) -> str:
        """Suggest an output of another group, or a published dataset, with a similar name."""
        near = difflib.get_close_matches(
            table[:100], [*self._made_by, *self._published()], n=1, cutoff=0.6
        )
        if not near:
            return ""
        if near[0] in self._made_by:
            output, maker = self._made_by[near[0]]
            return (
                f"; did you mean {output!r}, an output of group {maker}? Then add needs: [{maker}]"
            )
        name = self._published()[near[0]]
        return f"; did you mean the published dataset {name!r}? Then add {self._as_input(near[0])}"

    def _as_input(self, table: str) -> str:
        name = self._published()[table]
        return f"inputs: {{{name}: {name}}}"
