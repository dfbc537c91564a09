"""Says which folders of a job's attempts may be removed. Pure.

``_staging/<job>/<group>/<epoch>-<nonce>-<claimant>/`` is the folder of one attempt, and ``….log`` beside it is its log.
"""
# In case of doubt a file stays: one that is kept for nothing costs disk, one that is removed too early costs data.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from unstuck.tasks.protocol.token import JOB_ID
from unstuck.tasks.warehouse.log import Entry

_ATTEMPT = re.compile(r"\d+-\w+-\w+")
_DEPTH = 4  # parts in the path of an attempt's folder

Listing = Mapping[str, Sequence[str]]  # names in a job's staging folder → the names in each


def folder_of(job: str) -> str:
    """Where all attempts of ``job`` write. Raises: ValueError: not a job id; its folder might be everybody's."""
    if not JOB_ID.fullmatch(job):
        raise ValueError(f"not a job id: {job[:100]!r}")
    return f"_staging/{job}"


def owner(path: str) -> str | None:
    """The job in whose staging ``path`` lies; None if it lies elsewhere."""
    parts = path.split("/")
    return parts[1] if len(parts) > 1 and parts[0] == "_staging" else None


def named_by(entry: Entry) -> set[str]:
    """The attempts' folders that an entry of the warehouse log needs."""
    files = (file.path for change in entry.datasets.values() for file in change.added)
    return {"/".join(path.split("/")[:_DEPTH]) for path in (*files, *entry.tokens)}


class Kept:
    """Paths that must stay, with everything above and below them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = set(paths)
        self._above = {above for path in self._paths for above in _line(path)}

    def __contains__(self, path: str) -> bool:
        """Would the removal of ``path`` remove a path that must stay?"""
        return path in self._above or any(above in self._paths for above in _line(path))


def stale_attempts(job: str, listing: Listing, kept: Kept) -> list[str]:
    """Folders of attempts that count for nothing. Logs stay, and everything that is no attempt's folder."""
    folders = (f"{folder_of(job)}/{group}/{name}" for group, names in listing.items() for name in names)
    return [path for path in folders if _ATTEMPT.fullmatch(path.rpartition("/")[2]) and path not in kept]


def expired_staging(job: str, listing: Listing, kept: Kept) -> list[str]:
    """All staging of ``job`` that need not stay once its retention is over, as whole folders where possible."""
    top = folder_of(job)
    if not listing:
        return []
    if top not in kept:
        return [top]
    found = []
    for group, names in listing.items():
        folder = f"{top}/{group}"
        if folder not in kept:
            found.append(folder)
        else:
            found += [path for name in names if (path := f"{folder}/{name}") not in kept]
    return found


def _line(path: str) -> Iterator[str]:
    """``path`` and every folder above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
