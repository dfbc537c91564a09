"""Make the reference of problems from their codes.

``scripts.generated_pages`` writes it.
"""

from __future__ import annotations

from unstuck.coordinator.problems.problem import ProblemCode

HEAD = """\
# Problems

`unstuck now`, [the page](web.md), the API, the metric `unstuck_problems` and `Client.problems()` show the same
[problems](troubleshooting.md#problems). This page is generated from their codes.

| code | of | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = [f"| `{code}` | {code.subjects} | {code.meaning} |" for code in ProblemCode]
    return HEAD + "\n".join(rows) + "\n"
