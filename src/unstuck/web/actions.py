"""The actions of the page: which are legal now, and the requests that take them through the client.

A form that is sent twice acts once. Each answer is the sentence that the command line gives.
"""

from __future__ import annotations

import secrets
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from unstuck.client.retry_answer import retry_job
from unstuck.coordinator.commands.job_commands import (
    GROUPS_LEGAL,
    LEGAL,
    MEANS,
    Answer,
    Command,
)
from unstuck.coordinator.errors import NoSuchReport
from unstuck.coordinator.model.status import GROUP_MOVES_REQUESTED, GroupState, Status
from unstuck.coordinator.schedules import schedule_commands
from unstuck.coordinator.schedules.schedule_commands import ScheduleCommand, legal_commands
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.coordinator.store.dead_letter_store import DeadLetterAnswer
from unstuck.tasks.identity import user_here
from unstuck.web.rendering import client_of, page

T = TypeVar("T", bound=str)
MOST_REASON = 500  # characters
REMEMBERED = 1000  # actions whose forms may be sent again, and change nothing
ENDS = (Command.STOP, Command.CANCEL, Command.FORCE_STOP, ScheduleCommand.STOP)


@dataclass(frozen=True, slots=True)
class PageAction:
    """A button: its name and meaning, where its form goes, and the command line that does the same.

    Attributes:
        ends: it ends something that does not come back.
        fields: that the form sends beside the reason.
    """

    label: str
    means: str
    href: str
    command: str
    ends: bool = False
    takes_reason: bool = True
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """The same at each look, so that an open form is found again."""
        return "-".join(("action", self.href, *(value for _, value in self.fields)))


def job_actions(job: str, status: Status, advice: Collection[str]) -> list[PageAction]:
    """Return the actions that are legal for a job in this status, by the table of the command line.

    Args:
        advice: the commands of its explanation, which name a retry where one is legal.
    """
    actions = [
        PageAction(
            _label(command),
            MEANS[command],
            _job(job, command),
            shlex.join(["unstuck", command, job]),
            command in ENDS,
        )
        for command in Command
        if status in LEGAL[command]
    ]
    retry = shlex.join(["unstuck", "retry", job])
    if retry in advice:
        means = "Make a new job of this one. Finished work is taken over."
        actions.append(PageAction("Retry", means, _job(job, "retry"), retry))
    return actions


def group_actions(
    job: str, status: Status, group: str, states: Iterable[GroupState]
) -> list[PageAction]:
    """The same for a group, a fork or one member of it; ``states``: of the group, or of its
    members.
    """
    if status not in GROUPS_LEGAL:
        return []
    actions: list[PageAction] = []
    present_states = set(states)
    for word, leads_to, means in (
        ("skip", GroupState.SKIPPED, "Skip it. The groups after it go by their join rules."),
        ("rerun", GroupState.WAITING, "Run it again, and everything after it."),
    ):
        if any((state, leads_to) in GROUP_MOVES_REQUESTED for state in present_states):
            command = shlex.join(["unstuck", word, job, group])
            actions.append(
                PageAction(
                    _label(word), means, _job(job, word), command, fields=(("group", group),)
                )
            )
    return actions


def schedule_actions(view: ScheduleView) -> list[PageAction]:
    """The actions that are legal for a schedule as it stands."""
    schedule = view.schedule
    return [
        PageAction(
            _label(command),
            schedule_commands.MEANS[command],
            f"/schedules/{quote(schedule.name, safe='')}/{command}",
            shlex.join(["unstuck", "schedule", command, schedule.name]),
            command in ENDS,
        )
        for command in legal_commands(schedule.status)
    ]


def dead_letter_actions(letter: str, *, unreadable: bool = False) -> list[PageAction]:
    """The actions for a dead letter; one that is ``unreadable`` can only be dropped."""
    words = [("drop", "Remove it for good.")]
    if not unreadable:
        words.insert(0, ("replay", "Put it back, for a coordinator to apply or to send."))
    return [
        PageAction(
            _label(word),
            means,
            f"/dead/{quote(letter, safe='')}/{word}",
            shlex.join(["unstuck", "dead", word, letter]),
            ends=word == "drop",
            takes_reason=False,
        )
        for word, means in words
    ]


def _label(word: str) -> str:
    return word.replace("-", " ").capitalize()


def _job(job: str, word: str) -> str:
    return f"/jobs/{quote(job, safe='')}/{word}"


def by(request: Request) -> str:
    """The name for the event log: of the person who is logged in, else of the user who runs the
    page.
    """
    return f"{request.scope['unstuck.user'] or user_here()} (page)"


