"""Check that text which Spark reads from text, CSV or JSON files is UTF-8.

Spark does not check the bytes of such files. A text column may hold them as they are, and CSV, JSON
and some functions replace them by U+FFFD. The check is part of the write, and only of frames that
read such files, since it costs a tenth of a write (docs/decisions/0036).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urlsplit

from unstuck.tasks.frames.refusals import literal, refusal, refused_value
from unstuck.tasks.spec.types import quoted

_TEXT_FILES = re.compile(r"\bRelation(?:V2)? ?\[[^\]]*\] (?:text|csv|json|xml)\b", re.IGNORECASE)
_REFUSED = re.compile(r"the column (?P<column>.*) has text that is not UTF-8", re.DOTALL)
_REPLACEMENT = literal("\ufffd")
# First bytes of files that are not text: Parquet, ORC, Avro.
_COLUMNAR = (b"PAR1", b"ORC\x0a", b"Obj\x01")
_GLOB = re.compile(r"([\[\]{}*?\\])")


def with_checked_text(frame: Any, plan: str, *, replaced: bool = True) -> Any:
    """Return ``frame`` whose write fails if its text is not UTF-8; the same frame if unchecked.

    Args:
        plan: the analyzed plan of the frame, in words.
        replaced: also refuse U+FFFD, which Spark puts where the bytes of a file are invalid.
    """
    if not _TEXT_FILES.search(plan):
        return frame
    return frame.selectExpr(
        *(
            f"{_checked(field.name, replaced)} AS {quoted(field.name)}"
            if "string" in field.dataType.simpleString()
            else quoted(field.name)
            for field in frame.schema.fields
        )
    )


def _checked(name: str, replaced: bool) -> str:
    column = quoted(name)
    text = f"cast({column} AS STRING)"
    valid = _is_utf8(text)
    if replaced:
        valid = f"{valid} AND NOT contains({text}, {_REPLACEMENT})"
    error = refusal(literal(f"the column {name} has text that is not UTF-8"))
    return f"if({column} IS NULL OR ({valid}), {column}, {error})"


def _is_utf8(text: str) -> str:
    from pyspark.sql import functions

    if hasattr(functions, "is_valid_utf8"):  # since Spark 4
        return f"is_valid_utf8({text})"
    # Spark 3.5 replaces invalid bytes.
    binary = f"cast({text} AS BINARY)"
    return f"encode(decode({binary}, 'UTF-8'), 'UTF-8') = {binary}"


def refused_column(error: BaseException) -> str:
    """Return the column whose text `with_checked_text` refused; "" for any other error."""
    match = _REFUSED.fullmatch(refused_value(error))
    return match["column"] if match else ""


def invalid_bytes(frame: Any) -> str:
    """Return the file, line and byte where a text file of ``frame`` is not UTF-8; "" if all are.

    Reads all files of the frame once more.
    """
    from pyspark.sql import functions as sql

    lines = frame.sparkSession.read.text([_path_of(uri) for uri in frame.inputFiles()]).select(
        sql.col("_metadata.file_path").alias("file"),
        sql.col("_metadata.file_block_start").alias("block"),
        # Counts the lines of a partition, which reads the blocks of a file in order.
        sql.monotonically_increasing_id().alias("at"),
        sql.col("value").cast("binary").alias("line"),
        sql.expr(_is_utf8("value")).alias("valid"),
    )
    first = sql.min(sql.struct("block", "at", sql.substring("line", 1, 4).alias("mark")))
    invalid = sql.min(sql.when(~sql.col("valid"), sql.struct("block", "at", "line")))
    files = lines.groupBy("file").agg(first["mark"].alias("mark"), invalid.alias("invalid"))
    is_text = ~sql.col("mark").isin(*map(sql.lit, _COLUMNAR))
    bad = files.where(is_text & sql.col("invalid").isNotNull()).orderBy("file").first()
    if bad is None:
        return ""
    block, at, line = bad["invalid"]
    before = (sql.col("block") < block) | ((sql.col("block") == block) & (sql.col("at") < at))
    number = lines.where((sql.col("file") == bad["file"]) & before).count() + 1
    try:
        bytes(line).decode()
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} (0x{line[error.start]:02X})"
        return f"{unquote(bad['file'])}, line {number:,}, {byte}"
    raise AssertionError(f"Spark and Python disagree on UTF-8: {bytes(line)!r}")


def _path_of(uri: str) -> str:
    """Return the path of one file, without patterns, as Spark reads it."""
    parts = urlsplit(uri)
    path = _GLOB.sub(r"\\\1", unquote(parts.path))
    return f"{parts.scheme}://{parts.netloc}{path}" if parts.scheme else path
