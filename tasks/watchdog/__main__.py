"""Runs a watchdog in a Python of its own; its one argument is a JSON object (``watchdog``)."""

import json
import sys

from unstuck.tasks.watchdog.watchdog import run

if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