@dataclass(frozen=True, slots=True)
class Answered:
    """How an action ended: whether it was refused, its sentence, and the page that shows what it
    changed.
    """

    refused: bool
    text: str
    to: str


class Answers:
    """How the last actions ended, by the id of their form."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Future[Answered]] = OrderedDict()

    def once(self, form: str, act: Callable[[], Answered]) -> Answered:
        """The answer to ``form``, which is acted on once; if that raises, it may be sent again."""
        with self._lock:
            answer = self._answers.get(form)
            mine = answer is None
            answer = self._answers.setdefault(form, Future())
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        if mine:
            try:
                answer.set_result(act())
            except BaseException as error:
                with self._lock:
                    self._answers.pop(form, None)
                answer.set_exception(error)
                raise
        return answer.result()

    def text(self, form: str) -> str:
        """The sentence of an answer; empty if there is none."""
        answer = self._answers.get(form)
        return (
            answer.result().text
            if answer is not None and answer.done() and answer.exception() is None
            else ""
        )


def _answer(request: Request, command: list[str], act: Callable[[str, str], Answered]) -> Response:
    """Take an action. ``command``: the one that does the same.

    ``act`` is given who asks, and why.
    """
    form: dict[str, str] = request.scope["unstuck.form"]
    if request.app.state.read_only:
        text = (
            "The page is read only: nothing was done. The command is "
            f"{shlex.join(['unstuck', *command])}"
        )
        return page(request, "error.html", status=403, title="Read only", text=text)
    answers: Answers = request.app.state.answers
    once = form.get("once", "")[:100] or secrets.token_hex(8)
    reason = " ".join(form.get("reason", "").split())[:MOST_REASON]
    done = answers.once(f"{request.url.path} {once}", lambda: act(by(request), reason))
    if done.refused:
        return page(request, "error.html", status=409, title="Refused", text=done.text)
    return RedirectResponse(f"{done.to}?said={quote(f'{request.url.path} {once}', safe='')}", 303)


def _to_job(word: Command, request: Request) -> Response:
    job = request.path_params["job"]

    def act(who: str, reason: str) -> Answered:
        done = client_of(request).command(job, word, reason=reason, by=who)
        return Answered(done.answer is Answer.REFUSED, done.text, f"/jobs/{quote(job, safe='')}")

    return _answer(request, [word, job], act)


def _retry(request: Request) -> Response:
    job = request.path_params["job"]

    def act(who: str, reason: str) -> Answered:
        done = retry_job(client_of(request), job, reason=reason, by=who)
        return Answered(
            done.answer is Answer.REFUSED, done.text, f"/jobs/{quote(done.job.id, safe='')}"
        )

    return _answer(request, ["retry", job], act)


def _to_group(word: str, request: Request) -> Response:
    job = request.path_params["job"]
    group = request.scope["unstuck.form"].get("group", "")

    def act(who: str, reason: str) -> Answered:
        client = client_of(request)
        done = (client.skip if word == "skip" else client.rerun)(job, group, reason=reason, by=who)
        return Answered(done.answer is Answer.REFUSED, done.text, f"/jobs/{quote(job, safe='')}")

    return _answer(request, [word, job, group], act)


def _to_schedule(word: ScheduleCommand, request: Request) -> Response:
    name = request.path_params["name"]

    def act(who: str, reason: str) -> Answered:
        done = client_of(request).schedules.command(name, word, reason=reason, by=who)
        return Answered(
            done.answer is Answer.REFUSED, f"{done.text}.", f"/schedules/{quote(name, safe='')}"
        )

    return _answer(request, ["schedule", word, name], act)


def _to_dead_letter(word: str, request: Request) -> Response:
    letter = request.path_params["letter"]

    def act(who: str, _: str) -> Answered:
        letters = client_of(request).dead_letters
        done = (letters.replay if word == "replay" else letters.drop)(letter, by=who)
        if done.word is DeadLetterAnswer.GONE:
            raise NoSuchReport(done.text)
        return Answered(done.word is DeadLetterAnswer.REFUSED, done.text, "/fleet/dead")

    return _answer(request, ["dead", word, letter], act)


def _routes(
    path: str, handler: Callable[[T, Request], Response], words: Iterable[T]
) -> list[Route]:
    return [Route(f"{path}/{word}", partial(handler, word), methods=["POST"]) for word in words]


ROUTES = [
    *_routes("/jobs/{job}", _to_job, Command),
    *_routes("/jobs/{job}", _to_group, ("skip", "rerun")),
    Route("/jobs/{job}/retry", _retry, methods=["POST"]),
    *_routes("/schedules/{name}", _to_schedule, ScheduleCommand),
    *_routes("/dead/{letter}", _to_dead_letter, ("replay", "drop")),
]
