"""Progress that is none, as a step of an older worker may have left it in a record."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import ByHand, Cli

pytestmark = pytest.mark.variant


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        ({"done": float("nan"), "total": 5}, "running step 1/2 counting"),
        ({"done": float("inf"), "total": float("inf")}, "running step 1/2 counting"),
        ({"done": "50%", "total": 5, "rows": "many"}, "running step 1/2 counting"),
        ({"done": 3, "total": -5}, "running 3 step 1/2 counting"),
    ],
)
def test_invalid_progress_is_hidden_and_valid_progress_is_shown(
    cli: Cli, hand: ByHand, value: dict[str, Any], drawn: str
) -> None:
    job = hand.submit({"name": "only"})
    hand.decide(job)
    hand.progress(hand.claim(job, "only"), step=1, steps=2, label="counting", **value)
    line = next(line for line in cli("show", job).stdout.splitlines() if "● only" in line)
    assert drawn in re.sub(" +", " ", line)
    for strange in ("nan", "inf", "%", "-5", "many"):
        assert strange not in line
    assert cli("why", job).returncode == 0

    def no_json(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    shown = json.loads(cli("show", job, "--json").stdout, parse_constant=no_json)
    progress = shown["groups"][0]["members"][0]["progress"]
    assert progress["label"] == "counting"
    assert progress.get("done") in (None, 3)
    assert progress.get("total") is None
