"""Problems of a spec that show only where the code of its steps is imported and its SQL is parsed.

Each is found by a process of its own: this one imports neither Spark nor the user's code.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.checks.sql import groups_read, wrong_statement
from unstuck.coordinator.spec.checks.sql_tables import Writes
from unstuck.coordinator.spec.checks.unused import Takes
from unstuck.coordinator.spec.problems import Loc, SpecProblem, Written, listed, suggestion
from unstuck.coordinator.spec.sql_files import read_sql_file
from unstuck.tasks.spec.group import GroupSpec, Step
from unstuck.tasks.spec.sql_tokens import with_marked_results

_CONF_OF_EXTENSIONS = "spark.sql.extensions"
_PARSED_WITHIN = 600.0  # seconds
_CODE = re.compile(r"^\[([A-Z_.]+)\] (.*?)\.?$")

Groups = Mapping[int, GroupSpec]
"""Groups by their index in the spec."""


@dataclass(frozen=True, slots=True)
class CodeOfSteps:
    """Findings of an import of the code of steps.

    Attributes:
        takes: by group, the parameters that its Python takes; None: any.
        problems: what cannot be imported, or does not fit the spec.
        writes: by group, the outputs that it writes; None: its Python may write others.
    """

    takes: Takes
    problems: Sequence[SpecProblem]
    writes: Writes


NO_CODE = CodeOfSteps({}, (), {})


class Statement(NamedTuple):
    """One statement of a spec: its place, the origin of its line and column, its text, its conf."""

    loc: Loc
    where: str
    sql: str
    conf: Mapping[str, str]


def groups_of(written: Written) -> dict[int, GroupSpec]:
    """Return the readable groups of a wrong spec, with the text of their readable SQL files."""
    readable = {}
    for i, group in enumerate(_list(_get(written.values, "groups"))):
        try:
            read = group if isinstance(group, GroupSpec) else GroupSpec.model_validate(group)
            readable[i] = read.model_copy(
                update={"steps": tuple(_with_sql(step, written) for step in read.steps)}
            )
        except (ValidationError, ValueError):  # reported already
            continue
    return readable


def _with_sql(step: Step, written: Written) -> Step:
    """Add the text of SQL files. Raises: ValueError: an SQL file cannot be read."""
    if step.sql_file is None:
        return step
    return step.model_copy(
        update={"sql": read_sql_file(step.sql_file, written.folder), "sql_file": None}
    )


# -- Python ----------------------------------------------------------------------------------------


def code_problems(groups: Groups, written: Written, allowed: Sequence[str]) -> CodeOfSteps:
    """Import the Python of ``groups`` as a worker would, and check it against the spec.

    Nothing of it is run. ``allowed``: the modules that steps may be in; empty: any.

    Raises: BadRequest: nothing can be imported here.
    """
    params = _get(written.values, "params")
    request = {
        "groups": [group.model_dump(mode="json", by_alias=True) for group in groups.values()],
        "params": list(params) if isinstance(params, Mapping) else [],
        "allowed": allowed,
    }
    answer = _ask("unstuck.tasks.steps.calls", request)
    if answer is None:
        raise BadRequest(
            "the code of the steps cannot be imported here; validate it where workers run"
        )
    answers = dict(zip(groups, answer, strict=True))
    problems = [
        SpecProblem(text, ("groups", i, "steps", step, "python"))
        for i, group_answer in answers.items()
        for step, text in group_answer["problems"]
    ]
    uses = {
        i: {int(step): use for step, use in group_answer["uses"].items()}
        for i, group_answer in answers.items()
    }
    writes = {group.name: _written_by(group, uses[i]) for i, group in groups.items()}
    problems += _wrong_names(groups, uses, writes)
    return CodeOfSteps(
        {groups[i].name: group_answer["takes"] for i, group_answer in answers.items()},
        problems,
        writes,
    )


def _wrong_names(
    groups: Groups, uses: Mapping[int, Mapping[int, Any]], written: Writes
) -> Iterator[SpecProblem]:
    """Yield inputs that nothing provides, and outputs that a step should make and does not."""
    by_name = {group.name: group for group in groups.values()}
    for i, group in groups.items():
        available = _available(group, by_name, written)
        for j, use in uses[i].items():
            step, loc = group.steps[j], ("groups", i, "steps", j)
            if available is not None:
                yield from _unprovided(step, loc, use["reads"], available)
            yield from _unwritten(step, (*loc, "output"), use)


def _available(
    group: GroupSpec, by_name: Mapping[str, GroupSpec], written: Writes
) -> set[str] | None:
    """Return the inputs that a group may read; None if its Python may get others."""
    sources = [source.name for source in groups_read(group, by_name)]
    outputs = [written[name] for name in (*sources, group.name)]
    if None in outputs or not set(group.needs) <= by_name.keys():
        return None
    return {*group.inputs, *sources}.union(*(names or () for names in outputs))


def _unprovided(
    step: Step, loc: Loc, reads: Iterable[str], available: Collection[str]
) -> Iterator[SpecProblem]:
    for name in sorted({*reads} - {*available}):
        hint = suggestion(name, available)
        hint = hint or f"; there are: {listed(sorted(available)) or 'none'}"
        text = f"{step.python} reads the input {name!r}, which no need and no input gives{hint}"
        yield SpecProblem(text, loc)


def _unwritten(step: Step, loc: Loc, use: Mapping[str, Any]) -> Iterator[SpecProblem]:
    output, writes = step.output, use["writes"]
    if not output or writes is None or output in writes or use["returns"]:
        return
    written = f"; it writes {listed(writes)}" if writes else ""
    hint = suggestion(output, writes) or written
    text = f"{step.python} neither returns a value nor writes to ctx.output({output!r}){hint}"
    yield SpecProblem(text, loc)


def _written_by(group: GroupSpec, uses: Mapping[int, Any]) -> set[str] | None:
    """Return the outputs of a group; None if its Python may write others."""
    names = set(outputs_of(group))
    for j, step in enumerate(group.steps):
        if step.python:
            if j not in uses or uses[j]["writes"] is None:
                return None
            names.update(uses[j]["writes"])
    return names


# -- SQL -------------------------------------------------------------------------------------------


def statement_problems(
    groups: Groups, written: Written, conf: Mapping[str, str]
) -> tuple[str, list[SpecProblem], list[SpecProblem]]:
    """Parse the SQL of ``groups``, by Spark's parser if installed, else by sqlglot if installed.

    ``conf``: of all sessions.

    Returns:
        what parsed it, empty if nothing could; the problems; and what may be one: sqlglot is not
        Spark, and an extension of Spark's parser takes more than the parser alone.
    """
    problems, doubtful = list[SpecProblem](), list[SpecProblem]()
    every = []
    for statement in _statements(groups, written, conf):
        if wrong := wrong_statement(statement.sql):
            problems.append(SpecProblem(wrong, statement.loc))
        else:
            every.append(statement)
    if not every:
        return "", problems, []
    requests = [[statement.sql, statement.conf] for statement in every]
    answer = _ask("unstuck.tasks.driver.parse_sql", requests, _PARSED_WITHIN) or {"by": ""}
    if not answer["by"]:
        answer = _by_sqlglot([statement.sql for statement in every])
    is_spark = answer["by"].startswith("Spark")
    for statement, error in zip(every, answer["errors"], strict=False):
        if error is not None:
            is_sure = is_spark and _CONF_OF_EXTENSIONS not in statement.conf
            (problems if is_sure else doubtful).append(
                _unparsed(statement, error, answer["by"], is_sure)
            )
    return answer["by"], problems, doubtful


def _unparsed(
    statement: Statement, error: Mapping[str, Any], by: str, is_sure: bool
) -> SpecProblem:
    code, text = (
        match.groups() if (match := _CODE.match(error["message"])) else ("", error["message"])
    )
    who = f"{code}, {by}" if code else by
    doubt = (
        "" if is_sure else f"; {'an extension' if by.startswith('Spark') else 'Spark'} may take it"
    )
    place = f"line {error['line']}, column {error['column']} of {statement.where}"
    return SpecProblem(f"{place}: {text} ({who}){doubt}", statement.loc, line_inside=error["line"])


def _statements(groups: Groups, written: Written, conf: Mapping[str, str]) -> Iterator[Statement]:
    defaults = _get(_get(written.values, "defaults"), "conf")
    for i, group in groups.items():
        held = {**conf, **(defaults if isinstance(defaults, Mapping) else {}), **group.conf}
        for j, step in enumerate(group.steps):
            if step.sql is None:
                continue
            steps = _list(_get(_list(_get(written.values, "groups"))[i], "steps"))
            file = _get(steps[j], "sql_file") if j < len(steps) else None
            key, where = ("sql", "the statement") if file is None else ("sql_file", str(file))
            yield Statement(
                ("groups", i, "steps", j, key), where, with_marked_results(step.sql), held
            )


def _by_sqlglot(statements: Sequence[str]) -> dict[str, Any]:
    """Answer like `unstuck.tasks.driver.parse_sql`."""
    try:
        import sqlglot
    except ImportError:
        return {"by": "", "errors": []}
    results: list[dict[str, Any] | None] = []
    for sql in statements:
        try:
            if "BEGIN" not in sql.upper():  # it knows no scripts
                sqlglot.parse(sql, dialect="spark")
            results.append(None)
        except sqlglot.errors.SqlglotError as error:
            first = (getattr(error, "errors", None) or [{}])[0]
            message = first.get("description") or str(error).partition("\n")[0]
            results.append(
                {
                    "message": message,
                    "line": first.get("line") or 1,
                    "column": first.get("col") or 1,
                }
            )
    return {"by": f"sqlglot {sqlglot.__version__}", "errors": results}


# -- both ------------------------------------------------------------------------------------------


def _ask(program: str, request: Any, within: float | None = None) -> Any:
    """Return the JSON that ``program`` prints; None if it fails or exceeds ``within`` seconds."""
    command = [sys.executable, "-m", program]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), text=True, stdout=subprocess.PIPE, timeout=within
        )
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else json.loads(done.stdout)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else []
