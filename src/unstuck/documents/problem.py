"""The document of an error, by RFC 9457, and the HTTP status of each error."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.coordinator.errors import Ambiguous, NoSuchGroup, NoWarehouse, WarehouseSilent
from unstuck.coordinator.spec.problems import SpecError
from unstuck.documents.document import Document
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


class PlaceDocument(Document):
    """One thing that is wrong, and where: in the spec that was sent, or in a value of the
    request.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str
    message: str


class ProblemDocument(Document):
    """An error.

    ``detail`` is the sentence of the command line, and ``code`` is there to compare.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    problems: tuple[PlaceDocument, ...] = ()

    @classmethod
    def of_error(cls, error: Exception) -> ProblemDocument:
        explanation = explained(error)
        code = getattr(error, "code", "") or ("FILE_TROUBLE" if explanation else "BUG")
        places = (
            [problem.to_json() for problem in error.problems]
            if isinstance(error, SpecError)
            else ()
        )
        detail = explanation[1] if explanation else BUG
        return cls.of_code(code, status_of(error), detail, places)

    @classmethod
    def of_code(
        cls, code: str, status: int, detail: str, problems: Iterable[object] = ()
    ) -> ProblemDocument:
        """Describe a problem; its title is ``code`` in words."""
        kind = f"urn:unstuck:{code.lower().replace('_', '-')}"
        return cls.model_validate(
            {
                "type": kind,
                "title": code.replace("_", " ").capitalize(),
                "status": status,
                "detail": detail,
                "code": code,
                "problems": problems,
            }
        )


def status_of(error: Exception) -> int:
    """The HTTP status that says what ``error`` says; 500 if the error is a bug of ours."""
    for kind, status in _APART.items():
        if isinstance(error, kind):
            return status
    explanation = explained(error)
    return 500 if explanation is None else STATUS.get(explanation[0], 500)
