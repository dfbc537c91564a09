"""Applies the rules of an output, and separates rejected rows, in one evaluation.

Rows of partitions that the output does not name may be rejected too. A Spark frame is partitioned
by a column with the rules that a row breaks, so one write completes the good rows. Only the
rejected rows are rewritten, with the names of the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from unstuck.tasks.errors import OutputInvalid, RuleInvalid, TooManyRejectedRows
from unstuck.tasks.frames.casts import cast_frame, declared_fields, schema_of_frame
from unstuck.tasks.frames.columns import check_spark_schema, plain_table
from unstuck.tasks.frames.expectations import check_unique, newest_of
from unstuck.tasks.frames.output import (
    check_written,
    describe,
    describe_files,
    is_any_frame,
    stage_plain,
    stage_table,
    table_of,
    typed_columns,
    with_open,
    with_untyped_evaluated,
)
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.frames.parquet_write import write_parquet
from unstuck.tasks.frames.partitions import (
    OURS,
    arrow_named,
    check_columns,
    check_named,
    collect_parts,
    data_files_below,
    named_in,
    spark_named,
    spark_writer,
)
from unstuck.tasks.frames.refusals import java_message
from unstuck.tasks.frames.spark import empty_table, is_frame, spark_schema, sql_error
from unstuck.tasks.spec.outputs import OUTSIDE, REJECTED, REJECTED_BY, Checks
from unstuck.tasks.spec.schemas import Fields, closed, fields_of, schema_of
from unstuck.tasks.spec.types import quoted
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput, bytes_by_uri

# "r" for a good row, "r0_2" for one that breaks the first and the third rule.
_BROKEN = f"{OURS}broken"
_GOOD = "r"
_FILE_BYTES = 128 * 1024 * 1024  # of rejected rows that go into one file


# Writes a streaming frame as `stage` does.
_Arriving = Callable[[Files, str, Any, Sequence[str]], StagedOutput]


def stage_checked(
    files: Files,
    folder: str,
    frame: Any,
    checks: Checks,
    partition_by: Sequence[str],
    session: Any,
    arriving: _Arriving | None = None,
    published: Fields | None = None,
) -> dict[str, StagedOutput]:
    """Write ``frame`` as `stage` does, and check it.

    Returns the output and, with rules, its rejected rows.

    Both are keyed by their folders; that of the rejected rows is ``folder`` plus ``REJECTED``.

    Args:
        session: the Spark session of the group; None for a group without Spark.
        arriving: writes a streaming frame as `stage` does; None for any other frame.
        published: the published columns, whose types apply to columns of the frame without a type.

    Raises:
        RuleInvalid: a rule is no condition, or cannot be evaluated.
        TooManyRejectedRows, RowsOutside, ExpectationFailed: the rows are not what the spec asks
            for.
        OutputInvalid, StagingLost, WarehouseMismatch, OSError: as `stage`.
    """
    frame = _typed(frame, checks, published)
    if not checks.rejects and arriving is not None:
        staged = {folder: arriving(files, folder, frame, partition_by)}
    elif not checks.rejects:
        staged = {folder: stage_plain(files, folder, frame, partition_by)}
    else:
        staged = _split(files, folder, frame, checks, partition_by, session, arriving)
    if checks.partitions is not None:
        named = named_in(checks.partitions, staged[folder].schema)
        if checks.outside != "append":
            check_named(files, folder.rpartition("/")[2], staged[folder], named)
        staged = {path: output.of_load(named) for path, output in staged.items()}
    if checks.unique:
        check_unique(files, staged[folder], checks.unique, session)
    if checks.newest is not None:
        staged[folder] = replace(
            staged[folder], newest=newest_of(files, staged[folder], checks.newest)
        )
    return staged


def _typed(frame: Any, checks: Checks, published: Fields | None) -> Any:
    """The frame with the types of the declared columns, else of those that are published."""
    declared = declared_fields(checks.columns)
    if declared and not is_frame(frame) and is_any_frame(frame) and frame.shape == (0, 0):
        frame = empty_table(schema_of(declared))
    frame = frame if is_frame(frame) else table_of(frame)
    if declared:
        return cast_frame(frame, declared, fill=checks.fill)
    have = fields_of(schema_of_frame(frame)) if published else []
    target_fields = closed(have, published, inside=True) if published else have
    return frame if target_fields == have else cast_frame(frame, target_fields)


def _split(
    files: Files,
    folder: str,
    frame: Any,
    checks: Checks,
    partition_by: Sequence[str],
    session: Any,
    arriving: _Arriving | None,
) -> dict[str, StagedOutput]:
    """Write the good and the rejected rows apart."""
    files.check()
    files.remove_tree(folder)
    whole, stored = f"{folder}/_whole", None
    if arriving is not None:  # the rules hold for all that has arrived, not for each batch
        stored = arriving(files, whole, frame, ())
    elif session is not None and not is_frame(frame):
        # One dialect of SQL for all frames of a group. Not by createDataFrame: it makes instants
        # of timestamps without a zone, and knows fewer types.
        stored = stage_plain(files, whole, frame)
    if stored is not None:
        frame = read_parquet(session, [(stored.schema, bytes_by_uri(files, stored.files))])
    split = _split_spark if is_frame(frame) else _split_table
    staged = split(files, folder, frame, checks, partition_by)
    files.remove_tree(whole)
    return staged


def _both(
    folder: str, good: StagedOutput, rejected: StagedOutput, by_rule: dict[str, int]
) -> dict[str, StagedOutput]:
    name = folder.rpartition("/")[2]
    return {
        folder: replace(good, rejected_by=by_rule),
        folder + REJECTED: replace(rejected, rejected_of=name),
    }


def _check_names(names: Sequence[str]) -> None:
    if taken := next((name for name in names if name.lower() == REJECTED_BY), None):
        raise OutputInvalid(
            f"the frame has a column {taken}, which names the broken rules among the rejected "
            "rows. Rename the column"
        )


def _rules(checks: Checks) -> Mapping[str, str]:
    return {} if checks.quality is None else checks.quality.rules


def _check_ratio(
    folder: str, rows: int, rejected: int, checks: Checks, by_rule: Mapping[str, int]
) -> None:
    """Check the share of rows that break rules, unless several runs count together.

    Raises: TooManyRejectedRows.
    """
    quality = checks.quality
    if quality is None or quality.over is not None:
        return
    if rejected and rejected / rows > quality.max_rejected_ratio:
        counts = ", ".join(f"{name} {count:,}" for name, count in by_rule.items() if count)
        raise TooManyRejectedRows(
            f"{rejected:,} of {rows:,} rows of {folder.rpartition('/')[2]} were rejected "
            f"({rejected / rows:.2%}; max_rejected_ratio: {quality.max_rejected_ratio:g}), by "
            f"rule: {counts}. Mend what makes the rows, or the rules"
        )


def _refused(name: str, rule: str, why: str) -> RuleInvalid:
    """``why``: its first line counts; Spark adds its plans below."""
    return RuleInvalid(
        f"the rule {name} ({rule}) cannot be used: {why.strip().partition(chr(10))[0]}"
    )


# -- Spark -----------------------------------------------------------------------------------------

# The line of SQL that failed on a row, as Spark quotes it (3.5 without the blank).
_QUOTED = re.compile(r"^== SQL ?\(line \d+, position \d+\) ==\n(.*)$", re.MULTILINE)


def _split_spark(
    files: Files, folder: str, frame: Any, checks: Checks, partition_by: Sequence[str]
) -> dict[str, StagedOutput]:
    schema = json.loads(frame.schema.json())
    check_spark_schema(schema)
    _check_names(frame.columns)
    check_columns(partition_by, frame.schema.json())
    typed = typed_columns(schema)
    written = map(quoted, [*(typed or frame.columns), _BROKEN])
    marked = with_untyped_evaluated(frame, schema).withColumn(_BROKEN, _broken(frame, checks))
    source = f"{folder}/_split"
    by = [column for column in partition_by if column in typed]
    wrote = _write_marked(marked.select(*written), files.uri(source), by, _rules(checks))
    files.check()
    parts = _parts_by_code(files, source)
    rows = sum(part.rows for part in parts.values())
    check_written(files, folder, wrote, rows)
    names = {code: _names(code, checks) for code in parts}
    by_rule = dict.fromkeys(_reasons(checks), 0)
    broken_rows = 0
    for code, part in parts.items():
        broken_rows += part.rows * bool({*names[code]} - {OUTSIDE})
        for name in names[code]:
            by_rule[name] += part.rows
    _check_ratio(folder, rows, broken_rows, checks, by_rule)
    stored = next((json.loads(part.schema) for part in parts.values()), schema)
    good = parts.pop(_GOOD, None)
    rejected = _stage_rejected(files, folder + REJECTED, frame, parts, names, partition_by, stored)
    if good is None:
        good = _stage_empty(files, folder, stored)
    else:
        collect_parts(files, f"{source}/{_BROKEN}={_GOOD}", folder)
        files.remove_tree(source)
        good = describe(files, folder, partition_by)
    good, rejected = (with_open(output, frame.columns, typed) for output in (good, rejected))
    return _both(folder, good, rejected, by_rule)


def _write_marked(marked: Any, uri: str, by: Sequence[str], rules: Mapping[str, str]) -> int | None:
    """Write rows parted by the rules that they break. Raises: RuleInvalid: a rule fails on a row.

    Returns the rows that Spark says it wrote.
    """
    # Without it, Spark would sort all rows by the column that parts them.
    marked.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "16")
    try:
        return write_parquet(marked, uri, lambda frame: spark_writer(frame, by, [_BROKEN]))
    except Exception as error:
        message = java_message(error)
        failed = _QUOTED.search(message)
        statement = failed[1].strip() if failed else "\n"
        for name, rule in rules.items():
            if statement in map(str.strip, rule.splitlines()):
                raise _refused(name, rule, message) from error
        raise


def _parts_by_code(files: Files, source: str) -> dict[str, StagedOutput]:
    """Return what Spark has written, by the code of the rules that the rows break."""
    prefix = f"{_BROKEN}="
    return {
        part.removeprefix(prefix): describe_files(
            files, data_files_below(files, f"{source}/{part}")
        )
        for part in files.names(source)
        if part.startswith(prefix)
    }


_TEXTS = {"type": "array", "elementType": "string", "containsNull": True}


def _broken(frame: Any, checks: Checks) -> Any:
    """Return the column that says which rules a row breaks. Raises: RuleInvalid; OutputInvalid."""
    from pyspark.sql.functions import coalesce, concat, concat_ws, expr, lit, when

    rules, marks = _rules(checks), []
    for number, (name, rule) in enumerate(rules.items()):
        try:
            # A filter refuses what is no condition, and what counts more than one row; a column
            # some subqueries.
            _ = frame.filter(rule).select(expr(rule)).schema
        except Exception as error:
            if (what := sql_error(error)) is None:
                raise
            raise _refused(name, rule, what) from error
        marks.append(when(~coalesce(expr(rule), lit(False)), lit(str(number))))
    if checks.outside == "reject":
        is_named = spark_named(named_in(checks.partitions or {}, frame.schema.json()))
        marks.append(when(~is_named, lit(str(len(rules)))))
    return concat(lit(_GOOD), concat_ws("_", *marks))


def _reasons(checks: Checks) -> list[str]:
    """Return the names of all that may reject a row; their numbers are those of the marks."""
    return [*_rules(checks), *[OUTSIDE] * (checks.outside == "reject")]


def _names(code: str, checks: Checks) -> list[str]:
    """Return the rules that rows with ``code`` break."""
    numbers = code.removeprefix(_GOOD).split("_")
    return [name for number, name in enumerate(_reasons(checks)) if str(number) in numbers]


def _stage_rejected(
    files: Files,
    folder: str,
    frame: Any,
    parts: Mapping[str, StagedOutput],
    names: Mapping[str, Sequence[str]],
    partition_by: Sequence[str],
    stored: dict[str, Any],
) -> StagedOutput:
    """Write the rejected rows again, from their files, with the names of the rules.

    ``stored``: the schema of the files.
    """
    from pyspark.sql.functions import array, lit

    if not parts:
        column = {"name": REJECTED_BY, "type": _TEXTS, "nullable": True, "metadata": {}}
        return _stage_empty(files, folder, {**stored, "fields": [*stored["fields"], column]})
    frames = []
    for code, part in parts.items():
        schema = with_open(
            part, frame.columns, typed_columns(json.loads(frame.schema.json()))
        ).schema
        rows = read_parquet(frame.sparkSession, [(schema, bytes_by_uri(files, part.files))])
        frames.append(rows.withColumn(REJECTED_BY, array(*map(lit, names[code]))))
    whole = reduce(lambda united, other: united.union(other), frames)
    size = sum(file.bytes for part in parts.values() for file in part.files)
    return stage_plain(files, folder, whole.coalesce(size // _FILE_BYTES + 1), partition_by)


def _stage_empty(files: Files, folder: str, schema: dict[str, Any]) -> StagedOutput:
    """An output without rows, written without a job of Spark."""
    text = json.dumps(schema)
    return replace(stage_table(files, folder, plain_table(empty_table(text))), schema=text)


# -- Arrow -----------------------------------------------------------------------------------------


def _split_table(
    files: Files, folder: str, table: Any, checks: Checks, partition_by: Sequence[str]
) -> dict[str, StagedOutput]:
    import pyarrow as pa
    import pyarrow.compute as pc

    _check_names(table.column_names)
    met = {name: _met(table, name, rule) for name, rule in _rules(checks).items()}
    breaks = len(table) - len(table.filter(reduce(pc.and_, met.values()))) if met else 0
    if checks.outside == "reject":
        met[OUTSIDE] = arrow_named(
            table, named_in(checks.partitions or {}, spark_schema(table.schema))
        )
    by_rule = {name: len(table) - (pc.sum(rows).as_py() or 0) for name, rows in met.items()}
    is_good = reduce(pc.and_, met.values())
    good, is_bad = table.filter(is_good), pc.invert(is_good)
    _check_ratio(folder, len(table), breaks, checks, by_rule)
    marks = zip(*(rows.filter(is_bad).to_pylist() for rows in met.values()), strict=True)
    broken = [[name for name, is_met in zip(met, row, strict=True) if not is_met] for row in marks]
    bad = table.filter(is_bad).append_column(REJECTED_BY, pa.array(broken, pa.list_(pa.string())))
    staged = stage_table(files, folder, good, partition_by)
    return _both(folder, staged, stage_table(files, folder + REJECTED, bad, partition_by), by_rule)


def _met(table: Any, name: str, rule: str) -> Any:
    """By row of an Arrow ``table``, whether it meets a rule. Raises: RuleInvalid."""
    import pyarrow.compute as pc

    try:
        import duckdb
    except ImportError as error:
        raise RuleInvalid(
            "rules in a group with spark: false are evaluated by DuckDB, which this worker does "
            "not have. Install unstuck[quality] on the workers, or let the group use Spark"
        ) from error

    with duckdb.connect() as connection:
        try:
            rows, condition = connection.from_arrow(table), duckdb.SQLExpression(rule)
            rows.filter(condition)  # refuses what counts more than one row
            column = rows.select(condition)
            if str(column.types[0]) != "BOOLEAN":
                raise _refused(name, rule, f"it is of the type {column.types[0]}, and no condition")
            met = column.to_arrow_table().column(0)
        except duckdb.Error as error:
            raise _refused(name, rule, str(error)) from error
    return pc.fill_null(met, False)
