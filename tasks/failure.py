"""From an exception to a failure: the code, the sentence and the part of the traceback that is the user's.

Pure. The whole traceback is in the attempt's log; what is made here travels in a record and is read at a glance.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from tasks.errors import Unrecoverable, UnstuckError
from tasks.report import Failure

MAX_TEXT = 2_000
MAX_TRACEBACK = 8_000
_OURS = str(Path(__file__).parent) + "/"
_NOT_THE_USERS = ("/pyspark/", "/py4j/", "<frozen ", "/concurrent/futures/", "/contextlib.py")


def failure_of(error: BaseException) -> Failure:
    """What to tell people of ``error``. Unknown errors are recoverable; ``Unrecoverable`` and its kind are not."""
    if isinstance(error, UnstuckError):
        code, text = str(error.code), _said(error)
    elif isinstance(error, SystemExit):
        code, text = "STEP_FAILED", f"the step called sys.exit({error.code!r})"
    else:
        code, text = "STEP_FAILED", f"{type(error).__name__}: {_said(error)}".rstrip(": ")
    return Failure(code, shorten(text, MAX_TEXT), not isinstance(error, Unrecoverable), trimmed_traceback(error))


def _said(error: BaseException) -> str:
    """The text of ``error``. Making it is code of whoever wrote the error, and may fail like any other."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - whatever it is, the attempt has failed and must be able to say so
        return f"(its text cannot be made: {type(another).__name__})"


def trimmed_traceback(error: BaseException) -> str:
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
    return shorten("".join(lines).rstrip(), MAX_TRACEBACK)


def shorten(text: str, limit: int) -> str:
    """``text`` with its middle left out if it is longer than ``limit``: the beginning and the end say most."""
    if len(text) <= limit:
        return text
    half = (limit - 20) // 2
    return f"{text[:half]}\n… cut …\n{text[-half:]}"
