"""Draw the moves of groups and jobs in docs/how-it-works.md from the tables in coordinator/model/status.py.

``python scripts/diagrams.py`` writes the page anew between its marks; a test of the docs holds it equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from unstuck.coordinator.model.status import GROUP_MOVES, GROUP_MOVES_REQUESTED, JOB_MOVES, GroupState, Status

PAGE = Path(__file__).parents[1] / "docs" / "how-it-works.md"
Moves = Mapping[tuple[StrEnum, StrEnum], str]


def diagram(start: StrEnum, moves: Iterable[tuple[StrEnum, StrEnum]], ends: Iterable[StrEnum]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {old} --> {new}" for old, new in moves]
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join([*lines, "```"])


def table(moves: Moves) -> str:
    """One row per move; moves from several states to one for the same reason share a row."""
    rows: dict[tuple[StrEnum, str], list[StrEnum]] = {}
    for (old, new), why in moves.items():
        rows.setdefault((new, why), []).append(old)
    lines = ["| from | to | when |", "|---|---|---|"]
    lines += [f"| {', '.join(olds)} | {new} | {why} |" for (new, why), olds in rows.items()]
    return "\n".join(lines)


def sections() -> dict[str, str]:
    """What stands between the marks, by their names."""
    group_ends = [state for state in GroupState if state.terminal]
    job_ends = [status for status in Status if status.terminal]
    return {
        "moves of a group": diagram(GroupState.WAITING, GROUP_MOVES, group_ends),
        "table of a group": table(GROUP_MOVES),
        "table of what is asked": table(GROUP_MOVES_REQUESTED),
        "moves of a job": diagram(Status.PENDING, JOB_MOVES, job_ends),
        "table of a job": table(JOB_MOVES),
    }


def drawn(page: str) -> str:
    """``page`` with every section as the tables say.

    Raises:
        ValueError: a section has no marks in the page.
    """
    for name, text in sections().items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"{PAGE.name} has no {begin} … {end}")
        between = f"{begin}\n{text}\n{end}"
        page = pattern.sub(lambda _, between=between: between, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
