"""The warehouse: markers in staging folders, and the log with one slot per package, created only if
absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from unstuck.tasks.protocol.token import Token


@dataclass(frozen=True, slots=True)
class ModelMarker:
    """What stands beside the staged files of an attempt that finished."""

    token: Token
    fingerprint: str
    outputs: dict[str, int]
    forks: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def made_nothing(self) -> bool:
        """True if it is in no folder: then the record of its group alone says what was done."""
        return not (self.outputs or self.forks)


@dataclass(frozen=True, slots=True)
class LogEntry:
    publish_id: str
    kind: Literal["package", "abort"]
    outputs: dict[str, int] = field(default_factory=dict)
    stagings: tuple[str, ...] = ()
    code: str = ""
    package_id: str = ""

    def is_of(self, publish_id: str, package_id: str) -> bool:
        """As `unstuck.tasks.warehouse.log_entry.Entry.is_of`."""
        same_package = self.kind == "package" and package_id != "" and self.package_id == package_id
        return self.publish_id == publish_id or same_package


class Depot:
    """One warehouse, on a file system that never forgets.

    ``markers`` has also those of attempts that made nothing, which no runner finds: for the rules.
    """

    def __init__(self) -> None:
        self.markers: dict[str, ModelMarker] = {}
        self.log: list[LogEntry] = []

    def head(self) -> int:
        return len(self.log)

    def create(self, slot: int, entry: LogEntry) -> bool:
        """Create-if-absent: False if the slot is taken."""
        if slot <= len(self.log):
            return False
        assert slot == len(self.log) + 1, "a log has no gaps"
        self.log.append(entry)
        return True

    def find(self, publish_id: str, after: int, package_id: str = "") -> int | None:
        for slot in range(after + 1, len(self.log) + 1):
            if self.log[slot - 1].is_of(publish_id, package_id):
                return slot
        return None

    def standing(self, job: str, group: str, fingerprint: str) -> str | None:
        """The folder of an earlier attempt that did this very work."""
        for staging, marker in self.markers.items():
            found = (marker.token.job, marker.token.group, marker.fingerprint)
            if found == (job, group, fingerprint) and not marker.made_nothing:
                return staging
        return None
