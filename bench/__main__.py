"""``python -m bench``: measures Unstuck beside its peers on this machine, prints a table and writes JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.case import Case, Stage
from bench.cases import chain, wide
from bench.measure import Spread

CASES = {"a": wide.run, "b": chain.run}
ROUNDS = {"quick": 2, "full": 5}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: about two minutes")
    parser.add_argument("--cases", default=",".join(CASES), help="letters, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the figures are written")
    options = parser.parse_args()
    letters = options.cases.split(",")
    if unknown := set(letters) - set(CASES):
        parser.error(f"--cases: {', '.join(sorted(unknown))}: expected letters of {', '.join(CASES)}")

    console = Console()
    size = "quick" if options.quick else "full"
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    cases = []
    with (
        tempfile.TemporaryDirectory(prefix="unstuck-bench-") as folder,
        Progress(*columns, console=console) as progress,
    ):
        stage = Stage(Path(folder), size, options.rounds or ROUNDS[size], progress)
        try:
            for letter in letters:
                cases.append(case := CASES[letter](stage))
                console.print(table(case))
        finally:
            stage.close()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": machine(), "cases": [asdict(case) for case in cases]}, indent=1))
    console.print(f"The figures of every round are in {options.json}.")


def table(case: Case) -> Table:
    """The figures of a case for people: median (smallest to largest) of the rounds."""
    made = Table(title=f"{case.letter}. {case.name} ({case.unit})", title_justify="left")
    for column in ("", "unstuck", "peer", "", "times as fast", "CPU ms each", "peer's", "scripts each"):
        made.add_column(column, justify="left" if not column else "right")
    for pair in case.pairs:
        made.add_row(
            pair.what,
            case.figure(pair.ours).text(1),
            case.figure(pair.theirs).text(1),
            pair.peer,
            pair.ratio.text(),
            Spread.of([sample.cpu_ms for sample in pair.ours]).text(),
            Spread.of([sample.cpu_ms for sample in pair.theirs]).text(),
            Spread.of([sample.extra["scripts"] for sample in pair.ours]).text(),
        )
    return made


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cores": os.cpu_count(), "processor": platform.processor(), "python": platform.python_version()}


if __name__ == "__main__":
    main()
