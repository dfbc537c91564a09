"""The message for the receivers of a notice: its title, its text, and the link to the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote

from unstuck.coordinator.model.notice import Notice, notice_id
from unstuck.coordinator.notices.channels.channel import Message, shortened
from unstuck.tasks.duration import format_duration

HAPPENED = {
    "failed": "failed",
    "halted": "is halted: it cannot continue by itself",
    "retrying_for": "keeps failing, and is tried again",
    "running_for": "runs longer than it should",
    "late": "is late",
    "behind": "is behind",
    "waiting_for_worker": "waits for a worker",
    "finished": "finished",
    "recovered": "is well again",
}
NOT_WELL = ("FAILED", "CANCELED", "STOPPED", "REMOVED")


def message_of(notice: Notice, page: str, now: float) -> Message:
    """Return the message of a notice. ``page``: its address, or empty. ``now``: Unix seconds."""
    title = f"{notice.kind} {notice.name} {HAPPENED.get(notice.event, notice.event)}"
    if notice.event == "recovered" and notice.status in NOT_WELL:
        # A schedule has no status CANCELED: only its backfill can be canceled.
        part = "'s backfill" if notice.kind == "schedule" and notice.status == "CANCELED" else ""
        title = (
            f"{notice.kind} {notice.name}{part} is {notice.status}, which ends the earlier problem"
        )
    link = f"{page.rstrip('/')}/{_path(notice)}" if page else ""
    return Message(notice, _unicode(title), _unicode("\n".join(_lines(notice))), link, now)


def digest_of(notices: Sequence[Notice], page: str, now: float) -> Message:
    """Return one message for many notices, each with its title and its sentence."""
    titles = [message_of(notice, page, now).title for notice in notices]
    rows = zip(titles, notices, strict=True)
    first, recovered = notices[0], all(notice.event == "recovered" for notice in notices)
    summary = replace(
        first,
        id=notice_id("digest", *(notice.id for notice in notices)),
        event="recovered" if recovered else "digest",
        problem="digest",
    )
    body = "\n\n".join(f"{title}\n{shortened(notice.text)}" for title, notice in rows)
    return Message(summary, f"{len(notices)} notices", _unicode(body), page, now)


def _unicode(text: str) -> str:
    """Return ``text`` without lone surrogates, which errors may contain and mail does not allow."""
    return text.encode(errors="replace").decode()


def _path(notice: Notice) -> str:
    return (
        f"schedules/{quote(notice.name, safe='')}"
        if notice.kind == "schedule"
        else f"jobs/{quote(notice.job)}"
    )


def _lines(notice: Notice) -> list[str]:
    since = datetime.fromtimestamp(notice.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    stood = format_duration(max(0.0, notice.at - notice.since))
    lines = [notice.text]
    if notice.first_error:
        lines.append(f"First error: {notice.first_error}")
    lines.append(f"Since: {since}" + (f" (for {stood})" if notice.at - notice.since >= 1 else ""))
    if notice.next:
        lines.append(f"Next: {notice.next}")
    if notice.commands:
        lines += ["These commands help:", *(f"  {command}" for command in notice.commands)]
    return lines
