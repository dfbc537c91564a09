"""Text that Spark reads from text files: refused where its bytes are not UTF-8.

A text column of Spark holds bytes, and its source of text files puts there what the file has. The
check is part of the write, and only of frames that read such files, since it costs a tenth of a
write (docs/decisions/0036).
"""

from __future__ import annotations

import re
from typing import Any

from unstuck.tasks.frames.refusals import literal, refusal
from unstuck.tasks.spec.types import quoted

_TEXT_FILES = re.compile(
    r"\bRelation(?:V2)? ?\[[^\]]*\] text\b"
)  # in the words of an analyzed plan
_SHOWN = 40  # characters of a value, in an error


def with_checked_text(frame: Any, plan: str) -> Any:
    """``frame`` whose write fails if its ``plan`` reads text files and one of its text columns is
    not UTF-8.

    `refused_value` finds the reason in the error of the write.
    """
    if not _TEXT_FILES.search(plan):
        return frame
    columns = [
        f"{_checked(field.name)} AS {quoted(field.name)}"
        if field.dataType.typeName() == "string"
        else quoted(field.name)
        for field in frame.schema.fields
    ]
    return frame.selectExpr(*columns)


def _checked(name: str) -> str:
    column = quoted(name)
    as_latin = f"substring(decode(cast({column} AS BINARY), 'ISO-8859-1'), 1, {_SHOWN})"
    error = refusal(
        literal(
            f"the column {name} has text that is not UTF-8. Read as ISO-8859-1 it begins with "
        ),
        as_latin,
        f"if(input_file_name() = '', '', concat({literal(', in the file ')}, input_file_name()))",
        literal(
            f". Decode it by the encoding of the file: decode(cast({column} AS BINARY), "
            "'ISO-8859-1')"
        ),
    )
    return f"if({column} IS NULL OR {_is_utf8(column)}, {column}, {error})"


def _is_utf8(column: str) -> str:
    from pyspark.sql import functions

    if hasattr(functions, "is_valid_utf8"):  # since Spark 4
        return f"is_valid_utf8({column})"
    # Spark 3.5 puts another character for invalid bytes.
    binary = f"cast({column} AS BINARY)"
    return f"encode(decode({binary}, 'UTF-8'), 'UTF-8') = {binary}"
