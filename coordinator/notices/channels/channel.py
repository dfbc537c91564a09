"""A channel sends a notice to one target; its fields are those of ``UNSTUCK_NOTIFY``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr

from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.addresses import Allowed
from unstuck.tasks.duration import Seconds
from unstuck.tasks.spec.fields import Strict

LONGEST_ANSWER = 300  # characters of a reply


class SendFailed(Exception):
    """A receiver did not accept a notice.

    Attributes:
        wait: seconds for which the receiver asks not to be called.
        permanent: another try cannot succeed.
    """

    def __init__(self, reason: str, wait: float = 0.0, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.wait, self.permanent = wait, permanent


@dataclass(frozen=True, slots=True)
class Message:
    """A notice with the fields common to all channels.

    ``link``: to the page, or empty; ``at``: when it is sent.
    """

    notice: Notice
    title: str
    body: str
    link: str
    at: float

    @property
    def ends(self) -> bool:
        """Whether the notice ends its problem."""
        return self.notice.event == "recovered"

    @property
    def informs(self) -> bool:
        """Whether nobody has to do anything."""
        return self.notice.event in ("recovered", "finished")


class NoticeChannel(Strict, ABC):
    """A target of notices.

    Attributes:
        kind: the field that says which channel it is.
        stays_open: a problem stays open in the target until its end is sent.
        for_people: people read it, so many notices become a digest.
    """

    kind: ClassVar[str]
    stays_open: ClassVar[bool] = False
    for_people: ClassVar[bool] = False
    timeout: Annotated[Seconds, Field(ge=0.1, le=300)] = 10.0

    @abstractmethod
    def send(self, message: Message, allowed: Allowed) -> str:
        """Send within ``timeout``. Return a short form of the reply. Raises: SendFailed."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts to which it connects, for the check by `Allowed`."""
        return ()

    def secrets(self) -> Iterator[str]:
        """Return the secret texts, which must never be shown."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            for candidate in (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, tuple)
                else (value,)
            ):
                if isinstance(candidate, SecretStr):
                    yield candidate.get_secret_value()


def shortened(text: str, most: int = LONGEST_ANSWER) -> str:
    """Return ``text`` on one line, printable, and cut to ``most`` characters."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
