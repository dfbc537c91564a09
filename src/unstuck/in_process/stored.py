"""The keys of one job in the store, and the stream on which the scripts report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord

Fields = dict[str, str]


@dataclass(slots=True)
class StoredJob:
    """The keys of one job."""

    record: JobRecord
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    collected: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    attempts: dict[str, AttemptRecord] = field(default_factory=dict)
    commanded: str = ""
    frozen: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    lock: tuple[str, float] = ("", 0.0)
    dirty_until: float = 0.0


class Reports(Protocol):
    """The part of the report stream that the scripts use."""

    def add(self, fields: Fields) -> None: ...
    def ack(self, ids: Iterable[str]) -> list[str]: ...
    def count(self, counts: Iterable[tuple[str, int]]) -> None: ...
