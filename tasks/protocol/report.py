"""Define the outcome of an attempt, and the report that makes coordinators read it.

The outcome on the attempt record is the truth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from pydantic import StrictInt, TypeAdapter, ValidationError

from unstuck.tasks.errors import Malformed
from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.protocol.token import Token

# Raised when an older coordinator could no longer read what this release reports.
SCHEMA_VERSION = 1


class OutcomeKind(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the user's code, or its timeout
    CANCELED = "canceled"
    RELEASED = "released"  # handed back by a worker that was told to stop
    # The runner died under the attempt, as its watchdog says; or could not begin it, as it says
    # itself.
    LOST = "lost"


class ReportKind(StrEnum):
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    RELEASED = "released"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error for people: a code, a sentence, and the traceback trimmed to the user's code.

    Attributes:
        code: for programs to compare.
        text: a sentence for people.
        recoverable: whether a retry may help, unless ``retry_on:`` or ``never_retry_on:`` names the
            failure.
        traceback: trimmed to the user's code.
        names: other names of the failure in ``retry_on:``: its Spark condition, its class and the
            bases of this class.
    """

    code: str
    text: str
    recoverable: bool = True
    traceback: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The work of an attempt without a marker, on the record of its group (docs/decisions/0013).

    Attributes:
        fingerprint: of the work, as in a marker.
        code: what stood for the code of its steps.
        made_on: the minor versions of Python, and of Spark if it was used, by name.
        params: as in a marker.
    """

    fingerprint: str
    code: str = ""
    made_on: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        staging: the folder that holds the marker, relative to the warehouse; for an adopted marker
            that of the earlier attempt. Empty unless ``kind`` is SUCCEEDED.
        done: what was done, if nothing was made; then ``staging`` names a folder that is not there.
        adopted: a standing marker with the same fingerprint was found, and nothing was run.
        ran_again: why the work of a job that this one retries was not taken over, in words.
        arrived: what had arrived for the stream of the group, in words.
        rows: rows per output.
        rejected: of each output with rules: by rule, how many rows did not meet it.
        forks: values collected for dynamic forks, by ``output.column``.
        results: small values that steps returned through ``ctx.result``.
        zone: the time zone of its runner; empty if its runner did not say it itself.
    """

    __pydantic_config__ = DEFERRED

    kind: OutcomeKind
    staging: str = ""
    adopted: bool = False
    ran_again: str = ""
    arrived: str = ""
    rows: dict[str, StrictInt] = field(default_factory=dict)
    rejected: dict[str, dict[str, StrictInt]] = field(default_factory=dict)
    forks: dict[str, list[Any]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    zone: str = ""
    done: Done | None = None

    def to_json(self) -> str:
        values = {name: getattr(self, name) for name in _FIELDS if getattr(self, name)}
        return json.dumps(values, separators=(",", ":"), default=_values)

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Parse the JSON of an outcome. Raises: Malformed."""
        try:
            # By ``json``, since pydantic refuses half of a surrogate pair.
            return _OUTCOME.validate_python(json.loads(text))
        except ValueError as error:
            raise Malformed(f"not an outcome: {text[:200]!r} ({in_short(error)})") from error


def _values(record: Failure | Done) -> dict[str, Any]:
    """The fields by name.

    `dataclasses.asdict` also copies the values, which takes ten times as long.
    """
    return {name: getattr(record, name) for name in record.__slots__}


_FIELDS = tuple(attribute.name for attribute in fields(Outcome))
_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


def in_short(error: Exception) -> str:
    """Say why a value cannot be read, without the value: it may be long."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details[:5]
    )


@dataclass(frozen=True, slots=True)
class Report:
    """A message from a worker. ``event`` is created before the first try and reused in retries.

    Attributes:
        at: seconds since the epoch, by the clock of Redis.
        refused: empty, or why ``finish`` did not take the outcome: STALE (the attempt was no longer
            live) or TERMINAL (the job had ended).
    """

    event: str
    token: Token
    kind: ReportKind
    at: float
    refused: str = ""

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Report:
        """The report in a stream entry.

        Raises:
            Malformed: a field is missing or cannot be read, or another release wrote it.
        """
        version = fields.get("v")
        if version is None:
            raise Malformed(
                "a report needs a schema version in the field 'v', and this one has none"
            )
        if version != str(SCHEMA_VERSION):
            raise Malformed(
                f"its schema version is {version[:60]!r}, and this release reads {SCHEMA_VERSION}; "
                "once all coordinators have the release that sent it, `unstuck dead replay --all` "
                "applies it"
            )
        try:
            return cls(
                fields["id"],
                Token.parse(fields["token"]),
                ReportKind(fields["kind"]),
                float(fields["at"]),
                fields.get("refused", ""),
            )
        except KeyError as error:
            raise Malformed(f"a report needs the field {error}") from error
        except ValueError as error:
            # Shortened, since the error repeats the value, which may be of any length.
            raise Malformed(str(error)[:300]) from error
