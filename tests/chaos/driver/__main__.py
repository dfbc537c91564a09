"""``python -m tests.chaos.driver run|recovery|loss``; exit code 0 if all held, 1 if not, 130 on
Ctrl-C.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.chaos.driver.fleet import plain


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and say how it ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.driver", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="a fleet under faults, and a ledger at the end")
    run.add_argument("--minutes", type=float, default=1.0, help="how long faults are dealt")
    run.add_argument(
        "--settle",
        type=float,
        default=180.0,
        help="seconds after which a job that has not ended is stuck",
    )
    recovery = commands.add_parser(
        "recovery", help="how fast a killed worker's and coordinator's work goes on"
    )
    recovery.add_argument(
        "--times", type=int, default=3, help="of each kill, of which the slowest counts"
    )
    loss = commands.add_parser(
        "loss", help="messages lost by our report path and by a kombu queue under SIGKILL"
    )
    loss.add_argument("--kills", type=int, default=40)
    for command in (run, recovery, loss):
        command.add_argument(
            "--seed", type=int, default=None, help="of what is done to whom; random if left out"
        )
        command.add_argument(
            "--json",
            action="store_true",
            help="the result as JSON on stdout, and nothing else there",
        )
        command.add_argument(
            "--keep", action="store_true", help="keep the folder with logs and data"
        )
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(
        signal.SIGTERM, leave
    )  # `timeout` and CI end us with it: everything is ended as by Ctrl-C
    folder = Path(tempfile.mkdtemp(prefix="unstuck-chaos-"))
    code = 1
    try:
        if chosen.command == "run":
            from tests.chaos.driver.commands.run import run as work

            code = work(folder, seed, chosen.minutes * 60, chosen.settle, as_json=chosen.json)
        elif chosen.command == "recovery":
            from tests.chaos.driver.commands.recovery import recovery as measure

            code = measure(folder, seed, chosen.times, as_json=chosen.json)
        else:
            from tests.chaos.driver.commands.loss import loss as count

            code = count(folder, seed, chosen.kills, as_json=chosen.json)
    except KeyboardInterrupt:
        code = 130
        if not chosen.json:
            plain("Interrupted; every process of the driver was ended.")
    finally:
        if code == 1 or chosen.keep:
            sys.stderr.write(f"Logs and data are kept in {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
