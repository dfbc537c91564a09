"""Values that a step hands out: what is taken, what is refused with its name, and what people are
shown of the rest.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unstuck.coordinator.spec.condition import evaluate
from unstuck.tasks.errors import OutputInvalid, Unrecoverable
from unstuck.tasks.frames.output import is_any_frame
from unstuck.tasks.protocol.failure import failure_of
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.logs.attempt_log import AttemptLog
from unstuck.tasks.steps.context import MAX_DEPTH, Scratch, StepContext
from unstuck.tasks.steps.work import Work
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Marker, find_done_marker, write_marker

Shown = list[tuple[Any, Any]]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(Files(str(tmp_path)), Token("job", "g", 1, "n", "c"), None, {})


@pytest.fixture
def shown() -> Shown:
    """What was reported of how far the step is."""
    return []


@pytest.fixture
def ctx(work: Work, shown: Shown, tmp_path: Path) -> StepContext:
    return StepContext(
        work,
        {},
        log=logging.getLogger(f"step of {tmp_path.name}"),  # which no other test has set up
        scratch=Scratch(tmp_path),
        is_cancelled=lambda: False,
        report=lambda done, total: shown.append((done, total)),
    )


class ValueWithoutText:
    """Of a class of the step's own: it has neither a number nor a text."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


# -- progress --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ((3, 10), (3, 10)),
        ((np.int64(3), np.float32(10)), (3, 10.0)),
        ((np.array(3), True), (3, 1)),
        ((Decimal("2.5"), Fraction(7, 2)), (2.5, 3.5)),
        ((15, 10), (15, 10)),
        ((3,), (3, None)),
        ((3, 0), (3, None)),
        ((3, -1), (3, None)),
        ((3, float("inf")), (3, None)),
    ],
)
def test_any_number_is_valid_progress_and_a_missing_total_is_unknown(
    ctx: StepContext,
    shown: Shown,
    caplog: pytest.LogCaptureFixture,
    said: tuple[Any, ...],
    seen: tuple[Any, Any],
) -> None:
    ctx.progress(*said)
    assert shown == [seen]
    assert json.loads(json.dumps(seen)) == list(seen)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("said", "seen", "named"),
    [
        ((float("nan"), 5), [], "done=nan"),
        ((float("inf"), float("inf")), [], "done=inf"),
        (("50%",), [], "done='50%'"),
        ((b"50", 100), [], "done=b'50'"),
        ((None, 5), [], "done=(NoneType)"),
        ((10**400, 5), [], "done=(int)"),
        ((Decimal("sNaN"), 5), [], "done=(Decimal)"),
        ((np.array([1, 2]), 5), [], "done=(ndarray)"),
        (
            (ValueWithoutText(), ValueWithoutText()),
            [],
            "done=(ValueWithoutText), total=(ValueWithoutText)",
        ),
        ((3, "10"), [(3, None)], "total='10'"),
        ((3, float("nan")), [(3, None)], "total=nan"),
    ],
)
def test_invalid_progress_is_logged_once_and_fails_no_step(
    ctx: StepContext,
    shown: Shown,
    caplog: pytest.LogCaptureFixture,
    said: tuple[Any, ...],
    seen: Shown,
    named: str,
) -> None:
    caplog.set_level(logging.INFO)  # also where another test has left logging off
    for _ in range(3):
        ctx.progress(*said)
    assert shown == seen * 3
    (record,) = caplog.records
    assert f"wants numbers and got {named}, which is not shown" in record.getMessage()


# -- results ---------------------------------------------------------------------------------------


def test_numpy_numbers_are_accepted_as_results(ctx: StepContext, work: Work) -> None:
    ctx.result("rows", np.int64(3))
    ctx.result("mean", {"price": np.float32(0.5), "weights": [np.float64(1.5)]})
    ctx.result("whole", np.bool_(True))
    assert work.results == {"rows": 3, "mean": {"price": 0.5, "weights": [1.5]}, "whole": True}
    assert (
        evaluate("results.g.rows == 3 and results.g.whole", {}, lambda _: work.results).holds
        is True
    )


