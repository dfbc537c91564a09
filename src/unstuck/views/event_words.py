"""Describes the events of a job in words (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unstuck.coordinator.commands.alter import in_words
from unstuck.coordinator.decide.receipts import REFUSED
from unstuck.coordinator.model.past_attempts import Event
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.duration import format_duration
from unstuck.views.words import count_of, first_line, one_line

CHANGES = 5  # of an alteration that are shown
# Words before the value of a field of an event.
_WORDS = {"worker": "on", "claimant": "claimant", "queue": "queue"}


def in_few_words(event: Event) -> tuple[str, str]:
    """Return the fields of an event in a few words, and the first line of its text."""
    parts = [f"{word} {event[key]}" for key, word in _WORDS.items() if event.get(key)]
    if "epoch" in event and event["kind"] != REFUSED:  # its text has the number
        parts.insert(0, f"attempt {event['epoch']}")
    if "rows" in event:
        parts.append(count_of(event["rows"], "row"))
    changes = event.get("changes") or ()  # of an alteration
    parts.extend(map(_change_text, changes[:CHANGES]))
    if len(changes) > CHANGES:
        parts.append(f"{len(changes) - CHANGES} more")
    if event.get("by"):
        parts.append(f"by {event['by']}")
    if event.get("next_at"):
        parts.append(f"next in {format_duration(max(0.0, event['next_at'] - event['at']))}")
    return one_line(", ".join(parts)), first_line(str(event.get("text", "")))


def _change_text(change: Mapping[str, Any]) -> str:
    """Return one change of an alteration as ``path: old → new``."""
    path = change["path"]
    return f"{path}: {in_words(path, change['old'])} → {in_words(path, change['new'])}"


def without_repeats(events: Iterable[tuple[str, Event]]) -> Iterator[Event]:
    """Yield the events for people: an event of the job does not repeat the error of its group."""
    reported_errors: set[str] = set()
    for _, event in events:
        begun, _, _ = str(event.get("text", "")).partition(": ")
        if event["kind"] == GroupState.FAILED and "group" in event:
            reported_errors.add(f"group {event['group']} failed")
        yield {**event, "text": begun} if begun in reported_errors else event
