"""Offer and token: the names by which an attempt is offered, claimed, fenced and found on disk.

An *offer* says that an attempt can be claimed. A *token* is an offer with the claimant that holds
it; it is the key of the lease, the staging folder, the marker and every report, and the fence at
every write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from unstuck.tasks.errors import Malformed

# One alphabet for everything that becomes part of a key, a path or a Celery task id.
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
GROUP_ID = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,62})(?:\[(0|[1-9][0-9]{0,5})\])?")
_WORD = re.compile(r"[A-Za-z0-9_]{1,64}")
_OFFER = re.compile(
    rf"(?P<job>{JOB_ID.pattern})/(?P<group>{GROUP_ID.pattern})"
    rf"/(?P<epoch>[0-9]{{1,18}})/(?P<nonce>{_WORD.pattern})"
)


def fork_member(group: str, ordinal: int) -> str:
    """The id of the ``ordinal``-th member of a forked group: ``by_month[3]``."""
    return f"{group}[{ordinal}]"


def split_member(group_id: str) -> tuple[str, int | None]:
    """``("by_month", 3)`` of ``by_month[3]``; ``("clean", None)`` of a group that is not forked.

    Raises: Malformed: the text is not a group id.
    """
    match = GROUP_ID.fullmatch(group_id)
    if match is None:
        raise Malformed(f"not a group id: {group_id[:100]!r}")
    return match[1], None if match[2] is None else int(match[2])


@dataclass(frozen=True, slots=True)
class Offer:
    """``job/group/epoch/nonce``: an attempt that can be claimed, in the ready set of its queue."""

    job: str
    group: str
    epoch: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.job}/{self.group}/{self.epoch}/{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> Offer:
        """Parse ``job/group/epoch/nonce``. Raises: Malformed."""
        if (match := _OFFER.fullmatch(text)) is None:
            raise Malformed(f"not an offer (job/group/epoch/nonce): {text[:200]!r}")
        return cls(match["job"], match["group"], int(match["epoch"]), match["nonce"])

    def held_by(self, claimant: str) -> Token:
        """Return the token of ``claimant`` for this offer."""
        return Token(self.job, self.group, self.epoch, self.nonce, claimant)


@dataclass(frozen=True, slots=True)
class Token(Offer):
    """``job/group/epoch/nonce/claimant``: one runner's hold on one attempt."""

    claimant: str

    def __str__(self) -> str:
        return f"{self.offer}/{self.claimant}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse ``job/group/epoch/nonce/claimant``. Raises: Malformed."""
        head, slash, claimant = text.rpartition("/")
        if not slash or not _WORD.fullmatch(claimant):
            raise Malformed(f"not a token (job/group/epoch/nonce/claimant): {text[:200]!r}")
        return Offer.parse(head).held_by(claimant)

    @property
    def offer(self) -> Offer:
        return Offer(self.job, self.group, self.epoch, self.nonce)

    @property
    def work(self) -> dict[str, str | int]:
        """The attempt as lines of logs name it."""
        return {"job": self.job, "group": self.group, "attempt": self.epoch}

    @property
    def staging(self) -> str:
        """The attempt's own folder, relative to the warehouse."""
        return f"_staging/{self.job}/{self._folder}/{self._attempt}"

    @property
    def log(self) -> str:
        """The attempt's log, relative to the warehouse: a job has one folder for all."""
        return f"{log_folder(self.job)}/{self._folder}.{self._attempt}.log"

    @property
    def _folder(self) -> str:
        """A fork's member gets ``group.ordinal``: Hadoop reads ``[…]`` in a path as a pattern."""
        group, ordinal = split_member(self.group)
        return group if ordinal is None else f"{group}.{ordinal}"

    @property
    def _attempt(self) -> str:
        return f"{self.epoch}-{self.nonce}-{self.claimant}"


def log_folder(job: str) -> str:
    """The logs of a job, beside the folders of its groups: none of these has such a name."""
    return f"_staging/{job}/job.logs"
