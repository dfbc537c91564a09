"""``unstuck show --diff`` shows what was altered of a job, and which groups ran with which revision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from unstuck.coordinator.cli.render.terminal import clock, coloured, iso, printable
from unstuck.coordinator.commands.alter import in_words
from unstuck.coordinator.views.jobs import JobView


def diff_json(view: JobView) -> dict[str, Any]:
    """The alterations in order, and for each group that was ever claimed the revision that it ran with."""
    return {
        "id": view.job.id,
        "revision": view.job.revision,
        "alterations": [
            {
                "revision": number,
                "at": iso(one.at),
                "by": one.by,
                "reason": one.reason,
                "changes": [{"path": c.path, "old": c.old, "new": c.new} for c in one.changes],
            }
            for number, one in enumerate(view.job.alterations, 1)
        ],
        "groups": [
            {"group": member.id, "state": str(member.state), "attempt": member.record.epoch, "revision": revision}
            for member, revision in _ran(view)
        ],
    }


def diff_lines(view: JobView) -> Iterator[Text]:
    """The same for people."""
    job = view.job
    if not job.alterations:
        yield Text(f"job {job.id} was never altered")
        return
    for number, one in enumerate(job.alterations, 1):
        why = f": {one.reason}" if one.reason else ""
        yield Text.assemble((f"revision {number}", "bold"), f"  {clock(one.at)} by {printable(one.by + why)}")
        for change in one.changes:
            old, new = (printable(in_words(change.path, value)) for value in (change.old, change.new))
            yield Text.assemble(f"  {change.path}  ", (old, "red"), " → ", (new, "green"))
    for member, revision in _ran(view):
        with_ = "as it is now" if revision == job.revision else f"revision {revision}" if revision else "as submitted"
        yield Text.assemble((member.id, "bold"), " ", coloured(member.state), f"  ran with the spec {with_}")


def _ran(view: JobView) -> Iterator[tuple[Any, int]]:
    for group in view.groups:
        for member in group.members:
            if member.record.started_at:
                yield member, member.record.revision
