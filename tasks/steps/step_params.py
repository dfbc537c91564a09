"""Record which parameters a step reads, so that a change of others makes no work stale.

What cannot be followed, such as a copy or a read in a forked process, counts as a look at all of
them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.spec.work_order import WorkOrder

MAX_NAMES = 100  # that are noted of an attempt; they stand in its marker or record
_MAX_JOBS = 1000


class Reads:
    """Names of parameters that were read, including absent ones; None if any may have been."""

    def __init__(self) -> None:
        self.names: set[str] | None = set()

    def note(self, name: object) -> None:
        if (names := self.names) is None:
            return
        if type(name) is str and len(names) < MAX_NAMES:
            names.add(name)
        else:
            self.names = None


class Params(Mapping[str, Any]):
    """Read-only parameters that record reads. Not a ``dict``, which C code reads unnoticed."""

    def __init__(self, values: Mapping[str, Any], reads: Reads) -> None:
        self._values, self._reads = dict(values), reads

    def __getitem__(self, name: str) -> Any:
        self._reads.note(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._all(),)

    def _all(self) -> dict[str, Any]:
        self._reads.names = None
        return self._values


_looked_at: dict[str, Reads] = {}


def looked_at(job: str) -> Reads:
    """Return the reads of ``ctx.params`` by the code of ``job`` in this process.

    A group may keep a value for the next one.
    """
    if len(_looked_at) > _MAX_JOBS and job not in _looked_at:
        del _looked_at[next(iter(_looked_at))]
    return _looked_at.setdefault(job, Reads())


def noted(
    work_order: WorkOrder, job: str, passed: Reads, secrets: Secrets
) -> dict[str, str] | None:
    """Return digests of the parameters that were read, for the marker; empty for a missing one.

    None if any parameter may have been read. A reference is digested without its value.
    """
    kept = looked_at(job).names
    if kept is None or passed.names is None:
        return None
    names = sorted({*kept.copy(), *passed.names})
    if secrets.in_data(names):  # a step asked for it, and a marker is stored
        return None
    return {
        **dict.fromkeys(names, ""),
        **{name: _digest(value) for name, value in work_order.used_params(names).items()},
    }


def differing(work_order: WorkOrder, noted: Mapping[str, str] | None) -> list[str]:
    """Return the names of the parameters whose digests differ from ``noted``."""
    now = {
        name: _digest(value) for name, value in work_order.params.items() if noted and name in noted
    }
    return [name for name, digest in (noted or {}).items() if now.get(name, "") != digest]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _forked() -> None:
    for reads in list(_looked_at.values()):
        reads.names = None


os.register_at_fork(before=_forked)  # what a child reads, its parent does not hear
