"""The code of steps, as a part of the fingerprint: work that other code has done is not taken over.

The source of all modules of a step's top-level package counts, as it was when this process first
needed it. Packages without source, as in a zip file, have no digest, and want a ``code_version:``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import secrets
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from unstuck.tasks.plain_text import plain_text
from unstuck.tasks.settings import settings
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.execute import search_working_folder
from unstuck.tasks.steps.step_params import differing
from unstuck.tasks.warehouse.marker import Marker

log = logging.getLogger(__name__)
_taken: dict[str, str] = {}


def code_of(work_order: WorkOrder) -> str:
    """Identify the code of ``work_order`` by ``code_version``, or by digests."""
    if work_order.group.code_version is not None:
        return f"version {work_order.group.code_version}"
    parts = [f"{package}:{_digest(package)}" for package in work_order.group.packages]
    if texts := [step.sql for step in work_order.group.steps if step.sql]:
        parts.append(f"sql:{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]}")
    return " ".join(parts)


def code_taken() -> dict[str, str]:
    """Return the packages of steps that this process has looked at, with their digests."""
    return dict(_taken)


def forget_code(packages: Iterable[str]) -> None:
    """Read the code of these packages again at the next use, since an import failed."""
    for package in packages:
        _taken.pop(package, None)


def fingerprint(work_order: WorkOrder, code: str, read: Collection[str] | None) -> str:
    """Return the identity of work: the same code, inputs, parameters and time zone.

    ``read``: see `WorkOrder.fingerprint_of`.
    """
    work, zone = work_order.fingerprint_of(read), work_order.plan.zone or settings().time_zone
    return hashlib.sha256(f"{work}/{code}/{zone}".encode()).hexdigest()[:32]


def why_again(
    work_order: WorkOrder, job: str, marker: Marker, newer: str = "", other: bool = False
) -> str:
    """Return the reason why ``work_order`` does not take over the work of an earlier job.

    Args:
        job: the job that did the work.
        marker: the marker of that work.
        newer: a dataset that the work read and that was published again since; empty if none.
        other: whether another minor version of Spark or Python did the work.
    """
    if work_order.group.compacts:
        return "it compacts what is published by now"
    if other and not work_order.plan.mixed:
        return f"job {job} ran it on another version of Spark or Python, and mixed: is not set"
    if fingerprint(work_order, marker.code, marker.params) == marker.fingerprint:
        if newer:
            return f"the dataset {newer} was published again since job {job}"
        return f"the code of its steps changed since job {job}"
    if work_order.plan.rerun:
        return "it was asked to run again, or comes after a group that was"
    if changed := differing(work_order, marker.params):
        return (
            f"its parameter{'s'[: len(changed) > 1]} {', '.join(changed)} changed since job {job}"
        )
    return f"what it reads, its parameters, its steps or its time zone changed since job {job}"


def _digest(package: str) -> str:
    """Return the digest of all modules of ``package``, read once; of nothing if it is absent."""
    if package in _taken:
        return _taken[package]
    digest = hashlib.sha256()
    try:
        for name, path in _sources(package):
            digest.update(f"{name}\0".encode())
            digest.update(_plain_bytes(path))
    except Exception as error:  # noqa: BLE001 - a finder of the user's may raise anything
        log.warning(
            "the source of %s cannot be read, so no work of its steps is taken over: %s",
            package,
            error,
        )
        return secrets.token_hex(8)
    _taken[package] = digest.hexdigest()[:16]
    return _taken[package]


def _plain_bytes(path: Path) -> bytes:
    """The source in a file, whose line ends and byte order mark make no other code."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    return plain_text(text).encode("utf-8", "surrogateescape")


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    search_working_folder()
    spec = getattr(sys.modules.get(package), "__spec__", None) or importlib.util.find_spec(package)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and Path(spec.origin).is_file():
            yield package, Path(spec.origin)
        return
    for folder in map(Path, spec.submodule_search_locations):
        for path in sorted(path for path in folder.rglob("*.py") if path.is_file()):
            yield str(path.relative_to(folder)), path
