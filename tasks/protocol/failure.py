"""Convert an exception of a step to a failure: code, sentence, and the user's traceback.

Whatever asks the error for something runs code of the step, which may raise or never return (a
``Py4JJavaError`` asks the JVM). So `describe_in_time` asks in a thread with a deadline.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unstuck.tasks.errors import OutOfMemory, Unrecoverable, UnstuckError, lacks_memory
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.protocol.java_text import java_error_text
from unstuck.tasks.protocol.report import Failure

MAX_TEXT = 2_000
MAX_TRACEBACK = 8_000
CUT = "\n… cut …\n"
MAX_NAMES = 30  # of a failure
MAX_NAME = 200  # characters; a longer name is left out
TEXT_WITHIN = 10.0  # seconds that an error has to say what it is
# What Python says of a call whose arguments do not fit the function, by their number and names.
_WRONG_CALL = re.compile(
    r"([\w.<>]+\(\)|function) (takes .*\barguments?\b|missing (\d+ )?required .*\bargument)"
    r"|[\w.<>]+\(\) got (an unexpected keyword|multiple values for|some positional-only) argument"
    r"|[\w.]+ expected (at least |at most )?\d+ arguments?, got \d"
    r"|'\w+' is an invalid keyword argument for "
)
_OURS = str(Path(__file__).parents[1]) + "/"
_NOT_THE_USERS = (
    "/pyspark/",
    "/py4j/",
    "<frozen ",
    "/importlib/__init__.py",
    "/concurrent/futures/",
    "/contextlib.py",
)
# Past the class of the error and its metaclass, which may define these names as they like.
_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
_QUALIFIED: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_MODULE: Callable[[type], object] = type.__dict__["__module__"].__get__
_BASES: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_FRAMES: Callable[[BaseException], Any] = BaseException.__dict__["__traceback__"].__get__
_CAUSE: Callable[[BaseException], BaseException | None] = BaseException.__dict__[
    "__cause__"
].__get__


@dataclass(frozen=True, slots=True)
class DescribedError:
    """An error as text.

    Attributes:
        whole: its traceback, for the log.
        hangs: its text was not available.
    """

    failure: Failure
    whole: str
    hangs: bool = False


def describe_in_time(error: BaseException, clean: Callable[[str], str] = str) -> DescribedError:
    """Describe ``error`` within ``TEXT_WITHIN`` seconds; ``clean`` takes the secrets out.

    Raises nothing of its own.
    """
    described: list[DescribedError] = []

    def ask() -> None:
        described.append(DescribedError(failure_of(error, clean), clean(_whole(error))))

    in_time = run_with_deadline(ask, seconds=TEXT_WITHIN)
    if described:
        return described[0]
    why = "could not be made" if in_time else f"could not be made within {TEXT_WITHIN:g}s"
    text = f"{class_name(error)}: its text {why}"
    codes = [(frame.f_code, line) for frame, line in traceback.walk_tb(_FRAMES(error))]
    # Without their lines of source, which are read from files and may not come either.
    frames = [
        traceback.FrameSummary(code.co_filename, line, code.co_name, lookup_line=False, line="")
        for code, line in codes
    ]
    names = _names(_classes(error))
    failure = Failure(
        "STEP_FAILED", text, _is_recoverable(error), _trimmed(frames, text, clean), names
    )
    return DescribedError(failure, clean("".join(traceback.format_list(frames)) + text), hangs=True)


def failure_of(error: BaseException, clean: Callable[[str], str] = str) -> Failure:
    """Return the failure for ``error``.

    ``clean`` runs before a text is cut, since a part of a secret would not be recognized.
    """
    kind = type(error)  # not isinstance, which asks the error for its __class__
    ours = issubclass(kind, UnstuckError)
    code, text = "STEP_FAILED", describe(error)
    if ours:
        code = _ask(lambda: error.code, code)  # type: ignore[attr-defined]
        text = _ask(lambda: error)
        code = OutOfMemory.code if _is_lack_of_memory(error) else code
    elif issubclass(kind, MemoryError):
        code = OutOfMemory.code
    elif issubclass(kind, SystemExit):
        exit_code = _ask(lambda: repr(error.code))  # type: ignore[attr-defined]
        text = f"the step called sys.exit({exit_code})"
    frames, trace = traceback.extract_tb(_FRAMES(error)), ""
    if not _says_it_all(kind) or _users_frames(frames):
        last = _ask(lambda: "".join(traceback.format_exception_only(error)), describe(error))
        trace = _trimmed(frames, last, clean)
    names = [*_conditions(error), *_classes(error)]
    if ours and (cause := _CAUSE(error)) is not None:  # such as the error of Spark about a SQL text
        names += [*_conditions(cause), _qualified(type(cause))]
    return Failure(
        code, shorten(clean(text), MAX_TEXT), _is_recoverable(error), trace, _names(names)
    )


def _is_recoverable(error: BaseException) -> bool:
    """Whether a retry may help by default. A slip in the code fails the same way each time."""
    return _is_lack_of_memory(error) or (
        not _fails_at_once(type(error)) and not _is_wrong_call(error)
    )


def _is_lack_of_memory(error: BaseException) -> bool:
    """Whether Unstuck took a lack of memory for a fault of the data or of the code."""
    return _MODULE(type(error)) == UnstuckError.__module__ and lacks_memory(error)


def _fails_at_once(kind: type) -> bool:
    return issubclass(kind, Unrecoverable | NameError | SyntaxError)


def _is_wrong_call(error: BaseException) -> bool:
    """Return whether Python refused a call for its arguments; data seldom causes that."""
    # A subclass may define ``args`` differently.
    arguments = error.args if type(error) is TypeError else ()
    return (
        bool(arguments)
        and type(arguments[0]) is str
        and _WRONG_CALL.match(arguments[0]) is not None
    )


def _classes(error: BaseException) -> list[str]:
    """Return the class and its bases.

    For an error that is final, bases such as ``Exception`` that are not are left out.
    """
    kind, every = type(error), _is_recoverable(error)
    return [
        _qualified(base)
        for base in _BASES(kind)[:-1]
        if every or base is kind or _fails_at_once(base)
    ]


def _qualified(kind: type) -> str:
    """``requests.exceptions.Timeout``, but ``TimeoutError`` of what Python itself has."""
    module, name = _MODULE(kind), str.__str__(_QUALIFIED(kind))
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def _conditions(error: BaseException) -> list[str]:
    """Return the condition of a Spark error and its parents.

    An example is ``UNRESOLVED_COLUMN.WITH_SUGGESTION``.
    """
    if not _is_sparks(type(error)):
        return []
    try:
        condition = spark_condition(error)
    except Exception:  # noqa: BLE001
        # This may call the JVM, and an error without a condition is good enough.
        return []
    return [condition, condition.partition(".")[0]] if isinstance(condition, str) else []


def spark_condition(error: Any) -> Any:
    """Return the name of the condition of a Spark error. Spark 3.5 calls it the error class."""
    return (getattr(error, "getCondition", None) or error.getErrorClass)()


def _says_it_all(kind: type) -> bool:
    """Return whether the sentence of such an error is enough, without our and Spark's frames."""
    return issubclass(kind, UnstuckError) or _is_sparks(kind)


