"""``python -m tests.simulation --seeds 500 --start 0``; a failing seed prints its trace and how to replay it."""

from __future__ import annotations

import argparse
import sys
import time

from .history import BOUND, Verdict, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many histories")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--trace", type=int, metavar="SEED", help="replay one seed and print all of its steps")
    arguments = parser.parse_args()
    if arguments.trace is not None:
        verdict = simulate(arguments.trace, keep_all=True)
        print("\n".join(verdict.trace))
        print(f"seed {verdict.seed}: {verdict.text or f'all promises kept, jobs {verdict.statuses}'}")
        return 0 if verdict.kept else 1
    began = time.perf_counter()
    verdicts = []
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        verdict = simulate(seed)
        verdicts.append(verdict)
        if not verdict.kept:
            print(explained(verdict))
    took = time.perf_counter() - began
    broken = [verdict.seed for verdict in verdicts if not verdict.kept]
    steps, claims = sum(v.steps for v in verdicts), sum(v.claims for v in verdicts)
    commits, commands = sum(v.commits for v in verdicts), sum(v.commands for v in verdicts)
    longest = max((v.calm_for for v in verdicts if v.kept), default=0.0)
    print(
        f"{len(verdicts)} histories in {took:.1f}s: {steps:,} steps, {commits:,} commits, {claims:,} attempts, "
        f"{commands:,} commands; all jobs had ended at most {longest:.0f}s after the last trouble (bound {BOUND:.0f}s)"
    )
    if broken:
        print(f"promises were broken in {len(broken)} of them: {broken}")
    return 1 if broken else 0


def explained(verdict: Verdict) -> str:
    """What a person needs to see of a failing seed."""
    lines = "\n".join(f"    {line}" for line in verdict.trace)
    return (
        f"seed {verdict.seed} broke a promise.\n  {verdict.text}\n  The last {len(verdict.trace)} steps:\n{lines}\n"
        f"  Replay it with: python -m tests.simulation --trace {verdict.seed}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