def kind(value: Any) -> str:
    return type(value).__name__


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.float32("nan"), "not JSON compliant"),
        ({"at": float("inf")}, "not JSON compliant"),
        (datetime.date(2013, 1, 1), "it holds a date"),
        ([np.datetime64("2013-01-01")], "it holds a datetime64"),
        (Decimal("2.50"), "it holds a Decimal"),
        (np.array([1, 2]), "it holds a ndarray"),
        ({("a", 1): 2}, "keys must be str"),
        (10**5000, "digits"),
        (ValueWithoutText(), "it holds a ValueWithoutText"),
        ("half a character: \ud800", "surrogates not allowed"),
        (nested(MAX_DEPTH + 1), "more than 100 lists and mappings in one another"),
    ],
    ids=kind,
)
def test_an_invalid_result_is_reported_with_the_expected_form(
    ctx: StepContext, work: Work, value: Any, says: str
) -> None:
    with pytest.raises(OutputInvalid, match="the result 'strange' is not a JSON value: ") as caught:
        ctx.result("strange", value)
    assert says in str(caught.value)
    assert (
        "Expected: text, a finite number, true, false, none, or a list or mapping of these"
        in str(caught.value)
    )
    assert work.results == {}


@pytest.mark.parametrize(
    "value", [nested(MAX_DEPTH), 10**4000, "\0 \ud83d\ude00", 5e-324, {1: None}], ids=kind
)
def test_an_accepted_result_reaches_marker_record_and_user(
    ctx: StepContext, work: Work, value: Any
) -> None:
    ctx.result("odd", value)
    made = Marker("job/g/1/n/c", "f", {}, {}, work.results, 0.0)
    write_marker(work.files, work.token.staging, made)
    found = find_done_marker(work.files, "_staging/job/g", lambda one: one.fingerprint == "f")
    assert found is not None
    assert found[1].results == work.results
    outcome = Outcome(OutcomeKind.SUCCEEDED, results=work.results)
    assert Outcome.from_json(outcome.to_json()).results == work.results
    json.dumps(work.results, indent=2, allow_nan=False)
    assert evaluate("results.g.odd == none", {}, lambda _: work.results).holds is False


def test_an_output_name_must_be_text(ctx: StepContext) -> None:
    with pytest.raises(OutputInvalid, match=r"wants a name of letters, digits and _ .* not 5"):
        ctx.output(5).write(None)  # type: ignore[arg-type]


# -- errors and lines of the log -------------------------------------------------------------------


class ErrorWithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_message_is_reported_as_such() -> None:
    assert (
        failure_of(ErrorWithoutText()).text
        == "ErrorWithoutText: (it has no text: asking for it raised RuntimeError)"
    )
    assert (
        "(it has no text: asking for it raised RuntimeError)"
        in failure_of(SystemExit(ValueWithoutText())).text
    )


def test_the_code_of_a_step_error_is_always_text() -> None:
    class Ours(Unrecoverable):
        code = 42  # type: ignore[assignment]

    failure = failure_of(Ours("no"))
    assert (
        Outcome.from_json(Outcome(OutcomeKind.FAILED, failure=failure).to_json()).failure == failure
    )


def test_an_unformattable_log_line_is_logged_with_its_place_and_fails_no_step(
    tmp_path: Path,
) -> None:
    log = AttemptLog(Files(str(tmp_path)), "_staging/j/job.logs/g.1-n-c.log")
    with log.open():
        log.logger.info("%d rows", "many")
        log.logger.info("%s", ValueWithoutText())
        log.logger.info(ValueWithoutText())
    assert log.path is not None
    first, second, third = log.path.read_text().splitlines()
    assert f"%d rows (this line cannot be put together, see {Path(__file__).name}:" in first
    assert first.endswith("TypeError)")
    assert "%s (this line" in second
    assert "a ValueWithoutText (this line" in third


def test_frames_are_recognized_after_a_step_replaced_isinstance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pyspark.sql  # noqa: F401 - as in a process that has run Spark

    def broken(*_: object) -> bool:
        raise ZeroDivisionError("patched by a step")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.isinstance", broken)
        frames = [is_any_frame(value) for value in (None, 5, "text")]
    assert frames == [False, False, False]


def test_a_forked_child_of_a_step_uses_the_same_scratch_folder(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        if (child := os.fork()) == 0:
            (scratch.folder / "made").touch()
            os._exit(0)
        os.waitpid(child, 0)
        assert (scratch.folder / "made").exists()
    assert list(tmp_path.iterdir()) == []
