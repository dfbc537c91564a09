"""The actions of the page: the legal commands as buttons, and the requests that run them.

A form that is sent twice acts once. Each answer is the text that the command line prints.
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
REMEMBERED = 1000  # forms that change nothing when they are sent again
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
    """A button with its form, and the equivalent command line.

    Attributes:
        label: the text of the button.
        means: what the command does.
        href: the address to which the form is sent.
        command: the command line.
        ends: whether the command ends something for good.
        takes_reason: whether the form has a field for a reason.
        fields: hidden fields of the form.
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
        """The id of the button, which is the same after each refresh, so that an open form stays
        open.
        """
        return "-".join(("action", self.href, *(value for _, value in self.fields)))


def actions_for(
    target: TargetKind, subject: str, status: str, group: str = "", states: Collection[str] = ()
) -> list[PageAction]:
    """Return the commands of the table that are legal now and need no more than a click.

    Args:
        subject: names the target, or the job of a ``group``.
        status: of the target, or of that job.
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
    """Return the actions for a job.

    Args:
        advice: the commands of its explanation, which contain a retry if one helps.
    """
    actions = actions_for(TargetKind.JOB, job, status)
    return [action for action in actions if action.label != "Retry" or action.command in advice]


def on_page(command: Command) -> bool:
    """Return whether a button is enough: only the group is a required argument."""
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
    """Return the name for the event log: the user who is logged in, or who runs the page."""
    return f"{request.scope['unstuck.user'] or user_here()} (page)"


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of an action.

    Attributes:
        refused: whether the state of the target did not allow it.
        text: the answer for the user.
        to: the address of the page that shows the change.
    """

    refused: bool
    text: str
    to: str


class Answers:
    """The results of the most recent actions, by the id of their form."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Future[Answered]] = OrderedDict()

    def once(self, form: str, act: Callable[[], Answered]) -> Answered:
        """Run ``act`` for the first request with ``form``. If it raises, the form may be sent
        again.
        """
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
        """Return the text of a result; empty if there is none."""
        answer = self._answers.get(form)
        return (
            answer.result().text
            if answer is not None and answer.done() and answer.exception() is None
            else ""
        )


def _answer(request: Request, command: list[str], act: Callable[[str, str], Answered]) -> Response:
    """Run an action.

    Args:
        command: the words of the equivalent command.
        act: receives the user and the reason.
    """
    form: dict[str, str] = request.scope["unstuck.form"]
    if request.app.state.read_only:
        text = (
            "The page is read only; nothing was changed. The command is "
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
