"""Define ``ctx``, all that user code sees of Unstuck at run time. Its names must not change.

A step cannot reach Redis, the lease or the files of another attempt through it.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.steps.step_params import Params, looked_at
from unstuck.tasks.steps.work import Work
from unstuck.tasks.warehouse.marker import StagedOutput

MAX_RESULTS = 64 * 1024  # bytes of JSON, of all results of an attempt
# Levels of lists and mappings in a result; what reads and writes it stops at some depth beyond.
MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """The place to write one output."""

    name: str
    _write: Callable[[str, Any], StagedOutput]

    def write(self, frame: Any) -> int:
        """Stage a Spark, Arrow or pandas frame as this output, once. Return its number of rows.

        Raises:
            OutputInvalid: written twice, or a frame that cannot be stored.
            RuleInvalid, TooManyRejectedRows, RowsOutside, ExpectationFailed: its rows are not what
                the spec asks for.
        """
        return self._write(self.name, frame).rows


class Scratch:
    """A local folder that is created at first use and removed at the end of the block."""

    def __init__(self, parent: Path) -> None:
        """``parent`` is made as well, and stays."""
        # The name is made at once: a child that a step forks has the same folder.
        self._path = parent / f"scratch-{secrets.token_hex(4)}"

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path.exists():
            shutil.rmtree(self._path, ignore_errors=True)

    @property
    def folder(self) -> Path:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._path.mkdir(mode=0o700, exist_ok=True)
        return self._path


class StepContext:
    """The context ``ctx`` of one step.

    Attributes:
        params: the job's, the group's, the fork's and the step's own parameters, with references
            resolved; read-only.
        token: ``job/group/epoch/nonce/claimant``; an idempotency key for what a step does
            elsewhere.
        log: a standard logger; its lines are in ``unstuck logs``.
    """

    def __init__(
        self,
        work: Work,
        params: Mapping[str, Any],
        *,
        log: logging.Logger,
        scratch: Scratch,
        is_cancelled: Callable[[], bool],
        report: Callable[[float, float | None], None],
    ) -> None:
        self.params = Params(params, looked_at(work.token.job))
        work.params = Params(params, work.passed_params)
        self.token = str(work.token)
        self.log = log
        self._scratch = scratch
        self._work = work
        self._is_cancelled = is_cancelled
        self._report = report
        self._warned = False

    @property
    def scratch(self) -> Path:
        """A local folder that is removed when the attempt has ended."""
        return self._scratch.folder

    @property
    def warehouse(self) -> str:
        """The address of the job's warehouse, as `published_files` takes it."""
        return self._work.files.uri("")

    @property
    def cancelled(self) -> bool:
        """True once this attempt should end: canceled, timed out, handed back or taken over.

        Poll it in long loops.
        """
        return self._is_cancelled()

    def input(self, name: str) -> Any:
        """An output of a needed group or of an earlier step, or an input of the group.

        The value is a Spark frame, and for a stream a streaming frame. With ``spark: false`` it is
        an Arrow table.

        Raises:
            InputMissing: there is none of this name.
        """
        return self._work.read(name)

    def published(self, name: str, version: int | None = None) -> Any:
        """Return a published dataset of this warehouse: a Spark frame, or else an Arrow table.

        Args:
            version: of the warehouse; None: the newest one when the job was submitted, whatever is
                published since.

        Raises:
            DatasetNotFound: it was not published then. The group fails, and is not tried again.
        """
        assert self._work.published is not None
        return self._work.frame(self._work.published.read(name, version))

    def results(self, group: str) -> Any:
        """Return the results of a needed group by key; empty if the group did not succeed.

        Of a fork it is a list, with one mapping for each member that succeeded, in their order.

        Raises:
            InputMissing: this group does not need one of this name.
        """
        return self._work.results_of(group)

    def output(self, name: str) -> OutputSlot:
        """Return the output ``name``, to ``write`` it."""
        return OutputSlot(name, self._work.write)

    def result(self, key: str, value: Any) -> None:
        """Record a small JSON value with the outcome of the attempt.

        The job shows it, and conditions (``when:``) can use it.

        Numbers and booleans of numpy and its like are taken as Python's.

        Raises:
            OutputInvalid: it is not JSON, it holds a secret, or all results together are over 64
                KiB.
        """
        results = {**self._work.results, str(key): value}
        try:
            text = json.dumps(results, allow_nan=False, default=_plain)
            kept = json.loads(text)
            json.dumps(kept, ensure_ascii=False).encode()  # half a character cannot be written down
            if _depth(kept) > MAX_DEPTH + 1:
                raise ValueError(f"more than {MAX_DEPTH} lists and mappings in one another")
        except (TypeError, ValueError, RecursionError) as error:
            raise OutputInvalid(
                f"the result {key!r} is not a JSON value: {error}. Expected: text, a finite "
                "number, true, false, none, or a list or mapping of these. Cast what it holds, as "
                "with float(), str() or list()"
            ) from error
        if secret := self._work.secrets.in_data({str(key): kept[str(key)]}):
            raise OutputInvalid(
                f"the result {key!r} holds the value of {secret}, and results are stored and "
                "shown. Record what names the secret instead"
            )
        if len(text) > MAX_RESULTS:
            raise OutputInvalid(
                f"with {key!r} the results of this attempt are over {MAX_RESULTS // 1024} KiB; "
                "write a frame instead"
            )
        self._work.results = kept

    def progress(self, done: float, total: float | None = None) -> None:
        """Show the progress of this step. Cheap: it is sent with the next lease renewal.

        Any kind of number is accepted, also of numpy, Decimal or Fraction. A total of None, at most
        0, or infinity counts as unknown. Other values are ignored, which is logged once, and never
        fail the step.
        """
        number = _number(done)
        whole = None if total is None else _number(total)
        wrong = []
        if number is None or not math.isfinite(number):
            wrong.append(f"done={_named(done)}")
        else:
            has_end = whole is not None and 0 < whole < math.inf
            self._report(number, whole if has_end else None)
        if total is not None and whole is None:
            wrong.append(f"total={_named(total)}")
        if wrong and not self._warned:
            self._warned = True
            message = (
                "ctx.progress wants numbers and got %s, which is not shown. The step goes "
                "on; this is said once"
            )
            self.log.warning(message, ", ".join(wrong))


def _number(value: Any) -> int | float | None:
    """Convert ``value`` to a Python number; None if it is no number or exceeds a float."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        try:
            number: int | float = int(operator.index(value))
        except TypeError:
            number = float(value)
        # `math.isnan` raises OverflowError for whole numbers too large for a bar.
        return None if math.isnan(number) else number
    except Exception:  # noqa: BLE001
        # A user's class may raise anything, and this must fail no step.
        return None


def _plain(value: Any) -> Any:
    """Convert a scalar of numpy, or of a similar library, to a Python value.

    Raises: TypeError: it is none.
    """
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        scalar = value.item()
        if isinstance(scalar, str | int | float):
            return scalar
    raise TypeError(f"it holds a {type(value).__qualname__}")


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


def _named(value: Any) -> str:
    return (
        repr(value)[:60] if type(value) in (str, bytes, float) else f"({type(value).__qualname__})"
    )
