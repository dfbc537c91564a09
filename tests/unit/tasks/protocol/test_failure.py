"""What is told of an error: the traceback begins where the user's own code does."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from unstuck.tasks.errors import OutputInvalid, SqlInvalid, StepNotFound, Unrecoverable
from unstuck.tasks.protocol import failure
from unstuck.tasks.protocol.failure import describe_in_time
from unstuck.tasks.steps.execute import find

OURS = failure.__file__


def raised(*files: str, error: Exception) -> Exception:
    """``error``, raised through a function of each of ``files``, the outermost first."""

    def end() -> None:
        raise error

    inner: Callable[[], None] = end
    inner.__code__ = moved(end.__code__, files[-1])  # type: ignore[attr-defined]
    for file in reversed(files[:-1]):
        inner = within(inner, file)
    with pytest.raises(type(error)):
        inner()
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without the frame of this function


def within(inner: Callable[[], None], file: str) -> Callable[[], None]:
    def call() -> None:
        inner()

    call.__code__ = moved(call.__code__, file)
    return call


def moved(code: CodeType, file: str) -> CodeType:
    return code.replace(co_filename=file, co_name=file.rpartition("/")[2])


def files_of(trace: str) -> list[str]:
    return [line.split('"')[1] for line in trace.splitlines() if line.startswith("  File ")]


def test_the_logged_traceback_starts_with_user_frames_and_is_complete_after_them() -> None:
    told = describe_in_time(
        raised(
            OURS,
            "/lib/py4j/java.py",
            "/app/mine.py",
            OURS,
            "/app/deeper.py",
            error=ValueError("no"),
        )
    )
    assert files_of(told.whole) == ["/app/mine.py", OURS, "/app/deeper.py"]
    assert told.whole.startswith("Traceback (most recent call last):\n")
    assert told.whole.endswith("ValueError: no")
    assert files_of(told.failure.traceback) == ["/app/mine.py", "/app/deeper.py"]


def test_an_unstuck_error_is_logged_as_its_message_with_user_frames() -> None:
    told = describe_in_time(raised(OURS, OURS, error=Unrecoverable("no")))
    assert (told.whole, told.failure.traceback) == ("UNRECOVERABLE: no", "")
    told = describe_in_time(raised(OURS, "/app/mine.py", OURS, error=Unrecoverable("no")))
    assert files_of(told.whole) == files_of(told.failure.traceback) == ["/app/mine.py"]


def test_a_spark_query_error_is_logged_as_its_message_with_user_frames() -> None:
    told = describe_in_time(
        raised(OURS, "/lib/pyspark/sql/dataframe.py", error=OfSpark("no such row"))
    )
    assert (files_of(told.whole), told.failure.traceback) == ([], "")
    assert told.whole.endswith("AnalysisException: no such row")
    told = describe_in_time(
        raised("/app/mine.py", "/lib/pyspark/sql/dataframe.py", error=OfSpark("no such row"))
    )
    assert files_of(told.whole) == ["/app/mine.py"]


def test_an_unexpected_error_without_user_frames_keeps_all_frames() -> None:
    assert files_of(describe_in_time(raised(OURS, OURS, error=KeyError("no"))).whole) == [
        OURS,
        OURS,
    ]


def test_a_module_that_cannot_be_imported_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_steps.py").write_text("import nosuch_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def told_of(name: str) -> str:
        with pytest.raises(StepNotFound) as refused:
            find(name, ())
        return describe_in_time(refused.value.with_traceback(None)).whole

    assert files_of(told_of("broken_steps:f")) == [str(tmp_path / "broken_steps.py")]
    assert told_of("nowhere_steps:f").startswith(
        "STEP_NOT_FOUND: nowhere_steps:f cannot be imported"
    )


def test_the_causes_of_an_error_raised_by_user_code_are_reported() -> None:
    theirs = Unrecoverable("give up")
    theirs.__cause__ = raised("/app/mine.py", "/lib/json/decoder.py", error=KeyError("x"))
    whole = describe_in_time(raised(OURS, "/app/mine.py", error=theirs)).whole
    assert files_of(whole) == ["/app/mine.py", "/lib/json/decoder.py", "/app/mine.py"]


def test_internal_causes_of_an_error_raised_by_unstuck_are_omitted() -> None:
    ours = OutputInvalid("it is no JSON value: it holds a set")
    ours.__cause__ = raised(OURS, "/lib/json/encoder.py", error=TypeError("it holds a set"))
    assert files_of(describe_in_time(raised("/app/mine.py", OURS, error=ours)).whole) == [
        "/app/mine.py"
    ]
    ours = OutputInvalid("it cannot be stored")
    ours.__cause__ = raised(OURS, error=TypeError("what the sentence leaves out"))
    ours.__cause__.__context__ = raised(OURS, error=KeyError("x"))
    whole = describe_in_time(raised("/app/mine.py", OURS, error=ours)).whole
    assert (files_of(whole), "TypeError: what the sentence leaves out" in whole) == (
        ["/app/mine.py"],
        True,
    )


@pytest.mark.parametrize(
    "said", ["no such column", "no such column\n'Project ['a]\n+- Relation [b]"]
)
def test_an_error_that_repeats_its_cause_is_logged_once(said: str) -> None:
    """The plan of a wrong query stood in the log twice: from Spark, and from the error of ours that
    it caused.
    """
    ours = SqlInvalid(f"the query is wrong: {said}")
    ours.__cause__ = raised("/lib/pyspark/session.py", error=ValueError(f"{said}\n"))
    whole = describe_in_time(raised(OURS, error=ours)).whole
    assert (whole.count(said), whole.count("Traceback")) == (1, 0)
    ours = SqlInvalid("the query is wrong")
    ours.__cause__ = ValueError(said)
    assert describe_in_time(ours).whole.count(said) == 1, "what the cause alone says is not lost"


class FlakyConnection(ConnectionError):
    pass


class OfSpark(Exception):
    def getCondition(self) -> str:
        return "UNRESOLVED_COLUMN.WITH_SUGGESTION"


OfSpark.__module__ = "pyspark.errors.exceptions.captured"
OfSpark.__qualname__ = "AnalysisException"
SPARKS = (
    "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    "UNRESOLVED_COLUMN",
    "pyspark.errors.exceptions.captured.AnalysisException",
)


def about_sql() -> SqlInvalid:
    error = SqlInvalid("no such column")
    error.__cause__ = OfSpark()
    return error


@pytest.mark.parametrize(
    ("error", "recoverable", "names"),
    [
        (
            FlakyConnection(),
            True,
            (
                f"{__name__}.FlakyConnection",
                "ConnectionError",
                "OSError",
                "Exception",
                "BaseException",
            ),
        ),
        (SystemExit(1), True, ("SystemExit", "BaseException")),
        (
            TypeError("'NoneType' object is not iterable"),
            True,
            ("TypeError", "Exception", "BaseException"),
        ),
        (TypeError(OfSpark()), True, ("TypeError", "Exception", "BaseException")),
        (OfSpark(), True, (*SPARKS, "Exception", "BaseException")),
        # What fails at once by default is named by its own kind alone: `Exception` does not speak
        # for it.
        (TypeError("f() missing 1 required positional argument: 'day'"), False, ("TypeError",)),
        (NameError("x"), False, ("NameError",)),
        (UnboundLocalError("x"), False, ("UnboundLocalError", "NameError")),
        (IndentationError("x"), False, ("IndentationError", "SyntaxError")),
        (
            about_sql(),
            False,
            ("unstuck.tasks.errors.SqlInvalid", "unstuck.tasks.errors.Unrecoverable", *SPARKS),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_failure_lists_the_names_usable_in_retry_on(
    error: BaseException, recoverable: bool, names: tuple[str, ...]
) -> None:
    told = describe_in_time(error).failure
    assert (told.recoverable, told.names) == (recoverable, names)


def two(a: Any, b: Any) -> None:
    """Is called in ways that do not fit."""


@pytest.mark.parametrize(
    ("call", "recoverable"),
    [
        ("two(1)", False),
        ("two(1, 2, 3)", False),
        ("two(1, 2, c=3)", False),
        ("two(1, a=2)", False),
        ("(lambda x: x)()", False),
        ("object(1)", False),
        ("len()", False),
        ("range()", False),
        ("int(1, 2, 3)", False),
        ("datetime.date()", False),
        ("print(1, seq='')", False),
        # These come from values, which may be others the next time.
        ("int(None)", True),
        ("len(3)", True),
        ("1 + 'a'", True),
        ("''.join([1])", True),
        ("'%s %s' % (1,)", True),
    ],
)
def test_a_call_with_mismatched_arguments_is_a_programming_error(
    call: str, recoverable: bool
) -> None:
    with pytest.raises(TypeError) as raised:
        eval(call, {"two": two, "datetime": datetime})
    assert describe_in_time(raised.value).failure.recoverable is recoverable, str(raised.value)


def test_error_names_are_limited_in_length_and_number() -> None:
    deep: type[Exception] = Exception
    for n in range(50):
        deep = type(f"Level{n}", (deep,), {})
    assert len(describe_in_time(deep()).failure.names) == 30
    assert describe_in_time(type("N" * 1000, (NameError,), {})()).failure.names == ("NameError",)