def _is_sparks(kind: type) -> bool:
    return any(_qualified(base).startswith("pyspark.") for base in _BASES(kind))


def _names(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if len(name) <= MAX_NAME)[:MAX_NAMES]


def outside_of_the_steps(failure: Failure, runner: str, changed: str) -> Failure:
    """Return the failure for an unknown error outside of the steps.

    ``changed``: what the steps changed in the process.
    """
    did = f" The steps had changed {changed}." if changed else ""
    text = (
        f"{runner} failed outside of the steps: {failure.text}.{did} This runner is replaced, and "
        "the group is tried again; no retry: is used up"
    )
    return replace(failure, code="RUNNER_FAILED", text=shorten(text, MAX_TEXT), recoverable=True)


def describe(error: BaseException) -> str:
    """``ValueError: no such thing``, whatever class of error it is."""
    text = _ask(lambda: error)
    # Its first line names only the call.
    if _qualified(type(error)) == "py4j.protocol.Py4JJavaError":
        text = java_error_text(text)
    return f"{class_name(error)}: {text}".rstrip(": ")


def class_name(error: BaseException) -> str:
    return str.__str__(_NAME(type(error)))


def _ask(ask: Callable[[], object], otherwise: str = "") -> str:
    """The answer as text; ``otherwise``, or who raised, if the step's own code has none."""
    try:
        return str.__str__(str(ask()))
    except BaseException as raised:  # noqa: BLE001
        # The step's own code raised this, and the attempt must have an outcome.
        return otherwise or f"(it has no text: asking for it raised {class_name(raised)})"


