"""The error budget of an output: the rejected rows of this run and of those before it, together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from unstuck.tasks.errors import TooManyRejectedRows
from unstuck.tasks.spec.outputs import REJECTED, Quality, runs_or_time
from unstuck.tasks.warehouse.log_entry import Entry
from unstuck.tasks.warehouse.marker import StagedOutput


def check_budget(
    name: str,
    good: StagedOutput,
    rejected: StagedOutput,
    quality: Quality,
    before: Iterable[Entry],
    judged_at: float | None = None,
) -> None:
    """Check the share of rejected rows of ``name``, where ``quality`` counts those of several runs.

    Args:
        before: the entries of the log that changed the dataset, the newest first.
        judged_at: the time as of which the rows are judged, in seconds since the epoch. Rows of
            later times do not count. None: the present.

    Raises: TooManyRejectedRows.
    """
    if quality.over is None or not rejected.rows:
        return
    loads = _earlier_loads(name, quality.over, before, judged_at)
    counted = [(good.rows, rejected.rows), *loads]
    bad = sum(part for _, part in counted)
    rows = bad + sum(part for part, _ in counted)
    if bad / rows > quality.max_rejected_ratio:
        rules = ", ".join(f"{rule} {count:,}" for rule, count in good.rejected_by.items() if count)
        by_rule = f", by rule: {rules}" if rules else ""
        raise TooManyRejectedRows(
            f"{bad:,} of {rows:,} rows of {name} were rejected in {len(counted):,} runs, this one "
            f"included ({bad / rows:.2%}; max_rejected_ratio: {quality.max_rejected_ratio:g}, "
            f"over: {quality.over}). This run has {rejected.rows:,} of "
            f"{good.rows + rejected.rows:,}{by_rule}. Mend what makes the rows, or the rules"
        )


def _earlier_loads(
    name: str, over: str, before: Iterable[Entry], judged_at: float | None
) -> Iterator[tuple[int, int]]:
    """Yield the good and rejected rows of the earlier loads that count; as `check_budget`."""
    runs, seconds = runs_or_time(over)
    first, last = time.time() - seconds, math.inf
    if judged_at is not None:
        first, last = judged_at - seconds, judged_at
    # No row of an entry belongs to a time after the entry.
    recent = takewhile(lambda entry: max(entry.at, entry.as_of) > first, before)
    earlier = (entry for entry in recent if first < entry.as_of <= last)
    yield from islice(filter(None, (_rows(name, entry) for entry in earlier)), runs - 1)


def _rows(name: str, entry: Entry) -> tuple[int, int] | None:
    """Return the good and rejected rows of a load; None if ``entry`` is none with rows."""
    change, rejected = entry.datasets[name], entry.datasets.get(f"{name}{REJECTED}")
    rows = change.rows, rejected.rows if rejected is not None else 0
    return rows if change.mode == "append" and any(rows) else None
