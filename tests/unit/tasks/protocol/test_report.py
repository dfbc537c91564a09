"""An outcome that nobody could store and read back is refused when it is read."""

from __future__ import annotations

import json

import pytest

from unstuck.tasks.errors import Malformed
from unstuck.tasks.protocol.report import Outcome


@pytest.mark.parametrize("rows", ["many", None, 1.5, True, [1]])
def test_a_row_count_that_is_not_an_integer_invalidates_the_outcome(rows: object) -> None:
    with pytest.raises(Malformed, match="not an outcome"):
        Outcome.from_json(json.dumps({"kind": "succeeded", "rows": {"out": rows}}))


def test_an_outcome_is_read_back_unchanged() -> None:
    outcome = Outcome.from_json(json.dumps({"kind": "succeeded", "rows": {"out": 3}}))
    assert Outcome.from_json(outcome.to_json()) == outcome
