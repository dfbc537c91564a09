"""Defines how failures of user code are retried: which, how often, and after which delay."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from unstuck.tasks.duration import Seconds
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.spec.fields import ErrorNames, Strict

# Failures of what the user wrote.
OF_THE_CODE = ("STEP_FAILED", "TIMEOUT", "STEP_TIMEOUT")


class RetryPolicy(Strict):
    """How failures of the user's code are retried.

    Backoff is ``backoff * 2**n`` up to ``max_backoff``, with jitter.
    """

    max: int = Field(
        default=3, ge=0, le=1000, strict=True, description="Retries after the first attempt."
    )
    backoff: Seconds = Field(
        default=10.0, description="Wait before the first retry; it doubles with every retry."
    )
    max_backoff: Seconds = Field(default=300.0, description="The longest wait before a retry.")
    jitter: float = Field(
        default=0.1, ge=0, le=1, strict=True, description="Share of the wait that is random."
    )
    retry_on: ErrorNames | None = Field(
        default=None,
        description="Exceptions, Spark conditions and codes that are tried again, and no others.",
    )
    never_retry_on: ErrorNames | None = Field(
        default=None,
        description=(
            "Exceptions, Spark conditions and codes that fail at once; they win over retry_on."
        ),
    )

    def why_final(self, failure: Failure) -> str:
        """Return why a failure is never retried; empty if it may be.

        ``retry_on`` applies to failures of the user's code; an unavailable warehouse is always
        retried.
        """
        if entry := _entry_for(failure, self.never_retry_on):
            return f"not tried again: never_retry_on names {entry}"
        if _entry_for(failure, self.retry_on):
            return ""
        if not failure.recoverable:
            is_slip = failure.code == "STEP_FAILED"
            return (
                "not tried again: it is a mistake in the code" if is_slip else "not worth a retry"
            )
        return (
            "not tried again: retry_on does not name it"
            if self.retry_on and failure.code in OF_THE_CODE
            else ""
        )


def _entry_for(failure: Failure, entries: Iterable[str] | None) -> str:
    """The entry of ``retry_on:`` or ``never_retry_on:`` that names a failure; empty if none does.

    An entry has the last part of a name, and may have the package before it: ``requests.Timeout``
    names ``requests.exceptions.Timeout``.
    """
    for entry in entries or ():
        package, _, last = entry.rpartition(".")
        for name in (failure.code, *failure.names):
            module, _, own = name.rpartition(".")
            if own == last and (not package or f"{module}.".startswith(f"{package}.")):
                return entry
    return ""
