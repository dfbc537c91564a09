"""The owner of a dataset: the job name that may publish it, and the job names that share it (pure).

The first job that publishes a dataset owns it. The entries of the warehouse log say who that is, so
a store that is rolled back changes no owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

DATASET_OWNED = "DATASET_OWNED"


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a dataset.

    Attributes:
        job_name: name of the job.
        shared_with: names of other jobs that may publish the dataset, or patterns of ``fnmatch``.
    """

    job_name: str
    shared_with: list[str] = field(default_factory=list)

    def admits(self, job_name: str) -> bool:
        """Return whether a job of this name may publish the dataset."""
        return job_name == self.job_name or any(
            fnmatchcase(job_name, pattern) for pattern in self.shared_with
        )


Owners = Mapping[str, Owner]
"""By dataset; one that no job has published has no owner."""


class OwnersAt(NamedTuple):
    """The owners of the datasets of a warehouse at one version."""

    version: int
    owners: Owners


def refusal(datasets: Iterable[str], owners: Owners, job_name: str, *, take_over: bool) -> str:
    """Return why a job of this name may not publish these datasets; empty if it may.

    Rows that no job publishes, such as those that a test gives, have no job name. They are not
    refused.
    """
    if take_over or not job_name:
        return ""
    others = [(name, owners[name]) for name in datasets if name in owners]
    return ". ".join(
        _refusal(name, owner, job_name) for name, owner in others if not owner.admits(job_name)
    )


def _refusal(dataset: str, owner: Owner, job_name: str) -> str:
    return (
        f"job {job_name} may not publish {dataset}, which job {owner.job_name} owns. If the name "
        f"is right, list {job_name} in shared_with: of the output {dataset} of job "
        f"{owner.job_name} and publish that job once, or submit {job_name} with --take-over, which "
        "makes it the owner (a schedule: set it with --take-over)"
    )


def owner_after(
    owner: Owner | None, job_name: str, shared_with: Iterable[str], *, take_over: bool
) -> Owner | None:
    """Return the owner of a dataset after a job of this name has published it.

    Args:
        owner: the owner before; None: no job has published the dataset.
        shared_with: of the output of the job; it counts if the job owns the dataset.
    """
    if job_name and (owner is None or take_over or owner.job_name == job_name):
        return Owner(job_name, list(shared_with))
    return owner
