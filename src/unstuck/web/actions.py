"""The actions of the page: which are legal now, and the requests that take them through the client.

A form that is sent twice acts once. Each answer is the sentence that the command line gives.
"""

from __future__ import annotations

import secrets
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from unstuck.coordinator.command_table import COMMANDS, Answer, Command, TargetKind
from unstuck.coordinator.problems.problem import OPEN, Problem
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.documents.command_answers import CommandAnswer, give
from unstuck.read_model.schedule import ScheduleInfo
from unstuck.tasks.identity import user_here
from unstuck.web.rendering import client_of, page

MOST_REASON = 500  # characters
REMEMBERED = 1000  # actions whose forms may be sent again, and change nothing
PATHS = {
    TargetKind.JOB: "/jobs",
    TargetKind.GROUP: "/jobs",
    TargetKind.SCHEDULE: "/schedules",
    TargetKind.BACKFILL: "/schedules",
    TargetKind.DEAD_LETTER: "/dead",
    TargetKind.PROBLEM: "/problems",
}


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


def actions_for(
    target: TargetKind, subject: str, status: str, group: str = "", states: Collection[str] = ()
) -> list[PageAction]:
    """The commands of the table that are legal now, and that need no more than a click.

    Args:
        subject: names the target, or the job of a ``group``; ``status``: of it.
        states: of the group, or of its members.
    """
    fields = {"group": group} if group else {}
    return [
        PageAction(
            _label(command.method),
            command.help,
            f"{PATHS[target]}/{quote(subject, safe='')}/{command.name}",
            shlex.join([*command.words, subject, *fields.values()]),
            command.ends,
            any(argument.name == "reason" for argument in command.arguments),
            tuple(fields.items()),
        )
        for command in COMMANDS[target].values()
        if on_page(command)
        and status in command.legal
        and (target is not TargetKind.GROUP or command.legal_groups & {*states})
    ]


def job_actions(job: str, status: str, advice: Collection[str]) -> list[PageAction]:
    """The actions for a job. ``advice``: the commands of its explanation, which name a retry where
    one helps.
    """
    actions = actions_for(TargetKind.JOB, job, status)
    return [action for action in actions if action.label != "Retry" or action.command in advice]


def on_page(command: Command) -> bool:
    """It has no required argument but the group, so a button is enough."""
    return all(arg.name == "group" for arg in command.arguments if arg.required)


def schedule_actions(schedule: ScheduleInfo) -> list[PageAction]:
    """Return the actions that are legal for a schedule in its state, and for its backfill."""
    actions = actions_for(TargetKind.SCHEDULE, schedule.name, schedule.status)
    if schedule.backfill is not None:
        actions += actions_for(TargetKind.BACKFILL, schedule.name, schedule.backfill.status)
    return actions


def problem_actions(problem: Problem) -> list[PageAction]:
    """Return the actions for a problem, if nobody has acknowledged it."""
    if problem.acknowledged is not None:
        return []
    return actions_for(TargetKind.PROBLEM, problem.id, OPEN)


def _label(method: str) -> str:
    return method.replace("_", " ").capitalize()


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


def _to_target(command: Command, request: Request) -> Response:
    subject = request.path_params["subject"]
    fields = {
        argument.name: request.scope["unstuck.form"].get(argument.name, "")
        for argument in command.arguments
        if argument.required
    }

    def act(who: str, reason: str) -> Answered:
        about = {"reason": reason, "by": who}
        taken = {arg.name: about[arg.name] for arg in command.arguments if arg.name in about}
        done = give(client_of(request), command, subject, fields | taken)
        return Answered(done.answer == Answer.REFUSED, done.text, _page_after(command, done))

    return _answer(request, [*command.words[1:], subject, *fields.values()], act)


def _page_after(command: Command, done: CommandAnswer) -> str:
    """Return the page that shows what a command has changed."""
    if command.target is TargetKind.PROBLEM:
        return "/"
    if command.target is TargetKind.DEAD_LETTER:
        return "/fleet/dead"
    if isinstance(done, ScheduleResult) and done.status is None:
        return PATHS[command.target]
    return f"{PATHS[command.target]}/{quote(done.target, safe='')}"


ROUTES = [
    # The id of a problem has slashes.
    Route(f"{path}/{{subject:path}}/{command.name}", partial(_to_target, command), methods=["POST"])
    for target, path in PATHS.items()
    for command in COMMANDS[target].values()
    if on_page(command)
]
