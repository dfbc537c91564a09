"""Turns an exception of a step into a failure: its code, its sentence and the user's part of the traceback.

Whatever asks the error for something runs code of the step, which may raise or never return (a ``Py4JJavaError`` asks
the JVM), so ``tell`` asks behind a guard and in a thread with a deadline.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unstuck.tasks.errors import Unrecoverable, UnstuckError
from unstuck.tasks.process.deadlines import run_with_deadline
from unstuck.tasks.protocol.report import Failure

MAX_TEXT = 2_000
MAX_TRACEBACK = 8_000
TEXT_WITHIN = 10.0  # seconds that an error has to say what it is
_OURS = str(Path(__file__).parents[1]) + "/"
_NOT_THE_USERS = ("/pyspark/", "/py4j/", "<frozen ", "/concurrent/futures/", "/contextlib.py")
# Past the class of the error and its metaclass, which may define these names as they like.
_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
_FRAMES: Callable[[BaseException], Any] = BaseException.__dict__["__traceback__"].__get__


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of an error. ``whole``: its traceback, for the log. ``hangs``: its text was not to be had."""

    failure: Failure
    whole: str
    hangs: bool = False


def tell(error: BaseException, clean: Callable[[str], str] = str) -> Told:
    """What to tell people of ``error``, after ``TEXT_WITHIN`` seconds at most. Raises nothing of its own.

    ``clean`` takes the secrets out of all that is told.
    """
    said: list[Told] = []

    def ask() -> None:
        said.append(Told(failure_of(error, clean), clean(_whole(error))))

    in_time = run_with_deadline(ask, seconds=TEXT_WITHIN)
    if said:
        return said[0]
    why = "could not be made" if in_time else f"could not be made within {TEXT_WITHIN:g}s"
    text, frames = f"{class_name(error)}: its text {why}", _bare(error)
    failure = Failure("STEP_FAILED", text, not issubclass(type(error), Unrecoverable), _trimmed(frames, text, clean))
    return Told(failure, clean("".join(traceback.format_list(frames)) + text), hangs=True)


def failure_of(error: BaseException, clean: Callable[[str], str] = str) -> Failure:
    """The failure that ``error`` is. Unknown errors are recoverable; ``Unrecoverable`` and its kind are not.

    ``clean`` takes the secrets out, before a text is cut: of one that is cut, neither part is known any more.
    """
    kind = type(error)  # not isinstance, which asks the error for its __class__
    if issubclass(kind, UnstuckError):
        code, text = _ask(lambda: error.code, "STEP_FAILED"), _told(error)  # type: ignore[attr-defined]
    elif issubclass(kind, SystemExit):
        code, text = "STEP_FAILED", f"the step called sys.exit({_told(error, repr)})"
    else:
        code, text = "STEP_FAILED", describe(error)
    trace = trimmed_traceback(error, clean)
    return Failure(code, shorten(clean(text), MAX_TEXT), not issubclass(kind, Unrecoverable), trace)


def outside_of_the_steps(found: Failure, runner: str, changed: str) -> Failure:
    """A failure that no step raised, and that Unstuck does not know. ``changed``: what the steps did to the process."""
    did = f" The steps had changed {changed}." if changed else ""
    text = (
        f"{runner} failed outside of the steps: {found.text}.{did} This runner is replaced, and the group is tried "
        "again; no retry: is used up"
    )
    return replace(found, code="RUNNER_FAILED", text=shorten(text, MAX_TEXT))


def describe(error: BaseException) -> str:
    """``ValueError: no such thing``, whatever class of error it is."""
    return f"{class_name(error)}: {_told(error)}".rstrip(": ")


def class_name(error: BaseException) -> str:
    """The name of its class, without asking the class."""
    return str.__str__(_NAME(type(error)))


def _told(error: BaseException, words: Callable[[Any], str] = str) -> str:
    """``error`` in its own words, or those of the exit code that it carries. Classes of a step may have none."""
    try:
        return str.__str__(words(error.code if issubclass(type(error), SystemExit) else error))  # type: ignore[attr-defined]
    except BaseException as silent:  # noqa: BLE001 - raised by the step's own code; the attempt must have its outcome
        return f"(it has no text: its own {words.__name__}() raised {class_name(silent)})"


def _ask(ask: Callable[[], Any], otherwise: str) -> str:
    """The text that ``ask`` answers; ``otherwise`` if the error has no answer."""
    try:
        return str.__str__(str(ask()))
    except BaseException:  # noqa: BLE001 - raised by the step's own code; the attempt must have its outcome
        return otherwise


def trimmed_traceback(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """The frames of the user's own code; the last three of any, where there is none of theirs. "" without frames."""
    frames = _frames(error)
    if not _own(frames) and issubclass(type(error), UnstuckError):
        return ""  # raised by us about the user's code: the sentence says it all
    return _trimmed(frames, _ask(lambda: "".join(traceback.format_exception_only(error)), describe(error)), clean)


def _trimmed(frames: list[traceback.FrameSummary], text: str, clean: Callable[[str], str]) -> str:
    own = _own(frames) or frames[-3:]
    if not own:
        return ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own), text]
    return shorten(clean("".join(lines).rstrip()), MAX_TRACEBACK)


def _own(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if _users(frame.filename)]


def _users(filename: str) -> bool:
    return not filename.startswith(_OURS) and not any(name in filename for name in _NOT_THE_USERS)


def _whole(error: BaseException) -> str:
    """The traceback of ``error`` from the first frame of the user's code on, with its causes.

    An error that cannot be formatted is shown by its frames and its class.
    """
    bare = "".join(["Traceback (most recent call last):\n", *traceback.format_list(_frames(error)), describe(error)])
    begins = _FRAMES(error)
    while begins is not None and not _users(begins.tb_frame.f_code.co_filename):
        begins = begins.tb_next
    shown = begins or _FRAMES(error)  # an error of ours is shown with our frames
    return _ask(lambda: "".join(traceback.format_exception(type(error), error, shown)).rstrip(), bare)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(_FRAMES(error)))


def _bare(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames without their lines of source, which are read from files and may not come either."""
    codes = [(frame.f_code, line) for frame, line in traceback.walk_tb(_FRAMES(error))]
    return [
        traceback.FrameSummary(code.co_filename, line, code.co_name, lookup_line=False, line="") for code, line in codes
    ]


def shorten(text: str, limit: int) -> str:
    """``text`` with its middle left out if it is longer than ``limit``: the beginning and the end say most."""
    if len(text) <= limit:
        return text
    half = (limit - 20) // 2
    return f"{text[:half]}\n… cut …\n{text[-half:]}"
