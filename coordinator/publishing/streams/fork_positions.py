"""Merges the stream positions of the members of a fork, each of which read a share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.publishing.streams.stream_positions import CANNOT_RESUME
from unstuck.tasks.streams.arrived.position import (
    FilesPosition,
    KafkaPosition,
    joined,
    read_position,
    write_position,
)
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Checkpoint

_OF_ALL = ("looked", "ignored")  # counts of the whole stream, which each member has


def whole_checkpoint(files: Files, name: str, parts: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the merged checkpoint of the output ``name``; None if no member has read anything.

    A repeat writes the same file.

    Raises:
        PublishFailed: the parts do not belong to one position.
        OSError: the warehouse cannot be read.
    """
    if not parts or parts[0].adds_to is None:
        return parts[0] if parts else None
    first = parts[0]
    _check_same_start(name, parts)
    whole = _joined(files, name, parts)
    digest = hashlib.sha256("\n".join(part.path for part in parts).encode()).hexdigest()[:8]
    path = f"{first.path}.{digest}"
    size = write_position(files, path, whole)
    counts = _counts(parts)
    many = "1 member" if len(parts) == 1 else f"{len(parts):,} members"
    summary = f"read by {many} of a fork: " + ", ".join(
        f"{key} {count:,}" for key, count in counts.items()
    )
    return replace(first, path=path, bytes=size, counts=counts, summary=summary, adds_to=None)


def _check_same_start(name: str, parts: Sequence[Checkpoint]) -> None:
    """Check that all members began at one position of one stream. Raises: PublishFailed."""
    first = parts[0]
    if any(part.held_by != first.held_by for part in parts):
        raise _failed(
            name,
            "one member gave the position of the stream to this output, and another gave it to "
            "another one. Write the outputs in the same order in all members",
        )
    start = (first.after, first.adds_to, first.generation)
    if any((part.after, part.adds_to, part.generation) != start for part in parts):
        raise _failed(name, "its members started from different positions. Submit the job again")


def _joined(files: Files, name: str, parts: Sequence[Checkpoint]) -> FilesPosition | KafkaPosition:
    """Return the position behind all parts. Raises: PublishFailed, OSError."""
    before = parts[0].adds_to
    try:
        base = read_position(files, before) if before else None
        return joined(base, [read_position(files, part.path) for part in parts])
    except FileNotFoundError:
        raise _failed(
            name, "the position from which they started is gone. Submit the job again"
        ) from None
    except ValueError as error:
        raise _failed(name, f"{error}. Submit the job again") from None


def _counts(parts: Sequence[Checkpoint]) -> dict[str, int]:
    """Return the sums of the counts of all parts; of `_OF_ALL`, the largest."""
    counts = {
        key: sum(part.counts.get(key, 0) for part in parts) for part in parts for key in part.counts
    }
    return counts | {
        key: max(part.counts.get(key, 0) for part in parts) for key in _OF_ALL if key in counts
    }


def _failed(name: str, why: str) -> PublishFailed:
    return PublishFailed(
        CANNOT_RESUME,
        f"{name} was read from a stream by the members of a fork: {why}. Nothing was published",
    )
