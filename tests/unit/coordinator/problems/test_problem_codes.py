"""The codes of problems."""

from __future__ import annotations

import re
from pathlib import Path

from unstuck.coordinator.problems.problem import ProblemCode

ROOT = Path(__file__).parents[4]


def test_each_code_has_a_row_in_the_docs() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text()
    section = text.partition("\n## Problems\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"[A-Z_]+", " ".join(rows))) == set(ProblemCode)
