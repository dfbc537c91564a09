"""``python -m tests.simulation --seeds 500 --start 0``; a failing seed prints its trace, shrunk,
and its replay.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from tests.simulation.model.paired import paired_stores
from tests.simulation.planted.delay_bugs import DELAY_BUGS
from tests.simulation.planted.planted_bug import MAX_SEEDS
from tests.simulation.planted.promise_bugs import PROMISE_BUGS
from tests.simulation.schedules.history import simulate_schedules
from tests.simulation.schedules.lost_run_bugs import LOST_RUN_BUGS
from tests.simulation.schedules.planted import SCHEDULE_BUGS
from tests.simulation.stage.history import BOUND, HistoryResult, simulate
from tests.simulation.stage.shrink import explained, shrink

CHUNK = 25  # histories that a process plays before it says so
PLANTED_BUGS = (*PROMISE_BUGS, *DELAY_BUGS, *SCHEDULE_BUGS, *LOST_RUN_BUGS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many histories")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many play at once"
    )
    parser.add_argument(
        "--mirror", action="store_true", help="play on the real store too, and compare every answer"
    )
    parser.add_argument(
        "--trace", type=int, metavar="SEED", help="replay one seed and print all of its steps"
    )
    parser.add_argument(
        "--shrink",
        type=int,
        metavar="SEED",
        help="replay one failing seed with as little as needed",
    )
    parser.add_argument(
        "--planted", action="store_true", help="search histories for each planted bug"
    )
    parser.add_argument(
        "--schedules", action="store_true", help="play histories of schedules, not of jobs"
    )
    arguments = parser.parse_args()
    if arguments.trace is not None:
        result = (simulate_schedules if arguments.schedules else simulate)(
            arguments.trace, keep_all=True
        )
        print("\n".join(result.trace))
        print(f"seed {result.seed}: {result.text or f'all promises kept, jobs {result.statuses}'}")
        return 0 if result.kept else 1
    if arguments.shrink is not None:
        return print_shrunk(arguments.shrink, arguments.schedules)
    if arguments.planted:
        return search_planted_bugs(arguments.start, arguments.processes)
    began = time.perf_counter()
    results = []
    histories = (
        mirrored if arguments.mirror else partial(play, history=_HISTORIES[arguments.schedules])
    )
    for result in histories(arguments.start, arguments.seeds, arguments.processes):
        results.append(result)
        if not result.kept:
            print(explained(result), flush=True)
        if len(results) % CHUNK == 0 and sys.stderr.isatty():
            print(
                f"\r{len(results)} of {arguments.seeds} histories",
                end="",
                file=sys.stderr,
                flush=True,
            )
        elif len(results) % (20 * CHUNK) == 0:
            print(f"{len(results)} of {arguments.seeds} histories", file=sys.stderr, flush=True)
    took = time.perf_counter() - began
    broken = [result.seed for result in results if not result.kept]
    for seed in broken[:3] if not arguments.mirror else ():
        print_shrunk(seed, arguments.schedules)
    print(total(results))
    print(f"took {took:.1f}s", file=sys.stderr)
    if broken:
        print(f"promises were broken in {len(broken)} of them: {broken}")
    return 1 if broken else 0


_HISTORIES: dict[bool, Callable[[int], HistoryResult]] = {False: simulate, True: simulate_schedules}


def play(
    start: int, seeds: int, processes: int, history: Callable[[int], HistoryResult] = simulate
) -> Iterator[HistoryResult]:
    """The histories in the order of their seeds, whoever plays them."""
    every = range(start, start + seeds)
    if processes < 2:
        yield from map(history, every)
        return
    with _pool(processes) as pool:
        yield from pool.map(history, every, chunksize=CHUNK)


def mirrored(start: int, seeds: int, processes: int) -> Iterator[HistoryResult]:
    """The histories, on the model and on the real store at once; in this process, whatever
    ``processes`` says.
    """
    with paired_stores() as both:
        yield from map(both.play, range(start, start + seeds))
        answers = len(both.seen)
    print(
        f"the model and the real store gave the same answers, of {answers} kinds", file=sys.stderr
    )


def search_planted_bugs(start: int, processes: int) -> int:
    """Print for each planted bug the first seed from ``start`` on that detects it, and its rule.

    Return 1 if a bug is not detected, or if its history breaks a rule without the bug.
    """
    with _pool(processes) as pool:
        searches = [pool.submit(_search, number, start) for number in range(len(PLANTED_BUGS))]
        results = [search.result() for search in searches]
    for bug, (result, _) in zip(PLANTED_BUGS, results, strict=True):
        print(f"{result:<26} {bug.name:<52} {bug.rule}")
    return 0 if all(is_detected for _, is_detected in results) else 1


def _search(number: int, start: int) -> tuple[str, bool]:
    """Return the result for a person, and whether the bug, and nothing else, was detected."""
    bug = PLANTED_BUGS[number]
    history = bug.search(start)
    if history is None:
        return f"not in {MAX_SEEDS} seeds", False
    if not bug.simulate(history.seed).kept:
        return f"seed {history.seed}, also without it", False
    return f"seed {history.seed}", True


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that play; an interrupt ends them without waiting for what is left."""
    pool = ProcessPoolExecutor(processes)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def total(results: list[HistoryResult]) -> str:
    """What was played, in one line that is the same for the same seeds."""
    steps, claims = sum(v.steps for v in results), sum(v.claims for v in results)
    commits, commands = sum(v.commits for v in results), sum(v.commands for v in results)
    faults = sum(v.faults for v in results)
    longest = max((v.fault_free_for for v in results if v.kept), default=0.0)
    return (
        f"{len(results)} histories: {steps:,} steps, {commits:,} commits, {claims:,} attempts, "
        f"{commands:,} commands, {faults:,} faults; all jobs had ended at most {longest:.0f}s "
        f"after the last trouble (bound {BOUND:.0f}s)"
    )


def print_shrunk(seed: int, schedules: bool = False) -> int:
    shrunk = shrink(seed, history=_HISTORIES[schedules])
    if shrunk is None:
        print(f"seed {seed} keeps every promise")
        return 0
    print(shrunk.explained())
    return 1


if __name__ == "__main__":
    sys.exit(main())
