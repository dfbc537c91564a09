"""What was put aside stands among the rejected rows of its output, beside those that break
rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from unstuck.tasks.formats.arrived import PutAsideEntry
from unstuck.tasks.frames.output import read_table, stage_table
from unstuck.tasks.spec.outputs import BAD_FILE, REJECTED, REJECTED_BY
from unstuck.tasks.streams.read.put_aside import with_put_aside
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

FOLDER = "_staging/job/load/1-n-c/loads"
BAD = [
    PutAsideEntry(f"/in/{name}.json", "it is no JSON", False, line, "{{")
    for name, line in (("b", 7), ("a", None))
]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


def made_with_rules(files: Files, *rejected: int) -> dict[str, StagedOutput]:
    """An output of one row, and its rejected rows, each of which breaks the rule ``positive``."""
    columns = {"n": pa.array(rejected, pa.int64()), REJECTED_BY: [["positive"]] * len(rejected)}
    types = pa.schema({"n": pa.int64(), REJECTED_BY: pa.list_(pa.string())})
    good = stage_table(files, FOLDER, pa.table({"n": [1]}))
    bad = stage_table(files, FOLDER + REJECTED, pa.table(columns, schema=types))
    return {
        FOLDER: StagedOutput(
            good.files, good.rows, good.schema, rejected_by={"positive": len(rejected)}
        ),
        FOLDER + REJECTED: StagedOutput(bad.files, bad.rows, bad.schema, rejected_of="loads"),
    }


def rows(files: Files, staged: StagedOutput) -> list[tuple[Any, ...]]:
    found = read_table(files, [staged]).to_pylist()
    return [(row["n"], row[REJECTED_BY], row["_file"], row["_line"]) for row in found]


def test_rejected_rows_and_quarantined_files_are_stored_together(files: Files) -> None:
    found = with_put_aside(files, FOLDER, made_with_rules(files, -1, -2), BAD, (), BAD_FILE)
    rejected = found[FOLDER + REJECTED]
    assert found[FOLDER].rejected_by == {"positive": 2, BAD_FILE: 2}
    assert (rejected.rows, rejected.rejected_of) == (4, "loads")
    assert rows(files, rejected) == [
        *((number, ["positive"], None, None) for number in (-1, -2)),
        *(
            (None, [BAD_FILE], path, line)
            for path, line in (("/in/b.json", 7), ("/in/a.json", None))
        ),
    ]


@pytest.mark.parametrize(("rejected", "aside"), [((), BAD), ((-1,), []), ((), [])])
def test_rejected_rows_always_have_the_same_columns(
    files: Files, rejected: tuple[int, ...], aside: list[PutAsideEntry]
) -> None:
    whole = with_put_aside(files, FOLDER, made_with_rules(files, -1), BAD, (), BAD_FILE)[
        FOLDER + REJECTED
    ]
    found = with_put_aside(files, FOLDER, made_with_rules(files, *rejected), aside, (), BAD_FILE)
    part = found[FOLDER + REJECTED]
    assert (part.rows, part.schema) == (len(rejected) + len(aside), whole.schema)
    assert len(rows(files, part)) == part.rows
    assert found[FOLDER].rejected_by == {"positive": len(rejected), BAD_FILE: len(aside)}
