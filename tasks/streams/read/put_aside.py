"""Write files and messages that were put aside as rows of ``<dataset>__rejected``.

The rows stand beside those that break a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unstuck.tasks.formats.arrived import PutAsideEntry, shown_path
from unstuck.tasks.frames.output import stage_table
from unstuck.tasks.frames.spark import empty_table
from unstuck.tasks.spec.outputs import REJECTED, REJECTED_BY
from unstuck.tasks.spec.schemas import fields_of, schema_of
from unstuck.tasks.spec.types import field
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

_TEXTS = {"type": "array", "elementType": "string", "containsNull": True}
_OWN = [
    field("_file", "string"),
    field("_line", "long"),
    field("_text", "string"),
    field("_error", "string"),
]


def with_put_aside(
    files: Files,
    folder: str,
    outputs: Mapping[str, StagedOutput],
    put_aside: Sequence[PutAsideEntry],
    partition_by: Sequence[str],
    why: str,
) -> dict[str, StagedOutput]:
    """Add what was put aside to the rejected rows of the output in ``folder``.

    Args:
        why: stands in the place of a rule there.

    The rejected rows have their columns also where nothing was put aside, so that the dataset has
    the same each time.

    Raises: OSError; as `stage_table`.
    """
    good, rejected = outputs[folder], outputs.get(folder + REJECTED)
    fields = [field(REJECTED_BY, _TEXTS)] if rejected is None else fields_of(rejected.schema)
    fields = [*fields, *_OWN]
    schema = schema_of(fields)
    table = empty_table(schema)
    if put_aside:
        rows = [
            {
                REJECTED_BY: [why],
                "_file": shown_path(entry.path),
                "_line": entry.line,
                "_text": entry.text,
                "_error": entry.error,
            }
            for entry in put_aside
        ]
        table = type(table).from_pylist(rows, schema=table.schema)
    own = stage_table(
        files, f"{folder}{REJECTED}/{why}", table, partition_by if rejected is not None else ()
    )
    kept = rejected.files if rejected is not None and rejected.rows else []
    data_files = [*kept, *own.files] if own.rows or not kept else kept
    whole = StagedOutput(data_files, sum(file.rows for file in data_files), schema)
    by = {**good.rejected_by, why: len(put_aside)}
    name = folder.rpartition("/")[2]
    return {
        folder: replace(good, rejected_by=by),
        folder + REJECTED: replace(whole, rejected_of=name),
    }
