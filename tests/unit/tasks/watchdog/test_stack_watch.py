"""Which frames of a stack are shown."""

from __future__ import annotations

import json as a_library
from pathlib import Path

import pytest

from unstuck.tasks.identity import LIBRARIES
from unstuck.tasks.process.stack_dump import RawFrame
from unstuck.tasks.watchdog import stack_watch
from unstuck.tasks.watchdog.stack_watch import SHOWN, chosen, library_of

OURS = Path(stack_watch.__file__).parents[1]
CALLER, WRITES = (
    RawFrame(str(OURS / file), 1, "f") for file in ("steps/execute.py", "steps/work.py")
)
CELERY = RawFrame("/opt/venv/bin/celery", 8, "<module>")
JSON = RawFrame(a_library.__file__, 1, "loads")
REQUESTS, SOCKET = (
    RawFrame(f"{LIBRARIES[0]}{name}", 1, "get") for name in ("requests/api.py", "socket.py")
)
PACKAGED = RawFrame(f"{LIBRARIES[0]}etl/load.py", 5, "load")


def own(line: int) -> RawFrame:
    return RawFrame("/srv/etl.py", line, "step")


def shown(*frames: RawFrame, packages: tuple[str, ...] = ()) -> list[tuple[RawFrame, int]]:
    """The frames that are shown of a stack, which is given outermost first, and how many are left
    out before each.
    """
    return [(frame, len(skipped)) for frame, skipped in chosen(frames[::-1], packages)]


def test_the_user_frames_below_the_step_call_and_the_innermost_frame_are_shown() -> None:
    assert shown(CELERY, CALLER, own(1), own(2)) == [(own(1), 0), (own(2), 0)]
    assert shown(CELERY, CALLER, own(1), REQUESTS, own(2), REQUESTS, JSON, SOCKET) == [
        (own(1), 0),
        (own(2), 1),
        (SOCKET, 2),
    ]


def test_a_stack_without_user_code_shows_the_last_internal_and_the_innermost_frame() -> None:
    assert shown(CELERY, CALLER, WRITES, JSON, SOCKET) == [(WRITES, 0), (SOCKET, 1)]
    assert shown(CELERY, CALLER) == [(CALLER, 0)]


def test_a_package_with_steps_counts_as_user_code_wherever_installed() -> None:
    assert shown(CALLER, PACKAGED, SOCKET, packages=("etl",)) == [(PACKAGED, 0), (SOCKET, 0)]
    assert shown(CALLER, PACKAGED, SOCKET) == [(SOCKET, 1)]


@pytest.mark.parametrize("deep", [SHOWN, 30, 99])
def test_the_first_and_last_frames_of_a_deep_stack_are_shown(deep: int) -> None:
    found = shown(CALLER, *(own(n) for n in range(deep)), SOCKET)
    assert [frame.line for frame, _ in found] == [0, *range(deep - SHOWN + 2, deep), 1]
    assert sum(skipped for _, skipped in found) == deep + 1 - SHOWN


def test_a_stack_too_deep_to_include_the_step_call_is_shown() -> None:
    assert len(shown(*(own(n) for n in range(100)))) == SHOWN - 1


@pytest.mark.parametrize(
    ("file", "library"),
    [
        (REQUESTS.file, "requests"),
        (SOCKET.file, "socket"),
        (WRITES.file, "unstuck"),
        ("/srv/etl.py", "etl"),
        ("<frozen importlib._bootstrap>", "importlib"),
        ("<string>", "string"),
    ],
)
def test_the_library_of_a_file_is_named(file: str, library: str) -> None:
    assert library_of(file) == library
