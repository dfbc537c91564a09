"""The stop sign, and a runner under it."""

from __future__ import annotations

import os
import select
from types import SimpleNamespace
from typing import Any, cast

from unstuck.tasks.process.shutdown_flag import StopSign, Word
from unstuck.tasks.runner.claim import run


def test_everybody_sees_what_was_said_and_nobody_takes_it_from_the_others() -> None:
    sign = StopSign.make()
    lookers = [StopSign(os.dup(sign.looking)) for _ in range(3)]
    seen = []
    for word in (Word.WORK, Word.STOP, Word.STOP, Word.STOP_NOW, Word.STOP):
        sign.say(word)
        seen.append({looker.word for looker in lookers})
    assert seen == [{Word.WORK}, {Word.STOP}, {Word.STOP}, {Word.STOP_NOW}, {Word.STOP_NOW}]
    late = StopSign(os.dup(sign.looking))
    assert late.word is Word.STOP_NOW


def test_a_sign_whose_worker_has_died_says_nothing() -> None:
    looking, raising = os.pipe()
    os.close(raising)
    assert select.select([looking], [], [], 0)[0], "it can be read: the end of the pipe"
    assert StopSign(looking).word is Word.WORK


def test_a_runner_whose_worker_stops_leaves_the_hint_to_others() -> None:
    """It has no store: any try to claim would raise."""
    leash = SimpleNamespace(taken=lambda: None)
    assert run(cast(Any, SimpleNamespace(stopping=True, leash=leash)), "job/group/1/nonce") == "STOPPING"
