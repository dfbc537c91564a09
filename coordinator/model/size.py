"""Limits the bytes that a job takes in the store, before the job is stored.

A spec of a few kilobytes can expand to much more, for example by a ``conf`` under ``defaults:``,
which is stored for each group. Long texts are stored once (``tasks.protocol.texts``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.spec.model import JobSpec, fingerprint_of
from unstuck.coordinator.spec.plan import Plan, compile_plan
from unstuck.coordinator.spec.problems import Loc, SpecError, SpecProblem
from unstuck.tasks.protocol.texts import LONG, Packer
from unstuck.tasks.spec.group import MAX_JOB_BYTES


@dataclass(frozen=True, slots=True)
class Compiled:
    """A stored spec: its plan, its JSON, and the long texts of the JSON by digest."""

    plan: Plan
    spec: str
    texts: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """As ``JobSpec.fingerprint``."""
        return fingerprint_of(self.spec)


def compile_to_store(spec: JobSpec, record: JobRecord | None = None) -> Compiled:
    """Compile ``spec`` for storage.

    Args:
        record: the record of its job, which may have texts of an earlier spec.

    Raises:
        SpecError: the job would take more than `MAX_JOB_BYTES`; or a ``sql_file:`` was not read
            yet.
    """
    text, texts = spec.packed()
    compiled = Compiled(compile_plan(spec), text, texts)
    plans = compiled.plan.group_plans("", None)
    stays = (
        replace(record, spec="", texts={**record.texts, **texts}).to_fields()
        if record is not None
        else texts
    )
    size = _bytes(text, *plans.values(), *stays.values())
    if size > MAX_JOB_BYTES:
        raise SpecError([_too_large(spec, size, plans, _bytes(stays.get("alterations", "")))])
    return compiled


def _too_large(spec: JobSpec, size: int, plans: dict[str, str], altered: int) -> SpecProblem:
    data = spec.dumped()
    groups = data["groups"]
    # Each long text once, and what else there is of each group; ``defaults.conf`` in all of them
    # together.
    first: dict[str, Loc] = {}
    for text, loc in _long_texts(data, ()):
        first.setdefault(text, loc)
    parts = [
        (_bytes(text), f"a text of {len(text):,} characters", loc) for text, loc in first.items()
    ]
    for i, group in enumerate(spec.groups):
        own = _bytes(json.dumps(Packer().pack(groups[i])), plans.get(group.name, ""))
        parts.append((own, f"group {group.name}", ("groups", i)))
    conf = _bytes(json.dumps(Packer().pack(data.get("defaults", {}).get("conf", {})))) * len(plans)
    parts.append(
        (
            conf,
            f"defaults.conf, which is stored with each of {len(plans):,} groups",
            ("defaults", "conf"),
        )
    )
    parts.append((altered, "what was altered so far", ()))
    largest, what, loc = max(parts, key=lambda part: part[0])
    message = (
        f"the job would take {megabytes(size)} in the store; at most {megabytes(MAX_JOB_BYTES)} "
        f"are allowed. Its largest part is {what}, with {megabytes(largest)}; put data into files "
        "that the steps read"
    )
    return SpecProblem(message, loc)


def _long_texts(value: Any, loc: Loc) -> Iterator[tuple[str, Loc]]:
    if isinstance(value, str) and len(value) > LONG:
        yield value, loc
    elif isinstance(value, dict | list):
        for part, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _long_texts(child, (*loc, part))


def _bytes(*texts: str) -> int:
    return sum(len(text.encode()) for text in texts)


def megabytes(size: int) -> str:
    """Return ``size`` in words: ``17.9 MB``."""
    return f"{size / 2**20:.1f} MB"
