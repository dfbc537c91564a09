"""The figures for people: tables for a terminal, and the same tables in Markdown."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from bench.case import Case, Pair
from bench.measure import Sample, Spread
from bench.server import server_program

PAIR_COLUMNS = ("", "unstuck", "peer", "", "times as fast", "CPU ms each", "peer's", "scripts each")
FIGURE_COLUMNS = ("", "unstuck", "")


def tables(case: Case) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """The tables of a case, each with its columns and rows: median (smallest to largest) of the
    rounds.
    """
    if case.pairs:
        yield PAIR_COLUMNS, [_pair_row(case, pair) for pair in case.pairs]
    if case.figures:
        rows = [
            [figure.what, _text(Spread.of(figure.values)), figure.unit] for figure in case.figures
        ]
        yield FIGURE_COLUMNS, rows


def _pair_row(case: Case, pair: Pair) -> list[str]:
    scripts = [sample.extra["scripts"] for sample in pair.ours if "scripts" in sample.extra]
    return [
        pair.what,
        _text(case.in_unit(pair.ours)),
        _text(case.in_unit(pair.theirs)) if pair.theirs else "",
        pair.peer,
        _text(pair.ratio) if pair.theirs else "",
        _text(Spread.of([sample.cpu_ms for sample in pair.ours])),
        _text(Spread.of([sample.cpu_ms for sample in pair.theirs])) if pair.theirs else "",
        _text(Spread.of(scripts)) if scripts else "",
    ]


def _text(spread: Spread) -> str:
    """With three figures that say something, or more."""
    return spread.text(0 if abs(spread.median) >= 100 else 1 if abs(spread.median) >= 10 else 2)


def title(case: Case) -> str:
    return f"{case.letter}. {case.name}" + (f" ({case.unit})" if case.pairs else "")


def remarks(case: Case) -> list[str]:
    """Where our CPU time goes, for each size once, and what the case notes."""
    ours = {pair.what: pair.ours for pair in case.pairs}
    parts = [f"CPU ms of each, {what}: {_parts(samples)}." for what, samples in ours.items()]
    return parts + case.notes


def _parts(samples: Sequence[Sample]) -> str:
    """CPU milliseconds per unit by role, all rounds together, the largest first."""
    total: Counter[str] = Counter()
    for sample in samples:
        total.update(sample.cpu)
    units = sum(sample.units for sample in samples)
    return ", ".join(
        f"{role} {1000 * seconds / units:.2f}" for role, seconds in total.most_common()
    )


def terminal(case: Case) -> Iterator[Table | str]:
    for number, (columns, rows) in enumerate(tables(case)):
        made = Table(title=None if number else title(case), title_justify="left")
        for column in columns:
            made.add_column(column, justify="right" if column else "left")
        for row in rows:
            made.add_row(*row)
        yield made
    yield from remarks(case)


def markdown(machine: Mapping[str, Any], cases: Sequence[Case]) -> str:
    """All cases as tables of Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()) + "."]
    for case in cases:
        lines += ["", f"### {title(case)}"]
        for columns, rows in tables(case):
            lines += [
                "",
                _line(columns),
                _line(["---" if not column else "---:" for column in columns]),
            ]
            lines += [_line(row) for row in rows]
        lines += [f"\n{remark}" for remark in remarks(case)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> dict[str, Any]:
    """What the figures are measured on, and with what."""
    info = Path("/proc/cpuinfo")
    model = (
        re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if info.exists()
        else None
    )
    commit = _said("git", "rev-parse", "--short", "HEAD")
    return {
        "cores": os.cpu_count(),
        "processor": model[1] if model else platform.processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "server": " ".join(_said(server_program(), "--version").split()[:3]),
        **{name: version(name) for name in ("celery", "redis", "pyspark")},
        "commit": commit or "unknown",
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": f"{os.getloadavg()[0]:.2f} before the start",
    }
