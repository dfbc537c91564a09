"""The document of an error, by RFC 9457, and the HTTP status of each error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unstuck.coordinator.errors import Ambiguous, NoSuchGroup, NoWarehouse, WarehouseSilent
from unstuck.coordinator.spec.problems import SpecError
from unstuck.exits import ExitCode, explained
from unstuck.tasks.errors import (
    DatasetNotFound,
    LogBroken,
    SourceUnavailable,
    WarehouseMismatch,
    WarehouseNewer,
)

MEDIA_TYPE = "application/problem+json"
BUG = "This is a bug in Unstuck; please report it with the traceback in the log of the page."
STATUS = {
    ExitCode.USAGE: 422,
    ExitCode.NO_SUCH_JOB: 404,
    ExitCode.REFUSED: 409,
    ExitCode.UNREACHABLE: 503,
}
# The command line calls these bad usage, since it answers the person whose warehouse and whose word
# it was.
_APART: dict[type[Exception], int] = {
    Ambiguous: 409,
    NoSuchGroup: 404,
    NoWarehouse: 404,
    DatasetNotFound: 404,
    WarehouseSilent: 503,
    WarehouseMismatch: 409,
    WarehouseNewer: 503,
    LogBroken: 503,
    SourceUnavailable: 503,
    OSError: 503,
}


@dataclass(frozen=True, slots=True)
class ProblemPlace:
    """A mistake and its place, in the spec that was sent or in a value of the request.

    Attributes:
        path: of the field.
        message: what is wrong.
        file: name of the file; null if the spec came without one.
        line: in the file, from 1 on; null if unknown.
        column: in the line, from 1 on; null if unknown.
    """

    path: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class ProblemDetails:
    """An error.

    Attributes:
        type: a URN of the code.
        title: the code in words.
        status: of HTTP.
        detail: the sentence of the command line.
        code: for programs to compare.
        problems: each mistake in the spec or the request.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    problems: tuple[ProblemPlace, ...] = ()

    @classmethod
    def of_error(cls, error: Exception) -> ProblemDetails:
        explanation = explained(error)
        code = getattr(error, "code", "") or ("FILE_TROUBLE" if explanation else "BUG")
        places = (
            [ProblemPlace(**problem.to_json()) for problem in error.problems]
            if isinstance(error, SpecError)
            else ()
        )
        detail = explanation[1] if explanation else BUG
        return cls.of_code(code, status_of(error), detail, places)

    @classmethod
    def of_code(
        cls, code: str, status: int, detail: str, problems: Iterable[ProblemPlace] = ()
    ) -> ProblemDetails:
        """Describe a problem; its title is ``code`` in words."""
        kind = f"urn:unstuck:{code.lower().replace('_', '-')}"
        title = code.replace("_", " ").capitalize()
        return cls(kind, title, status, detail, code, tuple(problems))


def status_of(error: Exception) -> int:
    """Return the HTTP status of ``error``; 500 if it is a bug of Unstuck."""
    for kind, status in _APART.items():
        if isinstance(error, kind):
            return status
    explanation = explained(error)
    return 500 if explanation is None else STATUS.get(explanation[0], 500)
