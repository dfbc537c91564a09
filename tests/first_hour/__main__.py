"""``python -m tests.first_hour``: the commands of docs/first-hour.md and the seconds of each."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.first_hour.player import play
from tests.support.machine import SLOWNESS, slowness


def main() -> None:
    os.environ.setdefault(SLOWNESS, str(slowness()))
    with tempfile.TemporaryDirectory() as folder:
        print(play(Path(folder)).table())


if __name__ == "__main__":
    main()
