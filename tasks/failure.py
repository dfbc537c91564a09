"""From an exception to a failure: the code, the sentence and the part of the traceback that is the user's.

Pure. The whole traceback is in the attempt's log; what is made here travels in a record and is read at a glance.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.errors import Unrecoverable, UnstuckError
from tasks.report import Failure

MAX_TEXT = 2_000
MAX_TRACEBACK = 8_000
_OURS = str(Path(__file__).parent) + "/"
_NOT_THE_USERS = ("/pyspark/", "/py4j/", "<frozen ", "/concurrent/futures/", "/contextlib.py")


def failure_of(error: BaseException, clean: Callable[[str], str] = str) -> Failure:
    """What to tell people of ``error``. Unknown errors are recoverable; ``Unrecoverable`` and its kind are not.

    ``clean`` takes the secrets out, before a text is cut: of one that is cut, neither part is known any more.
    """
    if isinstance(error, UnstuckError):
        code, text = str(error.code), _told(error)
    elif isinstance(error, SystemExit):
        code, text = "STEP_FAILED", f"the step called sys.exit({_told(error, repr)})"
    else:
        code, text = "STEP_FAILED", f"{type(error).__name__}: {_told(error)}".rstrip(": ")
    trace = trimmed_traceback(error, clean)
    return Failure(code, shorten(clean(text), MAX_TEXT), not isinstance(error, Unrecoverable), trace)


def _told(error: BaseException, words: Callable[[Any], str] = str) -> str:
    """``error`` in its own words, or those of the exit code that it carries. Classes of a step may have none."""
    try:
        return words(error.code if isinstance(error, SystemExit) else error)
    except Exception as silent:  # noqa: BLE001 - raised by the step's own code; the attempt must have its outcome
        return f"(it has no text: its own {words.__name__}() raised {type(silent).__name__})"


def trimmed_traceback(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """The frames of the user's own code; the last three of any, where there is none of theirs. "" without frames."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_OURS) and not any(n in f.filename for n in _NOT_THE_USERS)]
    if not own:
        if isinstance(error, UnstuckError):
            return ""  # raised by us about the user's code: the sentence says it all
        own = list(frames[-3:])
    if not own:
        return ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
    lines += traceback.format_exception_only(error)
    return shorten(clean("".join(lines).rstrip()), MAX_TRACEBACK)


def shorten(text: str, limit: int) -> str:
    """``text`` with its middle left out if it is longer than ``limit``: the beginning and the end say most."""
    if len(text) <= limit:
        return text
    half = (limit - 20) // 2
    return f"{text[:half]}\n… cut …\n{text[-half:]}"