def _trimmed(frames: list[traceback.FrameSummary], text: str, clean: Callable[[str], str]) -> str:
    """The frames of the user's own code; the last three of any, where there is none of theirs.

    "" without frames.
    """
    if not (shown := _users_frames(frames) or frames[-3:]):
        return ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown), text]
    return shorten(clean("".join(lines).rstrip()), MAX_TRACEBACK)


def _users_frames(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if _is_users(frame.filename)]


def _is_users(filename: str) -> bool:
    return not filename.startswith(_OURS) and not any(name in filename for name in _NOT_THE_USERS)


def _whole(error: BaseException) -> str:
    """The error with its causes, for the log; at least its frames and its class."""
    bare = "".join(
        [
            "Traceback (most recent call last):\n",
            *traceback.format_tb(_FRAMES(error)),
            describe(error),
        ]
    )
    return _ask(lambda: _told(error), bare)


def _told(error: BaseException) -> str:
    """The error as Python tells it, without what only people who know our code could use."""
    kind, trace = type(error), _traceback(error)
    frames = traceback.extract_tb(_FRAMES(error))
    # Unstuck raised it, not the code of a user.
    if issubclass(kind, UnstuckError) and not (frames and _is_users(frames[-1].filename)):
        trace.__context__ = None
        trace.__cause__ = None if (cause := _CAUSE(error)) is None else _told_cause(cause, error)
        if not trace.stack and trace.__cause__ is None:
            return f"{error.code}: {error}"  # type: ignore[attr-defined]
    return "".join(trace.format()).rstrip()


def _traceback(error: BaseException) -> traceback.TracebackException:
    """Return the traceback from the user's first frame on.

    If the sentence is enough, only the user's frames are included.
    """
    trace = traceback.TracebackException(type(error), error, _FRAMES(error))
    theirs = _users_frames(trace.stack)
    if _says_it_all(type(error)):
        _keep(trace, theirs)
    elif theirs:
        _keep(trace, trace.stack[trace.stack.index(theirs[0]) :])
    return trace


def _told_cause(cause: BaseException, error: BaseException) -> traceback.TracebackException | None:
    """Return the cause of one of our errors, with frames if it was raised by imported user code.

    None if ``error`` is enough.
    """
    trace = _traceback(cause)
    if any(frame.name == "<module>" for frame in _users_frames(trace.stack)):
        return trace
    _keep(trace, [])
    trace.__cause__ = trace.__context__ = None
    return None if _within(cause, error) else trace


def _keep(trace: traceback.TracebackException, frames: list[traceback.FrameSummary]) -> None:
    # Without a stack, there is no heading either.
    stack = traceback.StackSummary.from_list(frames) if frames else None
    trace.stack = stack  # type: ignore[assignment]


def _within(cause: BaseException, error: BaseException) -> bool:
    """Whether the text of ``error`` holds all that ``cause`` says."""
    return (text := _ask(lambda: cause, " ").strip()) != "" and text in _ask(lambda: error)


def shorten(text: str, limit: int) -> str:
    """Cut the middle of ``text`` if it is longer than ``limit``."""
    if len(text) <= limit:
        return text
    half = (limit - 20) // 2
    return f"{text[:half]}{CUT}{text[-half:]}"
