"""What is told of an error: the traceback begins where the user's own code does."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

import pytest

from unstuck.tasks.errors import Unrecoverable
from unstuck.tasks.protocol import failure
from unstuck.tasks.protocol.failure import describe_in_time

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


def test_the_traceback_in_the_log_begins_with_the_users_own_frames_and_hides_none_after_them() -> None:
    told = describe_in_time(
        raised(OURS, "/lib/py4j/java.py", "/app/mine.py", OURS, "/app/deeper.py", error=ValueError("no"))
    )
    assert files_of(told.whole) == ["/app/mine.py", OURS, "/app/deeper.py"]
    assert told.whole.startswith("Traceback (most recent call last):\n")
    assert told.whole.endswith("ValueError: no")
    assert files_of(told.failure.traceback) == ["/app/mine.py", "/app/deeper.py"]


def test_an_error_that_is_ours_alone_keeps_its_frames_in_the_log() -> None:
    told = describe_in_time(raised(OURS, OURS, error=Unrecoverable("no")))
    assert files_of(told.whole) == [OURS, OURS]
    assert told.failure.traceback == ""
