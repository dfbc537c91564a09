"""The screens of the fleet: processes, offers, pools, the doctor, dead letters and notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.command_table import TargetKind
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.store.dead_letter_store import READABLE, UNREADABLE
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.doctor.examine import Doctor
from unstuck.doctor.finding import Finding, Level
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.redis_url import without_password
from unstuck.views.running_code import SHORT, different_code
from unstuck.web.actions import PageAction, actions_for
from unstuck.web.paging import is_entry, part_of
from unstuck.web.rendering import client_of, page

MOST = 100  # runners of one page
LETTERS, NOTICES = 50, 50
EXAMINED_FOR = 30.0  # seconds for which findings of the doctor are cached


@dataclass(frozen=True, slots=True)
class RunnerRow:
    """One runner.

    Attributes:
        does: its state in words, if it runs no attempt.
        code: the packages whose steps it ran, with their digests.
    """

    runner: RunnerInfo
    does: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.runner.host}:{self.runner.pid}"


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter with the actions on it."""

    letter: DeadLetter
    actions: Sequence[PageAction]


def fleet(request: Request) -> Response:
    client = client_of(request)
    # Finding unserved queues reads each open job, so it is left to the doctor.
    view = client.fleet(include_unserved=False)
    part = part_of(runners_of(view), request.query_params, MOST, lambda row: row.name)
    return page(
        request,
        "fleet.html",
        fleet=view,
        part=part,
        mixed=list(different_code(view.runners).values()),
        offers=client.offers(),
        pools=client.pools.all(),
        dead=client.dead_letters.count(),
        waiting=len(client.notices.waiting(NOTICES)),
        place=without_password(client.settings.redis_url),
        heard=sum(not runner.silent for runner in view.runners),
        deciding=sum(not coordinator.silent for coordinator in view.coordinators),
    )


def runners_of(view: FleetInfo) -> list[RunnerRow]:
    """Return the lines of the runners: silent and unfit ones first, then the longest attempts."""

    def rank(runner: RunnerInfo) -> tuple[int, float, str, int]:
        kind = 0 if runner.silent else 1 if runner.unfit else 2 if runner.job else 3
        return kind, runner.since or view.at, runner.host, runner.pid

    return [
        RunnerRow(
            runner,
            _does(runner),
            " ".join(f"{name}:{digest[:SHORT]}" for name, digest in sorted(runner.code.items())),
        )
        for runner in sorted(view.runners, key=rank)
    ]


def _does(runner: RunnerInfo) -> str:
    if runner.silent:
        return "no heartbeat"
    if runner.unfit:
        return f"unfit for Spark: {runner.unfit}"
    return "idle" if runner.idle_since is not None else "takes no more work: its worker is stopping"


def doctor(request: Request) -> Response:
    """Show the findings of the doctor, as seen from this host."""
    examiner: Doctor = request.app.state.doctor
    findings = in_order(examiner.examine(EXAMINED_FOR))
    return page(
        request,
        "doctor.html",
        findings=findings,
        well=sum(finding.level is Level.OK for finding in findings),
    )


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings, the worst first."""
    levels = (Level.PROBLEM, Level.WARNING, Level.OK)
    return sorted(findings, key=lambda finding: levels.index(finding.level))


def dead_letters(request: Request) -> Response:
    letters, before = client_of(request).dead_letters, request.query_params.get("before", "")
    newest = letters.newest(LETTERS + 1, before if is_entry(before) else "")
    rows = [letter_row(letter) for letter in newest[:LETTERS]]
    older = rows[-1].letter.id if len(newest) > LETTERS else ""
    etag_data = ([row.letter.id for row in rows], older)
    return page(
        request,
        "dead_letters.html",
        etag_data=etag_data,
        rows=rows,
        total=letters.count(),
        older=older,
    )


def letter_row(letter: DeadLetter) -> LetterRow:
    status = UNREADABLE if letter.unreadable else READABLE
    return LetterRow(letter, actions_for(TargetKind.DEAD_LETTER, letter.id, status))


def notices(request: Request) -> Response:
    outbox = client_of(request).notices
    waiting, sent = outbox.waiting(NOTICES)[:NOTICES], outbox.sent(NOTICES)
    return page(request, "notices.html", etag_data=(waiting, sent), waiting=waiting, sent=sent)


ROUTES = [
    Route("/fleet", fleet),
    Route("/fleet/doctor", doctor),
    Route("/fleet/dead", dead_letters),
    Route("/fleet/notices", notices),
]
