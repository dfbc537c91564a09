"""``python -m bench``: measures Unstuck beside its peers on this machine, prints tables and writes
JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import report
from bench.case import Case, Size, Stage
from bench.cases import (
    chain,
    floor,
    join,
    kafka,
    metrics,
    notices,
    outputs,
    recovery,
    reports,
    schedules,
    spark,
    store,
    tpch,
    wide,
)

CASES = {
    "a": wide.run,
    "b": chain.run,
    "c": join.run,
    "d": reports.run,
    "e": store.run,
    "f": spark.run,
    "g": recovery.run,
    "h": outputs.run,
    "i": tpch.run,
    "j": floor.run,
    "k": spark.submits,
    "l": kafka.run,
    "m": schedules.run,
    "n": metrics.run,
    "o": notices.run,
}
ROUNDS: dict[Size, int] = {"tiny": 1, "quick": 2, "full": 3}
LONG = "fg"  # JVMs, and kills at random moments: not in a quick run
# Minutes of JVMs, a consumer of Kafka, 20,000 files, 10,000 jobs or commits: only where asked for.
APART = "iklmno"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="one small size of each case, two rounds; not f and g"
    )
    size.add_argument(
        "--tiny",
        action="store_true",
        help="as small as can be: shows that it runs, measures nothing",
    )
    parser.add_argument("--cases", help="letters, separated by commas (default: all but i, k to o)")
    parser.add_argument(
        "--peers",
        help="peers that may be asked, separated by commas; none: ours alone (default: all)",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench.json"), help="where the figures are written"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing: print the tables of the last run"
    )
    options = parser.parse_args()
    if options.markdown:
        found = json.loads(options.json.read_text())
        print(
            report.markdown(
                found["machine"], TypeAdapter(list[Case]).validate_python(found["cases"])
            )
        )
        return
    usual = [
        letter for letter in CASES if letter not in APART and not (options.quick and letter in LONG)
    ]
    letters = options.cases.split(",") if options.cases else usual
    if unknown := set(letters) - set(CASES):
        parser.error(
            f"--cases: {', '.join(sorted(unknown))}: expected letters of {', '.join(CASES)}"
        )
    measure(letters, "tiny" if options.tiny else "quick" if options.quick else "full", options)


def measure(letters: list[str], size: Size, options: argparse.Namespace) -> None:
    console, machine = Console(), report.machine()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    peers = None if options.peers is None else frozenset(options.peers.split(","))
    cases: list[Case] = []
    options.json.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(
        tempfile.mkdtemp(prefix="unstuck-bench-")
    )  # left behind, with its logs, by a run that fails
    with Progress(*columns, console=console) as progress:
        stage = Stage(folder, size, options.rounds or ROUNDS[size], progress, peers)
        try:
            for letter in letters:
                cases.append(case := CASES[letter](stage))
                for shown in report.terminal(case):
                    console.print(shown, highlight=False)
                # After each case: a run that is ended early keeps what it has measured.
                figures = {
                    "machine": machine,
                    "size": size,
                    "cases": [asdict(case) for case in cases],
                }
                options.json.write_text(json.dumps(figures, indent=1))
        finally:
            stage.close()
    shutil.rmtree(folder)
    console.print(f"The figures of every round are in {options.json}.")


if __name__ == "__main__":
    main()
